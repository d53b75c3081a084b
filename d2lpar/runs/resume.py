"""A training that can be interrupted and resumed, on other devices too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from d2lpar.errors import CheckpointError
from d2lpar.experiments import differing, settings_of
from d2lpar.records import checkpoints
from d2lpar.records.checkpoints import Checkpoint
from d2lpar.records.kinds import EPOCHS, Header, Line

log = logging.getLogger("d2lpar")

MAY_DIFFER = {"num_epochs", "threads", "resumed_at", "environment", "seeds"}


class Resumable:
    """Keep a run's record and last state; write a checkpoint every `every` epochs.

    With the path of a checkpoint, `resume`, begin where it ends. Raises
    :class:`CheckpointError` unless it is of the same settings but `num_epochs`.
    """

    def __init__(
        self,
        header: Header,
        state: Any,
        folder: Path,
        *,
        every: int | None = None,
        resume: str | None = None,
    ) -> None:
        self.state, self.folder, self.every = state, folder, every
        self.lines: list[Header | Line] = [header]
        if resume is not None:
            checkpoint = checkpoints.load(resume)
            before, epoch = checkpoint.lines[0], checkpoint.epoch
            facts = [settings_of(before), settings_of(header)]
            different = differing(facts, MAY_DIFFER)
            if checkpoint.workload != state.workload:
                different = ["workload"]
            if different:
                raise CheckpointError(
                    f"{resume}: was trained with another "
                    f"{', another '.join(different)}; give the flags of: "
                    f"{before.command}"
                )
            if epoch >= header.settings["num_epochs"]:
                raise CheckpointError(
                    f"{resume}: of epoch {epoch}; give --num-epochs {epoch + 1} or more"
                )
            self.state = type(state).restore(checkpoint.tensors, checkpoint.facts)
            settings = {**header.settings, "resumed_at": epoch}
            self.lines = [replace(header, settings=settings)]
            for line in checkpoint.lines[1:]:
                if isinstance(line, EPOCHS):
                    line = replace(line, resumed="elsewhere")
                self.lines.append(line)
        self._remember()

    def record(
        self, train: Callable[[Any, int], Iterator[Line]]
    ) -> Iterator[Header | Line]:
        """Yield the earlier lines, then what ``train(state, epochs_to_go)`` yields."""
        settings = self.lines[0].settings
        resumed = "here" if "resumed_at" in settings else None
        yield from list(self.lines)
        for line in train(self.state, settings["num_epochs"] - self.state.epoch):
            is_epoch = isinstance(line, EPOCHS)
            if is_epoch and resumed:
                line, resumed = replace(line, resumed=resumed), None
            self.lines.append(line)
            if is_epoch:  # first: every line that was seen can be resumed from
                self._remember()
                if self.every and self.state.epoch % self.every == 0:
                    self.save()
            yield line

    def _remember(self) -> None:
        state = self.state
        self.finished = Checkpoint(
            state.workload, state.facts(), tuple(self.lines), state.tensors()
        )

    def save(self) -> Path | None:
        """Write a checkpoint of the last finished epoch, or log why there is none."""
        epoch = self.finished.epoch
        try:
            return checkpoints.save(self.folder, self.finished) if epoch else None
        except OSError as error:  # a full disk must not end the training
            why = error.strerror
            log.warning("%s: %s: no checkpoint of epoch %d", error.filename, why, epoch)
            return None

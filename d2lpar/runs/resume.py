"""A training that can be interrupted and resumed, on other devices too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from d2lpar.errors import CheckpointError
from d2lpar.experiments import differing
from d2lpar.records import checkpoints, files
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
        self.finished: Checkpoint | None = None
        others = checkpoints.of_run(folder, files.run_name(header))
        self.may_save = resume is not None or not others
        if every and not self.may_save:
            raise CheckpointError(
                f"{others[-1]}: of an earlier training; continue it with --resume, "
                "delete it, or give another --out"
            )
        if resume is None:
            return
        checkpoint = checkpoints.load(resume)
        _check_agrees(checkpoint, header, state)
        self.state = type(state).restore(checkpoint.tensors, checkpoint.facts)
        settings = {**header.settings, "resumed_at": checkpoint.epoch}
        self.lines = [replace(header, settings=settings), *checkpoint.lines[1:]]
        if self.epochs_to_go == 0:
            log.warning("%s: nothing to do, it is complete", checkpoint.path)
            return
        for k, line in enumerate(self.lines):
            if isinstance(line, EPOCHS):
                self.lines[k] = replace(line, resumed="elsewhere")

    @property
    def epochs_to_go(self) -> int:
        """Return the number of epochs left of the settings' `num_epochs`."""
        return max(0, self.lines[0].settings["num_epochs"] - self.state.epoch)

    def record(self, train: Callable[[Any], Iterator[Line]]) -> Iterator[Header | Line]:
        """Yield the earlier lines, then what ``train(state)`` yields."""
        resumed = "resumed_at" in self.lines[0].settings
        yield from list(self.lines)
        self._remember()
        if self.epochs_to_go == 0:
            return
        for line in train(self.state):
            is_epoch = isinstance(line, EPOCHS)
            if resumed and is_epoch:
                line, resumed = replace(line, resumed="here"), False
            self.lines.append(line)
            if is_epoch:  # first: every line that was seen can be resumed from
                self._remember()
                if self.every and self.state.epoch % self.every == 0:
                    self.save()
            yield line

    def _remember(self) -> None:
        state = self.state
        self.finished = Checkpoint(
            state.workload, state.tensors(), state.facts(), tuple(self.lines)
        )

    def save(self) -> Path | None:
        """Write a checkpoint of the last finished epoch, or log why there is none."""
        if self.finished is None or self.finished.epoch == 0:
            return None
        if not self.may_save:
            log.warning("%s keeps the checkpoints of an earlier training", self.folder)
            return None
        try:
            return checkpoints.save(self.folder, self.finished)
        except OSError as error:  # a full disk must not end the training
            epoch, why = self.finished.epoch, error.strerror
            log.warning("%s: %s: no checkpoint of epoch %d", error.filename, why, epoch)
            return None


def _check_agrees(checkpoint: Checkpoint, header: Header, state: Any) -> None:
    """Raise :class:`CheckpointError` where a run contradicts its checkpoint."""
    before, path = checkpoint.header, checkpoint.path
    different = differing([before, header], MAY_DIFFER)
    if checkpoint.workload != state.workload:
        different = ["workload"]
    if different:
        raise CheckpointError(
            f"{path}: was trained with another {', another '.join(different)}; give "
            f"the flags of: {before.command}"
        )
    num_epochs = header.settings["num_epochs"]
    if checkpoint.epoch > num_epochs:
        raise CheckpointError(
            f"{path}: of epoch {checkpoint.epoch}, this run ends with epoch "
            f"{num_epochs}; give --num-epochs {checkpoint.epoch} or more"
        )

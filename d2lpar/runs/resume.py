"""A training that can be interrupted and resumed, on other devices too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from d2lpar.errors import CheckpointError
from d2lpar.records import checkpoints, files, kinds
from d2lpar.records.checkpoints import Checkpoint
from d2lpar.records.kinds import Header, Line

log = logging.getLogger("d2lpar")


class Resumable:
    """Keep a run's record and last state; write a checkpoint every `every` epochs."""

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
        self.lines: list[Line] = [header]
        self.finished: Checkpoint | None = None
        run = files.run_name(header)
        others = checkpoints.of_run(folder, run) if resume is None else []
        self.may_save = not others
        if others and every:
            raise CheckpointError(
                f"{others[-1]}: of an earlier training; continue it with --resume "
                "last, delete it, or give another --out"
            )
        if resume is None:
            return
        if resume == "last":
            checkpoint = checkpoints.newest(folder, run, state)
        else:
            checkpoint = checkpoints.load(resume, state)
        _check_agrees(checkpoint, header)
        self.state = checkpoint.restore(state)
        settings = {**header.settings, "resumed_at": checkpoint.epoch}
        self.lines = [replace(header, settings=settings), *checkpoint.lines[1:]]
        if self.epochs_to_go == 0:
            log.warning("%s: nothing to do, it is complete", checkpoint.path)
            return
        for k, line in enumerate(self.lines):
            if isinstance(line, kinds.EPOCHS):
                self.lines[k] = replace(line, resumed="elsewhere")

    @property
    def epochs_to_go(self) -> int:
        """Return the number of epochs left of the settings' `num_epochs`."""
        return max(0, self.lines[0].settings["num_epochs"] - self.state.epoch)

    def record(self, train: Callable[[Any], Iterator[Line]]) -> Iterator[Line]:
        """Yield the earlier lines, then what ``train(state)`` yields."""
        resumed = "resumed_at" in self.lines[0].settings
        yield from list(self.lines)
        self._remember()
        if self.epochs_to_go == 0:  # read from its checkpoint, or from worker 0
            return
        for line in train(self.state):
            is_epoch = isinstance(line, kinds.EPOCHS)
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


def _check_agrees(checkpoint: Checkpoint, header: Header) -> None:
    """Raise :class:`CheckpointError` where a run contradicts its checkpoint."""
    before, path = checkpoint.header, checkpoint.path
    then, now = (
        f"seed {h.seed} on {h.settings.get('n_train', '?')} of {h.dataset} "
        f"(SHA-256 {h.dataset_sha256[:16]}...)"
        for h in (before, header)
    )
    if then != now:
        raise CheckpointError(
            f"{path}: trained with {then}, this run has {now}; give the flags of: "
            f"{before.command}"
        )
    num_epochs = header.settings["num_epochs"]
    if checkpoint.epoch > num_epochs:
        raise CheckpointError(
            f"{path}: of epoch {checkpoint.epoch}, this run ends with epoch "
            f"{num_epochs}; give --num-epochs {checkpoint.epoch} or more"
        )
    may_differ = {"num_epochs", "threads"}
    if header.settings.get("same_bits"):
        may_differ.remove("threads")  # the bits depend on them
    different = [
        f"{name} {before.settings[name]}"
        for name, value in header.settings.items()
        if name not in may_differ and before.settings.get(name, value) != value
    ]
    if different:  # a worker's flags, which were not completed by the checkpoint
        raise CheckpointError(
            f"{path}: trained with {', '.join(different)}; give the flags of: "
            f"{before.command}"
        )

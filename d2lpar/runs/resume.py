"""A training that can be interrupted and resumed, on other devices too.

What the workload yields passes through. After every epoch the state is remembered; it
is written as a checkpoint every so many epochs, and when the training is interrupted.
Resumed on the same devices, a training ends with the same bits as without interruption.
"""

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
    """A run's record from its first line to its last, and its last finished epoch.

    `state` is the workload's before the first epoch. Checkpoints go to `folder`, one
    every `every` epochs (None: only :meth:`save` writes one). `resume` is the path of a
    checkpoint to continue from, "last", or None. Raises
    :class:`~d2lpar.errors.CheckpointError` for a checkpoint that does not fit, and
    where checkpoints of another training under the same name would be replaced.
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
        self.lines: list[Line] = [header]
        self.snapshot: Checkpoint | None = None
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
        else:  # whatever timed them
            self.lines[1:] = [
                replace(line, resumed="elsewhere")
                if isinstance(line, kinds.EPOCHS)
                else line
                for line in self.lines[1:]
            ]

    @property
    def epochs_to_go(self) -> int:
        """How many of the settings' `num_epochs` are still to be trained."""
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
            if is_epoch:  # snapshot first: every line that was seen can be resumed from
                self._remember()
                if self.every and self.state.epoch % self.every == 0:
                    self._save_if_possible()
            yield line

    def _save_if_possible(self) -> None:
        try:
            self.save()
        except OSError as error:  # a full disk must not end the training
            log.warning(
                "no checkpoint of epoch %d in %s (%s): going on without",
                self.state.epoch,
                self.folder,
                error.strerror or error,
            )

    def _remember(self) -> None:
        self.snapshot = Checkpoint(
            self.state.workload,
            self.state.tensors(),
            self.state.facts(),
            tuple(self.lines),
        )

    def save(self) -> Path | None:
        """Write a checkpoint of the last finished epoch; None if there is none yet.

        None, too, where an earlier training has left one under the same name.
        """
        if self.snapshot is None or self.snapshot.epoch == 0 or not self.may_save:
            return None
        return checkpoints.save(self.folder, self.snapshot)


def _check_agrees(checkpoint: Checkpoint, header: Header) -> None:
    """Raise :class:`CheckpointError` where a run contradicts its checkpoint."""
    before, path = checkpoint.header, checkpoint.path
    for what, then, now, remedy in (
        ("seed", before.seed, header.seed, f"--seed {before.seed}"),
        ("data", _data(before), _data(header), f"the flags of: {before.command}"),
    ):
        if then != now:
            raise CheckpointError(
                f"{path}: trained with {what} {then}, this run has {now}; give {remedy}"
            )
    num_epochs = header.settings["num_epochs"]
    if checkpoint.epoch > num_epochs:
        raise CheckpointError(
            f"{path}: of epoch {checkpoint.epoch}, this run ends with epoch "
            f"{num_epochs}; give --num-epochs {checkpoint.epoch} or more"
        )
    for name, now in header.settings.items():  # those of the flags are in force
        then = before.settings.get(name, now)
        if name != "num_epochs" and then != now:
            log.warning(
                "%s: resuming with %s %s (checkpoint: %s)", path, name, now, then
            )


def _data(header: Header) -> str:
    n = header.settings.get("n_train", "?")
    return f"{n} of {header.dataset} (SHA-256 {header.dataset_sha256[:16]}...)"

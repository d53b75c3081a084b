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

from msgspec.structs import asdict, replace

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
    :class:`~d2lpar.errors.CheckpointError` for a checkpoint that does not fit.

    `earlier` are the checkpoints of an earlier training under the same name. Before the
    first checkpoint of this one is written they are renamed, so that "last" finds those
    of this one only; when this one is complete they are deleted.
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
        self.resumed_from: Path | None = None
        self.earlier = checkpoints.of_run(folder, files.run_name(header))
        self.has_saved = False
        if resume is None:
            return
        if resume == "last":
            run = files.run_name(header)
            checkpoint = checkpoints.newest(self.folder, run, self.state)
        else:
            checkpoint = checkpoints.load(resume, self.state)
        path, before = checkpoint.path, checkpoint.header
        _check_agrees(checkpoint, header)
        for name, now in header.settings.items():  # those of the flags are in force
            then = before.settings.get(name, now)
            if name != "num_epochs" and then != now:
                log.warning(
                    "%s: resuming with %s %s (checkpoint: %s)", path, name, now, then
                )
        self.resumed_from, self.state = path, checkpoint.restore(self.state)
        own = [p.resolve() for p in self.earlier]
        if path.resolve() in own:
            self.earlier = self.earlier[own.index(path.resolve()) + 1 :]
        settings = {**header.settings, "resumed_at": checkpoint.epoch}
        earlier = _as_timed_here(checkpoint, header)
        self.lines = [replace(header, settings=settings), *earlier]

    def warn_of_earlier(self) -> None:
        """Warn that this training replaces the checkpoints of an earlier one."""
        if self.every and self.earlier:
            log.warning(
                "%s: checkpoints up to epoch %d are here and will be deleted when this "
                "run is complete: --resume last continues from them, another --out "
                "keeps them",
                self.folder,
                checkpoints.epoch_of(self.earlier[-1]),
            )

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
            if resumed:
                log.warning("%s: nothing to do, it is complete", self.resumed_from)
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
        if self.has_saved and self.epochs_to_go == 0:
            checkpoints.remove_set_aside(self.folder, self._run_name)

    @property
    def _run_name(self) -> str:
        return files.run_name(self.lines[0])

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
        """Write a checkpoint of the last finished epoch; None if there is none yet."""
        if self.snapshot is None or self.snapshot.epoch == 0:
            return None
        if not self.has_saved:
            self.earlier = checkpoints.set_aside(self._run_name, self.earlier)
        path = checkpoints.save(self.folder, self.snapshot)
        self.has_saved = True
        return path


# Header fields and settings that do not affect timing.
_TIMING_INDEPENDENT = (
    "preset",
    "seed",
    "command",
    "date",
    "git_commit",
    "git_dirty",
    "num_epochs",
    "resumed_at",
)


def _check_agrees(checkpoint: Checkpoint, header: Header) -> None:
    """Raise :class:`CheckpointError` where a run contradicts its checkpoint."""
    before, num_epochs = checkpoint.header, header.settings["num_epochs"]
    as_before = f"the flags of: {before.command}"
    sizes = [
        (name, before.settings.get(name, now), now, as_before)
        for name, now in header.settings.items()
        if name in ("n_train", "n_test")
    ]
    for what, then, now, remedy in (
        ("seed", before.seed, header.seed, f"--seed {before.seed}"),
        *sizes,
        ("data", _data(before), _data(header), as_before),
    ):
        if then != now:
            raise CheckpointError(
                f"{checkpoint.path}: trained with {what} {then}, this run has {now}; "
                f"give {remedy}"
            )
    if checkpoint.epoch > num_epochs:
        raise CheckpointError(
            f"{checkpoint.path}: of epoch {checkpoint.epoch}, this run ends with epoch "
            f"{num_epochs}; give --num-epochs {checkpoint.epoch} or more"
        )


def _data(header: Header) -> str:
    return f"{header.dataset} (SHA-256 {header.dataset_sha256[:16]}...)"


def _as_timed_here(checkpoint: Checkpoint, header: Header) -> list[Line]:
    """The checkpoint's lines; its epochs' times count under the same conditions only.

    Raises :class:`CheckpointError` if none would count, nor any to come.
    """
    path, lines = checkpoint.path, list(checkpoint.lines[1:])
    before, now = _conditions(checkpoint.header), _conditions(header)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if not names:
        return lines
    others = f"other {', '.join(names)}"
    if checkpoint.epoch == header.settings["num_epochs"]:
        raise CheckpointError(
            f"{path}: complete, with {others}; nothing is left to measure here: give "
            f"--num-epochs {checkpoint.epoch + 1} or more"
        )
    log.warning("%s: its epochs do not count in the timing (%s)", path, others)
    return [
        replace(line, resumed="elsewhere") if isinstance(line, kinds.EPOCHS) else line
        for line in lines
    ]


def _conditions(header: Header) -> dict:
    """What an epoch's time depends on, by name: settings, chapter, hardware, ..."""
    values = asdict(header)
    values.update(values.pop("settings"), profiled=header.preset.endswith("-profile"))
    return {name: v for name, v in values.items() if name not in _TIMING_INDEPENDENT}

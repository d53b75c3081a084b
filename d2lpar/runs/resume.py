"""A training that can be left and taken up again, on other devices too.

What the workload yields passes through; after every epoch the state is remembered, and
written as a checkpoint when it is time to, or when the run is interrupted. Taken up on
the same devices, a training ends with the bits that it would have had.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from d2lpar.errors import CheckpointError
from d2lpar.records import checkpoints, files, kinds
from d2lpar.records.checkpoints import Checkpoint
from d2lpar.records.kinds import Header, Line

log = logging.getLogger("d2lpar")


class Resumable:
    """A run's record from its first line to its last, and its last finished epoch.

    `state` is the workload's before the first epoch; `folder` is where checkpoints go,
    one every `every` epochs (None: only :meth:`save` writes one). `resume` is the path
    of a checkpoint to go on from, "last", or None. Raises
    :class:`~d2lpar.errors.CheckpointError` for one that cannot be gone on from.
    """

    def __init__(
        self,
        header: Header,
        state: Any,
        folder: Path,
        every: int | None = None,
        resume: str | None = None,
    ) -> None:
        self.state, self.folder, self.every = state, folder, every
        self.lines: list[Line] = [header]
        self.snapshot: Checkpoint | None = None
        self.taken_up: Path | None = None
        if resume is not None:
            self._take_up(resume)

    def _take_up(self, resume: str) -> None:
        (header,) = self.lines
        if resume == "last":
            run = files.run_name(header)
            found = checkpoints.newest(self.folder, run, self.state)
        else:
            found = checkpoints.load(resume, self.state)
        if found.header.dataset_sha256 != header.dataset_sha256:
            raise CheckpointError(
                f"{found.path}: trained on other data ({found.header.dataset}) than "
                f"these ({header.dataset}): give --data and --seed as it had them"
            )
        _name_changes(found, header)
        self.taken_up = found.path
        self.state = type(self.state).restore(found.tensors, found.facts)
        settings = {**header.settings, "resumed_at": found.epoch}
        moved = (header.devices, header.cpu_model) != (
            found.header.devices,
            found.header.cpu_model,
        )
        earlier = [
            replace(line, resumed="elsewhere")
            if moved and isinstance(line, kinds.EPOCHS)
            else line
            for line in found.lines[1:]
        ]
        self.lines = [replace(header, settings=settings), *earlier]

    @property
    def epochs_to_go(self) -> int:
        """How many of the settings' `num_epochs` are still to be trained."""
        return max(0, self.lines[0].settings["num_epochs"] - self.state.epoch)

    def record(self, train: Callable[[Any], Iterator[Line]]) -> Iterator[Line]:
        """Yield the earlier lines, then what ``train(state)`` yields."""
        resumed = "resumed_at" in self.lines[0].settings
        yield from list(self.lines)
        self._remember()
        if self.epochs_to_go == 0:  # or it follows a worker of which that is true
            if resumed:
                log.warning("%s: was complete", self.taken_up)
            return
        for line in train(self.state):
            if resumed and isinstance(line, kinds.EPOCHS):
                line, resumed = replace(line, resumed="here"), False
            self.lines.append(line)
            yield line
            if isinstance(line, kinds.EPOCHS):
                self._remember()
                if self.every and self.state.epoch % self.every == 0:
                    self._save_or_go_on()

    def _remember(self) -> None:
        self.snapshot = Checkpoint(
            self.state.workload,
            self.state.tensors(),
            self.state.facts(),
            tuple(self.lines),
        )

    def _save_or_go_on(self) -> None:
        """A full disk is no reason to lose the training as well."""
        try:
            self.save()
        except OSError as error:
            log.warning(
                "no checkpoint of epoch %d in %s (%s): going on without",
                self.state.epoch, self.folder, error.strerror or error,
            )  # fmt: skip

    def save(self) -> Path | None:
        """Write the last finished epoch; None where there is none yet."""
        if self.snapshot is None or self.snapshot.epoch == 0:
            return None
        return checkpoints.save(self.folder, self.snapshot)


def _name_changes(found: Checkpoint, header: Header) -> None:
    """Log which settings are other than before: the flags given now are in force."""
    for name, now in header.settings.items():
        before = found.header.settings.get(name, now)
        if name != "num_epochs" and before != now:
            log.warning(
                "%s: goes on with %s %s, before %s", found.path, name, now, before
            )

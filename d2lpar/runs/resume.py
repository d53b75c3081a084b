"""A training that can be interrupted and resumed, on other devices too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from d2lpar.errors import CheckpointError, raising_interrupts
from d2lpar.experiments import differing, settings_of
from d2lpar.records import checkpoints
from d2lpar.records.checkpoints import Checkpoint
from d2lpar.records.kinds import EPOCHS, Header, Line

log = logging.getLogger("d2lpar")

MAY_DIFFER = {"num_epochs", "threads", "resumed_at", "environment", "seeds"}


def resumable(
    header: Header,
    state: Any,
    train: Callable[..., Iterator[Line]],
    folder: Path | None,
    every: int | None = None,
    resume: str | None = None,
) -> Generator[Header | Line, None, None]:
    """Yield the record of ``train(state=..., num_epochs=...)``.

    Checkpoints go to the folder, if any: every `every` epochs, and at an interrupt that
    of the last finished epoch. With the path of one, `resume`, begin where it ends.
    Raises :class:`CheckpointError` if it is of other settings than these, but
    `num_epochs`.
    """
    lines, resumed = [header], None
    if resume is not None:
        state, lines = _restored(resume, header, state)
        resumed = "here"
    to_go = header.settings["num_epochs"] - state.epoch
    finished = None
    with raising_interrupts():
        try:
            yield from lines
            for line in train(state=state, num_epochs=to_go):
                if isinstance(line, EPOCHS) and resumed:
                    line, resumed = replace(line, resumed=resumed), None
                lines.append(line)
                if isinstance(line, EPOCHS):  # that was seen can be resumed from
                    finished = Checkpoint(
                        state.workload, state.facts(), tuple(lines), state.tensors()
                    )
                    if folder and every and state.epoch % every == 0:
                        checkpoints.save(folder, finished)
                yield line
        except KeyboardInterrupt:
            if finished and folder and (path := checkpoints.save(folder, finished)):
                log.warning("saved; continue with the same flags and --resume=%s", path)
            raise


def _restored(path: str, header: Header, state: Any) -> tuple[Any, list]:
    """Return the later state in a checkpoint; the record so far under a new header."""
    checkpoint = checkpoints.load(path)
    before, *lines = checkpoint.lines
    different = differing([settings_of(before), settings_of(header)], MAY_DIFFER)
    if checkpoint.workload != state.workload:
        different = ["workload"]
    if different:
        raise CheckpointError(
            f"{path}: was trained with another {', another '.join(different)}; give "
            f"the flags of: {before.command}"
        )
    epoch = checkpoint.epoch
    if epoch >= header.settings["num_epochs"]:
        raise CheckpointError(
            f"{path}: of epoch {epoch}; give --num-epochs {epoch + 1} or more"
        )
    header = replace(header, settings={**header.settings, "resumed_at": epoch})
    lines = [
        replace(line, resumed="elsewhere") if isinstance(line, EPOCHS) else line
        for line in lines
    ]
    return state.restored(checkpoint.tensors, checkpoint.facts), [header, *lines]

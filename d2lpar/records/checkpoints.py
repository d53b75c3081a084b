"""A training's state on disk: written whole or not at all, loaded without running code.

A checkpoint is a safetensors file. It holds the state's arrays and, as text in its
header, the rest of the state (epoch, seed), the lines of the run's record so far, and a
hash of everything. It is written to a temporary name, synced and renamed: a
file under its final name is complete. The last two of a run are kept.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy

from d2lpar.errors import CheckpointError, RecordError, first_line
from d2lpar.records import files
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import EPOCHS, Header, Line, Name, Whole

log = logging.getLogger("d2lpar")

FORMAT = 2  # 1, of 0.2, held the state of a random generator
KEEP = 2  # checkpoints per run
ENDING = ".safetensors"


class _Content(msgspec.Struct):
    """The JSON text in the header."""

    format: int
    workload: Name
    facts: dict[str, Whole]
    lines: list[str]


@dataclass(frozen=True)
class Checkpoint:
    """A state after a finished epoch (see :class:`d2lpar.lenet.TrainingState`).

    `lines` are those of the run's record so far, from its header.
    """

    workload: str
    tensors: dict[str, numpy.ndarray]
    facts: dict
    lines: tuple[Line, ...]
    path: Path | None = None

    @property
    def header(self) -> Header:
        return self.lines[0]

    @property
    def epoch(self) -> int:
        return self.facts["epoch"]

    def restore(self, like: Any) -> Any:
        """The state, of the class of a state `like`.

        Raises :class:`CheckpointError` if the facts are not those of such a state.
        """
        try:
            return type(like).restore(self.tensors, self.facts)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            why = first_line(error)[:100]
            raise CheckpointError(
                f"{self.path}: its state cannot be restored ({why}); use another one"
            ) from None


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint as ``<run>.epoch<epoch>.safetensors``; return its path.

    Of the run's checkpoints of earlier epochs only the one before is kept. Those of an
    earlier training under the same name are to be set aside first. Raises OSError when
    the file cannot be written; the earlier ones are then as they were.
    """
    from safetensors.numpy import save as to_bytes

    tensors = {k: numpy.ascontiguousarray(a) for k, a in checkpoint.tensors.items()}
    lines = [files.to_line(line) for line in checkpoint.lines]
    content = _Content(FORMAT, checkpoint.workload, checkpoint.facts, lines)
    text = msgspec.json.encode(content).decode()
    file = to_bytes(tensors, {"d2lpar": text, "sha256": _digest(text, tensors)})
    run = files.run_name(checkpoint.header)
    path = folder / f"{run}.epoch{checkpoint.epoch:06d}{ENDING}"
    with replacing(path) as tmp, open(tmp, "wb") as f:
        f.write(file)
        f.flush()
        os.fsync(f.fileno())
    existing = of_run(folder, run)
    end = existing.index(path) + 1
    cut_short = folder.glob(f".{run}.epoch*{ENDING}")  # by a kill while it was written
    for other in (*existing[: max(0, end - KEEP)], *cut_short):
        other.unlink(missing_ok=True)
    return path


def of_run(folder: Path, run: str) -> list[Path]:
    """The checkpoints of a run in a folder, by ascending epoch."""
    return sorted(folder.glob(f"{run}.epoch*{ENDING}"))


def epoch_of(path: Path) -> int:
    """The epoch in the name of a checkpoint.

    >>> epoch_of(Path("quick-cpu2.epoch000012.safetensors"))
    12
    """
    return int(path.stem.rpartition("epoch")[2])


def set_aside(run: str, paths: Sequence[Path]) -> list[Path]:
    """Rename checkpoints of a run to ``<run>.earlier<n>.epoch<epoch>.safetensors``.

    They belong to an earlier training under the same name. Under their own names they
    would pass for checkpoints of the present one. Returns their new paths.
    """
    kept = []
    for path in filter(Path.exists, paths):
        epoch = path.name[len(run) :]
        names = (f"{run}.earlier{n}{epoch}" for n in itertools.count(1))
        free = next(path.with_name(n) for n in names if not path.with_name(n).exists())
        kept.append(path.rename(free))
    return kept


def remove_set_aside(folder: Path, run: str) -> None:
    """Delete what :func:`set_aside` has renamed in a folder."""
    for path in folder.glob(f"{run}.earlier*.epoch*{ENDING}"):
        path.unlink(missing_ok=True)


def load(path: str | Path, like: Any = None) -> Checkpoint:
    """Read a checkpoint; it must be of the workload and network of a state `like`.

    Raises :class:`CheckpointError` for a file that cannot be read, is truncated or
    altered, is not a checkpoint of ours, is of a later format, or holds another
    network.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        path.open("rb").close()  # raises the system's own error, which says more
        with safe_open(path, framework="np") as f:
            metadata = f.metadata() or {}
            if "d2lpar" not in metadata:
                raise CheckpointError(
                    f"{path}: not a checkpoint of d2lpar; use another file"
                )
            tensors = {name: f.get_tensor(name) for name in f.keys()}
    # The last two are raised for types of numbers that NumPy does not have.
    except (SafetensorError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: not a checkpoint, or truncated ({error}); use another one"
        ) from None
    except MemoryError:
        raise CheckpointError(f"{path}: does not fit in the free memory") from None
    except OSError as error:
        reason = error.strerror or "empty?"
        raise CheckpointError(f"{path}: cannot be read ({reason})") from None
    try:
        content = _content(metadata, tensors)
        if like is not None:
            _check_fits(content.workload, tensors, like)
        lines = _record(content.lines, content.facts["epoch"])
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return Checkpoint(content.workload, tensors, content.facts, lines, path)


def _content(metadata: dict, tensors: dict) -> _Content:
    """What the header says besides the arrays, after all checks of the file itself."""
    if metadata.get("sha256") != _digest(metadata["d2lpar"], tensors):
        raise CheckpointError("altered since it was written; use another one")
    try:
        content = msgspec.json.decode(metadata["d2lpar"], type=_Content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointError(
            f"its header cannot be read ({error}); use another one"
        ) from None
    if content.format != FORMAT:
        raise CheckpointError(
            f"of format {content.format}, this d2lpar reads {FORMAT}; train again"
        )
    if content.facts.get("epoch", 0) < 1:
        raise CheckpointError("of no epoch; use another one")
    return content


def _record(texts: list[str], epoch: int) -> tuple[Line, ...]:
    """The record so far, from its header to the line of an `epoch`."""
    lines: list[Line] = []
    try:
        for text in texts:
            line = files.from_line(text)
            files.check_follows(lines, line)
            lines.append(line)
    except RecordError as error:
        raise CheckpointError(f"line {len(lines) + 1} of its record: {error}") from None
    if not lines or not isinstance(lines[0], Header):
        raise CheckpointError("its record is not that of a training; use another one")
    held = next((x.epoch for x in reversed(lines) if isinstance(x, EPOCHS)), 0)
    if held != epoch:
        raise CheckpointError(
            f"of epoch {epoch}, but its record ends with epoch {held}; use another one"
        )
    return tuple(lines)


def _check_fits(workload: str, tensors: dict, like: Any) -> None:
    if workload != like.workload:
        raise CheckpointError(
            f"a checkpoint of workload {workload}, not of {like.workload}"
        )
    expected, stored = (
        {name: (a.shape, str(a.dtype)) for name, a in arrays.items()}
        for arrays in (like.tensors(), tensors)
    )
    for name in {**expected, **stored}:
        if expected.get(name) != stored.get(name):
            raise CheckpointError(
                f"of another network ({name!r:.60} is {stored.get(name, 'absent')}, "
                f"here {expected.get(name, 'absent')})"
            )


def newest(folder: Path, run: str, like: Any) -> Checkpoint:
    """The newest good checkpoint of a run; damaged ones are skipped with a warning.

    A run without checkpoints takes the newest of the other runs in the chapter's
    folder: it may have begun on another number of devices. Raises
    :class:`CheckpointError` when there is none at all.
    """
    own = of_run(folder, run)[::-1]
    files_there = (p for p in folder.glob(f"[!.]*{ENDING}") if p.is_file())
    others = sorted(files_there, key=lambda p: -p.stat().st_mtime)
    for path in own or others:
        try:
            checkpoint = load(path, like)
        except CheckpointError as error:
            log.warning("%s; trying the one before", error)
            continue
        if not own:
            log.warning("%s has no checkpoint: continuing from %s", run, path)
        return checkpoint
    raise CheckpointError(
        f"--resume last: no good checkpoint in {folder}; run with --checkpoint-every"
    )


def _digest(text: str, tensors: dict[str, numpy.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()

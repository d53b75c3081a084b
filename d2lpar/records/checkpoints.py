"""A training's state on disk: a safetensors file, which is loaded without running code.

Its header has the rest of the state (epoch, seed) and the record's lines so far.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy

from d2lpar.errors import CheckpointError, RecordError, first_line
from d2lpar.records import files
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import EPOCHS, HEADERS, Header, Line

log = logging.getLogger("d2lpar")

FORMAT = 2
KEEP = 2  # checkpoints per run


class _Content(msgspec.Struct):
    """The fields of a checkpoint's JSON text, in the file's header."""

    format: Literal[2]
    workload: str
    facts: dict[str, int]
    lines: list[str]


@dataclass(frozen=True)
class Checkpoint:
    """Hold the state after a finished epoch, and the run's record so far."""

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
        """Return the state, of the class of a state `like`."""
        try:
            return type(like).restore(self.tensors, self.facts)
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}: not a checkpoint of d2lpar ({first_line(error)[:100]})"
            ) from None


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``<run>.epoch<epoch>.safetensors``; keep one older. Return the path."""
    from safetensors.numpy import save as to_bytes

    tensors = {k: numpy.ascontiguousarray(a) for k, a in checkpoint.tensors.items()}
    lines = [files.to_line(line) for line in checkpoint.lines]
    content = _Content(FORMAT, checkpoint.workload, checkpoint.facts, lines)
    run = files.run_name(checkpoint.header)
    path = folder / f"{run}.epoch{checkpoint.epoch:06d}.safetensors"
    with replacing(path) as tmp, open(tmp, "wb") as f:
        f.write(to_bytes(tensors, {"d2lpar": msgspec.json.encode(content).decode()}))
        f.flush()
        os.fsync(f.fileno())
    existing = of_run(folder, run)
    for earlier in existing[: max(0, existing.index(path) + 1 - KEEP)]:
        earlier.unlink(missing_ok=True)
    return path


def of_run(folder: Path, run: str) -> list[Path]:
    """Return the checkpoints of a run in a folder by epoch, without renamed copies."""
    name = re.compile(rf"{re.escape(run)}\.epoch\d{{6,}}\.safetensors")
    return sorted(p for p in folder.glob("*.safetensors") if name.fullmatch(p.name))


def load(path: str | Path, like: Any = None) -> Checkpoint:
    """Read a checkpoint; it must be of the workload and network of a state `like`."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe would wait for a writer
        raise CheckpointError(f"{path}: not a regular file; name a checkpoint")
    try:
        with safe_open(path, framework="np") as f:
            text = (f.metadata() or {})["d2lpar"]
            tensors = {name: f.get_tensor(name) for name in f.keys()}
        content = msgspec.json.decode(text, type=_Content)
        lines = tuple(files.from_line(line) for line in content.lines)
    except OSError as error:
        why = error.strerror or first_line(error)
        raise CheckpointError(f"{path}: cannot be read ({why})") from None
    except (SafetensorError, msgspec.MsgspecError, RecordError, KeyError) as error:
        raise CheckpointError(
            f"{path}: not a checkpoint of d2lpar, or truncated "
            f"({first_line(error)[:100]}); use another one"
        ) from None
    checkpoint = Checkpoint(content.workload, tensors, content.facts, lines, path)
    _check_content(checkpoint)
    if like is not None:
        _check_fits(checkpoint, like)
    return checkpoint


def _check_content(checkpoint: Checkpoint) -> None:
    """Raise :class:`CheckpointError` unless the facts are those of the lines."""
    lines, facts = checkpoint.lines, checkpoint.facts
    epochs = [line.epoch for line in lines if isinstance(line, EPOCHS)]
    if not isinstance(next(iter(lines), None), Header):
        found = "its lines do not begin with a header"
    elif any(isinstance(line, HEADERS) for line in lines[1:]):
        found = "it has several headers"
    elif not all(facts.get(name, -1) >= 0 for name in ("epoch", "seed")):
        found = f"epoch or seed is missing or negative: {str(facts)[:60]}"
    elif epochs != sorted({*epochs}) or epochs[-1:] != [checkpoint.epoch]:
        found = f"its lines are not of the epochs up to {checkpoint.epoch}"
    else:
        return
    raise CheckpointError(f"{checkpoint.path}: not a checkpoint of d2lpar ({found})")


def _check_fits(checkpoint: Checkpoint, like: Any) -> None:
    if checkpoint.workload != like.workload:
        raise CheckpointError(
            f"{checkpoint.path}: a checkpoint of workload {checkpoint.workload}, not "
            f"of {like.workload}"
        )
    tensors = checkpoint.tensors, like.tensors()
    for name in {**tensors[1], **tensors[0]}:
        found, wanted = (
            (of[name].shape, str(of[name].dtype)) if name in of else "absent"
            for of in tensors
        )
        if found != wanted:
            raise CheckpointError(
                f"{checkpoint.path}: of another network ({name!r:.60} is {found}, here "
                f"{wanted})"
            )


def newest(folder: Path, run: str, like: Any = None) -> Checkpoint:
    """Return the newest good checkpoint of a run, or else of any in the folder."""
    own = of_run(folder, run)[::-1]
    others = [path for path in folder.glob("[!.]*.safetensors") if path.is_file()]
    for path in own or sorted(others, key=lambda path: -path.stat().st_mtime):
        try:
            checkpoint = load(path, like)
        except CheckpointError as error:
            log.warning("%s; trying the checkpoint before it", error)
            continue
        if not own:
            log.warning("%s has no checkpoint: continuing from %s", run, path)
        return checkpoint
    raise CheckpointError(
        f"--resume last: no good checkpoint in {folder}; run with --checkpoint-every"
    )

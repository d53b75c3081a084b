"""A training's state on disk: a safetensors file, which is loaded without running code.

Its header has the rest of the state (epoch, seed) and the record's lines so far.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy

from d2lpar.errors import CheckpointError, first_line
from d2lpar.records import files
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import AnyLine, Header, Line

KEEP = 2  # checkpoints per run


class _Content(msgspec.Struct):
    """The JSON text in the file's header."""

    workload: str
    facts: dict[str, int]
    lines: tuple[AnyLine, ...]


@dataclass(frozen=True)
class Checkpoint:
    """Hold the state after a finished epoch, and the run's record so far."""

    workload: str
    tensors: dict[str, numpy.ndarray]
    facts: dict
    lines: tuple[Header | Line, ...]
    path: Path | None = None

    @property
    def header(self) -> Header:
        return self.lines[0]

    @property
    def epoch(self) -> int:
        return self.facts["epoch"]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``<run>.epoch<epoch>.safetensors``; keep one older. Return the path."""
    from safetensors.numpy import save as to_bytes

    tensors = {k: numpy.ascontiguousarray(a) for k, a in checkpoint.tensors.items()}
    content = _Content(checkpoint.workload, checkpoint.facts, checkpoint.lines)
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
    return sorted(folder.glob(f"{run}.epoch{6 * '[0-9]'}.safetensors"))


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint; raise :class:`CheckpointError` for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as f:
            text = (f.metadata() or {})["d2lpar"]
            tensors = {name: f.get_tensor(name) for name in f.keys()}
        content = msgspec.json.decode(text, type=_Content)
    except OSError as error:
        why = error.strerror or first_line(error)
        raise CheckpointError(f"{str(path)!r}: cannot be read ({why})") from None
    except (SafetensorError, msgspec.MsgspecError, KeyError) as error:
        raise CheckpointError(
            f"{path}: not a checkpoint of d2lpar, or truncated "
            f"({first_line(error)[:100]}); use another one"
        ) from None
    return Checkpoint(
        content.workload, tensors, content.facts, content.lines, Path(path)
    )

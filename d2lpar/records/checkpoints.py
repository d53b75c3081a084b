"""A training's state on disk: a safetensors file, which is loaded without running code.

Its header has the rest of the state (epoch, seed) and the record's lines so far.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy
from msgspec.structs import replace

from d2lpar.errors import CheckpointError, first_line
from d2lpar.records import files
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import AnyLine

log = logging.getLogger("d2lpar")

KEEP = 2  # checkpoints per run


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the state after a finished epoch, and the run's record so far."""

    workload: str
    facts: dict[str, int]
    lines: tuple[AnyLine, ...]
    tensors: Any = {}  # by name; the others are JSON in the file's header

    @property
    def epoch(self) -> int:
        return self.facts["epoch"]


def save(folder: Path, checkpoint: Checkpoint) -> Path | None:
    """Write ``<run>.epoch<epoch>.safetensors``; keep one older. Return the path.

    Returns None, and logs why, where it cannot be written: a full disk must not end the
    training.
    """
    from safetensors.numpy import save as to_bytes

    tensors = {k: numpy.ascontiguousarray(a) for k, a in checkpoint.tensors.items()}
    text = msgspec.json.encode(replace(checkpoint, tensors={})).decode()
    run = files.run_name(checkpoint.lines[0])
    path = folder / f"{run}.epoch{checkpoint.epoch:06d}.safetensors"
    try:
        with replacing(path) as tmp, open(tmp, "wb") as f:
            f.write(to_bytes(tensors, {"d2lpar": text}))
            f.flush()
            os.fsync(f.fileno())
    except OSError as error:
        why, epoch = error.strerror, checkpoint.epoch
        log.warning("%s: %s: no checkpoint of epoch %d", error.filename, why, epoch)
        return None
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
        return replace(msgspec.json.decode(text, type=Checkpoint), tensors=tensors)
    except OSError as error:
        why = error.strerror or first_line(error)
        raise CheckpointError(f"{str(path)!r}: cannot be read ({why})") from None
    except (SafetensorError, msgspec.MsgspecError, KeyError) as error:
        raise CheckpointError(
            f"{path}: not a checkpoint of d2lpar, or truncated "
            f"({first_line(error)[:100]}); use another one"
        ) from None

"""A training's state on disk: written whole or not at all, loaded without running code.

A checkpoint is a safetensors file: the state's arrays, and as text in its header what
else the state holds (epoch, random state), the run's record so far, and a hash of it
all. It is written to a temporary name, synced and renamed, so that a file with the
right name is complete; the last two of a run are kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from d2lpar.errors import CheckpointError
from d2lpar.records import atomic, files, kinds

log = logging.getLogger("d2lpar")

FORMAT = 1
KEPT = 2
ENDING = ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A state after a finished epoch, and the record's lines so far.

    `workload`, `tensors` and `facts` are the state's (see
    :class:`d2lpar.lenet.TrainingState`); `lines` begins with the header of the run.
    """

    workload: str
    tensors: dict[str, numpy.ndarray]
    facts: dict
    lines: tuple[kinds.Line, ...]
    path: Path | None = None

    @property
    def header(self) -> kinds.Header:
        return self.lines[0]

    @property
    def epoch(self) -> int:
        return self.facts["epoch"]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into a folder; return its path.

    It is ``<run>.epoch<epoch>.safetensors``; of the run's others only the one before is
    kept. One of a later epoch is of a training that was then begun anew: it goes, as
    that training's record does, or it would pass for the newest. Raises OSError where
    the file cannot be written: the earlier ones are as they were.
    """
    from safetensors.numpy import save as to_bytes

    tensors = {
        name: numpy.ascontiguousarray(a) for name, a in checkpoint.tensors.items()
    }
    text = json.dumps(
        {
            "format": FORMAT,
            "workload": checkpoint.workload,
            "facts": checkpoint.facts,
            "lines": [files.to_line(line) for line in checkpoint.lines],
        }
    )
    content = to_bytes(tensors, {"d2lpar": text, "sha256": _digest(text, tensors)})
    run = files.run_name(checkpoint.header)
    path = folder / f"{run}.epoch{checkpoint.epoch:06d}{ENDING}"
    with atomic.replacing(path) as tmp, open(tmp, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    every = of_run(folder, run)
    now = every.index(path)
    for old in every[: max(0, now + 1 - KEPT)] + every[now + 1 :]:
        old.unlink(missing_ok=True)
    return path


def of_run(folder: Path, run: str) -> list[Path]:
    """The checkpoints of a run in a folder, by ascending epoch."""
    name = re.compile(rf"{re.escape(run)}\.epoch(\d+){re.escape(ENDING)}")
    found = [(name.fullmatch(path.name), path) for path in folder.glob(f"*{ENDING}")]
    return [path for _, path in sorted((int(m[1]), path) for m, path in found if m)]


def load(path: str | Path, like: Any = None) -> Checkpoint:
    """Read a checkpoint; with a state `like` it must be one of that workload.

    Raises :class:`CheckpointError` for a file that cannot be read, is torn, truncated,
    altered or foreign, comes from a later version, or holds another network.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        path.open("rb").close()  # an error of the system's, with its own words
        with safe_open(path, framework="np") as f:
            metadata = f.metadata() or {}
            tensors = {name: f.get_tensor(name) for name in f.keys()}
    except (SafetensorError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path}: no checkpoint, or torn or truncated ({error}); use another one"
        ) from None
    except OSError as error:
        reason = error.strerror or "empty?"
        raise CheckpointError(f"{path}: cannot be read ({reason})") from None
    if "d2lpar" not in metadata:
        raise CheckpointError(f"{path}: no checkpoint of d2lpar; use another file")
    return _checked(path, metadata, tensors, like)


def _checked(path: Path, metadata: dict, tensors: dict, like: Any) -> Checkpoint:
    if metadata.get("sha256") != _digest(metadata["d2lpar"], tensors):
        raise CheckpointError(f"{path}: altered since it was written; use another one")
    content = json.loads(metadata["d2lpar"])
    if content["format"] > FORMAT:
        raise CheckpointError(
            f"{path}: of format {content['format']}, this d2lpar reads {FORMAT}: "
            "update d2lpar"
        )
    if like is not None:
        _check_network(path, content["workload"], tensors, like)
    lines = tuple(map(files.from_line, content["lines"]))
    return Checkpoint(content["workload"], tensors, content["facts"], lines, path)


def _check_network(path: Path, workload: str, tensors: dict, like: Any) -> None:
    if workload != like.workload:
        raise CheckpointError(
            f"{path}: a checkpoint of workload {workload}, not of {like.workload}"
        )
    expected, found = (
        {name: (a.shape, str(a.dtype)) for name, a in arrays.items()}
        for arrays in (like.tensors(), tensors)
    )
    for name in {**expected, **found}:
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"{path}: of another network ({name} is {found.get(name, 'absent')}, "
                f"here {expected.get(name, 'absent')})"
            )


def newest(folder: Path, run: str, like: Any) -> Checkpoint:
    """The newest good checkpoint of a run: a damaged one is passed over, and said so.

    Where the run has none, those of the same chapter's other runs in the folder are
    looked at, newest first: it may have begun on another number of devices. Raises
    :class:`CheckpointError` where there is none at all.
    """
    own = of_run(folder, run)[::-1]
    others = sorted(
        set(folder.glob(f"[!.]*{ENDING}")) - set(own),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for path in own or others:
        try:
            checkpoint = load(path, like)
        except CheckpointError as error:
            log.warning("%s; looking at the one before", error)
            continue
        if not own:
            log.warning("%s has no checkpoint: going on from %s", run, path)
        return checkpoint
    raise CheckpointError(
        f"--resume last: no good checkpoint in {folder}; begin with --checkpoint-every"
    )


def _digest(text: str, tensors: dict[str, numpy.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()

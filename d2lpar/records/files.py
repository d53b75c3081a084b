"""A record on disk: JSON lines, a header with provenance and then what was measured.

``runs/<chapter>/<run>.jsonl`` holds one device count of one chapter::

    {"kind": "header", "chapter": "multiple_gpus", "num_devices": 2, ...}
    {"kind": "epoch", "repeat": 0, "epoch": 1, "seconds": 9.1, ...}
    ...

:data:`d2lpar.records.kinds.KINDS` lists the kinds. Reading keeps unknown fields in
`extra`, so that an earlier version can plot the records of a later one.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterable
from pathlib import Path

from d2lpar.errors import RecordError
from d2lpar.records import fields
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import (
    ARMS,
    EPOCHS,
    HEADERS,
    KINDS,
    BenchmarkHeader,
    FrameRecord,
    Header,
    Line,
    PointRecord,
    Run,
    Sample,
)

log = logging.getLogger("d2lpar")

_BY_NAME = {cls.kind: cls for cls in KINDS}


def to_line(item: Line) -> str:
    """One JSON line, without the newline. Raises ValueError for NaN and infinities."""
    values = dataclasses.asdict(item)
    extra = values.pop("extra")
    if values.get("resumed", "") is None:
        del values["resumed"]  # few epochs follow a checkpoint
    return json.dumps({"kind": item.kind, **values, **extra}, allow_nan=False)


def from_line(text: str) -> Line:
    """The inverse of :func:`to_line`; raises :class:`RecordError` for other texts.

    Its message names the field whose value is of another type or out of range.
    """
    try:
        values = _object(text)
        cls = _BY_NAME[values.pop("kind")]
        known = {f.name for f in dataclasses.fields(cls)} - {"extra"}
        extra = {k: values.pop(k) for k in [*values] if k not in known}
        line = cls(**values, extra=extra)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"not a record line ({error}): {text[:60]!r}") from None
    wrong = (
        fields.misfit(f.name, f.type, getattr(line, f.name))
        for f in dataclasses.fields(line)
    )
    if problem := next(filter(None, wrong), "") or line.contradiction():
        raise RecordError(f"{problem}: {text[:60]!r}")
    return line


def _object(text: str) -> dict:
    """A JSON object without NaN, control characters and the like, not too deep."""
    values = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    if fields.depth(values) > fields.MOST_DEPTH:
        raise ValueError(f"more than {fields.MOST_DEPTH} levels deep")
    if bad := fields.not_text(values):
        raise ValueError(f"holds {bad!r}, which is no text")
    return values


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def read(path: str | Path) -> Run:
    """Read a record file, but for an incomplete last line, left by a killed run.

    Raises :class:`RecordError` when the file cannot be read, does not begin with a
    header, or holds any other line that is not a record's or that contradicts those
    before it. The message names the line and its field.
    """
    path = Path(path)
    try:
        special = (path.is_char_device, path.is_block_device, path.is_fifo)
        if any(kind() for kind in special):  # reading one may never end
            raise RecordError(f"{path}: a device or a pipe, not a record")
        lines = path.read_text(encoding="utf-8").split("\n")
    except RecordError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise RecordError(f"{path}: cannot be read as a record ({reason})") from None
    torn = lines.pop()  # what follows the last newline
    items: list[Line] = []
    for number, line in enumerate(lines + [torn] * bool(torn), 1):
        try:
            item = next_line(items, line)
        except RecordError as error:
            if 1 < number > len(lines) and not _is_json(line):
                log.warning("%s: the last line is torn and was skipped", path)
                continue
            raise RecordError(f"{path}, line {number}: {error}") from None
        items.append(item)
    if not items:
        raise RecordError(f"{path}: the first line is not a record's header")
    return Run(items[0], tuple(items[1:]), path)


def next_line(before: list[Line], text: str) -> Line:
    """The line of a record that a text is, after the lines `before` it.

    Raises :class:`RecordError` for a text that is none, or that cannot follow them.
    """
    line = from_line(text)
    _check_follows(before, line)
    return line


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _check_follows(before: list[Line], line: Line) -> None:
    """Raise :class:`RecordError` if a line cannot stand after those `before` it."""
    if not before:
        if not isinstance(line, HEADERS):
            raise RecordError("the first line is not a record's header")
        return
    header = before[0]
    if isinstance(line, HEADERS):
        raise RecordError("a second header; two runs have written to this file")
    if isinstance(line, ARMS) != isinstance(header, BenchmarkHeader):
        raise RecordError(f"{line.kind} lines do not follow a {header.kind} line")
    if isinstance(line, PointRecord):
        count = len(line.device_residual_norms)
        if count != header.num_devices:
            raise RecordError(
                f"{count} device_residual_norms on {header.num_devices} devices"
            )
    if getattr(line, "num_devices", 0) > getattr(header, "num_devices", 0):
        raise RecordError(
            f"num_devices {line.num_devices} in a run on {header.num_devices} devices"
        )
    if not isinstance(line, (*ARMS, Sample)):
        same = (item for item in reversed(before) if type(item) is type(line))
        _check_order(next(same, None), line)


def _check_order(last: Line | None, line: Line) -> None:
    """Repeats count 0, 1, ...; in each of them a training's epochs ascend."""
    repeats = (0,) if last is None else (last.repeat, last.repeat + 1)
    if line.repeat not in repeats:
        after = "comes first" if last is None else f"follows {last.repeat}"
        raise RecordError(f"repeat {line.repeat} {after}; repeats count 0, 1, ...")
    if last is None or last.repeat != line.repeat:
        return
    if isinstance(line, (*EPOCHS, FrameRecord)) and line.epoch <= last.epoch:
        raise RecordError(f"epoch {line.epoch} follows {last.epoch}; epochs ascend")


def write(path: str | Path, header: Line, lines: Iterable[Line]) -> None:
    """Write a record file, whole or not at all."""
    text = "".join(to_line(item) + "\n" for item in (header, *lines))
    with replacing(path) as tmp:
        tmp.write_text(text, encoding="utf-8")


def run_stem(header: Header) -> str:
    """What the pictures of one sweep are called: "book", "quick-synthetic-seed1"."""
    threads = header.settings.get("threads")
    return "-".join(
        [header.preset]
        + ["synthetic"] * header.synthetic
        + [f"seed{header.seed}"] * (header.seed != 0)
        + [f"{header.workers}workers"] * (header.workers > 1)
        + [f"{threads}thread"] * (threads is not None)
        + [name for name in ("tf32", "deterministic") if header.gpu_build.get(name)]
    )


def run_name(header: Header) -> str:
    """Name of one run's record file, without the ending: "book-cpu2"."""
    devices = f"{header.device_kind}{header.num_devices}"
    return "-".join(filter(None, (run_stem(header), header.variant, devices)))


def sweep_of(run: Run) -> tuple[Path, str, str]:
    """What runs that are drawn together share: folder, chapter and stem."""
    header = run.header
    if isinstance(header, BenchmarkHeader):
        return run.path.parent, "", header.benchmark
    return run.path.parent, header.chapter, run_stem(header)

"""A record on disk: JSON lines, a header with provenance and then what was measured.

``figures/<chapter>/<run>.jsonl`` holds one device count of one chapter::

    {"kind": "header", "chapter": "multiple_gpus", "num_devices": 2, ...}
    {"kind": "epoch", "repeat": 0, "epoch": 1, "seconds": 9.1, ...}
    ...

:data:`d2lpar.records.kinds.KINDS` lists the kinds. Reading keeps unknown fields in
`extra`, so that an earlier version can plot the records of a later one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from d2lpar.errors import RecordError
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import HEADERS, KINDS, BenchmarkHeader, Header, Line, Run

log = logging.getLogger("d2lpar")

_BY_NAME = {cls.kind: cls for cls in KINDS}


def to_line(item: Line) -> str:
    """One JSON line, without the newline. Raises ValueError for NaN and infinities."""
    values = asdict(item)
    extra = values.pop("extra")
    if values.get("resumed", "") is None:
        del values["resumed"]  # few epochs follow a checkpoint
    return json.dumps({"kind": item.kind, **values, **extra}, allow_nan=False)


def from_line(text: str) -> Line:
    """The inverse of :func:`to_line`; raises :class:`RecordError` for other texts."""
    try:
        values = json.loads(text)
        cls = _BY_NAME[values.pop("kind")]
        known = {f.name for f in fields(cls)} - {"extra"}
        extra = {k: values.pop(k) for k in [*values] if k not in known}
        return cls(**values, extra=extra)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"not a record line ({error}): {text[:60]!r}") from None


def read(path: str | Path) -> Run:
    """Read a record file, but for an incomplete last line, left by a killed run.

    Raises :class:`RecordError` when the file cannot be read, does not begin with a
    header, or holds any other line that is not a record's.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise RecordError(f"{path}: cannot be read as a record ({reason})") from None
    items = []
    for number, line in enumerate(lines, 1):
        try:
            items.append(from_line(line))
        except RecordError as error:
            if number < len(lines) or number == 1:
                raise RecordError(f"{path}, line {number}: {error}") from None
            log.warning("%s: the last line is torn and was skipped", path)
    if not items or not isinstance(items[0], HEADERS):
        raise RecordError(f"{path}: the first line is not a record's header")
    return Run(items[0], tuple(items[1:]), path)


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

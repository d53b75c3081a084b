"""A run on disk: JSON lines, a header with provenance and then one line an epoch.

``figures/<chapter>/<run>.jsonl`` holds one device count of one chapter::

    {"kind": "header", "chapter": "multiple_gpus", "num_devices": 2, ...}
    {"kind": "epoch", "repeat": 0, "epoch": 1, "seconds": 9.1, ...}
    ...

A solver's record has lines of kind "point" in place of epochs, a GAN's has epochs of
kind "gan-epoch" and pictures of kind "frame"; inference in low precision has lines of
kind "precision" after its epochs. A scaling study has lines of kind "step",
"all-reduce" and "scaled-epoch". With --watch there are lines of kind "sample" in
between.

Reading keeps fields it does not know (in `extra`), so that a record of a later version
can be plotted by an earlier one. Never imports MXNet.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from d2lpar.errors import RecordError
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import (
    KINDS,
    Header,
    Line,
    Run,
)

log = logging.getLogger("d2lpar")


def to_line(item: Line) -> str:
    """One JSON line, without the newline. NaN and infinities: ValueError."""
    values = asdict(item)
    extra = values.pop("extra")
    if values.get("resumed", "") is None:
        del values["resumed"]  # as a rule there is nothing to say
    kind = next(kind for kind, cls in KINDS.items() if isinstance(item, cls))
    return json.dumps({"kind": kind, **values, **extra}, allow_nan=False)


def from_line(line: str) -> Line:
    """The inverse of :func:`to_line`; unknown fields go to `extra`.

    Raises :class:`RecordError` for a line that is no JSON object of a known kind or
    lacks a field.
    """
    try:
        values = json.loads(line)
        cls = KINDS[values.pop("kind")]
        known = {f.name for f in fields(cls)} - {"extra"}
        extra = {k: v for k, v in values.items() if k not in known}
        return cls(**{k: v for k, v in values.items() if k in known}, extra=extra)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"not a record line ({error}): {line[:60]!r}") from None


def read(path: str | Path) -> Run:
    """Read a record file.

    A torn last line (a run that was killed) is reported on the log and skipped. Raises
    :class:`RecordError` when the file cannot be read, has no header, or a line before
    the last is not a record's.
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
    if not items or not isinstance(items[0], Header):
        raise RecordError(f"{path}: the first line is not a record's header")
    return Run(items[0], tuple(items[1:]), path)


def write(path: str | Path, header: Header, lines: Iterable[Line]) -> None:
    """Write a whole record file atomically."""
    text = "".join(to_line(item) + "\n" for item in (header, *lines))
    with replacing(path) as tmp:
        tmp.write_text(text, encoding="utf-8")


def run_stem(header: Header) -> str:
    """What the records and pictures of one sweep are called: "book", "quick-synthetic".

    Only what differs from the rule is named: a generated data set, a seed other than 0,
    several workers, a fixed number of threads.
    """
    threads = header.settings.get("threads")
    return "-".join(
        [header.preset]
        + ["synthetic"] * header.synthetic
        + [f"seed{header.seed}"] * (header.seed != 0)
        + [f"{header.workers}workers"] * (header.workers > 1)
        + [f"{threads}thread"] * (threads is not None)
    )


def run_name(header: Header) -> str:
    """Name of one run's record file, without the ending: "book-cpu2"."""
    devices = f"{header.device_kind}{header.num_devices}"
    return "-".join(filter(None, (run_stem(header), header.variant, devices)))

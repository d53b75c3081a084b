"""A record on disk, ``<chapter>/<run>.jsonl``: a header, then what was measured."""

from __future__ import annotations

import datetime
import logging
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

from d2lpar.errors import RecordError
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import HEADERS, AnyLine, BenchmarkHeader, Header, Line, Run

log = logging.getLogger("d2lpar")

decode = msgspec.json.Decoder(AnyLine).decode  # the inverse of `to_line`


def to_line(item: Line | Header | BenchmarkHeader) -> str:
    """Return one JSON line, without the newline."""
    return msgspec.json.encode(item).decode()


def read(path: str | Path) -> Run:
    """Read a record file; skip a torn last line, of an interrupted run."""
    path = Path(path)
    content = path.read_bytes()
    texts = content.rstrip(b"\r\n").splitlines()
    lines: list = []
    for number, text in enumerate(texts, 1):
        try:
            line = decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            if 1 < number == len(texts) and not content.endswith(b"\n"):
                log.warning("%s: the last line is torn and was skipped", path)
                break
            why = f"not a record line ({error}): {text[:60]!r}"
            raise RecordError(f"{path}, line {number}: {why}") from None
        if isinstance(line, HEADERS) != (number == 1):
            raise RecordError(f"{path}, line {number}: a record has one header, first")
        lines.append(line)
    if not lines:
        raise RecordError(f"{path}: empty; a record starts with a header")
    return Run(lines[0], tuple(lines[1:]), path)


def write(path: str | Path, header: Header | BenchmarkHeader, lines: Iterable) -> None:
    """Write a record file, whole or not at all."""
    text = "".join(to_line(item) + "\n" for item in (header, *lines))
    with replacing(path) as tmp:
        tmp.write_text(text, encoding="utf-8")


def run_name(header: Header) -> str:
    """Return the name of a run's record in its sweep's folder: "cpu2", "cgls-cpu2"."""
    devices = f"{header.device_kind}{header.num_devices}"
    return "-".join(filter(None, (header.variant, devices)))


def recipe_of(run: Run) -> str:
    """Return what a sweep's records were measured by: "quick,lr=0.01", "book,seed=1".

    Records of 0.5 and before have it in their file's name alone: "book-seed1-cpu2".
    """
    header, path = run.header, run.path
    return header.recipe or path.stem.removesuffix(run_name(header)).rstrip("-")


def sweep_of(run: Run) -> tuple[Path, str, str]:
    """Return what runs that are drawn together share: folder, chapter and recipe."""
    header = run.header
    if isinstance(header, BenchmarkHeader):
        return run.path.parent, "", header.benchmark
    return run.path.parent, header.chapter, recipe_of(run)


def found(path: str | Path) -> list[Path]:
    """Return a record's path, or those of the finished records below a folder."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    # "cpu2.partial.jsonl" was interrupted, "cpu2.of-2026-....jsonl" replaced.
    return sorted(p for p in path.rglob("*.jsonl") if p.name.count(".") == 1)


def git_state() -> tuple[str | None, bool | None]:
    """Return the commit of this checkout, if it is one, and if it has local changes."""

    def git(*args: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *args]
        how = {"stderr": subprocess.DEVNULL, "text": True, "timeout": 10}
        return subprocess.check_output(command, **how).strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        # What runs write, records and pictures and outputs, is no change of the code.
        written = [f":(top,exclude){folder}" for folder in ("figures", "notebooks")]
        changes = git("status", "--porcelain", "--", ":/", *written)
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.SubprocessError):
        return None, None


def now() -> str:
    """Return the UTC date and time, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

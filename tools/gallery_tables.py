"""The tables and pictures of the pages figures/*.md, written from the records.

A block ``<!-- begin KIND PATTERN... -->`` to ``<!-- end -->`` is replaced; all else is
kept as it was typed. KIND is "result", what `d2lpar run` prints of its runs, or one of
`BLOCKS`; a pattern such as ``gpus/peers/*/custom-*`` names records. Below a table are
the commands that measured it, and its records. ``begin index`` lists the titles of all
pictures, and ``begin pictures PICTURE...`` shows some.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from gallery_pictures import FIGURES, PICTURES, runs_of
from PIL import Image

from d2lpar import experiments
from d2lpar.records import labels
from d2lpar.records.arms import arm_times
from d2lpar.records.kinds import EpochRecord, Run, group
from d2lpar.records.measurements import seconds_per_epoch
from d2lpar.records.rule import Comparison, Summary, compare
from d2lpar.scaling.model import studies
from d2lpar.scaling.result import comparisons, name_of
from d2lpar.text import number

BLOCK = re.compile(r"(<!-- begin (?P<what>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
Rows = Sequence[Sequence[str]]
Columns = Sequence[str]
Runs = Sequence[Run]


def pages() -> list[Path]:
    """The pages of the gallery: README.md, which lists the questions, and the rest."""
    return sorted(FIGURES.glob("*.md"))


def shown_on(path: Path) -> list[str]:
    """The pictures of a page, in its order."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall("<!-- begin pictures (.+?) -->", text)
    return [name for block in blocks for name in block.split()]


def rendered(text: str) -> str:
    """The text with its blocks written anew. Raises KeyError for an unknown one."""

    def block(match: re.Match) -> str:
        kind, *names = match["what"].split()
        if kind == "index":
            new = _index()
        elif kind == "pictures":
            new = "".join(f"![{_title(name)}]({name}.png)\n" for name in names)
        else:
            runs = [run for name in names for run in runs_of(name)]
            new = f"{BLOCKS[kind](runs)}\n{_sources(runs)}"
        return f"{match[1]}{new}{match[3]}"

    return BLOCK.sub(block, text)


def _index() -> str:
    """The titles of all pictures, which lead to their pages."""
    where = {name: path.name for path in pages() for name in shown_on(path)}
    return "".join(f"- [{_title(name)}]({where[name]})\n" for name in PICTURES)


def _title(name: str) -> str:
    with Image.open(FIGURES / f"{name}.png") as picture:
        return picture.info["Title"]


def _table(columns: Columns, rows: Rows) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"|{'|'.join(line)}|\n" for line in lines)


def _sources(runs: Runs) -> str:
    """By command its commit and records; of trainings that differ in the seed, one."""
    lines = []
    for (command, commit), same in group(
        runs,
        lambda run: (
            re.sub(r" --seeds?[ =]\d+", "", run.header.command),
            labels.commit(run.header),
        ),
    ).items():
        links = " ".join(
            f"[{run.path.stem}]({run.path.relative_to(FIGURES).as_posix()})"
            for run in same
        )
        lines.append(f"`{command}`, {commit}: {links}\n")
    return "\n".join(lines)


def _spread(summary: Summary) -> list[str]:
    """Median and range in one cell, and n."""
    if not summary.n:
        return ["-", "0"]
    spread = f"{number(summary.least)}-{number(summary.most)}"
    return [f"{number(summary.median)} ({spread})", str(summary.n)]


def _verdict(found: Comparison | None) -> str:
    """A ratio, in bold where the rule tells it."""
    if found is None:
        return ""
    ratio = f"{found.ratio:.2f}"
    return f"**{ratio}**" if found.is_told else ratio


def _result(runs: Runs) -> str:
    """The table of a run, and what its columns are."""
    found = experiments.result(runs)
    return f"{_table(found.table.columns, found.table.rows)}\n({found.note})\n"


def _seeds(runs: Runs) -> str:
    """Seconds per epoch and test accuracy at the end, over seeds."""
    rows, alone = [], {}
    kinds = group(
        runs, lambda r: (r.header.chapter, r.header.device_kind, r.header.num_devices)
    )
    for (chapter, kind, n), same in sorted(kinds.items()):
        timed = seconds_per_epoch(*same)
        base = alone.setdefault((chapter, kind), timed)
        ends = [run.lines_of(EpochRecord)[-1].test_acc for run in same]
        name = labels.CHAPTERS.get(chapter, chapter)
        rows.append([
            f"{name}, {labels.configuration(same[0].header)}",
            _spread(timed)[0],
            "" if n == 1 else _verdict(compare(base, timed)),
            f"{median(ends):.3f} ({min(ends):.3f}-{max(ends):.3f})",
        ])  # fmt: skip
    return _table(["", "seconds per epoch", "times as fast", "test accuracy"], rows)


def _speedups(runs: Runs) -> str:
    """How many times as fast a step is on two devices, by batch."""
    found = {}
    for same in group(runs, lambda run: run.header.device_kind).values():
        for study in studies(same):
            where = labels.hardware([same[0].header]).replace("(R)", "")
            found[f"{where}, {name_of(study)}"] = comparisons(study, 2)
    batches = sorted({batch for gains in found.values() for batch in gains})
    rows = [
        [f"{batch:,}", *(_verdict(gains.get(batch)) for gains in found.values())]
        for batch in batches
    ]
    return _table(["batch", *found], rows)


def _arms(runs: Runs) -> str:
    """Every arm's seconds, work by work, and test accuracy where it trains."""
    rows = []
    for arm in (arm for run in runs for arm in arm_times(run) if arm.seconds):
        ends = list({x.round: x.test_acc for x in arm.samples}.values())
        known = f"{min(ends):.3f}-{max(ends):.3f}" if ends[0] is not None else ""
        rows.append([f"{arm.work} {arm.name}".strip(), *_spread(arm.summary), known])
    return _table(["", "seconds", "n", "test accuracy"], rows)


def _places(runs: Runs) -> str:
    """Milliseconds of kernels: a row per work and way, a column per place."""
    found = {}
    for arm in (arm for run in runs for arm in arm_times(run) if arm.seconds):
        way, place = arm.name.split(", ", 1)
        found[arm.work, way, place] = number(1e3 * arm.summary.median)
    places = list(dict.fromkeys(place for *_, place in found))
    rows = [
        [f"{way}, `{work}`", *(found.get((work, way, place), "") for place in places)]
        for work, way in dict.fromkeys(key[:2] for key in found)
    ]
    return _table(["", *places], rows)


BLOCKS: dict[str, Callable[[Runs], str]] = {
    "result": _result,
    "speedups": _speedups,
    "seeds": _seeds,
    "arms": _arms,
    "places": _places,
}

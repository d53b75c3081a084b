"""The tables and pictures of the pages figures/*.md, written from the records.

A block ``<!-- begin KIND SWEEP... -->`` to ``<!-- end -->`` is replaced; all else is
kept as it was typed. KIND is "result", what `d2lpar run` prints of its runs, or one of
`BLOCKS`; a sweep is a folder and stem such as ``multiple_gpus/book``. Every table is
folded, with links to its records and the commands that measured them. ``begin index
PAGE...`` has the questions of the pictures that other pages show by ``begin pictures
PICTURE...``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import memory_estimate
from gallery_pictures import PICTURES
from PIL import Image

from d2lpar import experiments
from d2lpar.arrays import result as timings
from d2lpar.figures import labels, page
from d2lpar.records.comparison import ArmTimes, Summary, arm_times, summarize
from d2lpar.records.kinds import (
    ArmSample,
    EpochRecord,
    FrameRecord,
    Run,
    TimingRecord,
    group,
    timed_epochs,
)
from d2lpar.records.result import Result
from d2lpar.text import number

BLOCK = re.compile(r"(<!-- begin (?P<what>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
Rows = Sequence[Sequence[str]]
Sweeps = dict[str, list[Run]]
FIGURES = Path(__file__).parents[1] / "figures"


def pages() -> list[Path]:
    """The pages of the gallery: README.md, which lists the questions, and the rest."""
    return sorted(FIGURES.glob("*.md"))


def write(path: Path, found: Sweeps) -> None:
    """Replace the blocks of a file by what the records hold now."""
    text = rendered(path.read_text(encoding="utf-8"), found)
    path.write_text(text, encoding="utf-8")


def shown_on(path: Path) -> list[str]:
    """The pictures of a page, in its order."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall("<!-- begin pictures (.+?) -->", text)
    return [name for block in blocks for name in block.split()]


def rendered(text: str, found: Sweeps) -> str:
    """The text with its blocks written anew. Raises KeyError for an unknown one."""

    def block(match: re.Match) -> str:
        kind, *names = match["what"].split()
        if kind == "index":
            return f"{match[1]}{_index(*names)}{match[3]}"
        if kind == "pictures":
            return f"{match[1]}{_pictures(*names)}{match[3]}"
        runs = [run for name in names for run in found[name]]
        if kind == "result":
            shown = _result(experiments.result(runs))
        else:
            shown = _table(*BLOCKS[kind](runs))
        folded = f"<details><summary>{FOLDED[kind]}</summary>\n\n"
        folded += f"{shown}\n{_sources(runs)}\n</details>\n"
        return f"{match[1]}{folded}{match[3]}"

    return BLOCK.sub(block, text)


def _index(*names: str) -> str:
    """The title of every page, and the questions of its pictures."""
    rows = []
    for path in (FIGURES / f"{name}.md" for name in names):
        title = path.read_text(encoding="utf-8").split("\n")[0].removeprefix("# ")
        links = [f"[{PICTURES[k].question}]({k}.png)" for k in shown_on(path)]
        rows.append([f"[{title}]({path.name})", "<br>".join(links)])
    return _table(["tables and commands", "questions and pictures"], rows)


def _pictures(*names: str) -> str:
    """Pictures, each with its own title as the text beside it."""
    return "".join(f"![{_title(name)}]({name}.png)\n" for name in names)


def _title(name: str) -> str:
    with Image.open(FIGURES / f"{name}.png") as picture:
        return picture.info["Title"]


def _link(path: Path) -> str:
    return path.relative_to(FIGURES).as_posix()


def _table(columns: Sequence[str], rows: Rows) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _result(found: Result) -> str:
    """The answer, the table, and what its columns are."""
    answer, table = " ".join(found.sentences), found.table
    return f"{answer}\n\n{_table(table.columns, table.rows)}\n({found.note})\n"


def _sources(runs: Sequence[Run]) -> str:
    """By command its records, and the commit and the PyTorch that it ran."""
    lines = []
    by_command = group(runs, lambda run: (run.header.command, run.header.git_commit))
    for (command, _), same in by_command.items():
        links = ", ".join(f"[{run.path.stem}]({_link(run.path)})" for run in same)
        what = [f"`{command}`", labels.commit(same[0].header)]
        what += [f"PyTorch {version}" for version in _pytorch(same)]
        lines.append(f"- {', '.join(what)}: {links}\n")
    return "".join(lines)


def _pytorch(runs: Sequence[Run]) -> list[str]:
    """The versions of PyTorch that runs measured, none where they measured none."""
    timings = [line for run in runs for line in run.lines_of(TimingRecord)]
    found = {line.version for line in timings if line.library == "PyTorch"}
    for run in runs:
        names = " ".join(sample.arm for sample in run.lines_of(ArmSample))
        if re.search("PyTorch|DDP", names):
            found.add(run.header.versions["torch"])
    return sorted(found)


def _spread(summary: Summary, scale: float = 1.0) -> list[str]:
    """Median, quartiles and n; the quartiles with a word where they are far apart."""
    quartiles = f"{number(scale * summary.q1)} to {number(scale * summary.q3)}"
    if unstable := page.unstable(summary):
        quartiles += f" ({unstable})"
    return [number(scale * summary.median), quartiles, str(summary.n)]


def _record(*runs: Run) -> str:
    return " ".join(f"[{k}]({_link(run.path)})" for k, run in enumerate(runs, 1))


def _published(runs: Sequence[Run]) -> tuple[Sequence[str], Rows]:
    """What the sources of the array work printed beside ours."""
    table = timings.published(timings.rows(runs))
    return table.columns, table.rows


def _seeds(runs: Sequence[Run]) -> tuple[list[str], Rows]:
    """Seconds per epoch, and of training until an accuracy of 0.80, over seeds."""
    rows, alone = [], {}
    kinds = group(runs, lambda run: (run.header.chapter, run.header.num_devices))
    for (chapter, count), same in sorted(kinds.items()):
        seconds, last = [], []
        timed = summarize([e.seconds for run in same for e in timed_epochs(run)])
        if count == 1:
            alone[chapter] = timed.median
        gain = f"{alone[chapter] / timed.median:.2f}" if chapter in alone else "-"
        for run in same:
            epochs, passed = run.lines_of(EpochRecord), 0.0
            for epoch in epochs:
                passed += epoch.seconds
                if epoch.test_acc >= 0.80:
                    seconds.append(passed)
                    break
            last.append(epochs[-1].test_acc)
        cells = [*_spread(timed), gain, f"{len(seconds)} of {len(same)}", "", ""]
        if seconds:
            ends = f"{number(min(seconds))} to {number(max(seconds))}"
            if len(seconds) > 4:
                ends += ", ".join(
                    ["; without both", *map(number, sorted(seconds)[1:-1])]
                )
            cells[5:] = [number(median(seconds)), ends]
        accuracy = f"{median(last):.3f} ({min(last):.3f} to {max(last):.3f})"
        name, where = labels.CHAPTERS.get(chapter, chapter), same[0].header
        what = f"{name}, {labels.configuration(where)}"
        rows.append([what, *cells, accuracy, _record(*same)])
    columns = ["", "seconds per epoch", "quartiles", "n", "times as fast"]
    columns += ["seeds that reach 0.80", "seconds until then", "least to most"]
    return [*columns, "test accuracy at the end", "records"], rows


def _errors(runs: Sequence[Run]) -> tuple[list[str], Rows]:
    """A comparison's errors by the steps after which they were found."""
    (run,) = runs
    found = group(run.lines, lambda line: (line.arm, line.steps), lambda x: x.error)
    rows = [
        [arm, f"{steps:,}", *(f"{x:.1e}" for x in (median(e), min(e), max(e))),
         str(len(e)), _record(run)]
        for (arm, steps), e in found.items()
    ]  # fmt: skip
    return ["", "steps", "error", "least", "most", "seeds", "record"], rows


def _memory(runs: Sequence[Run]) -> tuple[list[str], Rows]:
    """MiB of trainings by batch: counted before, and measured."""
    rows = []
    for run in runs:
        where = labels.machine(run.header)
        by_batch = group(run.lines, lambda line: (line.arm, line.batch_size))
        for (arm, batch), lines in by_batch.items():
            counted = memory_estimate.of_sample(run, lines[0])
            peak = [line.peak_bytes for line in lines]
            sizes = [f"{x / 2**20:,.0f}" for x in (counted, median(peak))]
            ratio = f"{median(peak) / counted:.2f}"
            row = [where, arm, f"{batch:,}", *sizes, ratio, str(len(lines))]
            rows.append([*row, _record(run)])
    columns = ["", "", "global batch", "MiB counted", "MiB measured", "ratio", "n"]
    return [*columns, "record"], rows


def threads_of(arm: str) -> int | None:
    """Threads of an arm in all, by its name; None where it does not say."""
    found = re.search(r"(?:(\d+) (?:contexts?|process(?:es)?), )?(\d+) threads?", arm)
    return int(found[1] or 1) * int(found[2]) if found else None


def _arms(runs: Sequence[Run]) -> tuple[list[str], Rows]:
    rows = []
    for run in runs:
        for work, arms in group(arm_times(run), lambda arm: arm.work).items():
            timed = [arm for arm in arms if arm.seconds]
            timed.sort(key=lambda arm: median(arm.seconds))
            for arm in timed:
                rows.append([*_arm(work, arm, timed[0]), _error(arm), _record(run)])
            for arm in arms:
                if not arm.seconds:
                    why = f"not measured: {arm.why_not}"
                    rows.append([work, arm.name, why, "", "", "", "", _record(run)])
    columns = ["work", "", "seconds", "quartiles", "n", "times the fastest's", "error"]
    columns.append("record")
    used = [name != "error" or any(row[k] for row in rows)
            for k, name in enumerate(columns)]  # fmt: skip
    used[0] = any(row[0] for row in rows)
    rows = [[cell for cell, use in zip(row, used) if use] for row in rows]
    return [name for name, use in zip(columns, used) if use], rows


def _error(arm: ArmTimes) -> str:
    """The median error that an arm reports of its answers, where it does."""
    errors = [s.error for s in arm.samples if s.error is not None]
    return f"{median(errors):.2f}" if errors else ""


def _arm(work: str, arm: ArmTimes, first: ArmTimes) -> list[str]:
    """A row; the ratio only where both have as many threads in all."""
    name = f"**{arm.name}**" if arm is first else arm.name
    ratio = f"{median(arm.seconds) / median(first.seconds):.2f}"
    fair = threads_of(arm.name) == threads_of(first.name)
    return [work, name, *_spread(summarize(arm.seconds)), ratio if fair else "-"]


def _faces(runs: Sequence[Run]) -> tuple[list[str], Rows]:
    """The quality of faces after the most steps that all of the trainings took."""
    frames = [run.lines_of(FrameRecord) for run in runs]
    steps = min(found[-1].num_steps for found in frames)
    rows = []
    for run, found in zip(runs, frames):
        last = [frame for frame in found if frame.num_steps <= steps][-1]
        norm = run.header.settings["d_norm"]
        quality = [number(last.frechet), number(last.coverage)]
        cells = [norm, str(run.header.seed), f"{last.num_steps:,}", *quality]
        rows.append([*cells, _record(run)])
    return ["normalisation", "seed", "steps", "Fréchet", "coverage", "record"], rows


BLOCKS: dict[str, Callable[[Sequence[Run]], tuple[Sequence[str], Rows]]] = {
    "published": _published,
    "seeds": _seeds,
    "errors": _errors,
    "memory": _memory,
    "arms": _arms,
    "faces": _faces,
}

FOLDED = {
    "result": "Answer, numbers, commands",
    "published": "What the sources printed beside ours, commands",
    "seeds": "Seconds per epoch and to an accuracy, commands",
    "errors": "Errors by steps, commands",
    "memory": "MiB by batch, commands",
    "arms": "Seconds of every row, commands",
    "faces": "Faces by seed, commands",
}

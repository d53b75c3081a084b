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
from gallery_pictures import FIGURES, PICTURES, to_accuracy
from PIL import Image

from d2lpar import experiments
from d2lpar.arrays import result as timings
from d2lpar.figures import page
from d2lpar.records import labels
from d2lpar.records.comparison import (
    ArmTimes,
    Summary,
    arm_times,
    in_cell,
    ratio,
    seconds_per_epoch,
    summarize,
)
from d2lpar.records.kinds import (
    ArmSample,
    EpochRecord,
    FrameRecord,
    Run,
    TimingRecord,
    group,
)
from d2lpar.records.result import Result
from d2lpar.scaling.model import studies
from d2lpar.scaling.result import name_of
from d2lpar.text import number

BLOCK = re.compile(r"(<!-- begin (?P<what>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
Rows = Sequence[Sequence[str]]
Columns = Sequence[str]
Runs = Sequence[Run]
Sweeps = dict[str, list[Run]]


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
            shown = "".join(f"![{_title(name)}]({name}.png)\n" for name in names)
            return f"{match[1]}{shown}{match[3]}"
        runs = [run for name in names for run in found[name]]
        summary, make = BLOCKS[kind]
        folded = f"<details><summary>{summary}, commands</summary>\n\n"
        folded += f"{make(runs)}\n{_sources(runs)}\n</details>\n"
        return f"{match[1]}{folded}{match[3]}"

    return BLOCK.sub(block, text)


def _index(*names: str) -> str:
    """The title of every page, its pictures in small, and what they answer."""
    rows = []
    for path in (FIGURES / f"{name}.md" for name in names):
        title = path.read_text(encoding="utf-8").split("\n")[0].removeprefix("# ")
        shown = [
            f'[<img src="{k}.png" alt="{_title(k)}" width="300px">]({path.name})<br>'
            f"[{PICTURES[k].question}]({k}.png)"
            for k in shown_on(path)
        ]
        rows.append([f"[{title}]({path.name})", "<br>".join(shown)])
    return _table(["tables and commands", "pictures and their questions"], rows)


def _title(name: str) -> str:
    with Image.open(FIGURES / f"{name}.png") as picture:
        return picture.info["Title"]


def _link(path: Path) -> str:
    return path.relative_to(FIGURES).as_posix()


def _table(columns: Columns, rows: Rows) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _sources(runs: Runs) -> str:
    """By command its records, and the commit and the PyTorch that it ran."""
    lines = []
    by_command = group(runs, lambda run: (run.header.command, run.header.git_commit))
    for (command, _), same in by_command.items():
        links = ", ".join(f"[{run.path.stem}]({_link(run.path)})" for run in same)
        what = [f"`{command}`", labels.commit(same[0].header)]
        what += [f"PyTorch {version}" for version in _pytorch(same)]
        lines.append(f"- {', '.join(what)}: {links}\n")
    return "".join(lines)


def _pytorch(runs: Runs) -> list[str]:
    """The versions of PyTorch that runs measured, none where they measured none."""
    timed = [line for run in runs for line in run.lines_of(TimingRecord)]
    found = {line.version for line in timed if line.library == "PyTorch"}
    for run in runs:
        names = " ".join(sample.arm for sample in run.lines_of(ArmSample))
        if re.search("PyTorch|DDP", names):
            found.add(run.header.versions["torch"])
    return sorted(found)


def _spread(summary: Summary) -> list[str]:
    """Median, range, with a word where it is wide, and n."""
    if not summary.n:
        return summary.cells()
    spread = f"{number(summary.least)} to {number(summary.most)}"
    if unstable := page.unstable(summary):
        spread += f" ({unstable})"
    return [number(summary.median), spread, str(summary.n)]


def _record(*runs: Run) -> str:
    return " ".join(f"[{k}]({_link(run.path)})" for k, run in enumerate(runs, 1))


def _result(runs: Runs) -> str:
    """The answer, the table, and what its columns are."""
    found: Result = experiments.result(runs)
    answer, table = " ".join(found.sentences), found.table
    return f"{answer}\n\n{_table(table.columns, table.rows)}\n({found.note})\n"


# Operation; which source measured it on what; what it printed; the library and form of
# our row that repeats a measurement on a CPU.
PUBLISHED = (
    ("x2", "least-squares notes: NumPy, CPU of Colab", "33.6 ms",
     ("NumPy", "as written")),
    ("x2", "least-squares notes: PyCUDA, Tesla T4, naive clock", "0.7 ms", None),
    ("sum", "CryptoPunks notebook: GPU of Colab, naive clock",
     "28.6 to 68.8 % less than the CPU", None),
    ("trig", "GPU wiki: NumPy in float64, n1-standard-4", "4.12 s",
     ("NumPy", "as written, float64")),
    ("trig", "GPU wiki: PyTorch, n1-standard-4", "738 ms", ("PyTorch", "as written")),
    ("trig", "GPU wiki: PyTorch, Tesla T4", "18.9 ms", None),
    ("product", "GPUSOROBAN posts: PyTorch, CPU not named", "296.9 s",
     ("PyTorch", "as written")),
    ("product", "GPUSOROBAN posts: PyTorch, GPU not named", "0.554, 0.466, 0.457 s",
     None),
)  # fmt: skip


def _published(runs: Runs) -> str:
    """What the sources printed, and what the same line and our fastest take."""
    table, cells = timings.rows(runs), []
    for operation, source, printed, ours in PUBLISHED:
        here = timings.rows_of(operation, table)
        same = [row for row in here if (row.library, row.form) == ours]
        best = timings.fastest([row for row in here if row.library == "MXNet"])
        least = f"{number(1e3 * best.seconds.median)} ms ({best.form}, {best.where})"
        cells.append([
            f"{operation} {timings.shape(here[0])}", source, printed,
            f"{number(1e3 * same[0].seconds.median)} ms" if same else "-", least,
        ])  # fmt: skip
    columns = ["operation", "source", "printed", "here", "MXNet's fastest form"]
    return _table(columns, cells)


def _seeds(runs: Runs) -> str:
    """Seconds per epoch, and of training until an accuracy of 0.80, over seeds."""
    rows, alone = [], {}
    kinds = group(runs, lambda run: (run.header.chapter, run.header.num_devices))
    for (chapter, _), same in sorted(kinds.items()):
        timed = seconds_per_epoch(*same)
        base = alone.setdefault(chapter, timed)
        ends = [run.lines_of(EpochRecord)[-1].test_acc for run in same]
        until = to_accuracy(same)
        reached = f"{number(min(until))} to {number(max(until))}"
        name, where = labels.CHAPTERS.get(chapter, chapter), same[0].header
        rows.append([
            f"{name}, {labels.configuration(where)}",
            *_spread(timed),
            in_cell(ratio(base, timed)),
            f"{len(until)} of {len(same)}",
            number(median(until)),
            reached,
            f"{median(ends):.3f} ({min(ends):.3f} to {max(ends):.3f})",
            _record(*same),
        ])  # fmt: skip
    columns = ["", "seconds per epoch", "range", "n", "times as fast"]
    columns += ["seeds that reach 0.80", "seconds until then", "least to most"]
    return _table([*columns, "test accuracy at the end", "records"], rows)


def _errors(runs: Runs) -> str:
    """A comparison's errors by the steps after which they were found."""
    samples = [x for run in runs for x in run.lines_of(ArmSample)]
    found = group(samples, lambda x: (x.arm, x.steps), lambda x: x.error)
    rows = [
        [arm, f"{steps:,}", *(f"{f(errors):.1e}" for f in (median, min, max)),
         str(len(errors)), _record(*runs)]
        for (arm, steps), errors in found.items()
    ]  # fmt: skip
    return _table(["", "steps", "error", "least", "most", "seeds", "record"], rows)


def _memory(runs: Runs) -> str:
    """MiB of trainings by batch: counted before, and measured."""
    rows = []
    for run in runs:
        by_batch = group(run.lines, lambda line: (line.arm, line.batch_size))
        for (arm, batch), lines in by_batch.items():
            counted = memory_estimate.of_sample(run, lines[0])
            peak = median(line.peak_bytes for line in lines)
            sizes = [f"{x / 2**20:,.0f}" for x in (counted, peak)]
            where = [labels.machine(run.header), arm, f"{batch:,}"]
            end = [f"{peak / counted:.2f}", str(len(lines)), _record(run)]
            rows.append([*where, *sizes, *end])
    columns = ["", "", "global batch", "MiB counted", "MiB measured", "ratio", "n"]
    return _table([*columns, "record"], rows)


def _hashes(runs: Runs) -> str:
    """In how many seeds trainings on several numbers of contexts ended equal."""
    rows = []
    for run in runs:
        samples = run.lines_of(ArmSample)
        last = {(x.work, x.round, x.arm): x.params_sha256 for x in samples}
        ends = {key[:2]: {last[k] for k in last if k[:2] == key[:2]} for key in last}
        for work, same in group(run.lines_of(ArmSample), lambda x: x.work).items():
            by_seed = [hashes for key, hashes in ends.items() if key[0] == work]
            equal = sum(len(hashes) == 1 for hashes in by_seed)
            contexts = ", ".join(dict.fromkeys(x.arm.split()[0] for x in same))
            epochs = max(x.epoch or 0 for x in same)
            seeds = f"{equal} of {len(by_seed)}"
            mxnet = run.header.versions["mxnet"]
            rows.append([work, contexts, str(epochs), seeds, mxnet, _record(run)])
    columns = ["", "contexts", "epochs", "seeds with equal parameters", "MXNet"]
    return _table([*columns, "record"], rows)


def threads_of(arm: str) -> int | None:
    """Threads of an arm in all, by its name; None where it does not say."""
    found = re.search(r"(?:(\d+) (?:contexts?|process(?:es)?), )?(\d+) threads?", arm)
    return int(found[1] or 1) * int(found[2]) if found else None


def _arms(runs: Runs) -> str:
    """Every arm's seconds, work by work, the fastest first."""
    rows = []
    for run in runs:
        for work, arms in group(arm_times(run), lambda arm: arm.work).items():
            timed = [arm for arm in arms if arm.seconds]
            timed.sort(key=lambda arm: median(arm.seconds))
            rows += [[*_arm(work, arm, timed[0]), _record(run)] for arm in timed]
            for arm in arms:
                if not arm.seconds:
                    why = f"not measured: {arm.why_not}"
                    rows.append([work, arm.name, why, *[""] * 4, _record(run)])
    columns = ["work", "", "seconds", "range", "n", "times the fastest's", "error"]
    columns.append("record")
    # Works and errors only where some row has one.
    used = [k not in (0, 6) or any(row[k] for row in rows) for k in range(len(columns))]
    shown = [[cell for cell, use in zip(row, used) if use] for row in (columns, *rows)]
    return _table(shown[0], shown[1:])


def _arm(work: str, arm: ArmTimes, first: ArmTimes) -> list[str]:
    """A row; the ratio only where both have as many threads in all."""
    name = f"**{arm.name}**" if arm is first else arm.name
    seconds, best = arm.summary, first.summary
    fair = threads_of(arm.name) == threads_of(first.name)
    times = in_cell(ratio(seconds, best) if fair else None)
    errors = [s.error for s in arm.samples if s.error is not None]
    error = f"{median(errors):.2f}" if errors else ""
    return [work, name, *_spread(seconds), times, error]


def _forms(runs: Runs) -> str:
    """Peers on GPUs: seconds per epoch, and epochs and seconds to an accuracy of 0.80.

    A process is a sample. Seconds to the accuracy are epochs times the process's median
    seconds per epoch, so that compiling does not count.
    """
    rows = []
    for run in runs:
        card = labels.machine(run.header)
        for arm, same in group(run.lines_of(ArmSample), lambda x: x.arm).items():
            processes = list(group(same, lambda x: x.round).values())
            times = [
                median(x.seconds for x in lines if not x.warm_up) for lines in processes
            ]
            first = [
                next((x.epoch for x in lines if x.test_acc >= 0.80), None)
                for lines in processes
            ]
            until = [n * t for n, t in zip(first, times) if n]
            ends = [lines[-1].test_acc for lines in processes]
            rows.append([
                arm, card, *_spread(summarize(times)),
                f"{len(until)} of {len(first)}",
                number(median(until)) if until else "-",
                f"{min(ends):.3f} to {max(ends):.3f}", _record(run),
            ])  # fmt: skip
    columns = ["", "card", "seconds per epoch", "range", "processes"]
    columns += ["reach 0.80", "seconds until then", "accuracy at the end", "record"]
    return _table(columns, rows)


def _faces(runs: Runs) -> str:
    """The quality of faces after the most steps that all of the trainings took."""
    frames = [run.lines_of(FrameRecord) for run in runs]
    steps = min(of_run[-1].num_steps for of_run in frames)
    rows = []
    for run, of_run in zip(runs, frames):
        last = [f for f in of_run if f.num_steps <= steps][-1]
        norm, seed = run.header.settings["d_norm"], str(run.header.seed)
        quality = [number(last.frechet), number(last.coverage)]
        rows.append([norm, seed, f"{last.num_steps:,}", *quality, _record(run)])
    columns = ["normalisation", "seed", "steps", "Fréchet", "coverage", "record"]
    return _table(columns, rows)


def _brackets(runs: Runs) -> str:
    """Milliseconds of steps on two devices between their bounds, by batch."""
    rows = []
    for same in group(runs, lambda run: run.header.device_kind).values():
        for study in studies(same):
            for batch, bounds in study.bracket(2).items():
                if (2, batch) in study.steps:
                    low, step, high = sorted([*bounds, study.steps[2, batch]])
                    measured = study.steps[2, batch]
                    where = {low: "below", step: "inside", high: "above"}[measured]
                    times = [number(1e3 * s) for s in (*bounds, measured)]
                    name = f"{labels.hardware([same[0].header])}, {name_of(study)}"
                    rows.append([name, f"{batch:,}", *times, where])
    return _table(["", "batch", "at least, ms", "at most", "measured", ""], rows)


BLOCKS: dict[str, tuple[str, Callable[[Runs], str]]] = {
    "result": ("Answer, numbers", _result),
    "published": ("What the sources printed beside ours", _published),
    "brackets": ("Bounds and steps", _brackets),
    "seeds": ("Seconds per epoch and to an accuracy", _seeds),
    "errors": ("Errors by steps", _errors),
    "memory": ("MiB by batch", _memory),
    "hashes": ("Trainings compared by SHA-256", _hashes),
    "arms": ("Seconds of every row", _arms),
    "forms": ("Seconds and accuracy of every form", _forms),
    "faces": ("Faces by seed", _faces),
}

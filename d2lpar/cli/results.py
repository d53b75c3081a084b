"""What runs found: one table, and the sentence that answers their chapter's question.

Runs are those that were measured together. A ratio of times is given only where the
quartiles of both do not overlap.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from d2lpar.arrays import table as arrays_table
from d2lpar.figures import labels
from d2lpar.least_squares import table as solver_table
from d2lpar.low_precision import table as precision_table
from d2lpar.records import comparison
from d2lpar.records.comparison import Summary
from d2lpar.records.kinds import (
    EPOCHS,
    Line,
    PointRecord,
    PrecisionRecord,
    Run,
    StepRecord,
    TimingRecord,
    group,
)
from d2lpar.scaling import model as scaling_model
from d2lpar.scaling import table as scaling_table
from d2lpar.text import number, plain_table, plural

SAME_ACCURACY = 0.01  # less than the difference between two seeds
FLOOR = 1.01  # residuals up to this multiple of the least one count as the least
OPERATIONS = ("x2", "sum", "trig", "product")


@dataclass(frozen=True)
class Result:
    """A table, a note on what its columns mean, and the answer."""

    table: str
    note: str
    answer: str

    def __str__(self) -> str:
        """All three, the words in lines of 80 columns."""
        note = textwrap.fill(f"({self.note})", 80)
        answer = (textwrap.fill(line, 80) for line in self.answer.splitlines())
        return "\n".join([self.table, note, "", *answer])


def result(runs: Sequence[Run]) -> Result:
    """What the runs found, which hold lines of one subject."""
    kinds = {type(line) for run in runs for line in run.lines}
    for kind, subject in RESULTS.items():
        if kind in kinds:
            runs = sorted(runs, key=lambda run: run.header.num_devices)
            found, header = subject(runs), runs[0].header
            where = f"data: {labels.data_name(header)}; {labels.hardware([header])}"
            return replace(found, note=f"{found.note}; {where}")
    return Result("", "", "Nothing was measured.")


def _compared(what: str, other: Summary, base: str, one: Summary) -> str:
    """How the time of `what` compares with that of `base`."""
    if one.q1 <= other.q3 and other.q1 <= one.q3:
        return f"{what} train about as fast as {base} (the quartiles overlap)"
    if other.median < one.median:
        return f"{what} train {one.median / other.median:.1f} times as fast as {base}"
    ratio = other.median / one.median
    return f"{what} take {ratio:.1f} times as long as {base}"


def _training(runs: Sequence[Run]) -> Result:
    first, base = labels.count(runs[0].header), comparison.seconds_per_epoch(runs[0])
    ends_of = _faces if comparison.is_gan(runs[0]) else _accuracy
    columns, ends, found = ends_of(runs)
    rows, sentences = [], []
    for run, end in zip(runs, ends):
        seconds = comparison.seconds_per_epoch(run)
        speedup = f"{base.median / seconds.median:.2f}"
        rows.append([labels.count(run.header), *seconds.cells(), speedup, *end])
        if run is not runs[0]:
            sentences.append(_compared(labels.count(run.header), seconds, first, base))
    columns = ["", "s/epoch", "quartiles", "n", "speedup", *columns]
    note = (
        "s/epoch: median of n epochs, without each run's first one, a warm-up; "
        f"speedup: over {first}"
    )
    return Result(plain_table(columns, rows, names=1), note, _joined(sentences + found))


def _accuracy(runs: Sequence[Run]) -> tuple[list[str], list[list[str]], list[str]]:
    """A column's name, its cells, and what they say."""
    ends = [comparison.final_accuracy(run) for run in runs]
    same = len(ends) > 1 and max(ends) - min(ends) <= SAME_ACCURACY
    what = "the same test accuracy" if same else "test accuracy"
    values = [f"{end:.3f}" for end in ends]
    sentence = f"training ends at {what}: {' and '.join(values)}"
    return ["test accuracy"], [[value] for value in values], [sentence]


def _faces(runs: Sequence[Run]) -> tuple[list[str], list[list[str]], list[str]]:
    """The same for a GAN's faces; nothing where no frame was measured."""
    measures = {"frechet": "Fréchet", "coverage": "coverage", "distinct": "distinct"}
    ends = [[comparison.final_quality(run, name) for name in measures] for run in runs]
    cells = [["-" if math.isnan(x) else number(x) for x in end] for end in ends]
    sentences = ["how good the faces are was not measured"]
    known = comparison.references(runs[0])
    if known:
        begin = median(list(comparison.quality_by_epoch(runs[0]).values())[0])
        to = " and ".join(number(frechet) for frechet, *_ in ends)
        others, noise = (known[name] for name in ("other real faces", "noise"))
        shares = " and ".join(f"{100 * share:.0f} %" for _, share, _ in ends)
        best = f"{100 * others['coverage']:.0f} %"
        sentences = [
            f"the Fréchet distance to real faces falls from {number(begin)} to {to}; "
            f"that of noise is {number(noise['frechet'])}, of other real faces "
            f"{number(others['frechet'])}",
            f"of the real faces, {shares} have a generated one among their nearest "
            f"neighbours (coverage; other real faces: {best})",
        ]
    return list(measures.values()), cells, sentences


def _joined(sentences: Sequence[str]) -> str:
    return "\n".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def _solvers(runs: Sequence[Run]) -> Result:
    least, worst = solver_table.least_of(runs), {}
    for run in runs:
        ends = [points[-1].residual_norm for points in solver_table.repeats(run)]
        method = run.header.variant
        worst[method] = max(median(ends) / least, worst.get(method, 1))
    reached = [method for method, ratio in worst.items() if ratio <= FLOOR]
    if len(worst) == 1:
        times = " and ".join(map(_seconds_to_solve, runs))
        answer = f"{runs[0].header.variant} takes {times}; residual {least:.6g}."
    else:
        answer = f"{_listed(reached)} reach the least residual, {least:.6g}, within 1 %"
        answer += "." if len(reached) == len(worst) else "; the others do not."
    note = (
        "seconds: of a solve, the median of n; residual: ||A x - b||; distance: of x "
        "to the optimum, relative"
    )
    return Result(solver_table.table(runs), note, answer)


def _seconds_to_solve(run: Run) -> str:
    seconds = [points[-1].seconds for points in solver_table.repeats(run)]
    return f"{number(median(seconds))} s on {labels.count(run.header)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _scaling(runs: Sequence[Run]) -> Result:
    studies = scaling_model.studies(runs)
    word = labels.device_word(runs[0].header)
    sentences = [
        f"{study.name}: {plural(n, word)} {_pays(study, n)}"
        for study in studies
        for n in study.counts[1:]
    ]
    note = f"ms on N: a step on N {word}s, the median of samples of several steps each"
    answer = _joined(sentences or ["no comparison"])
    return Result(scaling_table.steps(studies), note, answer)


def _pays(study: scaling_model.Study, n: int) -> str:
    """From which measured batch on n devices are faster than one, as a range."""
    speedups = sorted(study.speedups_of(n).items())
    slower = [batch for batch, speedup in speedups if speedup < 1]
    faster = [batch for batch, speedup in speedups if speedup >= 1]
    if not slower:
        return f"pay at every measured batch, from {faster[0]:,} images on"
    always = [batch for batch in faster if batch > slower[-1]]
    if not always:
        return f"do not pay at batches of up to {slower[-1]:,} images"
    before = [batch for batch in slower if batch < faster[0]]
    begin = f"between {before[-1]:,} and" if before else "at the latest at"
    batch, best = max(speedups, key=lambda pair: pair[1])
    return (
        f"begin to pay {begin} {always[0]:,} images per batch, and are at most "
        f"{best:.1f} times as fast, at {batch:,}"
    )


def _timing(runs: Sequence[Run]) -> Result:
    table = [row for row in arrays_table.rows(runs) if row.operation in OPERATIONS]
    by_library = group(table, lambda r: (r.operation, r.library, r.num_devices))
    rows = []
    for (operation, library, _), forms in by_library.items():
        row = min(forms, key=lambda r: r.seconds.median)
        ms = row.seconds.cells(1e3)
        naive = number(1e3 * row.naive.median)
        where = row.where or "host"
        rows.append([operation, library, row.form, where, *ms, naive])
    columns = ["operation", "library", "fastest form", "", "ms", "quartiles", "n"]
    columns.append("not waiting")
    shapes = {row.operation: arrays_table.shape(row) for row in table}
    note = (
        f"{', '.join(f'{name}: {shape}' for name, shape in shapes.items())}; ms: by a "
        "clock that is read after the devices have finished; not waiting: at once"
    )
    ours = [row for row in table if row.library == "MXNet"]
    longest = max(ours, key=lambda row: row.seconds.median)
    answer = (
        f"A clock that does not wait reads {number(1e3 * longest.naive.median)} ms for "
        f"{longest.operation}, {longest.form}, on {longest.where}, which takes "
        f"{arrays_table.ms(longest)} ms."
    )
    return Result(plain_table(columns, rows, names=4), note, answer)


def _precisions(runs: Sequence[Run]) -> Result:
    rows, sentences = [], []
    for run in runs:
        where = labels.count(run.header)
        table = precision_table.merged(run.of(PrecisionRecord))
        trained = [row for row in table if row.weights == "trained"]
        float32 = precision_table.baseline(trained)
        for row in trained:
            if not row.supported:
                rows.append([where, row.precision, *"-----", "not here"])
                continue
            speedup = row.images_per_sec / float32.images_per_sec if float32 else 0
            rows.append([
                where, row.precision, number(row.images_per_sec),
                f"{number(row.images_per_sec_q1)}-{number(row.images_per_sec_q3)}",
                str(row.n), f"{speedup:.2f}" if float32 else "-",
                f"{row.test_acc:.3f}", f"{row.weight_bytes:,}",
            ])  # fmt: skip
        supported = [row for row in trained if row.supported]
        best = max(supported, key=lambda row: row.images_per_sec)
        if float32 and best.images_per_sec_q1 > float32.images_per_sec_q3:
            ratio = best.images_per_sec / float32.images_per_sec
            sentences.append(
                f"{where}: {best.precision} is {ratio:.1f} times as fast as "
                f"float32, at accuracy {best.test_acc:.3f} instead of "
                f"{float32.test_acc:.3f}"
            )
        else:
            sentences.append(f"{where}: no precision is faster than float32")
    columns = ["", "precision", "images/s", "quartiles", "n", "speedup", "accuracy"]
    columns.append("weights, bytes")
    note = "images/s: median of n passes over the test images; speedup: over float32"
    return Result(plain_table(columns, rows, names=2), note, _joined(sentences))


RESULTS: dict[type[Line], Callable[[Sequence[Run]], Result]] = {
    PointRecord: _solvers,
    StepRecord: _scaling,
    TimingRecord: _timing,
    PrecisionRecord: _precisions,  # with the epochs of the training before
    **dict.fromkeys(EPOCHS, _training),
}

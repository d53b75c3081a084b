"""A network in lower precisions: speed and accuracy on the same rows."""

from __future__ import annotations

from collections.abc import Sequence

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.low_precision.result import baseline, merged
from d2lpar.records import files, labels
from d2lpar.records.kinds import PrecisionRecord, Run

WEIGHTS = {
    "trained": ("o", page.OURS, "as trained"),
    "stretched": ("D", page.OTHERS[0], "one channel stretched"),
    "equalised": ("s", page.OTHERS[1], "stretched, equalised"),
}


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``cpu1-precision`` and so on for each run, titled by `answers`."""
    named = {f"{files.run_name(run.header)}-precision": run for run in runs}
    title = "LeNet in low precision: speed and accuracy"
    return {k: picture(run, page.answer(answers, k, title)) for k, run in named.items()}


def picture(run: Run, title: str) -> page.Picture:
    """Draw the points of accuracy that precisions lose against their speed."""
    rows = merged(run.lines_of(PrecisionRecord))
    measured = [row for row in rows if row.supported]
    base = baseline(rows)
    if base is None:
        raise RecordError(f"{run.path}: holds no measured float32")
    note = f"{labels.data_name(run.header)}; lost: beside float32 as trained"
    if refused := dict.fromkeys(row.precision for row in rows if not row.supported):
        note += f"; not supported here: {', '.join(refused)}"
    picture = page.new(title, labels.subtitle(note, [run]), [run], (5.6, 4.8))
    (axes,) = picture.axes
    trained = [row for row in measured if row.weights == "trained"]
    speeds = {r.precision: r.images_per_sec / base.images_per_sec for r in trained}
    for weights, (marker, ink, label) in WEIGHTS.items():
        found = [r for r in measured if r.weights == weights and r.precision in speeds]
        if found:
            lost = [100 * (base.test_acc - row.test_acc) for row in found]
            times = [speeds[row.precision] for row in found]
            words = f"{label}: at most {max(lost):.1f} points"
            axes.plot(lost, times, marker, color=ink, label=words, ms=7, alpha=0.8)
    heights = {f"{name}: {times:.1f}\u00d7": times for name, times in speeds.items()}
    axes.set(ylim=(0, None), ylabel="times as fast as float32")
    axes.set_xlabel("points of test accuracy lost")
    axes.legend(loc="center")
    page.name_beside(axes, heights)
    return picture

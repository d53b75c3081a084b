"""A network in lower precisions: speed and accuracy on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.low_precision.result import baseline, merged, speedup
from d2lpar.records import labels
from d2lpar.records.comparison import Summary
from d2lpar.records.kinds import PrecisionRecord, Run

WEIGHTS = {
    "trained": ("o", "as trained"),
    "stretched": ("D", "one channel stretched"),
    "equalised": ("s", "stretched, then equalised"),
}


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``cpu1-precision`` and so on for each run, titled by `answers`."""
    drawn: dict[str, page.Picture] = {}
    for run in runs:
        name = f"{run.header.device_kind}{run.header.num_devices}-precision"
        title = "LeNet in low precision: speed and accuracy"
        drawn[name] = picture(run, page.answer(answers, name, title, inches=10.5))
    return drawn


def picture(run: Run, title: str) -> page.Picture:
    """Draw images per second and test accuracy, a row per precision."""
    rows = merged(run.lines_of(PrecisionRecord))
    measured = [row for row in rows if row.supported]
    trained = [row for row in measured if row.weights == "trained"]
    if not trained:
        raise RecordError(f"{labels.where(run)}: holds no measured precision")
    base = baseline(rows) or trained[0]
    note = labels.data_name(run.header)
    if refused := dict.fromkeys(row.precision for row in rows if not row.supported):
        note += f", not supported here: {', '.join(refused)}"
    size = (10.5, page.height(len(trained)) + 0.6)
    note = labels.subtitle(note, [run])
    picture = page.new(title, note, [run], size, columns=2, sharey=True)
    speeds, accuracy = picture.axes
    names = [row.precision for row in trained]
    times = []
    for row in trained:
        q1, q3 = row.images_per_sec_q1, row.images_per_sec_q3
        note = page.times_as_fast(speedup(row, base))
        color = page.INK if row is base else page.OURS
        summary = Summary(row.images_per_sec, q1, q3, row.n, (q1, q3), ())
        times.append(page.Row(row.precision, summary, color, note))
    page.dots(speeds, times, "images/s", log=False)
    speeds.locator_params(axis="x", nbins=4)
    n = run.header.settings.get("n_test") or 10_000
    inks = (page.OURS, *page.OTHERS)
    for k, (ink, (weights, (marker, label))) in enumerate(zip(inks, WEIGHTS.items())):
        found = [r for r in measured if r.weights == weights and r.precision in names]
        if found:
            accuracy.errorbar(
                [100 * (row.test_acc - base.test_acc) for row in found],
                [names.index(row.precision) + 0.2 * (k - 1) for row in found],
                xerr=[  # half of the 95 % interval of a share that was found in n
                    196 * math.sqrt(row.test_acc * (1 - row.test_acc) / n)
                    for row in found
                ],
                ls="", marker=marker, color=ink, capsize=2, label=label,
            )  # fmt: skip
    accuracy.grid(False, axis="y")
    accuracy.tick_params(axis="y", length=0)
    accuracy.set_xlabel("points from float32, with 95 % intervals")
    # Below the rows: the wide intervals of a short training meet each corner.
    accuracy.set_ylim(len(names) + 1, -0.5)
    accuracy.legend(loc="lower left")
    return picture

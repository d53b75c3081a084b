"""Median and worst error of three forms of the step model, on two devices.

    python tools/step_models.py

All are fitted to one device's steps in the committed records, and say how far they miss
two devices' steps: the sum of all times, the longer of Python's and the devices', and
the longest of these and the cores' (chapter 6).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from d2lpar.records import files
from d2lpar.scaling.model import StepModel, fit_step, studies

FIGURES = Path(__file__).parents[1] / "figures"


def forms(model: StepModel, line: StepModel, batch: int) -> dict[str, float]:
    """Seconds of a step on two devices, by form; `line` is fitted without Python."""
    device = line.fixed + line.per_sample * batch / 2 + model.exchange
    return {
        "sum": line.fixed + device,
        "longer of two": replace(model, cores=math.inf).seconds(2, batch),
        "with the cores": replace(model, cores=2).seconds(2, batch),
    }


def errors() -> Iterator[tuple[str, str, list[float]]]:
    """Record, form, and its errors in % over all batch sizes."""
    for folder in ("scaling", "h200/scaling"):
        runs = [files.read(p) for p in sorted((FIGURES / folder).glob("*.jsonl"))]
        for study in studies(runs):
            one = {b: t for (n, b), t in study.steps.items() if n == 1}
            two = {b: t for (n, b), t in study.steps.items() if n == 2}
            line = fit_step(one, issue=0)
            found = {b: forms(study.model, line, b) for b in two}
            for name in ("sum", "longer of two", "with the cores"):
                off = [100 * abs(found[b][name] / t - 1) for b, t in two.items()]
                yield f"{folder}, {study.name}", name, off


if __name__ == "__main__":
    for record, form, found in errors():
        print(f"{record}, {form}: median {median(found):.1f} %, {max(found):.1f} %")

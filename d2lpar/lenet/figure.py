"""LeNet's trainings on several device counts: accuracy and seconds."""

from __future__ import annotations

from collections.abc import Sequence

from d2lpar.figures import page, trainings
from d2lpar.lenet.result import GUESSING
from d2lpar.records.kinds import Run


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``accuracy`` by epoch, and ``seconds``, titled by `answers`."""
    title = page.answer(answers, "accuracy", "Test accuracy")
    accuracy = page.new(title, trainings.workload(runs), runs)
    (axes,) = accuracy.axes
    trainings.curves(axes, runs)
    axes.axhline(GUESSING, **page.LIMIT)
    page.name_beside(axes, {"guessing": GUESSING})
    return {"accuracy": accuracy, **trainings.seconds(runs, answers)}

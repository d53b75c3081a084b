"""LeNet's trainings on several device counts: accuracy and seconds."""

from __future__ import annotations

from collections.abc import Sequence

from d2lpar.figures import page, trainings
from d2lpar.records.kinds import Run


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``accuracy``, by epoch and by time, and ``seconds``, titled by `answers`."""
    runs, size = trainings.by_device_count(runs), (10.4, 4.4)
    title = page.answer(answers, "accuracy", "Test accuracy", size[0])
    accuracy = page.new(
        title, trainings.workload(runs), runs, size, columns=2, sharey=True
    )
    for axes, by_seconds in zip(accuracy.axes, (False, True)):
        trainings.curves(axes, runs, by_seconds=by_seconds)
    return {"accuracy": accuracy, **trainings.seconds(runs, answers)}

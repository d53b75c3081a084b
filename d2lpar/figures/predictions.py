"""A class's predictions beside the answers: a histogram for each question."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records.atomic import replacing

BINS = 20


class Guess(NamedTuple):
    """A learner's guess and the answer that their own machine gave."""

    guess: float | str
    answer: float | str
    good: bool


def read(files: Sequence[Path]) -> dict[str, list[Guess]]:
    """The guesses in `files` by question. Raises :class:`RecordError`."""
    questions: dict[str, list[Guess]] = {}
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{path}: {error}") from None
        for n, line in enumerate(text.splitlines(), 1):
            try:
                fact = json.loads(line)
                guess = Guess(fact["guess"], fact["answer"], fact["good"])
                questions.setdefault(fact["what"], []).append(guess)
            except (ValueError, KeyError, TypeError):
                why = "is no prediction; give files that chapter.answer has written"
                raise RecordError(f"{path}: line {n} {why}") from None
    if not questions:
        raise RecordError(f"{', '.join(map(str, files))}: no predictions")
    return questions


@page.plain_style()
def draw(questions: dict[str, list[Guess]], folder: Path) -> Path:
    """Draw all questions, one below the other, to predictions.png in `folder`."""
    figure = Figure(figsize=(7.6, 2.2 * len(questions)))
    axes = figure.subplots(len(questions), squeeze=False)[:, 0]
    for panel, (what, guesses) in zip(axes, questions.items()):
        panel.set(title=what, ylabel="learners")
        panel.yaxis.get_major_locator().set_params(integer=True)
        values, answers, _ = zip(*guesses)
        both = (*values, *answers)
        if any(isinstance(value, str) for value in both):
            words = Counter(sorted(map(str, values)))
            right = set(map(str, answers))
            colors = [page.OURS if word in right else page.GREY for word in words]
            panel.bar(list(words), list(words.values()), color=colors)
            continue
        least, most = min(both), max(both)
        wide = most > 10 * least > 0
        if wide:
            panel.set_xscale("log")
        bins = numpy.geomspace(least, most, BINS) if wide else BINS
        panel.hist(values, bins, (least, most), color=page.GREY)
        for answer in answers:
            panel.axvline(answer, color=page.OURS, lw=1.2)
    path = folder / "predictions.png"
    with replacing(path) as tmp:
        figure.savefig(tmp, format="png")
    return path

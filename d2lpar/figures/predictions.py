"""A class's predictions beside the answers: a histogram for each question."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy

from d2lpar.errors import RecordError
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


def draw(questions: dict[str, list[Guess]], folder: Path) -> Path:
    """Draw all questions, one below the other, to predictions.png in `folder`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 2.2 * len(questions)), layout="constrained")
    axes = figure.subplots(len(questions), squeeze=False)[:, 0]
    for panel, (what, guesses) in zip(axes, questions.items()):
        panel.set_title(what, loc="left")
        panel.set_ylabel("learners")
        panel.yaxis.get_major_locator().set_params(integer=True)
        if any(isinstance(v, str) for g in guesses for v in g[:2]):
            words, counts = numpy.unique(
                [str(g.guess) for g in guesses], return_counts=True
            )
            right = {str(g.answer) for g in guesses}
            colors = ["#0072B2" if word in right else "0.62" for word in words]
            panel.bar(words, counts, color=colors)
            continue
        values, answers = (
            numpy.array(v, float) for v in zip(*(g[:2] for g in guesses))
        )
        both = numpy.concatenate([values, answers])
        if (both > 0).all() and both.max() > 10 * both.min():
            panel.set_xscale("log")
            bins = numpy.geomspace(both.min(), both.max(), BINS)
        else:
            bins = numpy.linspace(both.min(), both.max() + 1e-12, BINS)
        panel.hist(values, bins, color="0.62")
        for value in answers:
            panel.axvline(value, color="#0072B2", lw=1.2)
    path = folder / "predictions.png"
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as tmp:
        figure.savefig(tmp, dpi=150, format="png")
    return path

"""A class's predictions beside the answers: a histogram for each question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Union

import msgspec
import numpy
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import group

BINS = 20


class Guess(msgspec.Struct):
    """A learner's guess and the answer that their own machine gave."""

    what: str
    guess: Union[float, bool, str]  # noqa: UP007 - evaluated, in Python 3.9 too
    answer: Union[float, bool, str]  # noqa: UP007 - evaluated, in Python 3.9 too
    good: bool


def read(files: Sequence[Path]) -> dict[str, list[Guess]]:
    """The guesses in `files` by question. Raises :class:`RecordError`."""
    guesses, lines = [], msgspec.json.Decoder(Guess)
    for path in files:
        try:
            found = lines.decode_lines(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise RecordError(f"{path}: {error}: no predictions of a chapter") from None
        if not found:
            raise RecordError(f"{path}: holds no predictions")
        guesses += found
    return group(guesses, lambda guess: guess.what)


@page.plain_style()
def draw(questions: dict[str, list[Guess]], folder: Path) -> Path:
    """Draw all questions, one below the other, to predictions.png in `folder`."""
    figure = Figure(figsize=(7.6, 2.2 * len(questions)))
    axes = figure.subplots(len(questions), squeeze=False)[:, 0]
    for panel, (what, guesses) in zip(axes, questions.items()):
        panel.set(title=what, ylabel="learners")
        panel.yaxis.get_major_locator().set_params(integer=True)
        values = [g.guess for g in guesses]
        answers = [g.answer for g in guesses]
        both = [*values, *answers]
        numbers = [value for value in both if not isinstance(value, str)]
        if len(numbers) < len(both):
            words = Counter(sorted(map(str, values)))
            right = set(map(str, answers))
            colors = [page.OURS if word in right else page.GREY for word in words]
            panel.bar(list(words), list(words.values()), color=colors)
            continue
        least, most = min(numbers), max(numbers)
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

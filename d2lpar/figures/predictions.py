"""A class's predictions beside the answers: a histogram for each question."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Union

import msgspec
import numpy
from matplotlib.figure import Figure
from msgspec import Meta

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import group

log = logging.getLogger("d2lpar")

BINS = 20
MOST_QUESTIONS = 100  # in one picture
# Bounds that keep a histogram's bins apart, and words within a line.
Guessed = Annotated[float, Meta(ge=-1e15, le=1e15)]
Words = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f]{1,200}\Z")]


class Guess(msgspec.Struct):
    """A learner's guess and the answer that their own machine gave."""

    what: Words
    guess: Union[Guessed, Words]  # noqa: UP007 - evaluated, in Python 3.9 too
    answer: Union[Guessed, Words]  # noqa: UP007 - evaluated, in Python 3.9 too
    good: bool

    def __post_init__(self) -> None:
        if isinstance(self.guess, str) and not isinstance(self.answer, str):
            raise ValueError("the guess is a word, and the answer a number")


def read(files: Sequence[Path]) -> dict[str, list[Guess]]:
    """The guesses in `files` by question; lines that are none are skipped and logged.

    Raises :class:`RecordError` for a file that cannot be read, and if no line of any
    file is a guess.
    """
    guesses, decoder = [], msgspec.json.Decoder(Guess)
    for path in files:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                guesses.append(decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                log.warning("%s, line %d: skipped (%s)", path, number, error)
    if not guesses:
        names = ", ".join(map(str, files))
        raise RecordError(f"{names}: no predictions of a chapter")
    return group(guesses, lambda guess: guess.what)


@page.plain_style()
def draw(questions: dict[str, list[Guess]], folder: Path) -> Path:
    """Draw the questions, one below the other, to predictions.png in `folder`.

    Of very many the ones with the most guesses are drawn.
    """
    shown = sorted(questions.items(), key=lambda item: -len(item[1]))[:MOST_QUESTIONS]
    shown.sort(key=lambda item: list(questions).index(item[0]))
    if len(shown) < len(questions):
        log.warning(
            "%d questions: drawing %d with the most guesses", len(questions), len(shown)
        )
    figure = Figure(figsize=(7.6, 2.2 * len(shown)))
    axes = figure.subplots(len(shown), squeeze=False)[:, 0]
    for panel, (what, guesses) in zip(axes, shown):
        panel.set(title=page.wrap(what, 80), ylabel="learners")
        panel.yaxis.get_major_locator().set_params(integer=True)
        values = [g.guess for g in guesses]
        answers = [g.answer for g in guesses]
        both = [*values, *answers]
        numbers = [value for value in both if not isinstance(value, str)]
        if len(numbers) < len(both):
            words = Counter(page.wrap(str(value), 20) for value in values)
            right = {page.wrap(str(answer), 20) for answer in answers}
            names = sorted(words)
            colors = [page.OURS if word in right else page.GREY for word in names]
            panel.bar(names, [words[word] for word in names], color=colors)
            continue
        least, most = min(numbers), max(numbers)
        wide = most > 10 * least > 0
        if wide:
            panel.set_xscale("log")
        bins = numpy.geomspace(least, most, BINS) if wide else BINS
        panel.hist(values, bins, range=(least, most), color=page.GREY)
        for answer in answers:
            panel.axvline(answer, color=page.OURS, lw=1.2)
    path = folder / "predictions.png"
    with replacing(path) as tmp:
        figure.savefig(tmp, format="png")
    return path

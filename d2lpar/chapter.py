"""What a chapter's cells call: predict, answer, record, and at the end measure."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2lpar.records import files
from d2lpar.records.atomic import cell_output, replacing
from d2lpar.records.rule import of_turns, phrase
from d2lpar.runs.progress import in_notebook, show_figure
from d2lpar.text import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from d2lpar.records.kinds import Run


# In a clone a link to figures/, in a wheel its records.
COMMITTED = (Path(__file__).parent / "records" / "committed").resolve()
GOOD_FACTOR, CLOSE_FACTOR = 1.5, 1.1  # of a measured answer
_guesses: dict[str, float | str] = {}  # without an answer so far
_good: list[bool] = []  # by answered guess: was it good?


def predict(what: str, guess: float | str | None = None) -> None:
    """Note your guess before you run the cell: ``predict("ms per step", 5)``.

    `what` ends in the unit, or names a choice, whose guess is a word.
    """
    _guesses.pop(what, None)
    if guess is not None:
        _guesses[what] = _plain(guess)


def answer(what: str, value: float | str) -> None:
    """Show the answer and how far off the guess was; keep both in predictions.jsonl.

    Whole numbers and words are exact, and must be met. Of a measurement, which is
    passed unrounded, a guess is good within a factor of 1.5.
    """
    value = _plain(value)
    exact = not isinstance(value, float)
    guess = _guesses.pop(what, None)
    text = f"{what}: {number(value) if isinstance(value, float) else value}"
    if guess is not None:
        good, off = _assess(guess, value, exact)
        _good.append(good)
        shown = f"{guess:g}" if isinstance(guess, float) else guess
        text += f" (you said {shown}: {off})"
        line = {"what": what, "guess": guess, "answer": value, "good": good}
        with cell_output("predictions.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "date": files.now()}) + "\n")
    if in_notebook():
        from IPython.display import display

        # For the book, which asks the reader.
        fact = {"what": what, "answer": value, "exact": exact}
        display({"text/plain": text, "application/json": fact}, raw=True)
    else:
        print(text)


def score() -> None:
    """Say how many guesses, if any, were good."""
    if _good:
        print(
            f"{sum(_good)} of {len(_good)} predictions good: right, or of a "
            f"measurement within a factor of {GOOD_FACTOR}"
        )


def _plain(value: object) -> float | str:
    """Return a word, an int or a float, as JSON has them."""
    if isinstance(value, (str, int)):
        return value
    number = float(value)  # type: ignore[arg-type]
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def _assess(guess: float | str, value: float | str, exact: bool) -> tuple[bool, str]:
    """Return whether a guess is good, and how far off it is."""
    if isinstance(guess, str) or isinstance(value, str):
        right = str(guess).strip().lower() == str(value).strip().lower()
        return right, "right" if right else "wrong"
    if guess == value:
        return True, "right"
    if min(guess, value) <= 0:
        return False, f"off by {number(float(abs(guess - value)))}"
    ratio = max(guess / value, value / guess)
    off = "close" if ratio <= CLOSE_FACTOR else f"off by a factor of {ratio:,.2g}"
    if exact:
        return False, f"wrong, {off}"
    return ratio <= GOOD_FACTOR, off


def verdict(
    one: Sequence[float],
    two: Sequence[float],
    names: tuple[str, str] = ("the first", "the second"),
    unit: str = "s",
) -> str:
    """Say whether the second is faster than the first, by the rule of Chapter 3.

    ``one[k]`` and ``two[k]`` are times in `unit`, taken in turn k. The rule is
    :func:`d2lpar.records.rule.compare`'s.
    """
    return phrase(names[1], of_turns(two), names[0], of_turns(one), unit=unit)


def record(name: str) -> Run:
    """Return a committed record: ``record("gpus/peers/one/custom-gpu1.jsonl")``.

    `name` is a path below ``figures/``, whose records the package contains, too.
    Raises FileNotFoundError for a record that is not there.
    """
    return files.read(COMMITTED / name)


def show(figure: Figure, name: str) -> None:
    """Write a Matplotlib figure as NAME.png, and show it in a notebook.

    Raises OSError where the output folder cannot be written.
    """
    path = cell_output(f"{name}.png")
    with replacing(path) as tmp:
        figure.savefig(tmp, dpi=120, format="png")
    if in_notebook():
        show_figure(path)
    else:
        print(f"wrote {path}")


def measure(name: str, **settings: Any) -> list[Run]:
    """Measure a chapter, show what it found, and return its records.

    A script takes the flags of `d2lpar run`, too, and ends with one line on an error.
    """
    from d2lpar.runs.measure import measure

    if in_notebook():
        return measure(name, **settings)
    from d2lpar.cli.main import flags_of, guard

    runs = guard(lambda: measure(name, **{**settings, **flags_of(name, *sys.argv[1:])}))
    return runs if isinstance(runs, list) else []  # --help measures nothing

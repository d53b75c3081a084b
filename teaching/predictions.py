"""Draw a class's predictions beside the answers: a histogram for each question.

    python teaching/predictions.py class/*.jsonl --out class

Each file is a learner's runs/predictions.jsonl, as `chapter.answer` writes it: a guess
on each line, and the answer that the learner's own machine gave.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2lpar.figures import page
from d2lpar.records.kinds import group
from d2lpar.text import plain_table, printable

BINS = 20


def guesses(files: Sequence[Path]) -> Iterator[dict]:
    """Yield the guesses in files; say which lines are none."""
    for path in files:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            try:
                found = json.loads(line)
                found = {key: found[key] for key in ("what", "guess", "answer", "good")}
                if isinstance(found["guess"], str) > isinstance(found["answer"], str):
                    raise ValueError("the guess is a word, and the answer a number")
                yield found
            except (ValueError, KeyError, TypeError) as error:
                print(f"{path}, line {number}: skipped ({error})")


@page.plain_style()
def draw(questions: dict[str, list[dict]]) -> Figure:
    """Return a picture of the questions, one below the other."""
    figure = Figure(figsize=(7.6, 2.2 * len(questions)))
    panels = figure.subplots(len(questions), squeeze=False)[:, 0]
    for axes, (what, said) in zip(panels, questions.items()):
        axes.set(title=page.wrap(what, 80), ylabel="learners")
        axes.yaxis.get_major_locator().set_params(integer=True)
        histogram(axes, [g["guess"] for g in said], [g["answer"] for g in said])
    return figure


def histogram(axes: Axes, values: list, answers: list) -> None:
    """Draw guesses in grey, and answers in blue; both are words or numbers."""
    if any(isinstance(value, str) for value in (*values, *answers)):
        words = Counter(page.wrap(str(value), 20) for value in values)
        right = {page.wrap(str(answer), 20) for answer in answers}
        names = sorted(words)
        colors = [page.OURS if word in right else page.GREY for word in names]
        axes.bar(names, [words[word] for word in names], color=colors)
        return
    least, most = min(*values, *answers), max(*values, *answers)
    wide = most > 10 * least > 0
    if wide:
        axes.set_xscale("log")
    bins = numpy.geomspace(least, most, BINS) if wide else BINS
    axes.hist(values, bins, range=(least, most), color=page.GREY)
    for answer in answers:
        axes.axvline(answer, color=page.OURS, lw=1.2)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    args = parser.parse_args(words)
    questions = group(guesses(args.files), lambda guess: guess["what"])
    if not questions:
        parser.error("no predictions of a chapter in these files")
    rows = [
        [what, str(len(said)), f"{sum(g['good'] for g in said)} of {len(said)}"]
        for what, said in questions.items()
    ]
    columns = ["question", "guesses", "good"]
    print(printable(plain_table(columns, rows)))
    args.out.mkdir(parents=True, exist_ok=True)
    draw(questions).savefig(args.out / "predictions.png")
    print(f"wrote {args.out / 'predictions.png'}")


if __name__ == "__main__":
    main()

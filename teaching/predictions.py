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
from matplotlib.figure import Figure

from d2lpar.figures import page
from d2lpar.records.kinds import group
from d2lpar.text import printable

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
    """Return histograms of guesses, grey, with the answers, blue: words or numbers."""
    figure = Figure(figsize=(7.6, 2.2 * len(questions)))
    panels = figure.subplots(len(questions), squeeze=False)[:, 0]
    for axes, (what, said) in zip(panels, questions.items()):
        axes.set(title=page.wrap(what, 80), ylabel="learners")
        axes.yaxis.get_major_locator().set_params(integer=True)
        guesses, answers = ([g[key] for g in said] for key in ("guess", "answer"))
        if any(isinstance(value, str) for value in (*guesses, *answers)):
            for word, count in sorted(Counter(map(str, guesses)).items()):
                color = page.OURS if word in map(str, answers) else page.GREY
                axes.bar(page.wrap(word, 20), count, color=color)
            continue
        least, most = min(*guesses, *answers), max(*guesses, *answers)
        wide = most > 10 * least > 0
        axes.set_xscale("log" if wide else "linear")
        bins = numpy.geomspace(least, most, BINS) if wide else BINS
        axes.hist(guesses, bins, range=(least, most), color=page.GREY)
        for answer in answers:
            axes.axvline(answer, color=page.OURS, lw=1.2)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    args = parser.parse_args(words)
    questions = group(guesses(args.files), lambda guess: guess["what"])
    if not questions:
        parser.error("no predictions of a chapter in these files")
    for what, said in questions.items():
        good = sum(guess["good"] for guess in said)
        print(f"{printable(what)}: {good} of {len(said)} are good")
    args.out.mkdir(parents=True, exist_ok=True)
    draw(questions).savefig(args.out / "predictions.png")
    print(f"wrote {args.out / 'predictions.png'}")


if __name__ == "__main__":
    main()

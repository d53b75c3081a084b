"""How far a run is: a bar on a terminal, lines in a log file, curves in a notebook."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager

import click
from tqdm import TqdmWarning, tqdm

from d2lpar.cli import notebook
from d2lpar.records.kinds import Line

with warnings.catch_warnings():
    # In a notebook tqdm asks for ipywidgets, which no bar of ours needs.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.contrib.logging import logging_redirect_tqdm

log = logging.getLogger("d2lpar")

SECONDS = 10  # between two lines of one run, unless it counts epochs
SECONDS_TO_LOOK = 0.3  # between two pictures in a notebook


class _Bar:
    """A bar that is redrawn in place."""

    def __init__(self, unit: str, total: int | None) -> None:
        self.bar = tqdm(total=total, unit=unit, dynamic_ncols=True, leave=False)

    def start(self, run: str) -> None:
        self.bar.set_description(run)

    def advance(self, line: Line) -> None:
        self.bar.set_postfix(line.progress())
        self.bar.leave = True  # an error before any result leaves one line only
        self.bar.update()

    def close(self) -> None:
        self.bar.close()


class _Lines:
    """One line per epoch; of what comes faster, each run's last and some before it."""

    def __init__(self, unit: str, total: int | None) -> None:
        self.unit, self.total, self.done = unit, total, 0
        self.run = self.unprinted = ""
        self.printed_at = time.monotonic()

    def start(self, run: str) -> None:
        self._print()
        self.run = run

    def advance(self, line: Line) -> None:
        self.done += 1
        self.unprinted = _in_words(self.run, self.unit, self.done, self.total, line)
        if self.unit == "epoch" or time.monotonic() >= self.printed_at + SECONDS:
            self._print()

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self.unprinted:
            click.echo(self.unprinted, err=True)
            self.unprinted, self.printed_at = "", time.monotonic()


class _Curves:
    """What the lines so far look like, in one output of a notebook, drawn anew."""

    def __init__(self, unit: str, total: int | None) -> None:
        self.unit, self.total, self.done = unit, total, 0
        self.runs: list[tuple[str, list[dict[str, float]]]] = []
        self.output, self.words, self.shown_at = notebook.Output(), "", 0.0

    def start(self, run: str) -> None:
        self.runs.append((run, []))

    def advance(self, line: Line) -> None:
        self.done += 1
        run, curves = self.runs[-1]
        self.words = _in_words(run, self.unit, self.done, self.total, line)
        if point := line.curves():
            curves.append(point)
        if time.monotonic() >= self.shown_at + SECONDS_TO_LOOK:
            self._show()

    def close(self) -> None:
        if self.words:
            self._show()

    def _show(self) -> None:
        from d2lpar.figures import live  # matplotlib takes its time

        drawn = [(run, curves) for run, curves in self.runs if curves]
        picture = live.png(drawn, self.words) if drawn else None
        self.output.show(self.words, picture)
        self.shown_at = time.monotonic()


def _in_words(run: str, unit: str, done: int, total: int | None, line: Line) -> str:
    of_all = f"/{total}" if total else ""
    facts = ", ".join(f"{name}={fact}" for name, fact in line.progress().items())
    return f"{run}: {unit} {done}{of_all}, {facts}"


@contextmanager
def shown(unit: str, total: int | None) -> Iterator[_Bar | _Lines | _Curves]:
    """Shows `start(run)` for each run and `advance(line)` for each line that counts.

    `unit` is what is counted, `total` how many there will be, or None.
    """
    if notebook.is_here():
        with closing(_Curves(unit, total)) as curves:
            yield curves
        return
    if not sys.stderr.isatty():
        with closing(_Lines(unit, total)) as lines:
            yield lines
        return
    with closing(_Bar(unit, total)) as bar, logging_redirect_tqdm([log]):
        yield bar

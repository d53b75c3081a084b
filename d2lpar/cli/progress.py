"""How far a run is, on stderr: a bar on a terminal, lines in a log file."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import click
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from d2lpar.records.kinds import Line

log = logging.getLogger("d2lpar")

SECONDS = 10  # between two lines of one run, unless it counts epochs


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
        of_all = f"/{self.total}" if self.total else ""
        facts = ", ".join(f"{name}={fact}" for name, fact in line.progress().items())
        self.unprinted = f"{self.run}: {self.unit} {self.done}{of_all}, {facts}"
        if self.unit == "epoch" or time.monotonic() >= self.printed_at + SECONDS:
            self._print()

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self.unprinted:
            click.echo(self.unprinted, err=True)
            self.unprinted, self.printed_at = "", time.monotonic()


@contextmanager
def shown(unit: str, total: int | None) -> Iterator[_Bar | _Lines]:
    """Shows `start(run)` for each run and `advance(line)` for each line that counts.

    `unit` is what is counted, `total` how many there will be, or None.
    """
    if not sys.stderr.isatty():
        with closing(_Lines(unit, total)) as lines:
            yield lines
        return
    with closing(_Bar(unit, total)) as bar, logging_redirect_tqdm([log]):
        yield bar

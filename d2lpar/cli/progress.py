"""How far a run is: a bar on a terminal, lines in a log, curves in a notebook."""

from __future__ import annotations

import base64
import logging
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from statistics import median

import click
from tqdm import TqdmWarning, tqdm

from d2lpar.records.kinds import (
    EPOCHS,
    AllReduceRecord,
    EpochRecord,
    GanEpochRecord,
    Header,
    Line,
    PointRecord,
    PrecisionRecord,
    ScaledEpoch,
    StepRecord,
    TimingRecord,
)
from d2lpar.runs.job import Job
from d2lpar.text import byte_size, plural

with warnings.catch_warnings():
    # In a notebook tqdm asks for ipywidgets, which no bar of ours needs.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.contrib.logging import logging_redirect_tqdm

log = logging.getLogger("d2lpar")

SECONDS = 10  # between two lines of one run, unless it counts epochs
SECONDS_TO_LOOK = 0.3  # between two pictures in a notebook


def in_words(line: Line) -> str:
    """A line of progress for a record line; "" for kinds that are not shown."""
    if isinstance(line, EpochRecord):
        return (
            f"epoch {line.epoch}, loss {line.train_loss:.3f}, accuracy "
            f"{line.test_acc:.3f}, {line.seconds:.3g} s"
        )
    if isinstance(line, GanEpochRecord):
        return (
            f"epoch {line.epoch}, loss of D {line.d_loss:.3f}, of G {line.g_loss:.3f}, "
            f"{line.seconds:.3g} s"
        )
    if isinstance(line, PointRecord):
        return f"iteration {line.iteration}, residual {line.residual_norm:.4g}"
    if isinstance(line, StepRecord):
        devices = (
            f" on {plural(line.num_devices, 'device')}" if line.num_devices else ""
        )
        ms = 1e3 * median(line.seconds)
        return f"a step of {line.global_batch_size} images{devices}: {ms:.3g} ms"
    if isinstance(line, AllReduceRecord):
        return f"all-reduce of {byte_size(line.num_bytes)}, {line.variant}"
    if isinstance(line, ScaledEpoch):
        return f"batch {line.global_batch_size}, epoch {line.epoch}"
    if isinstance(line, TimingRecord):
        ms = 1e3 * median(line.seconds)
        return f"{line.operation}, {line.library}, {line.form}: {ms:.3g} ms"
    if isinstance(line, PrecisionRecord):
        return f"{line.precision} ({line.weights} weights)"
    return ""


def curves(line: Line) -> dict[str, float]:
    """What a notebook draws of a line, by label; the first is the abscissa."""
    if isinstance(line, EpochRecord):
        return {
            "epoch": line.epoch,
            "training loss": line.train_loss,
            "test accuracy": line.test_acc,
        }
    if isinstance(line, GanEpochRecord):
        return {"epoch": line.epoch, "loss of D": line.d_loss, "loss of G": line.g_loss}
    if isinstance(line, PointRecord):
        return {"iteration": line.iteration, "residual ||A x - b||": line.residual_norm}
    return {}


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def show_figure(path: Path) -> None:
    """Show a figure's PNG, or an animation's GIF, at its size on a page."""
    from IPython.display import Image, display
    from PIL import Image as Pillow

    width = None
    if path.suffix == ".png":
        with Pillow.open(path) as picture:
            dots_per_inch = picture.info.get("dpi", (96, 96))[0]
            width = round(picture.width * 96 / dots_per_inch)
    display(Image(path.read_bytes(), format=path.suffix[1:], width=width))


class Progress(ABC):
    """Shows where the runs are: ``start(header)``, then ``advance(line)`` for each."""

    num_epochs = 0

    def start(self, header: Header) -> None:
        """Show that the run of this header begins."""
        self.num_epochs = header.settings.get("num_epochs", 0)
        words = [header.variant, plural(header.num_devices, "device")]
        self.begin(", ".join(filter(None, words)))

    def advance(self, line: Line) -> None:
        """Show a line of the run, of an epoch with the number of all epochs."""
        words = in_words(line)
        if not words:
            return
        if isinstance(line, EPOCHS) and self.num_epochs:
            of_all = f"epoch {line.epoch}/{self.num_epochs}"
            words = words.replace(f"epoch {line.epoch}", of_all, 1)
        self.show(words, line)

    @abstractmethod
    def begin(self, run: str) -> None:
        """Begin a run, described in words."""

    @abstractmethod
    def show(self, words: str, line: Line) -> None:
        """Show a line of a record, and what :func:`in_words` says of it."""

    @abstractmethod
    def tick(self) -> None:
        """Update a clock; called every second."""

    @abstractmethod
    def close(self) -> None:
        """Show what has not been shown yet."""


class Bar(Progress):
    """A bar that is redrawn in place."""

    def __init__(self, unit: str, total: int | None) -> None:
        self.bar = tqdm(total=total, unit=unit, dynamic_ncols=True, leave=False)

    def begin(self, run: str) -> None:
        self.bar.set_description(run)

    def show(self, words: str, line: Line) -> None:
        self.bar.set_postfix_str(words)
        self.bar.leave = True  # an error before any result leaves one line only
        self.bar.update()

    def tick(self) -> None:
        self.bar.refresh()  # its clock goes on

    def close(self) -> None:
        self.bar.close()


class Lines(Progress):
    """One line per epoch; all else is throttled to one line every 10 s."""

    def __init__(self, unit: str) -> None:
        self.unit, self.run, self.unprinted = unit, "", ""
        self.began = self.printed_at = time.monotonic()

    def begin(self, run: str) -> None:
        self.close()
        self.run = run

    def show(self, words: str, line: Line) -> None:
        self.unprinted = f"{self.run}: {words}"
        if self.unit == "epoch" or time.monotonic() >= self.printed_at + SECONDS:
            self.close()

    def tick(self) -> None:
        if time.monotonic() >= self.printed_at + SECONDS:
            seconds = time.monotonic() - self.began
            what = self.run or "starting"
            self.unprinted = self.unprinted or f"{what}: {seconds:.0f} s so far"
            self.close()

    def close(self) -> None:
        """Print what is not printed yet."""
        if self.unprinted:
            click.echo(self.unprinted, err=True)
            self.unprinted, self.printed_at = "", time.monotonic()


class Curves(Progress):
    """What the lines so far look like, in one output of a notebook, drawn again."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, list[dict[str, float]]]] = []
        self.words, self.output, self.shown_at = "", None, 0.0

    def begin(self, run: str) -> None:
        self.runs.append((run, []))

    def show(self, words: str, line: Line) -> None:
        run, points = self.runs[-1]
        self.words = f"{run}: {words}"
        if point := curves(line):
            points.append(point)
        if time.monotonic() >= self.shown_at + SECONDS_TO_LOOK:
            self.close()

    def tick(self) -> None:
        pass  # a picture has no clock

    def close(self) -> None:
        """Draw all that has come."""
        if not self.words:
            return
        from IPython.display import display

        from d2lpar.figures import live  # matplotlib is slow to import

        content = {"text/plain": self.words}
        if drawn := [(run, points) for run, points in self.runs if points]:
            png = live.png(drawn, self.words)
            content["image/png"] = base64.b64encode(png).decode()
        if self.output is None:
            self.output = display(content, raw=True, display_id=True)
        else:
            self.output.update(content, raw=True)
        self.shown_at = time.monotonic()


@contextmanager
def shown(jobs: list[Job], repeats: int) -> Iterator[Progress]:
    """A :class:`Progress` for the place: a notebook, a terminal or a log."""
    unit, total = jobs[0].experiment.unit, None
    if unit == "epoch":
        total = repeats * sum(job.settings["num_epochs"] for job in jobs)
    logging_elsewhere = nullcontext()
    screen: Progress
    if in_notebook():
        screen = Curves()
    elif not sys.stderr.isatty():
        screen = Lines(unit)
    else:
        screen = Bar(unit, total)
        logging_elsewhere = logging_redirect_tqdm([log])
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1):
            screen.tick()

    ticking = threading.Thread(target=tick, daemon=True)
    with closing(screen), logging_elsewhere:
        ticking.start()
        try:
            yield screen
        finally:
            ended.set()
            ticking.join()

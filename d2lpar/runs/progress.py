"""The progress of a run: a line per epoch, and on a terminal a bar."""

from __future__ import annotations

import logging
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from tqdm import TqdmWarning, tqdm

from d2lpar.lenet.result import is_guessing
from d2lpar.records.kinds import (
    EPOCHS,
    AllReduceRecord,
    EpochRecord,
    GanEpochRecord,
    Header,
    Line,
    PointRecord,
    PrecisionRecord,
    StepRecord,
    TimingRecord,
)
from d2lpar.runs.job import Job
from d2lpar.text import byte_size, filled, plural, terminal_width

with warnings.catch_warnings():
    # In a notebook tqdm asks for ipywidgets, which no bar of ours needs.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.contrib.logging import logging_redirect_tqdm

log = logging.getLogger("d2lpar")

SECONDS = 10  # between two lines of a log, unless it counts epochs


def in_words(line: Line, num_epochs: int = 0) -> str:
    """Return a line of progress for a record line, or ""."""
    of_all = f"/{num_epochs}" if num_epochs else ""
    if isinstance(line, EPOCHS):  # those of a checkpoint may be of other devices
        elsewhere = line.resumed == "elsewhere"
        seconds = "of the checkpoint" if elsewhere else f"{line.seconds:.3g} s"
    if isinstance(line, EpochRecord):
        sha256 = f", SHA-256 {line.params_sha256[:12]}" if line.params_sha256 else ""
        guess = " (guessing)" if is_guessing(line.test_acc) else ""
        return (
            f"epoch {line.epoch}{of_all}, loss {line.train_loss:.3f}, accuracy "
            f"{line.test_acc:.3f}{guess}, {seconds}{sha256}"
        )
    if isinstance(line, GanEpochRecord):
        return (
            f"epoch {line.epoch}{of_all}, loss of D {line.d_loss:.3f}, of G "
            f"{line.g_loss:.3f}, {seconds}"
        )
    if isinstance(line, PointRecord):
        return f"iteration {line.iteration}, residual {line.residual_norm:.4g}"
    if isinstance(line, StepRecord):
        ms = 1e3 * median(line.seconds)
        on = f" on {plural(line.num_devices, 'device')}" if line.num_devices else ""
        return f"a step of {line.global_batch_size} images{on}: {ms:.3g} ms"
    if isinstance(line, AllReduceRecord) and line.seconds:
        return f"all-reduce of {byte_size(line.num_bytes)}, {line.variant}"
    if isinstance(line, TimingRecord):
        return f"{line.operation}, {line.library}, {line.form}"
    if isinstance(line, PrecisionRecord):
        return f"{line.precision} ({line.weights} weights)"
    return ""


class Progress:
    """Print progress to standard error: with a bar on a terminal, rarely to a log."""

    def __init__(self, num_epochs: int | None) -> None:
        bar = "{desc} |{bar:9}| {n_fmt}/{total_fmt} epochs, {elapsed}, {remaining} left"
        self.bar = tqdm(
            total=num_epochs,
            leave=False,
            disable=None,  # where standard error is no terminal
            dynamic_ncols=True,
            bar_format=bar if num_epochs else "{elapsed} {desc}",
        )
        self.run, self.words, self.num_epochs = "", "", 0
        self.printed_at = time.monotonic()
        self.closed = threading.Event()
        if not self.bar.disable:
            threading.Thread(target=self._keep_time, daemon=True).start()

    def _keep_time(self) -> None:
        """Redraw the bar each second, so that its clock moves between two epochs."""
        while not self.closed.wait(1):
            self.bar.refresh()

    def see(self, line: Header | Line) -> None:
        """Show a line as it arrives, a run's header first."""
        if isinstance(line, Header):
            self.close_line()
            if not self.run:
                self.bar.reset()  # the process has started: now the epochs count
            self.num_epochs = line.settings.get("num_epochs", 0)
            # A study's lines are of all counts up to this one.
            count = plural(line.num_devices, "device")
            names = [line.variant, "" if line.chapter == "scaling" else count]
            self.run = ", ".join(filter(None, names))
            self.bar.set_description_str(self.run)
        elif words := in_words(line, self.num_epochs):
            self.words = f"{self.run}: {words}"
            self.bar.update()
            if isinstance(line, EPOCHS):
                self.close_line()
            elif not self.bar.disable:
                columns = terminal_width() - len(" 0:00:00")
                words = textwrap.shorten(self.words, columns, placeholder=" ...")
                self.bar.set_description_str(words)
            elif time.monotonic() >= self.printed_at + SECONDS:
                self.close_line()

    def close_line(self) -> None:
        """Print the last line, if it was held back."""
        if self.words:
            tqdm.write(filled(self.words), file=sys.stderr)
            self.words, self.printed_at = "", time.monotonic()

    def close(self) -> None:
        self.closed.set()
        self.close_line()
        self.bar.close()


@contextmanager
def shown(jobs: list[Job], repeats: int) -> Iterator:
    """Yield an object whose ``see(line)`` shows the progress of the jobs."""
    if in_notebook():
        from d2lpar.figures.live import Curves  # matplotlib is slow to import

        with closing(Curves(in_words)) as curves:
            yield curves
        return
    total = None
    if jobs[0].experiment.start:
        total = repeats * sum(job.settings["num_epochs"] for job in jobs)
    with closing(Progress(total)) as lines, logging_redirect_tqdm([log]):
        yield lines


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
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

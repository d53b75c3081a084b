"""The progress of a run: a line per epoch or method, and a clock between them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from d2lpar.lenet.result import is_guessing
from d2lpar.records.kinds import (
    EPOCHS,
    AllReduceRecord,
    EpochRecord,
    Header,
    Line,
    PointRecord,
    PrecisionRecord,
    StepRecord,
    TimingRecord,
)
from d2lpar.text import byte_size, filled, plural

SILENCE = 5  # seconds without a word, at first


def in_words(line: Line, num_epochs: int = 0) -> str:
    """Return a line of progress for a record line, or ""."""
    if isinstance(line, EPOCHS):
        of_all = f"/{num_epochs}" if num_epochs else ""
        if isinstance(line, EpochRecord):
            guess = " (guessing)" if is_guessing(line.test_acc) else ""
            losses = f"{line.train_loss:.3f}, accuracy {line.test_acc:.3f}{guess}"
        else:
            losses = f"of D {line.d_loss:.3f}, of G {line.g_loss:.3f}"
        # Those of a checkpoint may be of other devices.
        elsewhere = line.resumed == "elsewhere"
        seconds = "of the checkpoint" if elsewhere else f"{line.seconds:.3g} s"
        return f"epoch {line.epoch}{of_all}, loss {losses}, {seconds}"
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
    """Print progress to standard error: epochs as they end, of other work the newest.

    A repeat is shown by its last epoch, a method by its first solve. After 5, 10, 20,
    ... seconds without a line the time so far is shown.
    """

    def __init__(self) -> None:
        self.run, self.words, self.num_epochs = "starting", "", 0
        self.begun = self.printed_at = time.monotonic()
        self.pause, self.printed = SILENCE, set[str]()  # of the runs
        self.lock, self.closed = threading.RLock(), threading.Event()
        threading.Thread(target=self._keep_time, daemon=True).start()

    def _keep_time(self) -> None:
        while not self.closed.wait(1):
            with self.lock:
                now = time.monotonic()
                if now >= self.printed_at + self.pause:
                    newest = self.words or self.run
                    self._print(f"{newest} ... {now - self.begun:.0f} s so far")
                    self.pause *= 2

    def _print(self, words: str) -> None:
        print(filled(words), file=sys.stderr, flush=True)
        self.printed_at = time.monotonic()

    def _end_line(self) -> None:
        """Print the newest words of a method, if it has had no line."""
        if self.words and self.run not in self.printed:
            self.printed.add(self.run)
            self._print(self.words)
        self.words = ""

    def see(self, line: Header | Line) -> None:
        """Show a line as it arrives, a run's header first."""
        with self.lock:
            if isinstance(line, Header):
                self.num_epochs = line.settings.get("num_epochs", 0)
                # A study's lines are of all counts up to this one.
                count = plural(line.num_devices, "device")
                names = [line.variant, "" if line.chapter == "scaling" else count]
                self._end_line()
                self.run = ", ".join(filter(None, names))
                return
            words = in_words(line, self.num_epochs)
            if not words:
                return
            self.words = f"{self.run}: {words}"
            if isinstance(line, EPOCHS):
                if not line.repeat or line.epoch == self.num_epochs:
                    self.printed.discard(self.run)
                self._end_line()

    def close(self) -> None:
        """Print the line of the last method; it may be the last before an error."""
        self.closed.set()
        with self.lock:
            self._end_line()


@contextmanager
def shown(quiet: bool = False) -> Iterator[Callable[[Header | Line], object]]:
    """Yield a function that shows a line of a record as it arrives."""
    if quiet:
        yield lambda line: None
        return
    made: Any = Progress
    if in_notebook():
        from d2lpar.figures.live import Curves  # matplotlib is slow to import

        made = partial(Curves, in_words)
    with closing(made()) as lines:
        yield lines.see


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

    with Pillow.open(path) as picture:
        dots_per_inch = picture.info.get("dpi", (96, 96))[0]
        width = round(picture.width * 96 / dots_per_inch)
    display(Image(path.read_bytes(), format=path.suffix[1:], width=width))

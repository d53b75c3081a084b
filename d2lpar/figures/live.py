"""The curves of runs that are still going on, in one output of a notebook."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from d2lpar.figures import page
from d2lpar.records.kinds import Header, Line

CURVES = ("train_loss", "test_acc", "d_loss", "g_loss", "residual_norm")
SECONDS = 0.3  # between two pictures


class Curves:
    """A panel per measure of epochs and iterations, with a curve per run."""

    def __init__(self, in_words: Callable[[Line], str]) -> None:
        self.in_words, self.words = in_words, ""
        self.runs: list[tuple[str, list]] = []
        self.output: Any = None
        self.shown_at = 0.0

    def see(self, line: Header | Line) -> None:
        """Show a line as it arrives, a run's header first."""
        if isinstance(line, Header):
            name = f"{line.variant} on {line.num_devices}".removeprefix(" on ")
            self.runs.append((name, []))
        elif words := self.in_words(line):
            self.words = f"{self.runs[-1][0]}: {words}"
            self.runs[-1][1].append(line)
            if time.monotonic() >= self.shown_at + SECONDS:
                self.close()

    def close(self) -> None:
        """Draw all that has come."""
        from IPython.display import display

        if not self.words:
            return
        content = {"text/plain": self.words, "image/png": self._png()}
        self.output = self.output or display(content, raw=True, display_id=True)
        self.output.update(content, raw=True)
        self.shown_at = time.monotonic()

    @page.plain_style()
    def _png(self) -> str:
        lines = [line for _, of_run in self.runs for line in of_run]
        shown = [name for name in CURVES if any(hasattr(x, name) for x in lines)]
        figure = Figure(figsize=(4.2 * max(1, len(shown)), 3.1))
        figure.suptitle(page.wrap(self.words, 55 * len(shown)), size=10)
        panels = figure.subplots(1, max(1, len(shown)), squeeze=False)[0]
        for axes, name in zip(panels, shown):
            for k, (run, of_run) in enumerate(self.runs):
                drawn = [x for x in of_run if hasattr(x, name)]
                at = [getattr(x, "epoch", None) or x.iteration for x in drawn]
                values = [getattr(x, name) for x in drawn]
                axes.plot(at, values, **page.look(k, label=run))
            axes.set(xlabel="epoch or iteration", ylabel=name.replace("_", " "))
            axes.legend()
        written = io.BytesIO()
        figure.savefig(written, format="png", dpi=90)
        return base64.b64encode(written.getvalue()).decode()

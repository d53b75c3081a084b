"""How far a run is and what it found, in words, and curves in a notebook."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median

import click
from tqdm import TqdmWarning, tqdm

from d2lpar.cli import notebook
from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import (
    EPOCHS,
    AllReduceRecord,
    EpochRecord,
    FrameRecord,
    GanEpochRecord,
    Header,
    Line,
    PointRecord,
    PrecisionRecord,
    Run,
    ScaledEpoch,
    StepRecord,
    TimingRecord,
    timed_epochs,
)
from d2lpar.runs.job import Job
from d2lpar.text import byte_size, number, plural

with warnings.catch_warnings():
    # In a notebook tqdm asks for ipywidgets, which no bar of ours needs.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.contrib.logging import logging_redirect_tqdm

log = logging.getLogger("d2lpar")

SECONDS = 10  # between two lines of one run, unless it counts epochs
SECONDS_TO_LOOK = 0.3  # between two pictures in a notebook


def in_words(line: Line) -> str:
    """What a line of a record says, as progress; "" for what only goes with others."""
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


def summary(run: Run) -> str:
    """A run's result in one line: what it found, where, and on what data."""
    header = run.header
    words = f"{_result(run)} on {', '.join(header.devices)}"
    if header.variant:
        words = f"{header.variant}: {words}"
    if header.synthetic:
        words += " [synthetic data]"
    if header.dataset.endswith("-sample"):
        words += " [a sample of the data]"
    return words


def _result(run: Run) -> str:
    by_kind: dict[type, list] = {}
    for line in run.lines:
        by_kind.setdefault(type(line), []).append(line)
    if TimingRecord in by_kind:
        return f"{len(by_kind[TimingRecord])} operations timed"
    if StepRecord in by_kind:
        steps = by_kind[StepRecord]
        most = max(step.num_devices for step in steps)
        speeds = [
            (step.global_batch_size / median(step.seconds), step.global_batch_size)
            for step in steps
            if step.num_devices == most
        ]
        speed, batch = max(speeds)
        return f"up to {speed:,.0f} samples/s, at a batch of {batch:,}"
    if PointRecord in by_kind:
        last = by_kind[PointRecord][-1]
        return f"residual {last.residual_norm:.6g} in {number(last.seconds)} s"
    if PrecisionRecord in by_kind:
        found = by_kind[PrecisionRecord]
        of_trained = [r for r in found if r.weights == "trained" and r.supported]
        best = max(of_trained, key=lambda r: r.images_per_sec)
        return (
            f"{len(of_trained)} precisions; the fastest is {best.precision}: "
            f"{best.images_per_sec:,.0f} images/s at accuracy {best.test_acc:.3f}"
        )
    if not run.epochs:
        return "nothing measured"
    seconds = f"{summarize([e.seconds for e in timed_epochs(run)])} s per epoch"
    if GanEpochRecord in by_kind:
        frames = by_kind.get(FrameRecord)
        if not frames:
            return seconds
        first, last = frames[0].quality, frames[-1].quality
        return f"distance to the data's faces {first:.3f} to {last:.3f}, {seconds}"
    return f"test accuracy {run.epochs[-1].test_acc:.3f}, {seconds}"


class _Bar:
    """A bar that is redrawn in place."""

    def __init__(self, unit: str, total: int | None) -> None:
        self.bar = tqdm(total=total, unit=unit, dynamic_ncols=True, leave=False)

    def start(self, run: str) -> None:
        self.bar.set_description(run)

    def advance(self, words: str, line: Line) -> None:
        self.bar.set_postfix_str(words)
        self.bar.leave = True  # an error before any result leaves one line only
        self.bar.update()

    def close(self) -> None:
        self.bar.close()


class _Lines:
    """One line per epoch; faster progress is throttled to one line every 10 s."""

    def __init__(self, unit: str, total: int | None) -> None:
        self.unit, self.run, self.unprinted = unit, "", ""
        self.printed_at = time.monotonic()

    def start(self, run: str) -> None:
        self._print()
        self.run = run

    def advance(self, words: str, line: Line) -> None:
        self.unprinted = f"{self.run}: {words}"
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
        self.runs: list[tuple[str, list[dict[str, float]]]] = []
        self.output, self.words, self.shown_at = notebook.Output(), "", 0.0

    def start(self, run: str) -> None:
        self.runs.append((run, []))

    def advance(self, words: str, line: Line) -> None:
        run, points = self.runs[-1]
        self.words = f"{run}: {words}"
        if point := curves(line):
            points.append(point)
        if time.monotonic() >= self.shown_at + SECONDS_TO_LOOK:
            self._show()

    def close(self) -> None:
        if self.words:
            self._show()

    def _show(self) -> None:
        from d2lpar.figures import live  # matplotlib takes its time

        drawn = [(run, points) for run, points in self.runs if points]
        picture = live.png(drawn, self.words) if drawn else None
        self.output.show(self.words, picture)
        self.shown_at = time.monotonic()


class Progress:
    """Shows `start(header)` for each run and `advance(line)` for each of its lines."""

    def __init__(self, screen: _Bar | _Lines | _Curves) -> None:
        self.screen, self.num_epochs = screen, 0

    def start(self, header: Header) -> None:
        """A measurement begins."""
        self.num_epochs = header.settings.get("num_epochs", 0)
        words = [header.chapter, header.variant, plural(header.num_devices, "device")]
        self.screen.start(", ".join(filter(None, words)))

    def advance(self, line: Line) -> None:
        """A line has come."""
        words = in_words(line)
        if not words:
            return
        if isinstance(line, EPOCHS) and self.num_epochs:
            of_all = f"epoch {line.epoch}/{self.num_epochs}"
            words = words.replace(f"epoch {line.epoch}", of_all, 1)
        self.screen.advance(words, line)


@contextmanager
def shown(jobs: list[Job], repeats: int) -> Iterator[Progress]:
    """A :class:`Progress` for the place: a notebook, a terminal or a log."""
    unit, total = jobs[0].of.unit, None
    if unit == "epoch":
        total = repeats * sum(job.settings["num_epochs"] for job in jobs)
    if notebook.is_here():
        screen: _Bar | _Lines | _Curves = _Curves(unit, total)
    elif not sys.stderr.isatty():
        screen = _Lines(unit, total)
    else:
        screen = _Bar(unit, total)
    with closing(screen):
        if isinstance(screen, _Bar):
            with logging_redirect_tqdm([log]):
                yield Progress(screen)
        else:
            yield Progress(screen)

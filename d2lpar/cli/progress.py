"""The progress bar of a sweep, and the line that sums a run up."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from d2lpar.records.kinds import Header, Line, Run

if TYPE_CHECKING:
    from d2lpar.runs.job import Job
    from d2lpar.runs.sweep import Child

log = logging.getLogger("d2lpar")


def measured_runs(jobs: list[Job], repeats: int, child: Child | None = None) -> list:
    """Measure the jobs under a progress bar; the finished runs, in the jobs' order."""
    from d2lpar.records import files
    from d2lpar.runs import sweep

    unit, total = jobs[0].workload.unit, None
    if unit == "epoch":
        total = repeats * sum(job.settings["num_epochs"] for job in jobs)
    with (
        tqdm(total=total, unit=unit, dynamic_ncols=True, leave=False) as bar,
        logging_redirect_tqdm([log]),
        _terminate_like_ctrl_c(),
        closing(sweep.sweep(jobs, repeats, child or sweep.ORDINARY)) as lines,
    ):
        headers = {files.run_name(h): h for h in _shown(lines, bar)}
    return sweep.finished_runs(list(headers.values()), jobs[0].folder)


def _shown(lines: Iterable[Line], bar: tqdm) -> Iterator[Header]:
    """Show the lines on the bar; yields the headers among them."""
    for line in lines:
        if isinstance(line, Header):
            words = (line.chapter, line.variant, f"{line.num_devices} device(s)")
            bar.set_description(", ".join(filter(None, words)))
            yield line
        elif line.counts_as_progress:
            bar.set_postfix(line.progress())
            bar.leave = True  # but an error before any result leaves one line only
            bar.update()


def result_line(run: Run) -> str:
    """The result of a run, its method and its devices, for the terminal."""
    header = run.header
    method = f"{header.variant}: " if header.variant else ""
    synthetic = " [synthetic data]" if header.synthetic else ""
    return f"{method}{run.summary()} on {', '.join(header.devices)}{synthetic}"


@contextmanager
def _terminate_like_ctrl_c() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does: the measuring process with it."""

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

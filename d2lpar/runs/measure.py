"""Measure a chapter: from its name and settings to records, results and figures."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from d2lpar import experiments
from d2lpar.machine.builds import check_installed
from d2lpar.machine.host import check_environment
from d2lpar.records import atomic, labels
from d2lpar.records.kinds import Run
from d2lpar.runs import progress, report, sweep
from d2lpar.runs.plan import as_word, plan
from d2lpar.runs.progress import in_notebook, show_figure
from d2lpar.text import duration, filled, terminal_width


def measure(name: str, *, quiet: bool = False, **settings: Any) -> list[Run]:
    """Measure a chapter, print what it found and draw it; return the records.

    `settings` are the flags of `d2lpar run`, as `num_devices=[1, 2]`. One of several
    workers has the records, the others none. Raises :class:`SettingError`.
    """
    check_environment()
    check_installed()
    experiment = experiments.get(name)
    experiment.refuse_unused(settings)
    command = shlex.join(["d2lpar", "run", experiment.name, *as_words(settings)])
    jobs = plan(experiment, command, **settings)
    first = jobs[0]
    atomic.check_writable(first.folder)
    if not (quiet or first.is_worker):
        how = first.folder.name
        if how == "quick":
            how = f"about {duration(60 * experiment.minutes)} on two cores"
        print(filled(f"{experiment.name}: {experiment.about} ({how})"), flush=True)
        if settings.get("dry_run") and experiment.room == "d2lpar.lenet":
            from d2lpar.datasets import fashion
            from d2lpar.memory import estimate

            batch = first.settings["global_batch_size"]
            whole = plan(experiment, command, **{**settings, "dry_run": False})
            sizes = fashion.load(**whole[0].data).sizes
            for job in whole:
                print(estimate.report(batch, job.devices, **sizes))
    with progress.shown(quiet) as see:
        runs = sweep.sweep(jobs, see)
    if runs:
        _present(runs, first.folder, quiet)
    return runs


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as flags of a command line; of absolute paths only the last part.

    >>> as_words({"num_epochs": 3, "num_devices": [1, 2], "dry_run": True, "lr": None})
    ['--num-epochs=3', '--num-devices=1,2', '--dry-run']
    >>> as_words({"out": "/home/ana/runs"})
    ['--out=runs']
    """
    words = []
    for name, value in settings.items():
        if name in ("out", "resume") and value and os.path.isabs(value):
            value = Path(value).name
        if value is not None and value is not False:
            words.append(f"--{as_word(name.replace('_', '-'), value)}")
    return words


def _present(measured: list[Run], folder: Path, quiet: bool) -> None:
    """Print what a sweep found, draw its pictures, and add them to the page.

    Earlier records of the same recipe belong to it, as those of other device counts. A
    dry run is drawn, too, as it tries everything, but it has no result.
    """
    first = measured[0].header
    if first.preset == "dry-run":
        experiments.draw(measured, folder)
        devices = labels.counts([run.header for run in measured])
        print(filled(f"It runs on {devices}. These few batches measure nothing."))
        return
    out = folder.parent.parent
    sweeps = report.sweeps(out)
    runs, found = next((x.runs, x.found) for x in sweeps if x.folder == folder)
    if quiet:
        print(filled(found.in_short, f"{first.chapter}: "))
    else:
        print(f"\n{found.text(terminal_width())}\n", flush=True)
    drawn = experiments.draw(runs, folder, found)
    page = report.write_page(out, sweeps)
    if in_notebook():
        for path in drawn:
            if path.suffix in (".png", ".gif"):
                show_figure(path)
    elif not quiet:
        print(f"pictures and tables: {page.resolve().as_uri()}")

"""Measure a chapter: from its name and settings to records, results and figures."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from d2lpar import experiments
from d2lpar.errors import D2lparError, SettingError
from d2lpar.machine.builds import check_installed
from d2lpar.machine.host import check_environment
from d2lpar.records import atomic, files, labels
from d2lpar.records.comparison import FEWEST_ALONE
from d2lpar.records.kinds import Header, Run
from d2lpar.runs import progress, report, sweep
from d2lpar.runs.plan import as_text, checkpoint_of, continued, plan
from d2lpar.runs.progress import in_notebook, show_figure
from d2lpar.text import duration, filled, terminal_width

log = logging.getLogger("d2lpar")

FEWEST_EPOCHS = 1 + FEWEST_ALONE  # that a single process must train to be compared


def measure(name: str, **settings: Any) -> list[Run]:
    """Measure a chapter, print what it found and draw it; return the records.

    `settings` are the flags of `d2lpar run`, as `num_devices=[1, 2]`. A worker but the
    first has no records. Raises :class:`SettingError`.
    """
    check_environment()
    check_installed()
    experiment = experiments.get(name)
    experiment.refuse_unused(settings)
    keeps_record = True
    if "D2LPAR_WORKER" in os.environ:
        from d2lpar.workers.node import worker_info

        keeps_record = worker_info().number == 0
    command = shlex.join(["d2lpar", "run", name, *as_words(settings)])
    repeats = settings.pop("repeats", 1)
    if settings.get("resume") and (repeats > 1 or "seeds" in settings):
        raise SettingError("--resume with --repeats: a training is resumed only once")
    if "seeds" in settings and (repeats > 1 or "seed" in settings):
        raise SettingError("--seeds: each is a repeat; leave out --repeats and --seed")
    is_last = settings.get("resume") == "last"
    if settings.get("resume") and keeps_record:
        settings = continued(experiment, settings)
    jobs = plan(experiment, command, **settings)
    if is_last and not jobs[0].is_worker:  # each device count goes on from its own
        jobs = [replace(job, resume=checkpoint_of(job)) for job in jobs]
    repeats = len(jobs[0].seeds) or repeats
    atomic.check_writable(jobs[0].folder)
    how = jobs[0].recipe
    if how == "quick":
        how = f"about {duration(60 * experiment.minutes)} on two cores"
    print(filled(f"{name}: {experiment.about} ({how})"), flush=True)
    num_epochs = jobs[0].settings.get("num_epochs", FEWEST_EPOCHS)
    is_training = bool(experiment.start) and jobs[0].preset != "dry-run"
    if is_training and len(jobs) > 1 and repeats < 4 and num_epochs < FEWEST_EPOCHS:
        log.warning(
            "%d epochs are too few to compare speeds, as the first is not timed: "
            "--num-epochs %d would do",
            num_epochs, FEWEST_EPOCHS,
        )  # fmt: skip
    if jobs[0].preset == "dry-run" and experiment.trains_lenet:
        from d2lpar.datasets import fashion
        from d2lpar.memory import estimate

        for job in plan(experiment, command, **{**settings, "dry_run": False}):
            batch, sizes = job.settings["global_batch_size"], fashion.sizes(**job.data)
            print(estimate.report(batch, job.devices, **sizes))
    if not keeps_record:
        for _ in sweep.run_job(jobs[0]):
            pass
        return []
    with progress.shown(jobs, repeats) as shown:
        runs = sweep.sweep(jobs, repeats, shown.see)
    _present(runs, jobs[0].folder)
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
        flag, text = f"--{name.replace('_', '-')}", as_text(value)
        if name in ("out", "data_dir", "resume") and os.path.isabs(text):
            text = Path(text).name
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words.append(f"{flag}={text}")
    return words


def _present(measured: list[Run], folder: Path) -> None:
    """Print what a sweep found, draw its pictures, and add them to the page.

    Earlier records of the same recipe belong to it, as those of other device counts.
    A dry run is drawn, too, as it tries everything, but it has no result.
    """
    runs = sweep_with(folder, measured)
    found = experiments.result(runs)
    if measured[0].header.preset == "dry-run":
        experiments.draw(runs, folder, found)
        devices = labels.counts([run.header for run in measured])
        print(filled(f"It runs on {devices}. These few batches measure nothing."))
        return
    answer = found.answer(terminal_width())
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        answer = f"\033[1m{answer}\033[0m"
    about = found.about(terminal_width())
    text = "\n\n".join(filter(None, (about, answer)))
    print(f"\n{text}\n")
    drawn = experiments.draw(runs, folder, found)
    page = report.write_page(folder.parent.parent)
    if not in_notebook():
        print(f"pictures and tables: {page.resolve().as_uri()}")
        return
    for path in drawn:
        if path.suffix in (".png", ".gif"):
            show_figure(path)


def sweep_with(folder: Path, measured: list[Run]) -> list[Run]:
    """Return the runs just measured, and the earlier ones of their folder.

    Earlier ones whose settings differ, as those of another version, are left out.
    """
    runs, known = list(measured), {run.path for run in measured}
    for path in files.finished_in(folder):
        try:
            run = files.read(path)
            is_run = isinstance(run.header, Header) and bool(run.lines)
            different = experiments.differing_settings([measured[0], run])
        except (D2lparError, OSError) as error:
            log.warning("left out: %s", error)
            continue
        if different:
            log.warning("%s: left out, differs in %s", path, ", ".join(different))
        elif path not in known and is_run:
            runs.append(run)
    return runs

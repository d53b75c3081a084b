"""Measure a chapter: from its name and settings to records, results and figures."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from d2lpar import experiments
from d2lpar.devices import contexts, default_counts, names, parse_counts
from d2lpar.errors import SettingError
from d2lpar.experiments import Experiment
from d2lpar.machine.builds import check_installed
from d2lpar.machine.host import check_environment
from d2lpar.records import atomic, files
from d2lpar.records.kinds import Run
from d2lpar.runs import progress, report, sweep
from d2lpar.runs.job import Job
from d2lpar.runs.progress import in_notebook, show_figure
from d2lpar.text import duration

# Images of a dry run at most: the sample of Fashion-MNIST has no more.
SAMPLE_IMAGES = 5_000


def measure(name: str, **settings: Any) -> list[Run]:
    """Measure a chapter, print what it found and draw it; return the records.

    `settings` are the flags of `d2lpar run`, as `num_devices=[1, 2]`. A report, and a
    worker but the first, have no records. Raises :class:`SettingError`.
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
    if settings.get("resume") and repeats > 1:
        raise SettingError("--resume with --repeats: a training is resumed only once")
    jobs = plan(experiment, command, **settings)
    how = f"preset {jobs[0].preset}"
    if jobs[0].preset == "quick":
        how = f"about {duration(60 * experiment.minutes)} on two cores"
    print(f"{name}: {experiment.about} ({how})", flush=True)
    if experiment.report:
        _report(jobs)
        return []
    if jobs[0].preset == "dry-run" and experiment.trains_lenet:
        from d2lpar.datasets import fashion
        from d2lpar.memory import estimate

        for job in plan(experiment, command, **{**settings, "dry_run": False}):
            batch, sizes = job.settings["global_batch_size"], fashion.sizes(**job.data)
            print(estimate.report(batch, job.devices, **sizes))
    if not keeps_record:
        for _ in sweep.measure(jobs[0]):
            pass
        return []
    with progress.shown(jobs, repeats) as shown:
        runs = sweep.sweep(jobs, repeats, shown.see)
    _present(runs, jobs[0].folder)
    return runs


def plan(
    experiment: Experiment,
    command: str,
    *,
    devices: str = "auto",
    num_devices: str | int | Sequence[int] | None = None,
    threads: int | None = None,
    tf32: bool = False,
    deterministic: bool = False,
    preset: str = "quick",
    seed: int = 0,
    dry_run: bool = False,
    data: str = "auto",
    data_dir: str | None = None,
    checkpoint_every: int | None = None,
    resume: str | None = None,
    out: str = "runs",
    **overrides: Any,
) -> list[Job]:
    """Return a job per device count; `overrides` replace settings of the preset.

    With `device_counts` in the preset, one job measures all counts. Loads no MXNet.
    """
    is_worker = "D2LPAR_WORKER" in os.environ
    chosen = names(devices)
    if num_devices is not None:
        counts = parse_counts(_as_text(num_devices), len(chosen))
    else:
        alone = is_worker or experiment.report
        counts = [len(chosen)] if alone else default_counts(len(chosen))
    for flag, is_set in {"tf32": tf32, "deterministic": deterministic}.items():
        if is_set and chosen[0].device_type == "cpu":
            raise SettingError(
                f"--{flag} with --devices {devices}: it is for GPUs; leave it out"
            )
    settings = dict(experiment.presets[preset])
    if dry_run:
        preset = "dry-run"
        settings.update(experiment.presets.get("dry-run", {}))
    else:
        preset = "custom" if overrides.keys() - set(experiments.NAMED) else preset
        for name in experiments.NAMED:
            if overrides.get(name):
                told = "" if overrides[name] is True else f"-{overrides[name]}"
                preset += f"-{name}{told}".replace("_", "-")
    settings.update(overrides)
    if "seed" in settings:  # of a report
        settings["seed"] = seed
    to_load = {"seed": seed, **settings.pop("data", {})}
    if experiment.locate:
        to_load["data_dir"] = data_dir
        to_load["name"] = experiments.load(experiment.locate)(data, data_dir)
    if dry_run and "global_batch_size" in settings:
        two_batches = min(2 * settings["global_batch_size"], SAMPLE_IMAGES)
        to_load["n_train"] = max(two_batches, to_load["n_train"])
    if "device_counts" in settings:
        settings["device_counts"], counts = counts, [max(counts)]
    folder = Path(out).expanduser() / experiment.name
    atomic.check_writable(folder)
    return [
        Job(
            chapter=experiment.name,
            preset=preset,
            devices=chosen[:count],
            seed=seed,
            settings=settings,
            data=to_load,
            command=command,
            folder=folder,
            threads=threads or experiment.threads,
            checkpoint_every=checkpoint_every,
            resume=resume,
            is_worker=is_worker,
            tf32=tf32,
            deterministic=deterministic,
        )
        for count in counts
    ]


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as flags of a command line; of absolute paths only the last part.

    >>> as_words({"num_epochs": 3, "num_devices": [1, 2], "tf32": True, "lr": None})
    ['--num-epochs=3', '--num-devices=1,2', '--tf32']
    >>> as_words({"out": "/home/ana/runs"})
    ['--out=runs']
    """
    words = []
    for name, value in settings.items():
        flag, text = f"--{name.replace('_', '-')}", _as_text(value)
        if name in ("out", "data_dir", "resume") and os.path.isabs(text):
            text = Path(text).name
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words.append(f"{flag}={text}")
    return words


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _report(jobs: list[Job]) -> None:
    """Print what an experiment without a record reports, and keep it as text."""
    function, text = experiments.load(jobs[0].experiment.report), ""
    for job in jobs:
        for line in function(contexts(job.devices), **job.settings):
            print(line)
            text += f"{line}\n"
    with atomic.replacing(jobs[0].folder / f"{jobs[0].preset}.txt") as tmp:
        tmp.write_text(text, encoding="utf-8")


def _present(runs: list[Run], folder: Path) -> None:
    """Print what the runs found, draw their figures, and add them to the page."""
    found = experiments.result(runs)
    answer = found.answer
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        answer = f"\033[1m{answer}\033[0m"
    text = "\n\n".join(filter(None, (found.about, answer)))
    print(f"\n{text}\n")
    header = runs[0].header
    stem = files.run_stem(header)
    if header.workers > 1:  # of launches that share gradients in different ways
        stem += f"-{header.variant}"
    drawn = experiments.draw(runs, folder, stem, found)
    page = report.write_page(folder.parent, runs, found)
    if not in_notebook():
        print(f"pictures and tables: {page.resolve().as_uri()}")
        return
    for path in drawn:
        if path.suffix in (".png", ".gif"):
            show_figure(path)

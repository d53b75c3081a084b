"""`d2lpar run`: from flags and an experiment to jobs, progress, results, figures."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click

from d2lpar import devices, experiments
from d2lpar.cli import progress, report
from d2lpar.cli.options import ONE_MEASUREMENT, as_words
from d2lpar.errors import SettingError
from d2lpar.experiments import Experiment
from d2lpar.machine import host
from d2lpar.records import atomic, files
from d2lpar.records.kinds import Header, Run
from d2lpar.runs import sweep
from d2lpar.runs.job import Job
from d2lpar.text import duration, plural

log = logging.getLogger("d2lpar")

GPU_FLAGS = ("tf32", "deterministic")
# Images of a dry run at most: the sample of Fashion-MNIST has no more.
SAMPLE_IMAGES = 5_000


def parsed(flags: dict) -> dict:
    """Return the flags with devices by name and device counts as numbers.

    Raises :class:`SettingError` for flags that contradict each other, OSError or
    DataError for folders that cannot be written or read, and DeviceError for devices
    that are not here. Makes nothing, and does not import MXNet.
    """
    if flags["resume"] and flags["repeats"] > 1:
        raise SettingError("--resume with --repeats: a training is resumed only once")
    atomic.check_can_be_made(flags["out"])
    if flags["data_dir"]:
        _check_data_dir(flags["data_dir"], flags["data"])
    chosen, counts = devices.names(flags["devices"]), None
    if flags["num_devices"]:
        counts = devices.parse_counts(flags["num_devices"], len(chosen))
    if (flags["threads"] or 0) > host.usable_cores():
        log.warning(
            "--threads %d on %s: slower than one per core",
            flags["threads"],
            plural(host.usable_cores(), "core"),
        )
    for name in GPU_FLAGS:
        if flags[name] and chosen[0].device_type == "cpu":
            raise SettingError(
                f"--{name} with --devices {flags['devices']}: it is for GPUs; CPU "
                "contexts compute exactly float32, and the same bits in every repeat"
            )
    return {**flags, "devices": chosen, "num_devices": counts}


def _check_data_dir(folder: str, data: str) -> None:
    from d2lpar.datasets.download import check_folder

    if data in ("sample", "synthetic"):
        raise SettingError(
            f"--data-dir {folder} with --data {data}, which reads no file: leave one "
            "of them out"
        )
    check_folder("--data-dir", Path(os.path.expanduser(folder)))


def run_experiment(experiment: Experiment, flags: dict, command: str) -> list[Run]:
    """Measure an experiment as the flags say; print the results and draw the figures.

    `flags` are those of :func:`parsed`, and `command` is the command line, for the
    records. Returns the records; none of a report, nor in a worker that keeps none. In
    a process that `d2lpar launch` has started this is one of several workers, of which
    worker 0 keeps the record.
    """
    click.echo(heading(experiment, flags))
    if experiment.report:
        _report(experiment, flags)
        return []
    if "D2LPAR_WORKER" in os.environ:
        return _run_as_worker(experiment, flags, command)
    jobs = jobs_of(experiment, flags, command)
    if flags["dry_run"] and experiment.layers:
        _print_memory(experiment, jobs, flags)
    return _results(_measured_runs(jobs, flags["repeats"]), flags)


def _run_as_worker(experiment: Experiment, flags: dict, command: str) -> list[Run]:
    from d2lpar.workers.node import worker_info

    here = worker_info()
    jobs = jobs_of(experiment, flags, command, is_worker=True)
    if len(jobs) * flags["repeats"] * len(experiment.variants) > 1:
        raise SettingError(ONE_MEASUREMENT)
    if here.number == 0:
        return _results(_measured_runs(jobs, 1), flags, here.variant)
    for _ in sweep.measure(jobs[0]):
        pass
    return []


def heading(experiment: Experiment, flags: dict) -> str:
    """Return a line that says what is measured, and about how long it takes."""
    text = f"{experiment.name}: {experiment.about}"
    if flags["dry_run"]:
        return f"{text} (a dry run)"
    if flags["preset"] != "quick":
        return f"{text} (preset {flags['preset']})"
    return f"{text} (about {duration(60 * experiment.minutes)} on two cores)"


def jobs_of(
    experiment: Experiment, flags: dict, command: str, is_worker: bool = False
) -> list[Job]:
    """Return one job for each device count; by default a worker uses all its devices.

    A preset with `device_counts` measures all counts in turn, in one job on the most
    devices. Raises OSError unless the folder for the record can be written.
    """
    chosen, counts = flags["devices"], flags["num_devices"]
    if counts is None:
        n = len(chosen)
        counts = [n] if is_worker else devices.default_counts(n)
    preset, settings, data = settings_of(experiment, flags)
    if "device_counts" in settings:
        settings["device_counts"], counts = counts, [max(counts)]
    folder = Path(flags["out"]) / experiment.name
    atomic.check_writable(folder)
    job = Job(
        chapter=experiment.name,
        preset=preset,
        devices=chosen,
        seed=flags["seed"],
        settings=settings,
        data=data,
        command=command,
        folder=str(folder),
        threads=flags["threads"] or experiment.threads,
        profile=flags["profile"],
        checkpoint_every=flags["checkpoint_every"],
        resume=flags["resume"],
        is_worker=is_worker,
        tf32=flags["tf32"],
        deterministic=flags["deterministic"],
    )
    return [replace(job, devices=chosen[:count]) for count in counts]


def settings_of(experiment: Experiment, flags: dict) -> tuple[str, dict, dict]:
    """Return the preset's name for records, the arguments of `measure` and of `load`.

    A dry run overrides the settings of its preset with those of "dry-run", and has at
    least two batches.
    """
    preset, settings = flags["preset"], dict(experiment.presets[flags["preset"]])
    overrides = {
        name: flags[name]
        for name in experiments.RECIPE | experiments.GAN
        if name in settings and flags[name] is not None
    }
    if flags["dry_run"]:
        preset = "dry-run"
        settings.update(experiment.presets.get("dry-run", {}))
    else:
        if overrides.keys() - experiments.NAMED:
            preset = "custom"
        recipe = {n: overrides[n] for n in experiments.NAMED if n in overrides}
        preset += "".join(as_words(recipe)).replace("--", "-").replace("=", "-")
    settings.update(overrides)
    data = {"seed": flags["seed"], **settings.pop("data", {})}
    if experiment.locate:
        data["data_dir"] = flags["data_dir"]
        data["name"] = experiments.load(experiment.locate)(
            flags["data"], flags["data_dir"]
        )
    if flags["dry_run"] and "global_batch_size" in settings:
        two_batches = min(2 * settings["global_batch_size"], SAMPLE_IMAGES)
        data["n_train"] = max(two_batches, data["n_train"])
    if flags["profile"]:
        preset += "-profile"  # its times must not pass for measurements
    return preset, settings, data


def _measured_runs(jobs: list[Job], repeats: int) -> list[Run]:
    """Measure the jobs and show their progress; return the records in their order."""
    names: dict[str, None] = {}
    with (
        progress.shown(jobs, repeats) as shown,
        closing(sweep.sweep(jobs, repeats)) as lines,
    ):
        for line in lines:
            if isinstance(line, Header):
                names[files.run_name(line)] = None
                shown.start(line)
            else:
                shown.advance(line)
    return [files.read(jobs[0].path / f"{name}.jsonl") for name in names]


def _print_memory(experiment: Experiment, jobs: list[Job], flags: dict) -> None:
    """Print how much memory the real run would need, on each number of devices."""
    from d2lpar.memory import estimate

    _, settings, data = settings_of(experiment, {**flags, "dry_run": False})
    layers = experiments.load(experiment.layers)
    for job in jobs:
        click.echo(estimate.report(layers, settings, job.devices, data))


def _results(runs: list[Run], flags: dict, shared_by: str = "") -> list[Run]:
    """Print what the runs found and draw their figures; return the runs."""
    report.show(runs)
    folder, stem = runs[0].path.parent, files.run_stem(runs[0].header)
    if shared_by:  # the figures of one launch must not replace those of another
        stem += f"-{shared_by}"
    drawn = experiments.draw(runs, folder, stem)
    page = report.write_page(folder.parent)
    if progress.in_notebook():
        for path in drawn:
            if path.suffix in (".png", ".gif"):
                progress.show_figure(path)
        return runs
    for path in drawn:
        click.echo(path.resolve().as_uri())
    click.echo(f"all results: {page.resolve().as_uri()}")
    if flags["profile"]:
        profiles = folder / stem
        click.echo(f"profiles: {profiles}*.profile.txt, {profiles}*.trace.json")
    return runs


def _report(experiment: Experiment, flags: dict) -> None:
    """Print what an experiment without a record reports, and keep it as text."""
    preset, settings, _ = settings_of(experiment, {**flags, "profile": False})
    chosen = devices.contexts(flags["devices"])
    text = []
    for count in flags["num_devices"] or [len(chosen)]:
        for line in experiments.load(experiment.report)(chosen[:count], **settings):
            click.echo(line)
            text.append(line)
    path = Path(flags["out"]) / experiment.name / f"{preset}.txt"
    with atomic.replacing(path) as tmp:
        tmp.write_text("\n".join(text) + "\n", encoding="utf-8")

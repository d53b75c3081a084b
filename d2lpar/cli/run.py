"""`d2lpar run`: from flags and an experiment to jobs, progress, results, figures."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

import click

from d2lpar import devices, experiments
from d2lpar._mxnet import ENGINE_DEFAULTS
from d2lpar.cli import progress, report
from d2lpar.cli.options import ONE_MEASUREMENT, as_words
from d2lpar.datasets.download import check_folder
from d2lpar.errors import SettingError
from d2lpar.experiments import Experiment
from d2lpar.machine import host
from d2lpar.memory import estimate
from d2lpar.records import atomic, files
from d2lpar.records.kinds import Header, Run
from d2lpar.runs import sweep
from d2lpar.runs.job import Job
from d2lpar.text import duration, plural
from d2lpar.workers.node import WorkerInfo, worker_info

log = logging.getLogger("d2lpar")

GPU_FLAGS = ("tf32", "deterministic")


def run_experiment(experiment: Experiment, flags: dict, command: str) -> list[Run]:
    """Measure an experiment as the flags say; print the results and draw the figures.

    `command` is the command line, for the records. Returns the records; none of a
    report, nor in a worker that keeps none. In a process that `d2lpar launch` has
    started this is one of several workers, of which worker 0 keeps the record.
    """
    click.echo(heading(experiment, flags))
    if experiment.report:
        _report(experiment, flags)
        return []
    here = worker_info() if "D2LPAR_WORKER" in os.environ else None
    jobs = jobs_of(experiment, flags, command, here)
    if here is None:
        if flags["dry_run"]:
            _print_memory(experiment, jobs, flags)
        return _results(experiment, _measured_runs(jobs, flags["repeats"]), flags)
    if len(jobs) * flags["repeats"] * len(experiment.variants) > 1:
        raise SettingError(ONE_MEASUREMENT)
    if here.number == 0:
        runs = _measured_runs(jobs, 1)
        return _results(experiment, runs, flags, here.variant)
    for _ in sweep.measure(jobs[0]):
        pass
    return []


def heading(experiment: Experiment, flags: dict) -> str:
    """What is measured, and for how long about."""
    text = f"{experiment.name}: {experiment.about}"
    if flags["dry_run"]:
        return f"{text} (a dry run)"
    if flags["preset"] != "quick":
        return f"{text} (preset {flags['preset']})"
    return f"{text} (about {duration(60 * experiment.minutes)} on two cores)"


def check(flags: dict) -> None:
    """Raise :class:`SettingError` for flags that contradict each other.

    Raises OSError or DataError for folders that cannot be written or read, and
    DeviceError for devices that are not here. Makes nothing.
    """
    if flags["resume"] and flags["repeats"] > 1:
        raise SettingError("--resume with --repeats: a training is resumed only once")
    atomic.check_can_be_made(flags["out"])
    if flags["data_dir"]:
        if flags["data"] in ("sample", "synthetic"):
            raise SettingError(
                f"--data-dir {flags['data_dir']} with --data {flags['data']}, which "
                "reads no file: leave one of them out"
            )
        check_folder("--data-dir", Path(os.path.expanduser(flags["data_dir"])))
    chosen = devices.parse(flags["devices"])
    _counts(flags, chosen)
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


def _counts(flags: dict, chosen: list) -> list[int]:
    if flags["num_devices"]:
        return devices.parse_counts(flags["num_devices"], len(chosen))
    return devices.default_counts(len(chosen))


def jobs_of(
    experiment: Experiment, flags: dict, command: str, here: WorkerInfo | None = None
) -> list[Job]:
    """One job for each device count.

    A preset with `device_counts` measures all counts in turn, in one job on the most
    devices. Raises OSError unless the folder for the record can be written.
    """
    chosen = devices.parse(flags["devices"])
    counts = _counts(flags, chosen)
    if here is not None and not flags["num_devices"]:
        counts = [len(chosen)]
    preset, settings, data = settings_of(experiment, flags)
    if "device_counts" in settings:
        settings["device_counts"], counts = counts, [max(counts)]
    folder = Path(flags["out"]) / experiment.name
    atomic.check_writable(folder)
    environment = {  # where the user has set nothing else
        name: value
        for name, value in experiment.environment.items()
        if os.environ.get(name) in (None, ENGINE_DEFAULTS.get(name))
    }
    return [
        Job(
            experiment=experiment.name,
            preset=preset,
            devices=flags["devices"],
            num_devices=count,
            seed=flags["seed"],
            settings=settings,
            data=data,
            command=command,
            folder=str(folder),
            variants=dict(experiment.variants),
            threads=flags["threads"] or experiment.threads,
            profile=flags["profile"],
            checkpoint_every=flags["checkpoint_every"],
            resume=flags["resume"],
            is_worker=here is not None,
            tf32=flags["tf32"],
            deterministic=flags["deterministic"],
            environment=environment,
        )
        for count in counts
    ]


def settings_of(experiment: Experiment, flags: dict) -> tuple[str, dict, dict]:
    """The preset in force, the arguments of `measure`, and those of `load`."""
    preset = "dry-run" if flags["dry_run"] else flags["preset"]
    settings = dict(experiment.presets[flags["preset"]])
    overrides = {
        name: flags[name]
        for name in experiments.RECIPE | experiments.GAN
        if name in settings and flags[name] is not None
    }
    if flags["dry_run"]:
        settings.update(experiment.presets.get("dry-run", {}))
        if "num_epochs" in settings:
            overrides.setdefault("num_epochs", 1)
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
    if flags["dry_run"] and experiment.datasets and "dry-run" not in experiment.presets:
        batch = settings["global_batch_size"]
        data["n_train"] = min(2 * batch, data.get("n_train") or 5_000)
        data["n_test"] = min(batch, data.get("n_test") or 1_000)
    if flags["profile"]:
        preset += "-profile"  # its times must not pass for measurements
    return preset, settings, data


def _measured_runs(jobs: list[Job], repeats: int) -> list[Run]:
    """Measure the jobs and show their progress; the records in the jobs' order."""
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
    if not experiment.layers:
        return
    _, settings, data = settings_of(experiment, {**flags, "dry_run": False})
    chosen = devices.parse(flags["devices"])
    layers = experiments.load(experiment.layers)
    for count in dict.fromkeys(job.num_devices for job in jobs):
        click.echo(estimate.report(layers, settings, chosen[:count], data))


def _results(
    experiment: Experiment, runs: list[Run], flags: dict, shared_by: str = ""
) -> list[Run]:
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
    chosen = devices.parse(flags["devices"])
    counts = _counts(flags, chosen) if flags["num_devices"] else [len(chosen)]
    text = []
    for count in counts:
        for line in experiments.load(experiment.report)(chosen[:count], **settings):
            click.echo(line)
            text.append(line)
    path = Path(flags["out"]) / experiment.name / f"{preset}.txt"
    with atomic.replacing(path) as tmp:
        tmp.write_text("\n".join(text) + "\n", encoding="utf-8")

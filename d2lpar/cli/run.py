"""`d2lpar run`: from the flags and a chapter to jobs, their progress, and figures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from d2lpar import devices
from d2lpar.cli import notebook, progress
from d2lpar.cli.chapter_list import MEASURED, RESUMED, check_shared, refusals
from d2lpar.cli.options import SETTINGS
from d2lpar.datasets.download import check_folder
from d2lpar.errors import SettingError
from d2lpar.memory import estimate
from d2lpar.records import atomic, files
from d2lpar.records.kinds import Header, Run
from d2lpar.runs import sweep
from d2lpar.runs.job import Job
from d2lpar.workers.place import Place, place, resume_after_restart

if TYPE_CHECKING:
    from d2lpar.training import Workload


ONE_THING = (
    "launch: workers measure one thing at a time: one --num-devices, no --repeats, a "
    "chapter without several methods"
)


@dataclass(frozen=True)
class Chapter:
    """What a chapter script measures; see :func:`d2lpar.chapter.measure`."""

    name: str
    workload: Workload
    presets: dict[str, dict]
    variants: dict[str, dict]
    one_thread_each: bool = False


def refuse_unused(chapter: Chapter, given: Mapping[str, object], preset: str) -> None:
    """Raise :class:`SettingError` for the first given flag that means nothing to it."""
    workload, settings = chapter.workload, chapter.presets[preset]
    takes = MEASURED | settings.keys() & SETTINGS
    if workload.start is not None:
        takes |= RESUMED
    if "frames_every" in settings:
        takes |= {"mp4"}
    if workload.locate is not None:  # which knows the names of its data sets
        takes |= {"data_dir"}
        given = {flag: value for flag, value in given.items() if flag != "data"}
    for why in refusals(chapter.name, given, takes).values():
        raise SettingError(why)


@contextmanager
def environment_unless_set(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes to come, unless the user has set them."""
    from d2lpar._mxnet import ENGINE_DEFAULTS

    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if before[name] in (None, ENGINE_DEFAULTS.get(name)):
            os.environ[name] = value
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def run_sweep(chapter: Chapter, command: str, flags: dict) -> list[Run]:
    """Measure a chapter as the flags say; print the results and draw the figures.

    Returns the records; none in a worker that keeps none.

    `command` is the command line, for the records. In a process that `d2lpar launch`
    has started this is one of several workers, of which worker 0 keeps the record.
    """
    here = place()
    jobs = jobs_of(chapter, command, flags, here)
    if here is None:
        if flags["dry_run"]:
            _print_memory(chapter, jobs, flags)
        return _report(_measured_runs(jobs, flags["repeats"]), flags)
    check_shared(chapter.name, chapter.workload.train_with_workers is not None)
    if len(jobs) * flags["repeats"] > 1:
        raise SettingError(ONE_THING)
    if here.number == 0:
        return _report(_measured_runs(jobs, 1), flags, here.variant)
    for _ in sweep.measure(jobs[0]):
        pass
    return []


def _measured_runs(jobs: list[Job], repeats: int) -> list[Run]:
    """Measure the jobs and show their progress; the records in the jobs' order."""
    unit, total, names = jobs[0].workload.unit, None, {}
    if unit == "epoch":
        total = repeats * sum(job.settings["num_epochs"] for job in jobs)
    with (
        progress.shown(unit, total) as shown,
        closing(sweep.sweep(jobs, repeats)) as lines,
    ):
        for line in lines:
            if isinstance(line, Header):
                names[files.run_name(line)] = None
                where = f"{line.num_devices} device(s)"
                words = filter(None, (line.chapter, line.variant, where))
                shown.start(", ".join(words))
            elif line.counts_as_progress:
                shown.advance(line)
    return [files.read(jobs[0].folder / f"{name}.jsonl") for name in names]


def jobs_of(
    chapter: Chapter, command: str, flags: dict, here: Place | None = None
) -> list[Job]:
    """One job for each variant and each device count.

    A preset with `device_counts` measures all counts in turn, in one job on the most
    devices. Raises :class:`SettingError` for flags that contradict each other or the
    chapter, and OSError unless the folder for the record can be written.
    """
    check_together(flags)
    chosen = devices.parse(flags["devices"])
    available = len(chosen)
    _check_gpu_flags(flags, chosen[0].device_type)  # "auto" may be the CPU
    default = devices.default_counts(available) if here is None else str(available)
    counts = devices.parse_counts(flags["num_devices"] or default, available)
    preset, settings, data = settings_of(chapter.presets, flags)
    data["seed"] = flags["seed"]
    if chapter.workload.locate is not None:
        data["data_dir"] = flags["data_dir"]
        data["name"] = chapter.workload.locate(flags["data"], flags["data_dir"])
    if "device_counts" in settings:
        settings["device_counts"], counts = counts, [max(counts)]
    folder = Path(flags["out"]) / chapter.name
    atomic.check_writable(folder)
    common = {
        "chapter": chapter.name,
        "preset": preset,
        "workload": chapter.workload,
        "data": data,
        "command": command,
        "folder": folder,
        "one_thread_each": chapter.one_thread_each,
        "resume": resume_after_restart(flags["resume"], folder),
        "is_worker": here is not None,
        **{name: flags[name] for name in _OF_JOB},
    }
    return [
        Job(num_devices=count, settings={**settings, **more}, variant=variant, **common)
        for variant, more in chapter.variants.items()
        for count in counts
    ]


_GPU_FLAGS = ("tf32", "deterministic")
_OF_JOB = (
    *("devices", "seed", "threads", "profile", "watch", "checkpoint_every"),
    *_GPU_FLAGS,
)


def check_together(flags: dict) -> None:
    """Raise :class:`SettingError` for flags that contradict each other in any chapter.

    MXNet, which knows the devices, is not loaded, and nothing is made. Raises OSError
    or DataError for folders that cannot be written or read.
    """
    devices.check_texts(flags["devices"], flags["num_devices"])
    if flags["resume"] and flags["repeats"] > 1:
        raise SettingError("--resume with --repeats: a training is resumed only once")
    _check_gpu_flags(flags, flags["devices"].strip().lower()[:3])
    atomic.check_can_be_made(flags["out"])
    data_dir = flags["data_dir"]
    if data_dir and flags["data"] == "synthetic":
        raise SettingError(
            f"--data-dir {data_dir} with --data synthetic, which reads no file: leave "
            "one of them out"
        )
    if data_dir:
        check_folder("--data-dir", Path(os.path.expanduser(data_dir)))


def check_devices(flags: dict) -> None:
    """Raise DeviceError for devices that are not here, as :func:`jobs_of` will.

    Raises SettingError for flags that are not for these devices. Loads MXNet, which
    knows them, if a flag is about them.
    """
    about = ("num_devices", *_GPU_FLAGS)
    if flags["devices"] == "auto" and not any(flags[name] for name in about):
        return
    chosen = devices.parse(flags["devices"])
    devices.parse_counts(flags["num_devices"] or "1", len(chosen))
    _check_gpu_flags(flags, chosen[0].device_type)


def check_one_thing(flags: dict) -> None:
    """Raise :class:`SettingError` for flags that make several measurements."""
    if flags["repeats"] > 1 or "," in (flags["num_devices"] or ""):
        raise SettingError(ONE_THING)


def _check_gpu_flags(flags: dict, kind: str) -> None:
    """Raise :class:`SettingError` for a flag that means nothing to CPU contexts."""
    for name in _GPU_FLAGS:
        if flags[name] and kind == "cpu":
            raise SettingError(
                f"--{name} with --devices {flags['devices']}: it is for GPUs; CPU "
                "contexts compute exactly float32, and the same bits in every repeat"
            )


def settings_of(presets: dict, flags: dict) -> tuple[str, dict, dict]:
    """The preset in force, the arguments of `train`, and those of `load`."""
    preset = "dry-run" if flags["dry_run"] else flags["preset"]
    changed = {name: flags[name] for name in SETTINGS if flags.get(name) is not None}
    if flags["dry_run"] and "num_epochs" in presets[flags["preset"]]:
        changed.setdefault("num_epochs", 1)
    elif changed and not flags["dry_run"]:
        preset = "custom"
    settings = dict(presets[flags["preset"]])
    for name in changed.keys() - settings.keys():
        refuse_setting(name, changed[name])
    if flags["dry_run"]:
        settings.update(presets.get("dry-run", {}))
    settings.update(changed)
    data = dict(settings.pop("data", {}))
    if flags["dry_run"] and "dry-run" not in presets:
        batch = settings["global_batch_size"]
        data = {"n_train": min(2 * batch, 60_000), "n_test": min(batch, 10_000)}
    if flags["profile"]:
        preset += "-profile"  # its times must not pass for measurements
    return preset, settings, data


def refuse_setting(name: str, value: object) -> None:
    """Raise :class:`SettingError` for a setting that is given (not None)."""
    if value is not None:
        flag = name.replace("_", "-")
        raise SettingError(f"--{flag} {value}: this chapter has no such setting")


def _print_memory(chapter: Chapter, jobs: list[Job], flags: dict) -> None:
    """Print how much memory the real run would need, on each number of devices."""
    _, settings, data = settings_of(chapter.presets, {**flags, "dry_run": False})
    chosen, layers = devices.parse(flags["devices"]), chapter.workload.layers
    counts = jobs[0].settings.get("device_counts") or [job.num_devices for job in jobs]
    for count in dict.fromkeys(counts):
        text = estimate.report(layers, settings, chosen[:count], data)
        if text is not None:
            click.echo(text)


def _report(runs: list[Run], flags: dict, shared_by: str = "") -> list[Run]:
    """Print a line for each run, draw the figures of all, and return the runs."""
    from d2lpar.figures import drawing  # matplotlib takes its time

    for run in runs:
        header = run.header
        method = f"{header.variant}: " if header.variant else ""
        synthetic = " [synthetic data]" * header.synthetic
        click.echo(f"{method}{run.summary()} on {', '.join(header.devices)}{synthetic}")
    folder, stem = runs[0].path.parent, files.run_stem(runs[0].header)
    if shared_by:  # the figures of one launch must not replace those of another
        stem += f"-{shared_by}"
    data_dir, mp4 = flags["data_dir"], flags["mp4"]
    for path in drawing.draw(runs, folder, stem, data_dir=data_dir, mp4=mp4):
        if path.suffix in (".png", ".gif") and notebook.is_here():
            notebook.show_figure(path)
        elif path.suffix != ".svg":
            click.echo(f"figure: {path}")
    if flags["profile"]:
        profiles = folder / stem
        click.echo(f"profiles: {profiles}*.profile.txt, {profiles}*.trace.json")
    return runs

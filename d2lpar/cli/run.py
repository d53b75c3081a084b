"""TODO: one idea."""

from __future__ import annotations

import importlib
import logging
import os
from contextlib import contextmanager
from pathlib import Path

import click

from d2lpar.cli.options import SETTINGS
from d2lpar.cli.progress import _result_line, _show_progress
from d2lpar.errors import SettingError

log = logging.getLogger("d2lpar")

# Loaders of data that is found on disk or downloaded, and who says which it will be.
FOUND_BY = {
    "d2lpar.datasets.fashion:load": "d2lpar.datasets.fashion",
    "d2lpar.datasets.punks:load": "d2lpar.datasets.punks",
}


@contextmanager
def _unless_set(environment: dict[str, str]):
    """Set variables for processes to come, but for those that the person has set."""
    if not environment:
        yield
        return
    from d2lpar._mxnet import ENGINE_DEFAULTS

    before = {name: os.environ.get(name) for name in environment}
    for name, value in environment.items():
        if before[name] in (None, ENGINE_DEFAULTS.get(name)):
            os.environ[name] = value
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def run_sweep(
    name: str,
    train: str,
    presets: dict[str, dict],
    load: str,
    variants: dict[str, dict],
    one_thread_each: bool,
    command: str,
    **flags,
) -> None:
    from d2lpar import devices
    from d2lpar.figures import drawing
    from d2lpar.memory import estimate
    from d2lpar.records import atomic, files
    from d2lpar.runs import job, sweep
    from d2lpar.workers import group

    place = group.place()
    if flags["resume"] and flags["repeats"] > 1:
        raise SettingError("--resume with --repeats: a training is taken up once")
    available = len(devices.parse(flags["devices"]))
    default = str(available) if place else devices.default_counts(available)
    counts = devices.parse_counts(flags["num_devices"] or default, available)
    preset, settings, data = settings_of(presets, flags)
    data["seed"] = flags["seed"]
    if load in FOUND_BY:
        finder = importlib.import_module(FOUND_BY[load])
        data["data_dir"] = flags["data_dir"]
        data["name"] = finder.locate(flags["data"], flags["data_dir"])
    out = Path(flags["out"]) / name
    atomic.check_writable(out)
    resume = group.resume_after_restart(flags["resume"], out)
    jobs = [
        job.Job(
            chapter=name,
            preset=preset,
            train=train,
            devices=flags["devices"],
            num_devices=count,
            seed=flags["seed"],
            settings={**settings, **variant_settings},
            data=data,
            command=command,
            threads=flags["threads"],
            load=load,
            variant=variant,
            profile_in=str(out) if flags["profile"] else None,
            one_thread_each=one_thread_each,
            watch=flags["watch"],
            checkpoints_in=str(out),
            checkpoint_every=flags["checkpoint_every"],
            resume=resume,
        )
        for variant, variant_settings in variants.items()
        for count in counts
    ]
    if flags["dry_run"] and place is None:
        _, planned, all_data = settings_of(presets, {**flags, "dry_run": False})
        chosen = devices.parse(flags["devices"])
        for count in counts:
            text = estimate.report(train, planned, chosen[:count], all_data)
            if text is not None:
                click.echo(text)
    if place is not None and len(jobs) * flags["repeats"] > 1:
        raise SettingError(
            "launch: workers measure one thing at a time: one --num-devices, no "
            "--repeats, a chapter without several methods"
        )
    if place is not None and place.number > 0:
        for _ in sweep.follow(jobs[0]):
            pass
        return
    runs = _show_progress(jobs, flags["repeats"], out)
    for run_ in runs:
        click.echo(_result_line(run_))
    stem = files.run_stem(runs[0].header)
    if place is not None and place.variant:
        stem += f"-{place.variant}"  # one launch's pictures are not another's
    drawn = drawing.draw(runs, out, stem, data_dir=flags["data_dir"], mp4=flags["mp4"])
    for path in drawn:
        if path.suffix != ".svg":
            click.echo(f"figure: {path}")
    if flags["profile"]:
        click.echo(f"profiles: {out / stem}*.profile.txt, {out / stem}*.trace.json")


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
        flag = name.replace("_", "-")
        raise SettingError(
            f"--{flag} {changed[name]}: this chapter has no such setting"
        )
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

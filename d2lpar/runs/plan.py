"""From a chapter and its flags to jobs, whose recipe names the folder of a sweep."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from d2lpar import experiments
from d2lpar.devices import default_counts, for_chunks, names, parse_counts
from d2lpar.errors import CheckpointError, SettingError
from d2lpar.experiments import Experiment
from d2lpar.machine import host
from d2lpar.records import atomic, checkpoints
from d2lpar.runs.job import Job

log = logging.getLogger("d2lpar")

# Images of a dry run at most: the sample of Fashion-MNIST has no more.
SAMPLE_IMAGES = 5_000
LONGEST_RECIPE = 60  # characters; a longer one ends in a hash


def plan(
    experiment: Experiment,
    command: str,
    *,
    devices: str = "auto",
    num_devices: str | int | Sequence[int] | None = None,
    threads: int | None = None,
    deterministic: bool = False,
    preset: str = "quick",
    seed: int = 0,
    seeds: str | Sequence[int] = (),
    dry_run: bool = False,
    data: str = "auto",
    data_dir: str | None = None,
    checkpoint_every: int | None = None,
    resume: str | None = None,
    out: str | None = None,
    **overrides: Any,
) -> list[Job]:
    """Return a job per device count; `overrides` replace settings of the preset.

    With `device_counts` in the preset, one job measures all counts. Loads no MXNet.
    """
    is_worker = "D2LPAR_WORKER" in os.environ
    chosen = names(devices)
    kind = chosen[0].device_type
    if num_devices is not None:
        counts = parse_counts(as_text(num_devices), len(chosen))
    else:
        counts = [len(chosen)] if is_worker else default_counts(len(chosen))
    if deterministic and kind == "cpu":
        raise SettingError(
            f"--deterministic with --devices {devices}: it is for GPUs; leave it out"
        )
    base = settings_of(experiment, preset, dry_run)
    settings = {**base, **overrides}
    words = [
        name if value is True else f"{name}={as_text(value)}"
        for name, value in settings.items()
        if value != base[name]
    ]
    to_load = {"seed": seed, **settings.pop("data", {})}
    if experiment.locate:
        to_load["data_dir"] = data_dir
        to_load["name"] = experiments.load(experiment.locate)(data, data_dir)
        if to_load["name"] != experiment.datasets[0]:
            words.append(to_load["name"])
    if dry_run and "global_batch_size" in settings:
        two_batches = min(2 * settings["global_batch_size"], SAMPLE_IMAGES)
        to_load["n_train"] = max(two_batches, to_load["n_train"])
    if "device_counts" in settings:
        settings["device_counts"], counts = counts, [max(counts)]
    of_repeats = [int(k) for k in as_text(seeds).split(",") if k]
    words += [f"seeds={as_text(of_repeats)}"] * bool(of_repeats)
    words += [f"seed={seed}"] * (seed != 0) + ["gpu"] * (kind == "gpu")
    users = None if is_worker else host.user_threads()  # a worker's are the launcher's
    if threads or users:
        words.append(f"threads={threads or users}")
    if settings.get("same_bits"):
        for_chunks(chosen[: max(counts)])  # raises for too many
        # They depend on the threads of a context, and on cuDNN's choices.
        threads, deterministic = threads or users or 1, kind == "gpu"
    for name, value in experiment.environment_on(kind).items():
        if host.set_by_user(name) and os.environ[name] != value:
            words.append(f"{name}={os.environ[name]}")
    words += ["deterministic"] * deterministic
    if is_worker:
        from d2lpar.workers.node import worker_info

        info = worker_info()
        words.append(f"workers={info.count}")
        words += [f"servers={info.servers}"] * (info.servers != 1)
        words += [f"compress={info.threshold}"] * (info.threshold not in (None, 0.5))
    if dry_run:
        words = [preset] * (preset != "quick") + words
        preset = "dry-run"
    recipe = named_by(preset, words)
    folder = atomic.output_folder(out) / experiment.name / recipe
    return [
        Job(
            chapter=experiment.name,
            preset=preset,
            recipe=recipe,
            devices=chosen[:count],
            seed=of_repeats[0] if of_repeats else seed,
            seeds=of_repeats,
            settings=settings,
            data=to_load,
            command=command,
            folder=folder,
            threads=threads or experiment.threads,
            checkpoint_every=checkpoint_every,
            resume=resume,
            is_worker=is_worker,
            deterministic=deterministic,
        )
        for count in counts
    ]


def settings_of(experiment: Experiment, preset: str, dry_run: bool = False) -> dict:
    """Return the settings of a preset, with those of a dry run on top."""
    more = experiment.presets.get("dry-run", {}) if dry_run else {}
    return {**experiment.presets[preset], **more}


def named_by(preset: str, words: Sequence[str]) -> str:
    """Return a recipe's name, which is part of a path: "quick,lr=0.01".

    >>> named_by("book", ["lr=0.01", "seed=1"])
    'book,lr=0.01,seed=1'
    """
    name = re.sub(r"[^\w.,+= -]", "_", ",".join((preset, *words)))
    if len(name) <= LONGEST_RECIPE:
        return name
    return f"{preset},{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def as_text(value: Any) -> str:
    """Return a setting as it is written on the command line: [1, 2] as "1,2"."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


# Resuming


def continued(experiment: Experiment, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a resumed training: its checkpoint's, where none is given.

    "last" becomes the path of the newest checkpoint that agrees with the flags. Only
    `num_epochs` may differ. Raises :class:`CheckpointError` where there is none.
    """
    if given["resume"] != "last":
        kept, different = compared(experiment, given, Path(given["resume"]))
        if different:
            raise CheckpointError(
                f"{given['resume']}: was trained with {', '.join(different)}; leave "
                "out the flags that say otherwise"
            )
        return {**kept, **given}
    folder = atomic.output_folder(given.get("out")) / experiment.name
    why = "run with --checkpoint-every"
    found = folder.glob("*/[!.]*.safetensors")
    for path in sorted(found, key=lambda path: -path.stat().st_mtime_ns):
        try:
            kept, different = compared(experiment, given, path)
        except CheckpointError as error:
            log.warning("%s; trying the checkpoint before it", error)
            continue
        if not different:
            return {**kept, **given, "resume": str(path)}
        why = f"{path} was trained with {', '.join(different)}"
    raise CheckpointError(
        f"--resume last: no good checkpoint with these settings in {folder}; {why}"
    )


def checkpoint_of(job: Job) -> str:
    """Return the newest checkpoint of a job's device count beside the one it found."""
    run = f"{job.devices[0].device_type}{len(job.devices)}"
    return str(checkpoints.newest(Path(job.resume or "").parent, run).path)


def compared(
    experiment: Experiment, given: Mapping[str, Any], path: Path
) -> tuple[dict[str, Any], list[str]]:
    """Return the flags that a checkpoint adds, and what it was trained with instead."""
    header = checkpoints.load(path).header
    trained: dict[str, Any] = {"seed": header.seed, "preset": header.preset}
    if header.dataset in experiments.DATA_FLAGS:
        trained["data"] = experiments.DATA_FLAGS[header.dataset]
    kept = dict(trained)
    if header.preset not in experiment.presets or header.preset == "dry-run":
        kept["preset"] = trained["preset"] = "quick"  # 0.5's "custom" is of any preset
    if header.preset == "dry-run":
        kept["dry_run"] = trained["dry_run"] = True
    base = settings_of(experiment, kept["preset"], "dry_run" in kept)
    differing = {
        name: header.settings[name]
        for name, value in base.items()
        if name != "data" and header.settings.get(name, value) != value
    }
    trained.update(differing)
    if "preset" not in given:
        kept.update(differing)

    def in_force(flags: Mapping[str, Any]) -> dict[str, Any]:
        base = settings_of(experiment, flags["preset"], flags.get("dry_run", False))
        facts = {name: flags.get(name) for name in ("seed", "data")}
        return {**base, **{k: v for k, v in flags.items() if k in base}, **facts}

    explicit = {k: v for k, v in given.items() if (k, v) != ("data", "auto")}
    now = in_force({**kept, **explicit})
    different = [
        f"{name} {value}"
        for name, value in in_force(trained).items()
        if name != "num_epochs" and now.get(name, value) != value
    ]
    return kept, different

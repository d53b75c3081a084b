"""From a chapter and its flags to jobs, whose recipe names the folder of a sweep."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from d2lpar import experiments
from d2lpar.devices import default_counts, names, parse_counts
from d2lpar.errors import SettingError
from d2lpar.experiments import Experiment
from d2lpar.machine import host
from d2lpar.records import atomic
from d2lpar.runs.job import Job

# Images of a dry run at most: the sample of Fashion-MNIST has no more.
SAMPLE_IMAGES = 5_000
LONGEST_RECIPE = 60  # characters; a longer one ends in a hash
MAX_SEED = 2**31 - 1
# Variables that change neither times nor numbers, or that a header says otherwise.
WITHOUT_EFFECT = ("MXNET_HOME", "MXNET_LIBRARY_PATH", "MXNET_GLUON_REPO")


def plan(
    experiment: Experiment,
    command: str,
    *,
    devices: str = "auto",
    num_devices: str | int | Sequence[int] | None = None,
    threads: int | None = None,
    preset: str = "quick",
    seeds: str | int | Sequence[int] = 0,
    dry_run: bool = False,
    data: str = "auto",
    checkpoint_every: int | None = None,
    resume: str | None = None,
    out: str | None = None,
    **overrides: Any,
) -> list[Job]:
    """Return a job per device count; `overrides` replace settings of the preset.

    With `device_counts` in the preset, one job measures all counts. Loads no MXNet.
    """
    is_worker = "DMLC_PS_ROOT_URI" in os.environ  # of a launch: see d2lpar.workers
    chosen = names(devices)
    if num_devices is not None:
        counts = parse_counts(as_text(num_devices), len(chosen))
    else:
        counts = [len(chosen)] if is_worker else default_counts(len(chosen))
    first, *others = all_seeds = parse_seeds(seeds)
    base = {**experiment.presets[preset]}
    if dry_run:
        base |= experiment.presets["dry-run"]
    settings = {**base, **{k: _like(v, base[k]) for k, v in overrides.items()}}
    to_load = {"seed": first, **settings.pop("data", {})}
    if experiment.locate:
        to_load["name"] = experiments.load(experiment.locate)(data)
    if dry_run and "global_batch_size" in settings:
        two_batches = min(2 * settings["global_batch_size"], SAMPLE_IMAGES)
        to_load["n_train"] = max(two_batches, to_load["n_train"])
    if "device_counts" in settings:
        settings["device_counts"], counts = counts, [max(counts)]
    if is_worker and len(counts) > 1:
        raise SettingError("workers measure one count of devices: write one")
    if others and (is_worker or not experiment.start):
        raise SettingError(
            f"--seeds {as_text(seeds)}: write one; a training takes more"
        )
    # A worker's threads are those that its launch shares out.
    threads = threads or (None if is_worker else host.user_threads())
    kind = chosen[0].device_type
    changed = changed_variables(experiment.environment_on(kind))
    differs = {name: v for name, v in settings.items() if v != base[name]}
    differs.pop("device_counts", None)
    if "name" in to_load and to_load["name"] != experiment.datasets[0]:
        differs[to_load["name"]] = True
    if others:
        differs["seeds"] = all_seeds
    elif first:
        differs["seed"] = first
    if kind == "gpu":
        differs["gpu"] = True
    if threads:
        differs["threads"] = threads
    differs |= changed
    if is_worker:
        differs["workers"] = os.environ["DMLC_NUM_WORKER"]
    if dry_run:
        differs = {**({} if preset == "quick" else {preset: True}), **differs}
        preset = "dry-run"
    recipe = named_by(preset, differs)
    folder = atomic.output_folder(out) / experiment.name / recipe
    return [
        Job(
            experiment=experiment,
            preset=preset,
            recipe=recipe,
            devices=chosen[:count],
            seed=first,
            seeds=all_seeds if others else (),
            settings=settings,
            data=to_load,
            command=command,
            folder=folder,
            threads=threads or experiment.threads,
            checkpoint_every=checkpoint_every,
            resume=resume,
            is_worker=is_worker,
            environment=changed,
        )
        for count in counts
    ]


def _like(value: Any, preset: Any) -> Any:
    """Return a setting as a float where the preset's is one: 1 and 1.0 are the same."""
    return float(value) if isinstance(preset, float) else value


def parse_seeds(seeds: str | int | Sequence[int]) -> list[int]:
    """Return the seeds of 3, [0, 1, 2] or "0,1,2"; raise SettingError for others.

    >>> parse_seeds("0,1,2"), parse_seeds(3)
    ([0, 1, 2], [3])
    """
    words = [word.strip() for word in as_text(seeds).split(",")]
    found = [int(word) for word in words if re.fullmatch("[0-9]{1,10}", word)]
    if len(set(found)) < len(words) or max(found) > MAX_SEED:
        raise SettingError(
            f"--seeds {as_text(seeds)[:40]!r}: write whole numbers up to {MAX_SEED}, "
            "each once, as in 0,1,2"
        )
    return found


def changed_variables(ours: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables of MXNet and oneDNN that differ from `ours`."""
    ours = {**host.ENGINE_DEFAULTS, **ours}
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("MXNET_", "DNNL_", "NVIDIA_TF32"))
        and name not in WITHOUT_EFFECT
        and host.set_by_user(name)
        and value != ours.get(name)
    }


def named_by(preset: str, differs: Mapping[str, Any]) -> str:
    """Return a recipe's name, which is part of a path: "quick,lr=0.01".

    >>> named_by("book", {"lr": 0.01, "seed": 1, "gpu": True})
    'book,lr=0.01,seed=1,gpu'
    """
    words = [
        name if value is True else f"{name}={as_text(value)}"
        for name, value in differs.items()
    ]
    name = re.sub(r"[^\w.,+= -]", "_", ",".join((preset, *words)))
    if len(name) <= LONGEST_RECIPE:
        return name
    return f"{preset},{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def as_text(value: Any) -> str:
    """Return a setting as it is written on the command line: [1, 2] as "1,2"."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

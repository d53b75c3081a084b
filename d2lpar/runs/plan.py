"""Turn a chapter and its flags into jobs: one per number of devices.

`sweep.py` runs the jobs, each in a process whose program is `child.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from d2lpar import experiments
from d2lpar.devices import Device, default_counts, names, parse_counts
from d2lpar.errors import SettingError
from d2lpar.experiments import Experiment
from d2lpar.machine import host
from d2lpar.records import atomic

MAX_SEED = 2**31 - 1
# Variables that change neither times nor numbers, or that a header says otherwise.
WITHOUT_EFFECT = ("MXNET_HOME", "MXNET_LIBRARY_PATH", "MXNET_GLUON_REPO")
# Keep freed memory in the process: otherwise each step pays page faults.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


@dataclass(frozen=True)
class Job:
    """Hold what one process measures: a repeat of an experiment on some devices.

    `settings` are arguments of the experiment's `measure`, `data` those of its `load`;
    both take the repeat's seed, too. The folder's name is the recipe. `threads` of None
    shares the cores out; `resume` is a checkpoint's path; `turns` are the device counts
    whose processes take turns with this one's; `environment` has the user's variables
    that may change times or numbers.
    """

    experiment: Experiment
    preset: str
    devices: Sequence[Device]
    seeds: Sequence[int]  # one per repeat
    settings: dict
    data: dict
    command: str
    folder: Path
    repeat: int = 0
    variant: str = ""
    threads: int | None = None
    checkpoint_every: int | None = None
    resume: str | None = None
    is_worker: bool = False
    turns: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.seeds[self.repeat]

    def each_variant(self) -> list[Job]:
        """Return a job per variant of the experiment, or of the preset's `variants`."""
        settings = dict(self.settings)
        chosen = settings.pop("variants", self.experiment.variants)
        return [
            replace(self, variant=name, settings={**settings, **more})
            for name, more in self.experiment.variants.items()
            if name in chosen
        ]

    def variables(self) -> dict[str, str]:
        """Return the environment of the measuring process, as changes to this one."""
        one_each = self.experiment.one_thread_each and len(self.devices) > 1
        share = 1 if one_each else max(1, host.usable_cores() // len(self.devices))
        threads = self.threads or host.user_threads() or share
        kind = self.devices[0].device_type
        ours = {**KEEP_FREED_MEMORY, **self.experiment.environment.get(kind, {})}
        variables = {k: v for k, v in ours.items() if not host.set_by_user(k)}
        return {**variables, "OMP_NUM_THREADS": str(threads)}


def plan(
    experiment: Experiment,
    command: str,
    *,
    devices: str = "auto",
    num_devices: str | int | Sequence[int] | None = None,
    threads: int | None = None,
    preset: str = "quick",
    repeats: int = 1,
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
    base = {**experiment.presets[preset]}
    if dry_run:
        base |= experiment.presets["dry-run"]
    settings = dict(base)
    for name, value in overrides.items():  # 1 and 1.0 are the same
        settings[name] = float(value) if isinstance(base[name], float) else value
    to_load = {**settings.pop("data", {})}
    if experiment.locate:
        to_load["name"] = experiments.load(experiment.locate)(data)
    if dry_run and "global_batch_size" in settings:
        # The sample of Fashion-MNIST has no more than 5,000 images.
        two_batches = min(2 * settings["global_batch_size"], 5_000)
        to_load["n_train"] = max(two_batches, to_load["n_train"])

    is_worker = "DMLC_PS_ROOT_URI" in os.environ  # of a launch: see d2lpar.workers
    chosen = names(devices)
    counts = [len(chosen)] if is_worker else default_counts(len(chosen))
    if num_devices is not None:
        counts = parse_counts(as_text(num_devices), len(chosen))
    if is_worker and len(counts) > 1:
        raise SettingError("workers measure one count of devices: write one")

    first, *others = all_seeds = parse_seeds(seeds)
    if others and (is_worker or not experiment.start):
        raise SettingError(
            f"--seeds {as_text(seeds)}: write one; a training takes more"
        )
    if others and repeats > 1:
        raise SettingError("--seeds with --repeats: each seed is a repeat; write one")
    if resume is not None and (others or repeats > 1):
        raise SettingError("--resume with --repeats: a training is resumed only once")

    # A worker's threads are those that its launch shares out.
    threads = threads or (None if is_worker else host.user_threads())
    kind = chosen[0].device_type
    ours = {**host.ENGINE_DEFAULTS, **experiment.environment.get(kind, {})}
    changed = {k: v for k, v in users_variables().items() if v != ours.get(k)}

    # The recipe: what differs from the preset, in the order of its name.
    differs: dict[str, Any] = {preset: True} if dry_run and preset != "quick" else {}
    differs |= {name: v for name, v in settings.items() if v != base[name]}
    dataset = to_load.get("name", "")
    marks = {
        dataset: dataset not in ("", *experiment.datasets[:1]),
        "seeds" if others else "seed": all_seeds if others else first,
        "gpu": kind == "gpu",
        "threads": threads,
        **changed,
        "workers": os.environ["DMLC_NUM_WORKER"] if is_worker else None,
    }
    differs |= {name: value for name, value in marks.items() if value}
    preset = "dry-run" if dry_run else preset
    recipe = named_by(preset, differs)

    if "device_counts" in settings:
        settings["device_counts"], counts = counts, [max(counts)]
    return [
        Job(
            experiment=experiment,
            preset=preset,
            devices=chosen[:count],
            seeds=all_seeds * repeats,
            settings=settings,
            data=to_load,
            command=command,
            folder=atomic.output_folder(out) / experiment.name / recipe,
            threads=threads or experiment.threads,
            checkpoint_every=checkpoint_every,
            resume=resume,
            is_worker=is_worker,
            environment=changed,
        )
        for count in counts
    ]


def users_variables() -> dict[str, str]:
    """Return the variables of MXNet and oneDNN that the user has set, by name."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("MXNET_", "DNNL_", "NVIDIA_TF32"))
        and name not in WITHOUT_EFFECT
        and host.set_by_user(name)
    }


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


def named_by(preset: str, differs: Mapping[str, Any]) -> str:
    """Return a recipe's name, which is part of a path: "quick,lr=0.01".

    >>> named_by("book", {"lr": 0.01, "seed": 1, "gpu": True})
    'book,lr=0.01,seed=1,gpu'
    """
    words = [as_word(name, value) for name, value in differs.items()]
    name = re.sub(r"[^\w.,+= -]", "_", ",".join((preset, *words)))
    if len(name) <= 60:
        return name
    return f"{preset},{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def as_word(name: str, value: Any) -> str:
    """Return "lr=0.1" of a setting, and the name alone of one that is on."""
    return name if value is True else f"{name}={as_text(value)}"


def as_text(value: Any) -> str:
    """Return a setting as it is written on the command line: [1, 2] as "1,2"."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

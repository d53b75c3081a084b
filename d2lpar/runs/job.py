"""One measurement as plain data, which is sent to a separate process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from d2lpar.devices import Device
from d2lpar.experiments import Experiment
from d2lpar.machine import host

# Keep freed memory in the process: otherwise each step pays page faults.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


@dataclass(frozen=True)
class Job:
    """Hold the arguments of an experiment's `load` (`data`) and `measure` (the others).

    `threads` of None shares the cores out; `resume` is a checkpoint's path; `turns` are
    the device counts whose processes take turns with this one's; `seeds` are those of
    the repeats, where they differ; `environment` has the user's variables that may
    change times or numbers.
    """

    experiment: Experiment
    preset: str
    recipe: str
    devices: Sequence[Device]
    seed: int
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
    seeds: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def each_variant(self) -> list[Job]:
        """Return a job per variant of the experiment, or of the preset's `variants`."""
        settings = dict(self.settings)
        chosen = settings.pop("variants", self.experiment.variants)
        return [
            replace(self, variant=name, settings={**settings, **more})
            for name, more in self.experiment.variants.items()
            if name in chosen
        ]

    def repeated(self, repeat: int) -> Job:
        """Return the job of a repeat, which may have a seed of its own."""
        if not self.seeds:
            return replace(self, repeat=repeat)
        seed = self.seeds[repeat]
        return replace(self, repeat=repeat, seed=seed, data={**self.data, "seed": seed})

    def variables(self) -> dict[str, str]:
        """Return the environment of the measuring process, as changes to this one."""
        count, threads = len(self.devices), self.threads
        if threads is None and self.experiment.one_thread_each and count > 1:
            threads = host.user_threads() or 1
        if threads is None:
            threads = host.threads_per_context(count)
        kind = "cpu" if self.is_worker else self.devices[0].device_type
        defaults = self.experiment.environment_on(kind)
        variables = {k: v for k, v in defaults.items() if not host.set_by_user(k)}
        for name, value in KEEP_FREED_MEMORY.items():
            variables[name] = os.environ.get(name, value)
        variables["OMP_NUM_THREADS"] = str(threads)
        return variables

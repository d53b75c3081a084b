"""One measurement, as data: what a measuring process is asked to do."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from d2lpar import experiments
from d2lpar.errors import SettingError
from d2lpar.machine import host

# Every step allocates and frees activations of 10 MB. The C library would return each
# of them to the system at once, and the page faults of all devices queue for one lock.
# With these variables, read when a process starts, two CPU contexts are 8 % faster.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}
# MXNet keeps to cuDNN's deterministic algorithms, and does not choose among them by
# their times, which differ from run to run.
DETERMINISTIC = {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"}


@dataclass(frozen=True)
class Job:
    """One measurement, for a process of its own; travels as JSON.

    The experiment's `measure` gets the first `num_devices` of `devices`, `seed` and the
    `settings`; its `load` gets `data`. `variant` names one of several methods. A CPU
    context has `threads` threads; None shares the cores out.

    Record, profiles and checkpoints go to `folder`. A checkpoint is written every
    `checkpoint_every` epochs (None: never), and on an interrupt. `resume` is the path
    of a checkpoint, or "last" for the newest one in `folder`; `num_epochs` counts from
    the beginning. With `is_worker` the process is one of several that share the work.
    On GPUs `tf32` lets float32 be computed in TF32, and with `deterministic` repeats
    give the same bits.
    """

    experiment: str
    preset: str
    devices: str
    num_devices: int
    seed: int
    settings: dict
    data: dict
    command: str
    folder: str
    repeat: int = 0
    variant: str = ""
    threads: int | None = None
    profile: bool = False
    checkpoint_every: int | None = None
    resume: str | None = None
    is_worker: bool = False
    tf32: bool = False
    deterministic: bool = False
    environment: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        flags = {"--resume": self.resume, "--checkpoint-every": self.checkpoint_every}
        for flag, value in flags.items():
            if value is not None and not self.of.start:
                raise SettingError(
                    f"{flag} {value}: {self.experiment} cannot be resumed, only "
                    "trainings of networks; leave the flag out"
                )

    @property
    def of(self) -> experiments.Experiment:
        """The experiment that is measured."""
        return experiments.get(self.experiment)

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def as_json(self) -> dict:
        return asdict(self)

    def variables(self) -> dict[str, str | None]:
        """The environment of the measuring process, as changes to this one."""
        threads = self.threads or host.threads_per_context(self.num_devices)
        if self.of.one_thread_each and self.num_devices > 1 and not self.threads:
            threads = host.USER_THREADS or 1
        variables: dict[str, str | None] = {
            name: os.environ.get(name, value)
            for name, value in KEEP_FREED_MEMORY.items()
        }
        variables.update(self.environment)
        variables["OMP_NUM_THREADS"] = str(threads)
        if self.tf32:
            variables["NVIDIA_TF32_OVERRIDE"] = "1"
        if self.deterministic:
            variables.update(DETERMINISTIC)
        return variables

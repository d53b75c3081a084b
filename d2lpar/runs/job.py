"""What a measuring process is given, and what it answers besides a record's lines.

Jobs and answers travel through pipes, pickled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from d2lpar.errors import SettingError

if TYPE_CHECKING:  # a measuring process imports MXNet when it is ready for it
    from d2lpar.training import Workload

# Every step allocates and frees activations of 10 MB. The C library would return each
# of them to the system at once, and the page faults of all devices queue for one lock.
# With these variables, read when a process starts, two CPU contexts are 8 % faster.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment for another Python, which finds this package too.

    Of the `changes`, None unsets a variable.
    """
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    changed = {**os.environ, **changes}
    changed["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {name: value for name, value in changed.items() if value is not None}


# MXNet keeps to cuDNN's deterministic algorithms, and does not choose among them by
# their times, which differ from run to run.
DETERMINISTIC = {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"}


@dataclass(frozen=True)
class Job:
    """One measurement, for a process of its own.

    The workload's `train` gets the first `num_devices` of `devices`, `seed` and the
    `settings`; its `load` gets `data`. `variant` names one of several methods of the
    chapter. A CPU context has `threads` threads. None shares the cores out; but with
    `one_thread_each` several contexts have one thread each, as work needs that calls
    OpenBLAS (see :func:`d2lpar.least_squares.solve`).

    Record, profiles (:mod:`d2lpar.runs.profile`) and checkpoints go to `folder`. With
    `watch` the record says every second how busy the devices are. A checkpoint is
    written every `checkpoint_every` epochs (None: never), and on an interrupt. `resume`
    is the path of a checkpoint, or "last" for the newest one in `folder`; `num_epochs`
    counts from the beginning. With `is_worker` the process is one of several that share
    the work. On GPUs `tf32` lets float32 be computed in TF32, and with `deterministic`
    repeats give the same bits. Raises :class:`SettingError` if the workload cannot be
    resumed.
    """

    chapter: str
    preset: str
    workload: Workload
    devices: str
    num_devices: int
    seed: int
    settings: dict
    data: dict
    command: str
    folder: Path
    threads: int | None = None
    variant: str = ""
    one_thread_each: bool = False
    profile: bool = False
    watch: bool = False
    checkpoint_every: int | None = None
    resume: str | None = None
    is_worker: bool = False
    tf32: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        flags = {"--resume": self.resume, "--checkpoint-every": self.checkpoint_every}
        for flag, value in flags.items():
            if value is not None and self.workload.start is None:
                raise SettingError(
                    f"{flag} {value}: {self.chapter} cannot be resumed, only trainings "
                    "of networks; leave the flag out"
                )

    @property
    def gpu_variables(self) -> dict[str, str]:
        """What `tf32` and `deterministic` set in the measuring process."""
        variables = {"NVIDIA_TF32_OVERRIDE": "1"} if self.tf32 else {}
        return variables | (DETERMINISTIC if self.deterministic else {})


@dataclass(frozen=True)
class Warned:
    """The work goes on; the message is for the user."""

    message: str


@dataclass(frozen=True)
class Progressed:
    """The work goes on: a sign of life between two lines."""


@dataclass(frozen=True)
class Failed:
    """The work ended with an error that the user should see as one line."""

    message: str
    out_of_memory: bool = False

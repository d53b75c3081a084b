"""TODO: one idea."""

from __future__ import annotations

import logging
from dataclasses import dataclass

log = logging.getLogger("d2lpar")

# Every step allocates and frees activations of 10 MB. The C library would give each one
# back to the system at once, and the page faults of all devices wait for one lock: with
# these, two CPU contexts are about 8 % faster. Read when a process starts.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


@dataclass(frozen=True)
class Job:
    """What one measuring process is to do.

    `train` names a generator function, "module:function", that is called as
    ``train(num_devices, devices=..., seed=..., data=..., **settings)`` and yields
    the lines of a record; `load` names the function that is called with `data` for the
    data set. `variant` is the name of one method of several. `threads` is the number of
    threads of a CPU context; None shares the cores out. `profile_in` is the folder for
    profiles (see :mod:`d2lpar.runs.profile`); None takes none. With `one_thread_each`
    several contexts do not share the cores out but take a thread each, as work must
    that goes to OpenBLAS (see :func:`d2lpar.least_squares.solve`). With `watch` the
    record also has a line each second of how busy the devices are.

    `checkpoints_in` is the folder for checkpoints, of workloads that have a state:
    every `checkpoint_every` epochs (None: not), and when the run is interrupted.
    `resume` is a checkpoint's path, or "last" for the newest one in that folder;
    `num_epochs` then counts from the beginning of the training.
    """

    chapter: str
    preset: str
    train: str
    devices: str
    num_devices: int
    seed: int
    settings: dict
    data: dict
    command: str
    threads: int | None = None
    load: str = "d2lpar.datasets.fashion:load"
    variant: str = ""
    profile_in: str | None = None
    one_thread_each: bool = False
    watch: bool = False
    checkpoints_in: str | None = None
    checkpoint_every: int | None = None
    resume: str | None = None

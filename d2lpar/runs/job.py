"""One measurement in a process of its own: a job in, the lines of its record out."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy

from d2lpar import devices, experiments
from d2lpar._version import __version__
from d2lpar.errors import SettingError
from d2lpar.machine import host
from d2lpar.machine.builds import gpu_build, mxnet_version
from d2lpar.machine.environment import raising_interrupts
from d2lpar.records import files
from d2lpar.records.kinds import Header, Line
from d2lpar.runs.resume import Resumable

log = logging.getLogger("d2lpar")

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
    `settings`; its `load` gets `data`. Where there are several `variants`, settings by
    name, they are measured one after the other, each with a header; `variant` names the
    one at work. A CPU context has `threads` threads; None shares the cores out.

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
    variants: dict = field(default_factory=lambda: {"": {}})
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

    def each_variant(self) -> list[Job]:
        """This job for one variant at a time, with that variant's settings."""
        return [
            replace(self, variant=name, settings={**self.settings, **more})
            for name, more in self.variants.items()
        ]

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


def measured(**job: Any) -> Iterator[Header | Line]:
    """The records of a job's variants (the fields of :class:`Job`)."""
    of_all = Job(**job)
    chosen = devices.parse(of_all.devices)[: of_all.num_devices]
    devices.enable_peer_access(chosen)
    data = experiments.load(of_all.of.load)(**of_all.data)
    for work in of_all.each_variant():
        header = header_of(work, chosen, data)
        warn_of_a_large_batch(header)
        train = partial(
            experiments.load(work.of.measure),
            work.num_devices,
            devices=chosen,
            seed=work.seed,
            data=data,
            **work.settings,
        )
        run = None
        if work.of.start:
            run = Resumable(
                header,
                experiments.load(work.of.start)(
                    work.seed, **{n: work.settings[n] for n in work.of.start_takes}
                ),
                work.path,
                every=work.checkpoint_every,
                resume=work.resume,
            )
        yield from record(work, header, train, run)


def warn_of_a_large_batch(header: Header) -> None:
    """Warn if one batch would hold more than all of the data."""
    batch = header.settings.get("global_batch_size", 0)
    n = header.settings.get("n_train", batch)
    if batch > n:
        log.warning("a batch of %d: the data has %d, which every step takes", batch, n)


def record(
    job: Job, header: Header, train: Any, run: Resumable | None, saves: bool = True
) -> Iterator[Header | Line]:
    """The record of a measurement; with --profile, profiles are written beside it.

    ``train(num_epochs=, state=)`` continues `run`; where that is None, ``train()``
    cannot be resumed. On SIGTERM or Ctrl-C the last finished epoch of `run` is saved,
    unless `saves` is false.
    """
    if run is None:
        lines = itertools.chain([header], train())
    else:
        lines = run.record(
            lambda state: train(num_epochs=run.epochs_to_go, state=state)
        )
    if job.profile:
        from d2lpar.runs.profile import profiled

        lines = profiled(lines, job.path / files.run_name(header))
    # A signal ends at once what needs no cleanup.
    cleans_up = run is not None or job.profile
    with raising_interrupts() if cleans_up else contextlib.nullcontext():
        try:
            for line in lines:
                if job.repeat and isinstance(line, Line):
                    line = msgspec.structs.replace(line, repeat=job.repeat)
                yield line
        except KeyboardInterrupt:
            if run is not None and saves:
                try:
                    path = run.save()
                except OSError as error:
                    why = f"{error.filename}: {error.strerror}"
                    log.warning("%s: no checkpoint was written", why)
                else:
                    if path is not None:
                        log.warning(
                            "saved epoch %d to %s; continue with --resume last",
                            run.snapshot.epoch,
                            path,
                        )
            raise


def header_of(job: Job, chosen: list, data: Any) -> Header:
    """The provenance of a job's record: this machine, this package, this data."""
    from d2lpar import tuning

    commit, dirty = files.git_state()
    on_cpu = chosen[0].device_type == "cpu"
    channels = tuning.device_channels(chosen[0].device_type)
    return Header(
        chapter=job.experiment,
        preset=job.preset,
        num_devices=len(chosen),
        device_kind=chosen[0].device_type,
        devices=[devices.label(device) for device in chosen],
        threads_per_device=host.omp_threads() if on_cpu else None,
        cores=host.usable_cores(),
        cpu_model=host.cpu_model(),
        dataset=data.name,
        dataset_sha256=data.sha256,
        synthetic=data.synthetic,
        seed=job.seed,
        settings={**job.settings, **data.sizes, "threads": job.threads},
        variant=job.variant,
        command=job.command,
        versions={
            "d2lpar": __version__,
            "mxnet": mxnet_version(),
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        git_commit=commit,
        git_dirty=dirty,
        date=files.now(),
        gpu_build={} if on_cpu else gpu_build_of(chosen),
        lenet_channels=None if channels == tuning.CHANNELS else channels,
    )


def gpu_build_of(gpus: list) -> dict:
    """MXNet's build and settings on these contexts of GPUs."""
    from d2lpar._mxnet import mx

    return gpu_build([gpu.device_id for gpu in gpus], mx.base._LIB)

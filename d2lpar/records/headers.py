"""Where a record comes from: the first line of a run's, or of a benchmark's, file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from d2lpar.records.line import Line


@dataclass(frozen=True)
class Header(Line):
    """The provenance of a run: enough to repeat it and to know what it measured."""

    kind: ClassVar[str] = "header"

    chapter: str
    preset: str
    num_devices: int
    device_kind: str  # "cpu" or "gpu"
    devices: list[str]  # one label per device
    threads_per_device: int | None  # None on GPUs
    cores: int
    cpu_model: str
    dataset: str
    dataset_sha256: str
    synthetic: bool
    seed: int
    settings: dict  # global_batch_size, lr, num_epochs, n_train, ...
    command: str
    versions: dict  # d2lpar, mxnet, numpy, python
    git_commit: str | None
    git_dirty: bool | None
    date: str  # ISO 8601, UTC
    variant: str = ""  # which of a chapter's methods, where it has several
    workers: int = 1  # processes that trained together, num_devices in all
    servers: int = 0  # parameter servers between the workers
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class BenchmarkHeader(Line):
    """The provenance of a benchmark, whose arms ran in fresh processes in turn.

    `benchmark` names the record and its pictures; `work` completes "seconds for ...".
    `peers` are the arms that are not ours. `gpus` are the models in the machine,
    `on_gpus` those that were used. `note` is what the caption says of the arms.
    """

    kind: ClassVar[str] = "benchmark"

    benchmark: str
    work: str
    command: str
    cpu_model: str
    cores: int
    versions: dict  # by library; "not installed" where it is not
    git_commit: str | None
    git_dirty: bool | None
    date: str  # ISO 8601, UTC
    peers: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    on_gpus: list[str] = field(default_factory=list)
    note: str = ""
    extra: dict = field(default_factory=dict)

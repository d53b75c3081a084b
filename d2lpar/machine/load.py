"""How busy the devices are, second by second: GPUs, and the cores of CPU contexts."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from d2lpar.errors import DeviceError, SettingError
from d2lpar.machine.builds import ask, nvml_session
from d2lpar.machine.cards import gpu_cards, gpu_handles

SHORTEST, LONGEST = 0.1, 86_400  # seconds between samples


@dataclass(frozen=True)
class GpuLoad:
    """Per cent of the time in which a kernel ran, and bytes in use; None: not known."""

    label: str
    percent: int | None
    memory: int | None


@dataclass(frozen=True)
class Sample:
    """What the devices did in the last interval, `seconds` after the first.

    Of the watched `processes`, children included: `cpu_percent` of work (100 is one
    core's) and resident `memory` in bytes. Of the host: how busy each core was, and the
    bytes in use.
    """

    seconds: float
    processes: int
    cpu_percent: float
    memory: int
    machine_percent: list[float]
    machine_memory: int
    gpus: tuple[GpuLoad, ...]


def samples(pid: int | None, interval: float) -> Iterator[Sample]:
    """A sample every `interval` seconds, without end.

    Process `pid` is watched, or, for None, all processes that measure for a run. Work
    counts from the sample in which a process is first seen. Raises
    :class:`SettingError` for an interval out of range, or if there is no such process.
    """
    if not SHORTEST <= interval <= LONGEST:
        raise SettingError(
            f"interval {interval:g}: write {SHORTEST} to {LONGEST:,} seconds"
        )
    if pid is not None and not psutil.pid_exists(pid):
        raise SettingError(f"pid {pid}: there is no such process; ps lists them")
    return _samples(pid, interval)


def _samples(pid: int | None, interval: float) -> Iterator[Sample]:
    with contextlib.ExitStack() as stack:
        gpus = {}
        with contextlib.suppress(DeviceError):  # no driver, no GPU
            nvml = stack.enter_context(nvml_session())
            handles = gpu_handles(nvml)
            gpus = {card.label: handles[card.index] for card in gpu_cards(nvml)}
        start = time.perf_counter()
        seen: set[psutil.Process] = set()
        for count in itertools.count():
            # Each process counts its own work from one call to the next.
            seen = {p for p in seen if p.is_running()} | watched(pid)
            percents, sizes = [], []
            for process in list(seen):
                try:
                    percents.append(process.cpu_percent())
                    sizes.append(process.memory_info().rss)
                except psutil.Error:  # it has ended
                    seen.discard(process)
            cores, host = psutil.cpu_percent(percpu=True), psutil.virtual_memory()
            loads = []
            for label, gpu in gpus.items():
                rates = ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
                used = ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
                loads.append(GpuLoad(label, rates and rates.gpu, used and used.used))
            seconds = round(time.perf_counter() - start, 3)
            if count:  # the first round only starts the counters
                yield Sample(
                    seconds, len(seen), round(sum(percents), 1), sum(sizes), cores,
                    host.total - host.available, tuple(loads),
                )  # fmt: skip
            time.sleep(interval)


def watched(pid: int | None) -> set[psutil.Process]:
    """Process `pid`, or all that measure for a run, with their descendants."""
    if pid is None:
        roots = [
            process
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [])[1:3] == ["-m", "d2lpar.process"]
        ]
    else:
        roots = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
    found = set(roots)
    for root in roots:
        with contextlib.suppress(psutil.Error):
            found.update(root.children(recursive=True))
    return found

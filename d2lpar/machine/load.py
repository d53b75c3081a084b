"""How busy the devices are, second by second: GPUs, and the cores of CPU contexts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import psutil

from d2lpar.errors import DeviceError, SettingError
from d2lpar.machine.cards import ask, gpu_cards, gpu_handles, nvml_session

SHORTEST, LONGEST = 0.1, 86_400  # seconds between samples
BUSY = 0.1  # the part of an interval that a thread works to be called busy


@dataclass(frozen=True)
class GpuLoad:
    """What a GPU does. None is what its driver does not report.

    `percent` is of the time in which any kernel ran, `memory` the bytes in use by all
    processes, `temperature` in degrees Celsius, `power` in watts.
    """

    label: str
    percent: int | None
    memory: int | None
    temperature: int | None
    power: float | None


@dataclass(frozen=True)
class Sample:
    """What the devices did in the `interval` seconds up to `seconds` from the start.

    Of the watched processes and their children: `cpu_percent` of work (100 is one
    core's), resident `memory` in bytes, `threads`, of which `busy_threads` worked for a
    tenth of the interval or more. Of the host: how busy each core was with anything at
    all, in per cent, and the bytes in use.
    """

    seconds: float
    interval: float
    processes: int
    threads: int
    busy_threads: int
    cpu_percent: float
    memory: int
    machine_percent: list[float]
    machine_memory: int
    gpus: tuple[GpuLoad, ...]


def samples(pids: Callable[[], Iterable[int]], interval: float) -> Iterator[Sample]:
    """A sample of some processes every `interval` seconds, without end.

    `pids` is called for each sample. A thread counts from the sample after the one that
    finds it. Raises :class:`SettingError`, at once, for an interval that is too short
    to measure, or longer than a day.
    """
    if not SHORTEST <= interval <= LONGEST:
        raise SettingError(
            f"interval {interval:g}: write {SHORTEST} to {LONGEST:,} seconds"
        )
    return _samples(pids, interval)


def watched(pid: int | None = None) -> Callable[[], Iterable[int]]:
    """The `pids` of :func:`samples`: one process, or all that measure for a run.

    Raises :class:`SettingError` when there is no process `pid`.
    """
    if pid is None:
        return lambda: [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [])[1:3] == ["-m", "d2lpar.process"]
        ]
    if not psutil.pid_exists(pid):
        raise SettingError(f"pid {pid}: there is no such process; ps lists them")
    return lambda: [pid]


def _samples(pids: Callable, interval: float) -> Iterator[Sample]:
    with contextlib.ExitStack() as stack:
        nvml, gpus = None, {}
        with contextlib.suppress(DeviceError):  # no driver, no GPU
            nvml = stack.enter_context(nvml_session())
            handles = gpu_handles(nvml)
            gpus = {card.label: handles[card.index] for card in gpu_cards(nvml)}
        start = before = time.perf_counter()
        worked_before, _ = _work_and_memory(_with_children(pids()))
        psutil.cpu_percent(percpu=True)  # its next answer is of the time since now
        while True:
            time.sleep(max(0.0, before + interval - time.perf_counter()))
            tree = _with_children(pids())
            now, (worked, memory) = time.perf_counter(), _work_and_memory(tree)
            elapsed = now - before
            work = [worked[k] - worked_before[k] for k in worked.keys() & worked_before]
            host = psutil.virtual_memory()
            yield Sample(
                seconds=round(now - start, 3),
                interval=round(elapsed, 3),
                processes=len(tree),
                threads=len(worked),
                busy_threads=sum(seconds >= BUSY * elapsed for seconds in work),
                cpu_percent=round(100 * sum(work) / elapsed, 1),
                memory=memory,
                machine_percent=psutil.cpu_percent(percpu=True),
                machine_memory=host.total - host.available,
                gpus=tuple(_gpu_load(nvml, *gpu) for gpu in gpus.items()),
            )
            before, worked_before = now, worked


def _with_children(pids: Iterable[int]) -> list[psutil.Process]:
    """The processes and all their descendants, each once."""
    tree = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for member in (process, *process.children(recursive=True)):
                tree[member.pid] = member
    return list(tree.values())


def _work_and_memory(tree: Iterable[psutil.Process]) -> tuple[dict[tuple, float], int]:
    """Seconds of work so far, by process and thread, and the bytes resident of all."""
    seconds, memory = {}, 0
    for process in tree:
        with contextlib.suppress(psutil.Error):  # it has ended
            for thread in process.threads():
                worked = thread.user_time + thread.system_time
                seconds[process.pid, thread.id] = worked
            memory += process.memory_info().rss
    return seconds, memory


def _gpu_load(nvml, label: str, gpu: object) -> GpuLoad:
    rates = ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
    milliwatts = ask(nvml.nvmlDeviceGetPowerUsage, gpu)
    return GpuLoad(
        label,
        percent=rates and rates.gpu,
        memory=memory and memory.used,
        temperature=ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
        power=None if milliwatts is None else milliwatts / 1000,
    )

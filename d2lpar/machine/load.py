"""How busy the devices are, second by second: GPUs, and the cores of CPU contexts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import psutil

from d2lpar.errors import DeviceError, SettingError
from d2lpar.machine.gpu_cards import ask, gpu_cards, gpu_handles, nvml_session

INTERVAL = 1.0  # seconds; NVML's own average is over about that long
SHORTEST, LONGEST = 0.1, 86_400
BUSY = 0.1  # the part of an interval that a thread works to be called busy


@dataclass(frozen=True)
class Gpu:
    """What a GPU does: None is what its driver does not report."""

    label: str
    percent: int | None
    """of the time in which any kernel ran"""
    memory: int | None
    """bytes in use by all processes and the driver"""
    temperature: int | None
    """degrees Celsius"""
    power: float | None
    """watts"""


@dataclass(frozen=True)
class Sample:
    """What the devices did in the `interval` seconds up to `seconds` from the start.

    Of the watched processes and their children: `cpu_percent` of their work (100 is one
    core's), resident `memory` in bytes, `threads`, of which `busy_threads` worked for a
    tenth of the interval or more. Of the host: how busy each core was with anything at
    all, and the bytes in use.
    """

    seconds: float
    interval: float
    cpu_percent: float
    memory: int
    processes: int
    threads: int
    busy_threads: int
    machine_percent: list[float]
    machine_memory: int
    gpus: tuple[Gpu, ...]


def samples(
    pids: Callable[[], Iterable[int]], interval: float = INTERVAL
) -> Iterator[Sample]:
    """A sample of some processes every `interval` seconds.

    `pids` is called for each sample. Raises :class:`SettingError` for an interval that
    is too short to measure, or longer than a day.
    """
    if not SHORTEST <= interval <= LONGEST:
        raise SettingError(
            f"interval {interval:g}: the shortest is {SHORTEST} seconds, the longest "
            f"{LONGEST:,} (a day)"
        )
    return _samples(pids, interval)


def _samples(pids: Callable, interval: float) -> Iterator[Sample]:
    with contextlib.ExitStack() as stack:
        nvml, handles = None, {}
        with contextlib.suppress(DeviceError):  # no driver, no GPU
            nvml = stack.enter_context(nvml_session())
            by_index = gpu_handles(nvml)
            handles = {card.label: by_index[card.index] for card in gpu_cards(nvml)}
        start = before = time.perf_counter()
        worked = _thread_seconds(_process_tree(pids()))
        psutil.cpu_percent(percpu=True)  # its next answer is of the time since now
        while True:
            time.sleep(max(0.0, before + interval - time.perf_counter()))
            tree = _process_tree(pids())
            now, percent = time.perf_counter(), psutil.cpu_percent(percpu=True)
            worked_now, elapsed = _thread_seconds(tree), now - before
            done = [
                seconds - worked[thread]
                for thread, seconds in worked_now.items()
                if thread in worked
            ]
            host = psutil.virtual_memory()
            yield Sample(
                seconds=round(now - start, 3),
                interval=round(elapsed, 3),
                cpu_percent=round(100 * sum(done) / elapsed, 1),
                memory=sum(_resident(process) for process in tree),
                processes=len(tree),
                threads=len(worked_now),
                busy_threads=sum(seconds >= BUSY * elapsed for seconds in done),
                machine_percent=percent,
                machine_memory=host.total - host.available,
                gpus=tuple(_gpu(nvml, *item) for item in handles.items()),
            )
            before, worked = now, worked_now


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


def _process_tree(pids: Iterable[int]) -> list[psutil.Process]:
    """The processes and all their descendants, each once."""
    tree = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                tree[one.pid] = one
    return list(tree.values())


def _thread_seconds(tree: Iterable[psutil.Process]) -> dict[tuple[int, int], float]:
    """Seconds of work so far, by process and thread."""
    seconds = {}
    for process in tree:
        with contextlib.suppress(psutil.Error):
            for thread in process.threads():
                worked = thread.user_time + thread.system_time
                seconds[process.pid, thread.id] = worked
    return seconds


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def _gpu(nvml, label: str, handle: object) -> Gpu:
    rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    milliwatts = ask(nvml.nvmlDeviceGetPowerUsage, handle)
    sensor = nvml.NVML_TEMPERATURE_GPU
    return Gpu(
        label,
        percent=rates and rates.gpu,
        memory=memory and memory.used,
        temperature=ask(nvml.nvmlDeviceGetTemperature, handle, sensor),
        power=None if milliwatts is None else milliwatts / 1000,
    )

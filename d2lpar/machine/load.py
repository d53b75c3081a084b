"""How busy the devices are, second by second: GPUs, and the cores of CPU contexts.

A :class:`Sample` holds what each GPU and each core did since the one before. Samples go
into a run's record (:func:`sampling`) or to a terminal. NVML reads the GPUs; /proc and
psutil read the processes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from d2lpar.errors import DeviceError, SettingError
from d2lpar.machine.gpu_cards import ask, gpu_cards, gpu_handles, nvml_session
from d2lpar.records.kinds import Sample

log = logging.getLogger("d2lpar")

INTERVAL = 1.0  # seconds; NVML's own average is over about that long
SHORTEST = 0.1  # the kernel counts a thread's time in steps of 10 ms
LONGEST = 86_400
BUSY = 0.1  # the part of an interval that a thread works to be called busy
# How d2lpar.runs.sweep starts the processes that measure.
MEASURING = (["-m", "d2lpar.runs.child"], ["-m", "d2lpar.runs.worker_child"])


def samples(
    pids: Callable[[], Iterable[int]],
    interval: float = INTERVAL,
    stop: threading.Event | None = None,
) -> Iterator[Sample]:
    """A sample of some processes every `interval` seconds, until `stop` is set.

    `pids` is called for each sample. A process counts from the sample after the one
    that finds it, until it ends. Raises :class:`SettingError` for an interval that is
    too short to measure, or longer than a day.
    """
    if not SHORTEST <= interval <= LONGEST:
        raise SettingError(
            f"interval {interval:g}: the shortest is {SHORTEST} seconds, the longest "
            f"{LONGEST:,} (a day)"
        )
    return _samples(pids, interval, stop or threading.Event())


def _samples(pids: Callable, interval: float, stop: threading.Event) -> Iterator:
    with contextlib.ExitStack() as stack:
        nvml, gpus = None, {}
        with contextlib.suppress(DeviceError):  # no driver, no GPU
            nvml = stack.enter_context(nvml_session())
            handles = gpu_handles(nvml)
            gpus = {card.label: handles[card.index] for card in gpu_cards(nvml)}
        start = before = time.perf_counter()
        threads = _thread_seconds(_process_tree(pids()))
        psutil.cpu_percent(percpu=True)  # its next answer is of the time since now
        while not stop.wait(max(0.0, before + interval - time.perf_counter())):
            tree = _process_tree(pids())
            now, percent = time.perf_counter(), psutil.cpu_percent(percpu=True)
            threads_now = _thread_seconds(tree)
            yield Sample(
                seconds=round(now - start, 3),
                interval=round(now - before, 3),
                **_work_between(threads, threads_now, len(percent), now - before),
                machine_percent=percent,
                **_host(tree),
                **_gpu_readings(nvml, gpus),
            )
            before, threads = now, threads_now


@contextlib.contextmanager
def sampling(
    pid: int, put: Callable[[Sample], None], interval: float = INTERVAL
) -> Iterator[None]:
    """Within the block, a thread hands every sample of process `pid` to `put`."""
    stop = threading.Event()
    source = samples(lambda: [pid], interval, stop)

    def work() -> None:
        try:
            for sample in source:
                put(sample)
        except Exception as error:  # the watched run goes on
            log.warning("watching ended: %s: %s", type(error).__name__, error)

    thread = threading.Thread(target=work, name="watching", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def watched(pid: int | None = None) -> Callable[[], Iterable[int]]:
    """The `pids` of :func:`samples`: one process, or all that measure for a run.

    Raises :class:`SettingError` when there is no process `pid`.
    """
    if pid is None:
        return lambda: [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [])[1:3] in MEASURING
        ]
    if not Path(f"/proc/{pid}").is_dir():
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


def _thread_seconds(tree: Iterable) -> dict[int, dict[int, tuple[float, int]]]:
    """By process and thread: seconds of work so far, and the core it was last on.

    Columns 14, 15 and 39 of /proc/PID/task/TID/stat; see proc(5).
    """
    tick, seconds_of = os.sysconf("SC_CLK_TCK"), {}
    for process in tree:
        threads = seconds_of[process.pid] = {}
        for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
            # A thread may end between being listed and being read.
            with contextlib.suppress(OSError):
                # The name, column 2, is in brackets and may hold anything.
                columns = stat.read_text(errors="replace").rpartition(")")[2].split()
                seconds = (int(columns[11]) + int(columns[12])) / tick
                threads[int(stat.parent.name)] = seconds, int(columns[36])
    return seconds_of


def _work_between(before: dict, now: dict, num_cores: int, elapsed: float) -> dict:
    """The threads' work by core, of the processes that were there before, too."""
    by_core, busy = dict.fromkeys(range(num_cores), 0.0), 0
    for pid, threads in now.items():
        for tid, (seconds, core) in threads.items() if pid in before else ():
            worked = max(0.0, seconds - before[pid].get(tid, (0.0, core))[0])
            by_core[core] = by_core.get(core, 0.0) + worked
            busy += worked >= BUSY * elapsed
    return {
        "core_percent": [round(100 * s / elapsed, 1) for s in by_core.values()],
        "threads": sum(map(len, now.values())),
        "busy_threads": busy,
    }


def _host(tree: list) -> dict:
    memory, threads = 0, None
    for process in tree:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_info().rss
            value = process.environ().get("OMP_NUM_THREADS", "")
            threads = int(value) if threads is None and value.isdigit() else threads
    host, sensors = psutil.virtual_memory(), psutil.sensors_temperatures()
    chips = [sensors.get(name, []) for name in ("coretemp", "k10temp", "zenpower")]
    own = itertools.chain.from_iterable(chips)  # the CPU's, without the disks'
    return {
        "processes": len(tree),
        "memory": memory,
        "machine_memory": host.total - host.available,
        "threads_per_context": threads,
        "temperature": max((sensor.current for sensor in own), default=None),
    }


def _gpu_readings(nvml, gpus: dict[str, object]) -> dict[str, list]:
    def each(query: Callable, *args) -> list:
        return [ask(query, gpu, *args) for gpu in gpus.values()]

    if not gpus:
        return {}
    rates = each(nvml.nvmlDeviceGetUtilizationRates)
    memory = each(nvml.nvmlDeviceGetMemoryInfo)
    power = each(nvml.nvmlDeviceGetPowerUsage)
    return {
        "gpus": list(gpus),
        "gpu_percent": [rate and rate.gpu for rate in rates],
        "gpu_memory": [info and info.used for info in memory],
        "gpu_temperature": each(
            nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU
        ),
        "gpu_power": [None if mw is None else mw / 1000 for mw in power],
    }

"""How busy GPUs and cores are, second by second: samples, and a live table of them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from d2lpar.errors import DeviceError
from d2lpar.machine.builds import ask, nvml_session
from d2lpar.machine.cards import Machine, gpu_cards, gpu_handles
from d2lpar.text import byte_size


@dataclass(frozen=True)
class GpuLoad:
    """Per cent of the time in which a kernel ran, and bytes in use; None: not known."""

    label: str
    percent: int | None
    memory: int | None


@dataclass(frozen=True)
class Sample:
    """What the devices did in the last interval, `seconds` after the first.

    Of the watched `processes`: `cpu_percent` of work (100 is one core's) and resident
    `memory` in bytes. Of the host: how busy each core was, and the bytes in use.
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

    Process `pid` and its descendants are watched, or, for None, all processes that
    measure for a run. Work counts from the sample in which a process is first seen.
    """
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
                    percent, size = process.cpu_percent(), process.memory_info().rss
                    ended = process.status() == psutil.STATUS_ZOMBIE
                except psutil.Error:
                    ended = True
                if ended:
                    seen.discard(process)
                else:
                    percents.append(percent)
                    sizes.append(size)
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
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        measures = (process.info["cmdline"] or [])[1:3] == ["-m", "d2lpar.process"]
        if measures if pid is None else process.pid == pid:
            with contextlib.suppress(psutil.Error):
                found.update([process, *process.children(recursive=True)])
    return found


def show_live(
    samples: Iterable[Sample], machine: Machine, console: Console | None = None
) -> None:
    """Redraw the screen for each sample until Ctrl-C is pressed.

    Raises :class:`DeviceError` if the output is not a terminal.
    """
    console = console or Console()
    if not console.is_terminal:
        raise DeviceError("--watch draws on a terminal; --watch --json prints lines")
    waiting = "waiting for the first sample; Ctrl-C ends"
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(waiting, console=console, screen=True, auto_refresh=False) as live,
    ):
        for sample in samples:
            live.update(screen(sample, machine), refresh=True)


def screen(sample: Sample, machine: Machine) -> Group:
    """A sample as a table of GPUs and cores, below it the watched processes."""
    table = Table("device", "busy", "memory in use", box=None)
    for gpu in sample.gpus:
        busy = "-" if gpu.percent is None else f"{gpu.percent} %"
        memory = "-" if gpu.memory is None else byte_size(gpu.memory)
        table.add_row(Text(gpu.label), busy, memory)
    percents = sample.machine_percent
    busy = f"{sum(percents) / len(percents):.0f} %"
    memory = f"{byte_size(sample.machine_memory)} of "
    memory += byte_size(machine.cpu.memory_total)
    table.add_row(Text(f"all cores, {machine.cpu.model}"), busy, memory)
    cores = Columns([Text(f"{k}: {busy:.0f} %") for k, busy in enumerate(percents)])
    processes = "No run of d2lpar measures here now: start one in another terminal."
    if sample.processes:
        processes = (
            f"watched: processes {sample.processes}, {byte_size(sample.memory)}, "
            f"{sample.cpu_percent:.0f} % of a core"
        )
    why = [Text(machine.no_gpu)] if machine.no_gpu else []
    return Group(table, cores, Text(f"\n {processes}"), *why)

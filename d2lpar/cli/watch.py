"""A live screen of how busy GPUs and cores are: one table per sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from d2lpar.errors import DeviceError
from d2lpar.machine.cards import Machine
from d2lpar.machine.load import Sample

CORES_PER_ROW = 8


def show_live(
    samples: Iterable[Sample], machine: Machine, console: Console | None = None
) -> None:
    """Redraw the screen for each sample, until there are no more or Ctrl-C is pressed.

    `machine` describes what is sampled. Raises :class:`DeviceError` if the output is
    not a terminal.
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
    table = Table("device", "busy", "memory in use", "temperature", "power", box=None)
    for gpu in sample.gpus:
        table.add_row(
            Text(gpu.label),
            _or_dash(gpu.percent, "%"),
            "-" if gpu.memory is None else _gib(gpu.memory),
            _or_dash(gpu.temperature, "°C"),
            _or_dash(gpu.power, "W"),
        )
    busy = sample.machine_percent
    memory = f"{_gib(sample.machine_memory)} of {_gib(machine.cpu.memory_total)}"
    mean = f"{sum(busy) / len(busy):.0f} %"
    table.add_row(Text(f"all cores, {machine.cpu.model}"), mean, memory, "-", "-")
    cores = Table.grid(padding=(0, 2))
    for first in range(0, len(busy), CORES_PER_ROW):
        row = [f"{percent:.0f} %" for percent in busy[first : first + CORES_PER_ROW]]
        cores.add_row(f" cores from {first}", *row)
    processes = "No run of d2lpar measures here now: start one in another terminal."
    if sample.processes:
        processes = (
            f"watched: {sample.cpu_percent:.0f} % of a core, {_gib(sample.memory)}; "
            f"processes {sample.processes}, threads {sample.threads}, "
            f"busy {sample.busy_threads}"
        )
    why = [Text(machine.no_gpu)] if machine.no_gpu else []
    return Group(table, cores, Text(f"\n {processes}"), *why)


def _or_dash(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

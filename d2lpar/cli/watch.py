"""A live screen of how busy GPUs and cores are, drawn with rich."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from rich.bar import Bar
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from d2lpar.errors import DeviceError
from d2lpar.machine.cards import Machine
from d2lpar.machine.load import Sample


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
    """A sample as tables: the GPUs, the cores, and the watched processes."""
    used, total = _gib(sample.machine_memory), _gib(machine.cpu.memory_total)
    watched = "No run of d2lpar measures here now: start one in another terminal."
    if sample.processes:
        watched = (
            f"watched: {sample.cpu_percent:.0f} % of a core, {_gib(sample.memory)}; "
            f"{sample.processes} processes, {sample.threads} threads, "
            f"{sample.busy_threads} busy"
        )
    return Group(
        _gpus(sample) if sample.gpus else Text(machine.no_gpu or "no GPU"),
        Text(f"\n{machine.cpu.model}: memory {used} of {total}"),
        _cores(sample),
        Text(f"\n{watched}"),
    )


def _gpus(sample: Sample) -> Table:
    table = Table("GPU", "busy", "", "memory", "temperature", "power", box=None)
    for gpu in sample.gpus:
        table.add_row(
            Text(gpu.label),
            _or_dash(gpu.percent, "%"),
            Bar(100, 0, min(gpu.percent or 0, 100), width=20),
            "-" if gpu.memory is None else _gib(gpu.memory),
            _or_dash(gpu.temperature, "°C"),
            _or_dash(gpu.power, "W"),
        )
    return table


def _cores(sample: Sample) -> Table:
    table = Table("core", "busy", "", box=None)
    for k, percent in enumerate(sample.machine_percent):
        bar = Bar(100, 0, min(percent, 100), width=20)
        table.add_row(str(k), f"{percent:.0f} %", bar)
    return table


def _or_dash(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

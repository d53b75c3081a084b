"""A live screen of how busy GPUs and cores are: one table per sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from d2lpar.errors import DeviceError
from d2lpar.machine.cards import Machine
from d2lpar.machine.load import Sample
from d2lpar.text import byte_size


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
    total = byte_size(machine.cpu.memory_total)
    table.add_row(
        Text(f"all cores, {machine.cpu.model}"),
        f"{sum(percents) / len(percents):.0f} %",
        f"{byte_size(sample.machine_memory)} of {total}",
    )
    cores = Columns([Text(f"{k}: {busy:.0f} %") for k, busy in enumerate(percents)])
    processes = "No run of d2lpar measures here now: start one in another terminal."
    if sample.processes:
        processes = (
            f"watched: processes {sample.processes}, {byte_size(sample.memory)}, "
            f"{sample.cpu_percent:.0f} % of a core"
        )
    why = [Text(machine.no_gpu)] if machine.no_gpu else []
    return Group(table, cores, Text(f"\n {processes}"), *why)

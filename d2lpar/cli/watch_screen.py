"""A live screen of how busy GPUs and cores are, as nvtop's, drawn with rich.

:mod:`d2lpar.machine.load` takes the samples that are shown here.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from d2lpar.errors import DeviceError
from d2lpar.machine.cards import Machine
from d2lpar.machine.load import Sample

HISTORY = 16  # samples in a curve
BARS = " ▁▂▃▄▅▆▇█"
ROWS_OF_CORES = 16  # a row per core; with more cores, one character per core
CORES_PER_ROW = 32


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
    past: deque[Sample] = deque(maxlen=HISTORY)
    waiting = "waiting for the first sample; Ctrl-C ends"
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(waiting, console=console, screen=True, auto_refresh=False) as live,
    ):
        for sample in samples:
            past.append(sample)
            live.update(screen(past, machine), refresh=True)


def screen(past: Sequence[Sample], machine: Machine) -> RenderableType:
    """The newest sample as tables, with curves of the samples before it."""
    now = past[-1]
    gpus = _gpu_table(past, machine) if now.gpus else Text(machine.no_gpu or "no GPU")
    used, total = _gib(now.machine_memory), _gib(machine.cpu.memory_total)
    warm = "" if now.temperature is None else f", {now.temperature:.0f} °C"
    host = f"{machine.cpu.model}: memory {used} of {total}{warm}"
    threads = now.threads_per_context
    watched = (
        f"watched: {now.cpu_percent:.0f} % of a core, {_gib(now.memory)}; "
        f"{now.processes} processes, {now.threads} threads, {now.busy_threads} busy; "
        f"threads per context: {'unset' if threads is None else threads}"
    )
    if not now.processes:
        watched = "No run of d2lpar measures here now: start one in another terminal."
    return Group(gpus, Text(f"\n{host}"), _core_table(past), Text(f"\n{watched}"))


def _gpu_table(past: Sequence[Sample], machine: Machine) -> Table:
    now, cards = past[-1], {card.label: card for card in machine.gpus}
    table = _table("GPU", "busy:", ":", "", "memory", "temperature", "power")
    for k, label in enumerate(now.gpus):
        card, used = cards.get(label), now.gpu_memory[k]
        total, limit = (card.memory_total, card.power_limit) if card else (None, None)
        memory = "-" if used is None else _gib(used)
        table.add_row(
            Text(label),
            *_busy([sample.gpu_percent[k] for sample in past]),
            memory + (f" of {_gib(total)}" if total else ""),
            _or_dash(now.gpu_temperature[k], "°C"),
            _or_dash(now.gpu_power[k], f"of {limit:.0f} W" if limit else "W"),
        )
    return table


def _core_table(past: Sequence[Sample]) -> Table:
    """A row per core: all its work, and that of the watched processes.

    With more than ROWS_OF_CORES, a character per core, CORES_PER_ROW cores in a row.
    """
    busy, watched = past[-1].machine_percent, past[-1].core_percent
    if len(busy) <= ROWS_OF_CORES:
        table = _table("core", "busy:", ":", "", "watched:", ":", "")
        for k in range(len(busy)):
            all_work = _busy([sample.machine_percent[k] for sample in past])
            ours = _busy([sample.core_percent[k] for sample in past])
            table.add_row(str(k), *all_work, *ours)
        return table
    table = _table("cores", "busy", "watched")
    for first in range(0, len(busy), CORES_PER_ROW):
        part = slice(first, first + CORES_PER_ROW)
        last = first + len(busy[part]) - 1
        table.add_row(f"{first}-{last}", curve(busy[part]), curve(watched[part]))
    return table


def curve(percents: Iterable[float | None]) -> str:
    """A character for each value: higher is more, a dot where there is none.

    >>> curve([0, 50, 100, None])
    ' ▄█·'
    """
    top = len(BARS) - 1
    return "".join(
        "·" if p is None else BARS[round(min(max(p, 0), 100) / 100 * top)]
        for p in percents
    )


def _table(*columns: str) -> Table:
    """A table without lines; a column whose name ends in ":" is aligned right."""
    table = Table(box=None)
    for name in columns:
        justify = "right" if name.endswith(":") else "left"
        wraps = name in ("GPU", "memory")
        table.add_column(name.rstrip(":"), justify=justify, no_wrap=not wraps)
    return table


def _busy(percents: Sequence[float | None]) -> tuple[str, str, RenderableType]:
    """Three cells: the curve, the newest value, and a bar of it."""
    now = percents[-1]
    bar = "" if now is None else Bar(100, 0, min(now, 100), width=10)
    return curve(percents), _or_dash(now, "%"), bar


def _or_dash(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

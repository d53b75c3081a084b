"""A terminal that shows samples as they come: the nvtop of seed 002, cores included.

What is sampled is :mod:`d2lpar.machine.load`'s; here it is drawn, with rich.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from d2lpar.errors import DeviceError
from d2lpar.machine.cards import Machine
from d2lpar.machine.load import Sample

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

HISTORY = 16  # samples in a curve
BARS = " ▁▂▃▄▅▆▇█"
BARS_PER_CORE = 16  # more cores than these are a character each


def show_live(
    source: Iterable[Sample],
    found: Machine,
    console: Console | None = None,
) -> None:
    """Redraw a screen for each sample, until there are no more, or Ctrl-C.

    `found` are the cards of what is sampled. Raises :class:`DeviceError` where the
    output is no terminal.
    """
    from rich.console import Console
    from rich.live import Live

    console = console or Console()
    if not console.is_terminal:
        raise DeviceError("--watch draws on a terminal; --watch --json prints lines")
    past: deque[Sample] = deque(maxlen=HISTORY)
    waiting = "waiting for the first sample; Ctrl-C ends"
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(waiting, console=console, screen=True, auto_refresh=False) as live,
    ):
        for sample in source:
            past.append(sample)
            live.update(screen(past, found), refresh=True)


def screen(past: Sequence[Sample], found: Machine) -> RenderableType:
    """The newest sample as tables, with curves of those before it."""
    from rich.console import Group
    from rich.text import Text

    now = past[-1]
    gpus = _gpu_table(past, found) if now.gpus else Text(found.no_gpu or "no GPU")
    used, total = _gib(now.machine_memory), _gib(found.cpu.memory_total)
    warm = "" if now.temperature is None else f", {now.temperature:.0f} °C"
    host = f"{found.cpu.model}: memory {used} of {total}{warm}"
    rest = Text(f"\n{host}"), _core_table(past), Text(f"\n{_watched_text(now)}")
    return Group(gpus, *rest)


def _gpu_table(past: Sequence[Sample], found: Machine) -> RenderableType:
    from rich.markup import escape

    now, cards = past[-1], {card.label: card for card in found.gpus}
    table = _table("GPU", "busy", "", "memory", "temperature", "power")
    for k, label in enumerate(now.gpus):
        card, used = cards.get(label), now.gpu_memory[k]
        total, limit = (card.memory_total, card.power_limit) if card else (None, None)
        memory = "-" if used is None else _gib(used)
        table.add_row(
            escape(label),
            _recent([s.gpu_percent[k] for s in past]),
            _bar(now.gpu_percent[k]),
            memory + (f" of {_gib(total)}" if total else ""),
            _or_dash(now.gpu_temperature[k], "°C"),
            _or_dash(now.gpu_power[k], f"of {limit:.0f} W" if limit else "W"),
        )
    return table


def _core_table(past: Sequence[Sample]) -> RenderableType:
    """A row a core; of more than BARS_PER_CORE, a character each."""
    now = past[-1]
    many = len(now.machine_percent)
    table = _table("core", "busy", "", "by what is watched", "")
    for k in range(many if many <= BARS_PER_CORE else 0):
        busy = [s.machine_percent[k] for s in past]
        ours = [s.core_percent[k] for s in past]
        bars = _bar(busy[-1]), _bar(ours[-1])
        table.add_row(str(k), _recent(busy), bars[0], _recent(ours), bars[1])
    if many <= BARS_PER_CORE:
        return table
    for first in range(0, many, 32):
        part = slice(first, first + 32)
        last = min(first + 32, many) - 1
        rows = curve(now.machine_percent[part]), curve(now.core_percent[part])
        table.add_row(f"{first}-{last}", rows[0], "", rows[1], "")
    return table


def _watched_text(now: Sample) -> str:
    if not now.processes:
        return "No run of d2lpar measures here now: start one in another terminal."
    each = "unset" if now.threads_per_context is None else now.threads_per_context
    return (
        f"watched: {now.cpu_percent:.0f} % of a core, {_gib(now.memory)}; processes "
        f"{now.processes}, threads {now.threads}, busy {now.busy_threads}, a context "
        f"has {each}"
    )


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
    from rich.table import Table

    table = Table(box=None)
    for name in columns:
        table.add_column(name, no_wrap=name not in ("GPU", "memory"))
    return table


def _recent(percents: Sequence[float | None]) -> str:
    """The curve, ending at the right, and the newest value."""
    now = "  -" if percents[-1] is None else f"{percents[-1]:3.0f} %"
    return f"{curve(percents):>{HISTORY}} {now}"


def _bar(percent: float | None) -> RenderableType:
    from rich.bar import Bar

    return "" if percent is None else Bar(100, 0, min(percent, 100), width=10)


def _or_dash(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

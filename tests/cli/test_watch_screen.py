"""The live screen: every GPU and core on it, within its width."""

import dataclasses
import io

import pytest
from rich.console import Console

from d2lpar.cli import watch_screen
from d2lpar.errors import DeviceError
from d2lpar.machine import host_card
from d2lpar.machine.cards import Machine
from d2lpar.machine.gpu_cards import GpuCard
from d2lpar.machine.load import Sample

TWO_GPUS = (
    GpuCard(0, 1, "H100", memory_total=80 * 2**30, power_limit=700.0),
    GpuCard(1, None, "silent"),
)


def sample(cores=(0.0, 50.0), **changes):
    values = {
        "seconds": 1.0,
        "interval": 1.0,
        "core_percent": list(cores),
        "machine_percent": [100.0 for _ in cores],
        "memory": 2**30,
        "machine_memory": 5 * 2**30,
        "processes": 2,
        "threads": 17,
        "busy_threads": 4,
        "threads_per_context": 1,
    }
    return Sample(**{**values, **changes})


def shown(past, gpus=(), why=None, width=120):
    """The screen as text."""
    console = Console(file=io.StringIO(), width=width, no_color=True)
    found = Machine(host_card.cpu_card(), tuple(gpus), why)
    console.print(watch_screen.screen(past, found))
    return console.file.getvalue()


def test_the_screen_shows_every_gpu_and_core():
    now = sample(
        gpus=[card.label for card in TWO_GPUS],
        gpu_percent=[57, None],
        gpu_memory=[3 * 2**30, None],
        gpu_temperature=[51, None],
        gpu_power=[642.2, None],
    )
    text = shown([dataclasses.replace(now, gpu_percent=[0, None]), now], TWO_GPUS)
    rows = text.splitlines()
    (first,) = (row for row in rows if "gpu(1) H100" in row)
    (second,) = (row for row in rows if "GPU 1 silent" in row)
    assert " ▅  57 %" in first and "3.0 GiB of 80.0 GiB" in first
    assert "51 °C" in first and "642 of 700 W" in first
    assert second.split()[-5:] == ["··", "-", "-", "-", "-"] and "GiB" not in second
    busy = [line for line in text.splitlines() if line.startswith((" 0 ", " 1 "))]
    assert len(busy) == 2 and "100 %" in busy[0] and " 50 %" in busy[1]
    assert "memory 5.0 GiB of" in text
    assert "watched: 50 % of a core, 1.0 GiB; 2 processes, 17 threads, 4 busy" in text


def test_the_screen_fits_eighty_columns_and_many_cores():
    text = shown([sample(range(0, 100, 1))], why="no driver [here]", width=80)
    assert "no driver [here]" in text  # brackets are no colours
    rows = [
        line.split() for line in text.splitlines() if line.startswith((" 0-", " 9"))
    ]
    assert [row[0] for row in rows] == ["0-31", "96-99"]
    assert max(map(len, text.splitlines())) <= 80
    few = shown([sample()], why="no driver", width=80)
    assert max(map(len, few.splitlines())) <= 80
    assert sum("50 %" in line for line in few.splitlines()) == 2  # core 1, and in all


def test_the_screen_says_that_nothing_runs():
    now = sample(cores=(0.0, 0.0), processes=0, threads=0, threads_per_context=None)
    assert "No run of d2lpar measures here now" in shown([now])
    assert "threads per context: unset" in shown(
        [dataclasses.replace(now, processes=1)]
    )


def test_a_live_view_needs_a_terminal():
    found = Machine(host_card.cpu_card(), (), "no driver")
    with pytest.raises(DeviceError, match="--watch --json"):
        watch_screen.show_live([sample()], found, Console(file=io.StringIO()))


def test_a_live_view_draws_each_sample_and_ends_with_ctrl_c():
    found = Machine(host_card.cpu_card(), (), "no driver")
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)

    def source():
        yield sample(cores=(0.0, 31.0))
        yield sample(cores=(0.0, 62.0))
        raise KeyboardInterrupt

    watch_screen.show_live(source(), found, console)
    text = console.file.getvalue()
    assert "31 %" in text and "62 %" in text
    # The screen before it is back, and so is the cursor.
    assert "\x1b[?1049l" in text[-20:] and "\x1b[?25h" in text[-20:]

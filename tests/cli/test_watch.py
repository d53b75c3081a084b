"""The live screen: every GPU and core on it, within its width."""

import io

import pytest
from rich.console import Console

from d2lpar.cli import watch
from d2lpar.cli.watch import GpuLoad, Sample
from d2lpar.errors import DeviceError
from d2lpar.machine import cards

HERE = cards.Machine(cards.cpu_card(), (), "no driver [here]")


def sample(busy, **changes):
    facts = {
        "seconds": 1.0, "processes": 2, "cpu_percent": 50.0, "memory": 2**30,
        "machine_percent": list(busy), "machine_memory": 5 * 2**30, "gpus": (),
    }  # fmt: skip
    return Sample(**{**facts, **changes})


def shown(now, width=80):
    """The screen as lines of text."""
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(watch.screen(now, HERE))
    return console.file.getvalue().splitlines()


def test_the_screen_shows_every_gpu_and_what_is_not_known_as_a_dash():
    gpus = (
        GpuLoad("gpu(1) H100", 0, 3 * 2**30),  # idle is not unknown
        GpuLoad("GPU 1 silent, hidden from CUDA", None, None),
    )
    lines = shown(sample([0.0, 50.0], gpus=gpus), width=120)
    (known,) = (line.split() for line in lines if "H100" in line)
    assert known[2:] == ["0", "%", "3", "GiB"]
    (silent,) = (line.split() for line in lines if "silent" in line)
    assert silent[-2:] == ["-"] * 2
    assert any("no driver [here]" in line for line in lines)  # brackets: no colours
    assert any("processes 2" in line and "1 GiB" in line for line in lines)


@pytest.mark.parametrize("cores", [1, 2, 192])
def test_the_screen_holds_every_core_in_80_columns(cores):
    lines = shown(sample(range(101, 101 + cores)))
    assert max(map(len, lines)) <= 80 and len(lines) < 40
    text = " ".join(lines)
    assert all(f" {percent} %" in text for percent in range(101, 101 + cores))


def test_a_live_view_draws_each_sample_and_ends_with_ctrl_c():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)

    def source():
        yield sample([0.0, 31.0])
        yield sample([0.0, 62.0])
        raise KeyboardInterrupt

    watch.show_live(source(), HERE, console)
    text = console.file.getvalue()
    assert "31 %" in text and "62 %" in text
    # The screen before it is back, and so is the cursor.
    assert "\x1b[?1049l" in text[-20:] and "\x1b[?25h" in text[-20:]


def test_a_live_view_needs_a_terminal():
    with pytest.raises(DeviceError, match="--watch --json"):
        watch.show_live([], HERE, Console(file=io.StringIO()))

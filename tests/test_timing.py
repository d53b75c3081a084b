"""Medians and quartiles by hand, and clocks that wait for the devices."""

import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from d2lpar import epochs, timing
from d2lpar.devices import cpus
from d2lpar.errors import D2lparError
from d2lpar.timing import TimingError, measure, measure_host


@pytest.fixture
def clock(monkeypatch):
    """Sets the clock of :mod:`d2lpar.timing`: it moves on by a step per reading."""

    def set_clock(*steps):
        times = itertools.accumulate(steps)
        fake = SimpleNamespace(perf_counter=lambda: next(times))
        monkeypatch.setattr(timing, "time", fake)

    return set_clock


def test_samples_of_a_known_clock(clock):
    # start, returned, finished: naive 1 and in all 1 + 2, 1 + 4, ...; 9 warms up
    clock(0, 9, 9, 5, 1, 2, 5, 1, 4, 5, 1, 6, 5, 1, 8)
    measured = measure_host(lambda: np.arange(3), 1, warmup=1, repeats=4)
    assert measured.seconds == (3, 5, 7, 9)
    assert measured.naive_seconds == (1, 1, 1, 1)
    assert measured.warmup_seconds == (18,)
    assert measured.median == 6.0
    assert measured.threads == 1 and measured.devices == ("host (1 thread)",)
    assert "6,000 (3,000-9,000, n=4) ms" in str(measured)


def test_what_is_under_way_before_a_repetition_is_waited_for(monkeypatch):
    from d2lpar._mxnet import npx

    events = []

    def read():
        events.append("clock")
        return len(events)

    def result(device):
        events.append(f"call {device}")
        return SimpleNamespace(asnumpy=lambda: np.zeros(1))

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=read))
    monkeypatch.setattr(npx, "waitall", lambda: events.append("wait"))
    before = lambda: events.append("before")  # noqa: E731
    measure(result, cpus(2), warmup=1, repeats=1, before=before)
    once = ["before", "wait", "clock", "call cpu(0)", "call cpu(1)", "clock", "wait"]
    assert events == 2 * [*once, "clock"]


def test_an_epochs_clock_is_read_after_the_devices_have_finished(monkeypatch):
    events, times = [], iter((1, 4, 9))
    read = lambda: events.append("clock") or next(times)  # noqa: E731
    monkeypatch.setattr(epochs, "time", SimpleNamespace(perf_counter=read))
    monkeypatch.setattr(epochs.npx, "waitall", lambda: events.append("wait"))
    epoch = epochs.Epoch()
    assert epoch.stop() == 0
    assert epoch.times(6) == {"seconds": 3, "samples_per_sec": 2, "eval_seconds": 5}
    assert events == ["wait", "clock", "wait", "clock", "clock"]


@pytest.mark.parametrize("expected", [[1.0, 3.0], [1.0], [1.0, np.nan]])
def test_a_wrong_result_has_no_time(expected):
    with pytest.raises(TimingError, match="twice.*repetition 1 gives a wrong result"):
        measure_host(lambda: np.array([1.0, 2.0]), 1, expected=expected, name="twice")
    assert issubclass(TimingError, D2lparError)


def test_a_result_that_goes_wrong_later_is_found():
    results = iter([1.0, 1.0, 1.5])
    with pytest.raises(TimingError, match="repetition 3 gives .* off by 0.5"):
        measure_host(lambda: next(results), 1, warmup=2, repeats=1, join=sum)


def test_the_tolerance_is_of_the_largest_element():
    value, right = np.array([1000.0, 0.001]), np.array([1000.0, 0.0])
    assert len(measure_host(lambda: value, 1, expected=right, rtol=1e-6).seconds) == 7
    with pytest.raises(TimingError, match="at most 1e-07"):
        measure_host(lambda: value, 1, expected=right, rtol=1e-7)
    zero, one = np.array([0], "uint8"), np.array([1], "uint8")
    with pytest.raises(TimingError, match="off by 1,"):  # and not by 255
        measure_host(lambda: zero, 1, expected=one)


@pytest.mark.parametrize("result", [None, 3.0, np.float32(2)])
def test_a_result_that_is_no_array_is_named(result):
    with pytest.raises(TypeError, match=f"nothing: the function returns {result}, wh"):
        measure(lambda device: result, cpus(2), name="nothing")


def test_torch_is_timed_until_its_gpu_has_finished(clock, monkeypatch):
    """PyTorch's calls return early, as MXNet's do: it waits for that GPU alone."""
    from d2lpar._mxnet import mx

    waited_for = []
    cuda = SimpleNamespace(synchronize=waited_for.append)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    clock(0, 1, 2, 5, 1, 4)
    timed = timing.measure_torch(lambda: np.arange(3), mx.gpu(1), warmup=0, repeats=2)
    assert timed.naive_seconds == (1, 1) and timed.seconds == (3, 5)
    assert waited_for == [1] * 4  # before and after each repetition
    assert timed.threads is None and timed.devices[0].startswith("gpu(1)")

"""Samples of processes whose work is known, and of faked GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import types

import psutil
import pytest

from d2lpar.errors import SettingError
from d2lpar.machine import gpu_cards, load
from d2lpar.machine.gpu_cards import GpuCard
from d2lpar.machine.load import Sample

WORK = "while True: pass"
SLEEP = "import time; time.sleep(60)"


@contextlib.contextmanager
def python(code, *arguments, **environment):
    """A Python process that is killed at the end, when its first line is out."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True)\n{code}", *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until(true):
    end = time.perf_counter() + 20
    while not true():
        assert time.perf_counter() < end
        time.sleep(0.02)


def take(count, pids, interval=0.2):
    return list(itertools.islice(load.samples(pids, interval), count))


def seconds_worked(pid):
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def test_a_sample_counts_what_a_process_worked():
    """Against psutil's clock of the whole process, which this code does not read."""
    with python(WORK) as process:
        for _ in range(30):
            before, start = seconds_worked(process.pid), time.perf_counter()
            samples = take(3, lambda: [process.pid])
            worked = seconds_worked(process.pid) - before
            elapsed = time.perf_counter() - start
            # On a busy machine this test may have waited between the two clocks.
            if elapsed - sum(s.interval for s in samples) < 0.03:
                break
    counted = sum(s.cpu_percent / 100 * s.interval for s in samples)
    assert counted == pytest.approx(worked, abs=0.05)  # ticks of 10 ms at both ends
    assert sum(s.interval for s in samples) == pytest.approx(elapsed, abs=0.1)
    for sample in samples:
        assert len(sample.core_percent) == len(sample.machine_percent) == os.cpu_count()
        assert sample.cpu_percent == pytest.approx(sum(sample.core_percent))
        assert (sample.processes, sample.threads) == (1, 1)
        assert all(0 <= percent <= 100 for percent in sample.machine_percent)
        # The machine works at least as much as the process; ticks of 10 ms in 200.
        assert sum(sample.machine_percent) > sample.cpu_percent - 25
    assert samples[-1].seconds > samples[0].seconds > 0


def test_an_idle_process_is_not_busy():
    with python(SLEEP, OMP_NUM_THREADS="3") as process:
        wait_until(lambda: psutil.Process(process.pid).status() == "sleeping")
        (sample,) = take(1, lambda: [process.pid])
        assert sample.memory == pytest.approx(
            psutil.Process(process.pid).memory_info().rss, rel=0.2
        )
    assert (sample.cpu_percent, sample.busy_threads, sample.processes) == (0, 0, 1)
    assert sample.threads_per_context == 3


def test_children_and_threads_count():
    """A process that sleeps in three threads, and its child that works."""
    code = (
        "import subprocess, sys, threading, time; "
        f"child = subprocess.Popen([sys.executable, '-c', {WORK!r}]); "
        "[threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        " for _ in range(2)]; time.sleep(60)"
    )
    with python(code) as process:
        wait_until(lambda: psutil.Process(process.pid).num_threads() == 3)
        try:
            sample = take(2, lambda: [process.pid, process.pid])[-1]
        finally:
            for child in psutil.Process(process.pid).children():
                child.kill()
    assert (sample.processes, sample.threads) == (2, 4)
    assert sample.cpu_percent > 0 and sample.busy_threads == 1


def test_a_process_found_late_does_not_count_its_past():
    """It worked 0.5 s before it was seen; at most what fits an interval may count."""
    with python(WORK) as process:
        wait_until(lambda: seconds_worked(process.pid) >= 0.5)
        found = iter([[], [process.pid], [process.pid]])
        first, second = take(2, lambda: next(found))
    assert (first.cpu_percent, first.processes) == (0, 1)
    assert second.cpu_percent <= 100 * (second.interval + 0.02) / second.interval


def test_a_process_that_ended_counts_no_more():
    with python(SLEEP) as process:
        pid = process.pid
    (sample,) = take(1, lambda: [pid], interval=0.1)
    assert (sample.processes, sample.threads, sample.memory) == (0, 0, 0)


def test_work_goes_to_the_core_a_thread_was_seen_on():
    before = {1: {10: (1.0, 0), 11: (2.0, 0)}, 2: {20: (5.0, 1)}}
    now = {
        1: {10: (1.5, 1), 11: (2.04, 0), 12: (0.25, 0)},  # 12 is a new thread
        2: {20: (5.0, 1)},
        3: {30: (9.0, 0)},  # a new process
    }
    work = load._work_between(before, now, num_cores=2, elapsed=0.5)
    assert work == {
        "core_percent": [pytest.approx(58.0), pytest.approx(100.0)],
        "threads": 5,
        "busy_threads": 2,
    }


@pytest.mark.parametrize("interval", [0, -1, 0.05, float("nan")])
def test_an_interval_too_short_is_refused_before_anything(interval):
    with pytest.raises(SettingError, match="shortest is 0.1"):
        load.samples(lambda: [], interval)
    with pytest.raises(SettingError, match=f"{interval:g}"):
        with load.sampling(os.getpid(), print, interval):
            pass


def test_sampling_hands_over_samples_until_the_block_ends():
    taken, enough = [], threading.Event()

    def put(sample):
        taken.append(sample)
        if len(taken) == 2:
            enough.set()

    with load.sampling(os.getpid(), put, 0.1):
        assert enough.wait(10)
    count = len(taken)
    time.sleep(0.25)
    assert len(taken) == count
    assert not [t for t in threading.enumerate() if t.name == "watching"]
    assert all(sample.processes >= 1 for sample in taken)


def test_a_failing_receiver_is_said_and_stops_no_run(caplog):
    def put(sample):
        raise ValueError("disk full")

    with caplog.at_level("WARNING", logger="d2lpar"):
        with load.sampling(os.getpid(), put, 0.1):
            wait_until(lambda: caplog.records)
    assert "watching ended: ValueError: disk full" in caplog.text


def test_what_is_watched():
    code = "import sys; sys.stdin.read()"
    with (
        subprocess.Popen(
            [sys.executable, "-m", "d2lpar.runs.child"], stdin=subprocess.PIPE
        ) as measuring,
        python(code, "d2lpar.runs.child", "-m") as other,
    ):
        try:
            found = load.watched()()
            assert measuring.pid in found and other.pid not in found
        finally:
            measuring.kill()
    assert load.watched(os.getpid())() == [os.getpid()]
    with pytest.raises(SettingError, match="pid 4194304999: there is no such process"):
        load.watched(4194304999)


def test_a_sample_survives_json():
    (sample,) = take(1, lambda: [os.getpid()], interval=0.1)
    values = json.loads(json.dumps(dataclasses.asdict(sample), allow_nan=False))
    assert Sample(**values) == sample


# GPUs


class NVMLError(Exception):
    """As pynvml's."""


@pytest.fixture
def two_gpus(monkeypatch):
    """An H100 that tells all, and a GPU that tells nothing of itself."""
    pynvml = types.ModuleType("pynvml")
    pynvml.NVMLError, pynvml.NVML_TEMPERATURE_GPU = NVMLError, 0

    def told(answer):
        def query(gpu, *args):
            if gpu != "H100":
                raise NVMLError("Not Supported")
            return answer

        return query

    pynvml.nvmlInit = pynvml.nvmlShutdown = lambda: None
    pynvml.nvmlDeviceGetCount = lambda: 2
    pynvml.nvmlDeviceGetHandleByIndex = lambda i: ("H100", "silent")[i]
    memory = types.SimpleNamespace(used=3 * 2**30)
    pynvml.nvmlDeviceGetUtilizationRates = told(types.SimpleNamespace(gpu=0))
    pynvml.nvmlDeviceGetMemoryInfo = told(memory)
    pynvml.nvmlDeviceGetTemperature = told(51)
    pynvml.nvmlDeviceGetPowerUsage = told(642_239)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    cards = (
        GpuCard(0, 1, "H100", memory_total=80 * 2**30, power_limit=700.0),
        GpuCard(1, None, "silent"),
    )
    monkeypatch.setattr(load, "gpu_cards", lambda nvml: cards)


def test_gpus_are_sampled_and_none_is_what_they_do_not_tell(two_gpus):
    (sample,) = take(1, lambda: [], interval=0.1)
    assert sample.gpus == ["gpu(1) H100", "GPU 1 silent, hidden from CUDA"]
    assert sample.gpu_percent == [0, None]  # idle is not unknown
    assert sample.gpu_memory == [3 * 2**30, None]
    assert sample.gpu_temperature == [51, None]
    assert sample.gpu_power == [642.239, None]


def test_without_a_driver_there_are_no_gpus(two_gpus, monkeypatch):
    def refuse():
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", refuse)
    monkeypatch.setattr(gpu_cards, "cuda_devices", lambda: [])
    (sample,) = take(1, lambda: [], interval=0.1)
    assert sample.gpus == sample.gpu_percent == sample.gpu_memory == []

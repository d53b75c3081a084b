"""Samples of processes whose work is known, and of faked GPUs."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time

import psutil
from support.fake_gpus import H100, T4, fake_nvml

from d2lpar.cli import watch
from d2lpar.machine import cards
from d2lpar.machine.builds import CudaDevice

WORK = "while True: pass"


@contextlib.contextmanager
def python(code, *words):
    """A Python process that is killed at the end, when its first line is out."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True)\n{code}", *words],
        stdout=subprocess.PIPE,
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


def take(count, pid=None, interval=0.2):
    return list(itertools.islice(watch.samples(pid, interval), count))


def seconds_worked(pid):
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def test_a_sample_counts_what_a_process_worked():
    """Its work cannot exceed one core, nor the work that its own clock has counted."""
    with python(WORK) as process:
        wait_until(lambda: seconds_worked(process.pid) >= 0.3)  # is not counted
        before = seconds_worked(process.pid)
        samples = take(3, process.pid)
        worked = seconds_worked(process.pid) - before
    times = [0, *(s.seconds for s in samples)]
    counted = sum(
        s.cpu_percent / 100 * (end - begin)
        for s, begin, end in zip(samples, times, times[1:])
    )
    assert 0 < counted <= worked + 0.05
    for sample in samples:
        assert sample.processes == 1 and sample.memory > 2**20
        assert len(sample.machine_percent) == os.cpu_count()
        assert all(0 <= percent <= 100 for percent in sample.machine_percent)
        assert 0 < sample.machine_memory < psutil.virtual_memory().total


def test_children_count_and_a_process_that_ends_does_not():
    code = (
        "import subprocess, sys, time; "
        f"child = subprocess.Popen([sys.executable, '-c', {WORK!r}]); time.sleep(60)"
    )
    with python(code) as process:
        wait_until(lambda: len(watch.watched(process.pid)) == 2)
        children = psutil.Process(process.pid).children()
        samples = watch.samples(process.pid, 0.3)
        sample = next(samples)
        for child in children:
            child.kill()
    assert sample.processes == 2 and sample.cpu_percent > 0
    gone = next(samples)
    assert (gone.cpu_percent, gone.memory) == (0, 0)


def test_what_is_watched():
    measuring = subprocess.Popen(
        [sys.executable, "-m", "d2lpar.process"], stdin=subprocess.PIPE
    )
    with python("import sys; sys.stdin.read()", "-m", "d2lpar.process") as other:
        try:
            wait_until(lambda: psutil.Process(measuring.pid) in watch.watched(None))
            assert psutil.Process(other.pid) not in watch.watched(None)
        finally:
            measuring.kill()
            measuring.communicate()
    assert psutil.Process() in watch.watched(os.getpid())


def test_gpus_are_sampled_and_none_is_what_they_do_not_report(monkeypatch):
    devices = [CudaDevice("H100", (9, 0), 132, "0:af:0")]
    monkeypatch.setattr(cards, "cuda_devices", lambda: devices)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(T4, H100))
    (sample,) = take(1, interval=0.1)
    used = [251 * 2**20, 480 * 2**20]
    labels = ["GPU 0 Tesla T4, hidden from CUDA", "gpu(0) NVIDIA H100 80GB HBM3"]
    assert sample.gpus == tuple(
        watch.GpuLoad(label, percent=0, memory=memory)
        for label, memory in zip(labels, used)
    )  # idle is not unknown

    refused = ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo"]
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(T4, refused=refused))
    (sample,) = take(1, interval=0.1)
    assert sample.gpus == (watch.GpuLoad(labels[0], None, None),)

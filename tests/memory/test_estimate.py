"""What a training needs, by hand and against measured processes; what is free, fits."""

import math
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import memory_estimate
import pytest
from support.command import python

from d2lpar._mxnet import mx, np
from d2lpar.devices import parse
from d2lpar.errors import DeviceError
from d2lpar.lenet.network import LeNet
from d2lpar.memory import estimate
from d2lpar.memory.estimate import free_memory, lenet_need
from d2lpar.records import files
from d2lpar.runs import sweep
from d2lpar.runs.measure import measure
from d2lpar.runs.plan import KEEP_FREED_MEMORY
from d2lpar.text import byte_size

MIB = 2**20
ROOT = Path(__file__).parents[2]


def test_the_numbers_of_lenet_are_those_of_the_network():
    net = LeNet()
    net.initialize()
    x = np.zeros((1, 1, 28, 28))
    kept = [x.shape[1:]]
    for block in net:
        x = block(x)
        # An activation within a block keeps the block's output, too.
        within = getattr(block, "act", None) is not None
        kept += [x.shape[1:]] * (2 if within else 1)
    parameters = sum(math.prod(p.shape) for p in net.collect_params().values())
    assert estimate.PARAMETERS == parameters
    assert sum(map(math.prod, kept)) == estimate.KEPT
    assert max(kept, key=math.prod) == estimate.LARGEST


def test_items_by_hand():
    need = lenet_need(101, 2, n_train=500, n_test=41)
    sizes = {item.name: item.size for item in need.items}
    assert sizes["parameters"] == sizes["gradients"] == 4 * 129_068
    assert sizes["data set"] == 541 * 784
    assert sizes["outputs kept for backward"] == 4 * 51 * 40_370  # 51 and 50 images
    first, second = need.by_device
    assert sizes["test images"] == 3 * 4 * 41 * 784
    assert sizes["evaluation"] == 4 * 21 * 4 * 20 * 26**2  # of 21 and 20
    assert sizes["batches that wait"] == 5 * 4 * 4 * 101 * 784
    alone = "data set, its copy", "batches that wait", "test images"
    assert first - second == sum(sizes[name] for name in alone)
    assert need.total == estimate.PROCESS + sizes["data set"] + first + second
    assert need.by_memory == [need.total]
    assert all(item.name in str(need) for item in need.items)


def test_the_estimate_for_a_gpu_is_near_what_an_h200_took():
    run = files.read(ROOT / "figures/gpus/benchmarks/memory.jsonl")
    for sample in run.lines:
        ratio = sample.peak_bytes / memory_estimate.of_sample(run, sample)
        assert 0.9 < ratio < 1 / (1 - estimate.SAFETY_MARGIN), sample.batch_size


PEAK = r"""
import re, sys, numpy
from pathlib import Path
from d2lpar import datasets, lenet, lenet_concise
train = {"scratch": lenet.train, "concise": lenet_concise.train}[sys.argv[1]]
num_devices, batch, *sizes = map(int, sys.argv[2:])
images, labels = (
    [numpy.random.randint(0, most, (n, *shape)).astype("uint8") for n in sizes]
    for most, shape in ((256, (28, 28)), (10, ()))
)
data = datasets.ImageData(images[0], labels[0], images[1], labels[1], "random")
devices = f"cpu:{num_devices}"
list(train(devices=devices, data=data, num_epochs=1, global_batch_size=batch, lr=0.01))
status = Path("/proc/self/status").read_text()
print(1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_estimate_is_a_bound_for_drawn_trainings(seed):
    """The peak of a process as `d2lpar run` starts it, which keeps freed memory."""
    rng = random.Random(seed)
    implementation, num_devices = rng.choice(["scratch", "concise"]), rng.randint(1, 4)
    batch = int(2 ** rng.uniform(3, 12))
    n_train, n_test = int(batch * rng.uniform(1, 8)), int(10 ** rng.uniform(2, 4.6))
    need = lenet_need(batch, num_devices, n_train=n_train, n_test=n_test)
    job = implementation, num_devices, batch, n_train, n_test
    peak = int(python(PEAK, *job, **KEEP_FREED_MEMORY))
    assert 0.5 < peak / need.total < 1, job


# What is free


@pytest.fixture
def gpus(monkeypatch):
    """Contexts of GPUs that have so much memory free, as NVML would say."""

    def make(*sizes):
        cards = [
            SimpleNamespace(memory=lambda free=free: (2**40, free)) for free in sizes
        ]
        monkeypatch.setattr(estimate, "cuda_devices", lambda: cards)
        return [mx.gpu(i) for i in range(len(sizes))]

    return make


def test_free_on_gpus_is_by_cudas_number(gpus):
    chosen = gpus(3 * MIB, 5 * MIB)
    assert free_memory(chosen) == [3 * MIB, 5 * MIB]
    assert free_memory([mx.gpu(1)]) == [5 * MIB]
    with pytest.raises(DeviceError, match="NVML does not know"):
        free_memory(gpus(None))


def test_the_report_says_what_is_free(gpus):
    text = estimate.report(256, parse("cpu:2"), n_train=700, n_test=9)
    assert "free" in text and text.splitlines()[-1].split()[-1] == "700"
    text = estimate.report(256, gpus(800 * MIB, 900 * MIB))
    assert "800 MiB" in text and "gpu(1)" in text


def test_a_dry_run_counts_the_images_that_a_run_would_load(
    tmp_path, monkeypatch, capsys
):
    """The sample's 6,000, also where the preset takes all of Fashion-MNIST."""
    monkeypatch.setattr(sweep, "sweep", lambda *_: sys.exit("not measured here"))
    run = {"preset": "book", "data": "sample", "devices": "cpu:1", "out": tmp_path}
    with pytest.raises(SystemExit):
        measure("multiple_gpus", **run, dry_run=True)
    lines = [" ".join(x.split()) for x in capsys.readouterr().out.splitlines()]
    assert f"data set {byte_size(6_000 * 784)} process" in lines


@pytest.mark.parametrize("kind", [mx.cpu, mx.gpu])
def test_the_largest_batch_fits_and_the_next_does_not(kind):
    chosen, free = [kind(0), kind(1)], [1500 * MIB, 1400 * MIB]
    largest = estimate.largest_batch(chosen, free)
    assert 1 < largest < 60_000
    for size, expected in ((largest, True), (largest + 2, False)):  # 2: one each
        need = lenet_need(size, 2, kind=chosen[0].device_type)
        usable = [f * (1 - estimate.SAFETY_MARGIN) for f in free]
        fits = all(n <= u for n, u in zip(need.by_memory, usable))
        assert fits is expected
    assert estimate.largest_batch(chosen, [10 * MIB] * 2) == 0
    assert estimate.largest_batch(chosen, [2**50] * 2) == 60_000

"""What a training needs, by hand and against measured processes; what fits."""

import math
from functools import partial

import pytest

from d2lpar import networks
from d2lpar._mxnet import mx
from d2lpar.memory import estimate
from d2lpar.memory.shapes import gan_layers, lenet_layers

MIB = 2**20


lenet, gan = lenet_layers, gan_layers
concise = partial(lenet_layers, compiled=True)


def cpus(n):
    return [mx.cpu(k) for k in range(n)]


def test_items_by_hand():
    need = estimate.estimate(
        lenet, {"global_batch_size": 101}, 2, {"n_train": 500, "n_test": 40}
    )
    sizes = {item.name: item.size for item in need.items}
    numbers = sum(math.prod(shape) for shape in networks.SHAPES)
    assert sizes["parameters"] == sizes["gradients"] == 4 * numbers
    assert "optimiser state" not in sizes  # SGD has none
    assert sizes["data set"] == 540 * 785
    each = 784 + 2 * 13520 + 3380 + 2 * 4050 + 800 + 128 + 128 + 10
    assert sizes["activations kept for backward"] == 4 * 51 * each  # 51 and 50
    assert need.largest_size == 4 * 51 * 13520
    assert need.largest.endswith("float32 (51, 20, 26, 26)")
    first, second = need.on(0), need.on(1)
    assert first - second == sizes["data set, its copy"] + sizes["batch"]
    assert need.total == estimate.PROCESS + sizes["data set"] + first + second
    text = str(need)
    assert all(item.name in text for item in need.items)
    assert len(text.splitlines()) == len(need.items) + 2
    with pytest.raises(AttributeError):
        need.batch = 1


def test_what_changes_the_need():
    def total(layers=gan, num_devices=2, kind="cpu", **settings):
        plan = {"global_batch_size": 1000, **settings}
        return estimate.estimate(layers, plan, num_devices, kind=kind).total

    assert total(micro_batch_size=50) < total(micro_batch_size=None)
    assert total(micro_batch_size=5000) == total(micro_batch_size=None)
    assert total(sync_batch_norm=True) > total(sync_batch_norm=False)
    assert total(global_batch_size=10**9) == total(global_batch_size=10_000)
    beside = 2 * (estimate.CUDA_CONTEXT + estimate.CUDNN_WORKSPACE)
    assert total(kind="gpu") < total() + beside  # no temporary buffers on the host
    big = {"global_batch_size": 5000}
    assert total(lenet, **big) > total(concise, **big)
    assert estimate.report(None, {}, [mx.cpu(0)]) is None


def test_what_cuda_and_cudnn_take_on_a_gpu_is_counted():
    plan = lenet, {"global_batch_size": 256}, 2, None
    on_gpus = estimate.estimate(*plan, "gpu")
    on_cpus = estimate.estimate(*plan, "cpu")
    assert {i.name for i in on_gpus.items} - {i.name for i in on_cpus.items} == {
        "CUDA context",
        "cuDNN's workspace, at most",
    }
    for k in range(2):
        assert on_gpus.on(k) - on_cpus.on(k) == (500 + 1024) * MIB
        # A process that runs has the context already: it is not free.
        context = on_gpus.by_memory()[k] - on_gpus.by_memory(running=True)[k]
        assert context == 500 * MIB
    assert "CUDA context                     500 MiB  each GPU" in str(on_gpus)


def test_temporary_buffers_are_counted(monkeypatch):
    def total():
        return estimate.estimate(gan, {"global_batch_size": 64}, 1).total

    few = total()
    monkeypatch.setenv("MXNET_CPU_TEMP_COPY", "256")
    # Measured: 406 MiB with 256 buffers, 56 with 4, after 400 steps.
    assert total() - few == pytest.approx((406 - 56) * MIB, rel=0.05)
    monkeypatch.delenv("MXNET_CPU_TEMP_COPY")
    assert estimate.temp_copies() == 256


def test_it_loads_no_mxnet(in_a_process):
    code = """
import sys
from d2lpar.memory import estimate, out_of_memory, shapes
cpu = type("Context", (), {"device_type": "cpu", "device_id": 0})()
print(estimate.report(shapes.gan_layers, {"global_batch_size": 256}, [cpu]))
assert "mxnet" not in sys.modules
"""
    text = in_a_process(code)
    assert "activations kept for backward" in text and "largest batch" in text


PEAK = """
import importlib
from d2lpar import devices
from d2lpar.datasets import {data}
from d2lpar.memory.free import process_status
data = {data}.load("synthetic", **{sizes})
train = importlib.import_module("d2lpar.{workload}").train
chosen = devices.parse("cpu:{num_devices}")
for _ in train(devices=chosen, data=data, num_epochs=1, **{settings}):
    pass
print(process_status("VmHWM"))
"""


@pytest.mark.parametrize(
    ("workload", "num_devices", "settings"),
    [
        ("lenet", 1, {"global_batch_size": 256}),
        pytest.param("lenet", 2, {"global_batch_size": 3000}, marks=pytest.mark.slow),
        ("lenet_concise", 1, {"global_batch_size": 3000}),
        pytest.param("gan", 2, {"global_batch_size": 600}, marks=pytest.mark.slow),
        ("gan", 1, {"global_batch_size": 600, "micro_batch_size": 150}),
    ],
)
def test_the_estimate_is_near_what_a_process_takes(
    workload, num_devices, settings, in_a_process
):
    sizes = {"n_train": 2 * settings["global_batch_size"]}
    sizes |= {} if workload == "gan" else {"n_test": 500}
    code = PEAK.format(
        data="punks" if workload == "gan" else "fashion",
        workload=workload,
        num_devices=num_devices,
        settings=settings,
        sizes=sizes,
    )
    peak = int(in_a_process(code, MXNET_CPU_TEMP_COPY="4"))
    layers = {"lenet": lenet, "lenet_concise": concise, "gan": gan}[workload]
    need = estimate.estimate(layers, settings, num_devices, sizes)
    assert 0.75 < peak / need.total < 1.25


@pytest.mark.parametrize("setting", ["global_batch_size", "micro_batch_size"])
@pytest.mark.parametrize("kind", [mx.cpu, mx.gpu])
def test_the_largest_batch_fits_and_the_next_does_not(setting, kind):
    settings = {"global_batch_size": 3000, "micro_batch_size": None}
    chosen, free = [kind(0), kind(1)], [1500 * MIB, 1400 * MIB]
    if kind is mx.gpu:
        beside = (estimate.CUDA_CONTEXT + estimate.CUDNN_WORKSPACE) / 0.8
        free = [beside + 400 * MIB, beside + 300 * MIB]
    largest = estimate.largest_batch(gan, settings, chosen, free, setting=setting)
    assert 1 < largest < 3000
    usable = [f * (1 - estimate.SPARE) for f in free]
    for size, expected in ((largest, True), (largest + 2, False)):  # 2: one each
        need = estimate.estimate(
            gan, {**settings, setting: size}, 2, kind=chosen[0].device_type
        )
        fits = all(n <= u for n, u in zip(need.by_memory(), usable))
        assert fits is expected


def test_nothing_fits_and_everything_fits():
    plan = (lenet, {"global_batch_size": 8}, cpus(1))
    assert estimate.largest_batch(*plan, [10 * MIB]) == 0
    assert estimate.largest_batch(*plan, [2**50]) == 60_000  # all there is
    assert estimate.largest_batch(*plan, [2**50], {"n_train": 70, "n_test": 1}) == 70

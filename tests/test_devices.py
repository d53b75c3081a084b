"""Device strings, on this machine and on ones with GPUs that are faked.

A faked GPU exists for MXNet's count and for the driver's answers; contexts can be made
of it, since ``mx.gpu(0)`` allocates nothing, but no array.
"""

import pytest

from d2lpar import devices
from d2lpar._mxnet import mx
from d2lpar.errors import DeviceError
from d2lpar.machine import builds
from d2lpar.machine.gpus import CudaDevice

K80 = CudaDevice("Tesla K80", (3, 7))
T4 = CudaDevice("Tesla T4", (7, 5))
L4 = CudaDevice("NVIDIA L4", (8, 9))
H200 = CudaDevice("NVIDIA H200", (9, 0))


@pytest.fixture
def machine(monkeypatch):
    """Make this a machine with these GPUs and cores, and this wheel of MXNet."""

    def make(*gpus, cores=4, build="mxnet-cu112"):
        count = len(gpus) if build != "mxnet" else 0
        monkeypatch.setattr(devices, "cuda_devices", lambda: list(gpus))
        monkeypatch.setattr(devices, "usable_cores", lambda: cores)
        monkeypatch.setattr(builds, "installed_builds", lambda: {build: "1.9.1"})
        monkeypatch.setattr(mx.context, "num_gpus", lambda: count)

    return make


def refusal(text):
    """The message with which a device string is refused: always one line."""
    with pytest.raises(DeviceError) as caught:
        devices.parse(text)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 300
    return message


def cpus(*numbers):
    return [mx.cpu(i) for i in numbers]


def gpus(*numbers):
    return [mx.gpu(i) for i in numbers]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", cpus(0, 1, 2)),
        (" CPU:4 ", cpus(0, 1, 2, 3)),  # more contexts than cores
        ("cpu:2,0,1", cpus(2, 0, 1)),
        ("auto", gpus(0, 1, 2, 3)),
        ("gpu:2", gpus(0, 1)),
        ("gpu:3,", gpus(3)),
    ],
)
def test_device_strings(machine, text, expected):
    machine(T4, T4, L4, L4, cores=3)
    assert devices.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "cpu:1.5", "tpu:1", "cpu:1,gpu:1", "auto:2", "gpu:0", "cpu:0,0",
        "cpu:257", "gpu:3", "gpu:0,7",
    ],
)  # fmt: skip
def test_what_is_no_device_string_is_refused(machine, text):
    machine(T4, L4)
    assert repr(text) in refusal(text)
    assert "999" in refusal("cpu:" + 5000 * "9")  # cut short


def test_a_gpu_that_mxnet_cannot_use_is_named(machine):
    machine(cores=6, build="mxnet")
    assert devices.parse("auto") == devices.parse() == cpus(*range(6))
    assert "no GPU here" in refusal("gpu") and "6 cores" in refusal("gpu:1")
    machine(T4, T4, build="mxnet")
    assert "Tesla T4" in refusal("gpu:1") and "[cu112]" in refusal("gpu")
    assert devices.parse("auto") == cpus(0, 1, 2, 3)
    machine(T4, H200)
    assert "gpu(1) NVIDIA H200" in refusal("gpu") and "CUDA 13" in refusal("gpu:1,")


def test_auto_takes_what_is_usable(machine):
    machine(H200, T4, K80, L4)
    assert devices.parse("gpu:1,3") == devices.parse("auto") == gpus(1, 3)
    machine(H200, K80, cores=2)
    assert devices.parse("auto") == cpus(0, 1)


# Counts


def test_counts():
    assert devices.parse_counts("4, 1", 4) == [4, 1]
    assert len(devices.names("cpu:256")) == 256
    assert devices.names("cpu:0,255") == [("cpu", 0), ("cpu", 255)]
    counts = {1: [1], 3: [1, 2, 3], 8: [1, 2, 4, 8]}  # double up to all
    assert {n: devices.default_counts(n) for n in counts} == counts


@pytest.mark.parametrize("text", ["", "1.5", "2,1,2", "0", "5"])
def test_parse_counts_refuses(text):
    with pytest.raises(DeviceError, match="num-devices"):
        devices.parse_counts(text, 4)


def test_labels(machine, monkeypatch):
    machine(T4, L4, cores=2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert devices.label(mx.cpu(1)) == "cpu(1) (1 thread of 2 cores)"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert devices.label(mx.cpu(0)) == "cpu(0) (threads unset of 2 cores)"
    assert devices.label(mx.gpu(1)) == "gpu(1) NVIDIA L4"
    assert devices.label(mx.gpu(2)) == "gpu(2)"  # unknown to the driver: no name


def test_the_books_try_gpu_falls_back_and_parse_does_not(machine):
    machine(build="mxnet")
    assert [devices.try_gpu(i) for i in (0, 3)] == [mx.cpu(0), mx.cpu(3)]
    assert devices.try_all_gpus() == [mx.cpu()]
    refusal("gpu:1")
    machine(T4, T4)
    assert devices.try_gpu() == mx.gpu(0) and devices.try_gpu(2) == mx.cpu(2)
    assert devices.try_all_gpus() == gpus(0, 1)

"""Device strings, on this machine and on ones with GPUs that are faked.

A faked GPU exists for MXNet's count and for the driver's answers; contexts can be made
of it, since ``mx.gpu(0)`` allocates nothing, but no array.
"""

import json
import os
import subprocess
import sys
import types

import pytest

from d2lpar import devices
from d2lpar._mxnet import mx
from d2lpar.errors import DeviceError
from d2lpar.machine.cuda import CudaDevice

K80 = CudaDevice("Tesla K80", (3, 7))
T4 = CudaDevice("Tesla T4", (7, 5))
L4 = CudaDevice("NVIDIA L4", (8, 9))
H200 = CudaDevice("NVIDIA H200", (9, 0))


@pytest.fixture
def machine(monkeypatch):
    """Make this a machine with these GPUs and cores; returns the contexts' log."""
    monkeypatch.delenv("MXNET_LIBRARY_PATH", raising=False)

    def make(*gpus, cores=4, build="GPU"):
        cuda = build == "GPU"
        monkeypatch.setattr(devices, "cuda_devices", lambda: list(gpus))
        monkeypatch.setattr(devices, "usable_cores", lambda: cores)
        features = types.SimpleNamespace(is_enabled=lambda f: f == "CUDA" and cuda)
        monkeypatch.setattr(mx.runtime, "Features", lambda: features)
        monkeypatch.setattr(mx.context, "num_gpus", lambda: len(gpus) if cuda else 0)
        made, gpu = [], mx.gpu
        monkeypatch.setattr(mx, "gpu", lambda i=0: made.append(i) or gpu(i))
        return made

    return make


def refusal(text):
    """The message with which a device string is refused: always one line."""
    with pytest.raises(DeviceError) as caught:
        devices.parse(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_auto_without_a_gpu_is_a_cpu_context_a_core(machine):
    machine(cores=3)
    expected = [mx.cpu(0), mx.cpu(1), mx.cpu(2)]
    assert devices.parse("auto") == devices.parse() == devices.parse("cpu") == expected


def test_cpu_contexts_are_there_for_the_asking(machine):
    machine(cores=2)
    assert devices.parse("cpu:4") == [mx.cpu(i) for i in range(4)]
    assert devices.parse("cpu:1") == [mx.cpu(0)]


def test_numbers_with_a_comma_name_contexts(machine):
    machine()
    assert devices.parse("cpu:0,1") == [mx.cpu(0), mx.cpu(1)]
    assert devices.parse("cpu:2,0,1") == [mx.cpu(2), mx.cpu(0), mx.cpu(1)]
    assert devices.parse("cpu:1,") == [mx.cpu(1)]
    assert devices.parse("cpu:0,") == [mx.cpu(0)]


def test_case_and_blanks_around_do_not_matter(machine):
    machine(cores=1)
    assert devices.parse(" CPU:2 ") == [mx.cpu(0), mx.cpu(1)]
    assert devices.parse(" Auto\n") == [mx.cpu(0)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "cpu:",
        "cpu:-1",
        "cpu:1.5",
        "cpu:x",
        "cpu:,1",
        "cpu:1,,2",
        "cpu 2",
        "2",
        "tpu:1",
        "cpu:1,gpu:1",
        "gpu:-1",
        "gpu:0x1",
        "auto:2",
        "cpu:1\ncpu:2",
    ],
)
def test_what_is_no_device_string_is_told_the_forms(machine, text):
    made = machine(T4)
    message = refusal(text)
    assert repr(text) in message
    for form in ("auto", "cpu:N", "gpu:N", "gpu:I,J"):
        assert form in message
    assert made == []


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_zero_devices_are_refused_with_both_ways_out(machine, kind):
    machine(T4)
    message = refusal(f"{kind}:0")
    assert f"'{kind}:0'" in message and "0 devices" in message
    assert f"{kind}:1" in message and f"'{kind}:0,'" in message


@pytest.mark.parametrize("text", ["cpu:0,0", "cpu:1,2,1", "gpu:0,0"])
def test_a_device_named_twice_is_refused(machine, text):
    machine(T4)
    assert repr(text) in refusal(text) and "twice" in refusal(text)


@pytest.mark.parametrize("text", ["gpu", "gpu:1", "gpu:2", "gpu:0,", "gpu:3,"])
def test_gpus_without_a_gpu_are_told_what_is_there(machine, text):
    made = machine(cores=6, build="CPU")
    message = refusal(text)
    assert f"devices {text!r}: " in message
    assert "no GPU here" in message and "cpu:N" in message and "6 cores" in message
    assert made == []


def test_a_cpu_build_beside_a_gpu_is_told_so(machine):
    machine(T4, T4, build="CPU")
    message = refusal("gpu:1")
    assert "cannot use the GPUs here" in message and "Tesla T4" in message
    assert "d2lpar doctor" in message
    assert devices.parse("auto") == [mx.cpu(i) for i in range(4)]


def test_gpus_by_count_and_by_number(machine):
    machine(T4, T4, L4, L4)
    assert devices.parse("gpu:2") == [mx.gpu(0), mx.gpu(1)]
    assert devices.parse("gpu:0,3") == [mx.gpu(0), mx.gpu(3)]
    assert devices.parse("gpu:3,0") == [mx.gpu(3), mx.gpu(0)]
    assert devices.parse("gpu:3,") == [mx.gpu(3)]
    every = [mx.gpu(i) for i in range(4)]
    assert devices.parse("gpu") == devices.parse("gpu:4") == every
    assert devices.parse("auto") == every
    assert devices.parse("cpu:2") == [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize("text", ["gpu:3", "gpu:2,", "gpu:0,7"])
def test_a_number_that_is_absent_is_told_what_is_there(machine, text):
    made = machine(T4, L4)
    message = refusal(text)
    assert repr(text) in message
    assert "gpu(0) to gpu(1)" in message and "cpu:N" in message
    assert made == []


@pytest.mark.parametrize("text", ["gpu", "gpu:2", "gpu:1,", "gpu:0,1"])
def test_a_gpu_without_code_is_refused_before_anything_is_made(machine, text):
    made = machine(T4, H200)
    message = refusal(text)
    assert "gpu(1) NVIDIA H200" in message and "capability 9.0" in message
    assert "5.0-8.9" in message
    assert "cpu:N" in message and "PyTorch" in message
    assert made == []


def test_a_gpu_without_code_does_not_stand_in_the_way_of_another(machine):
    machine(H200, T4, K80, L4)
    assert devices.parse("gpu:1,3") == [mx.gpu(1), mx.gpu(3)]
    assert devices.parse("auto") == [mx.gpu(1), mx.gpu(3)]


def test_auto_takes_cpu_contexts_where_no_gpu_is_usable(machine):
    made = machine(H200, K80, cores=2)
    assert devices.parse("auto") == [mx.cpu(0), mx.cpu(1)]
    assert made == []


# A library built from source is tried on each GPU


@pytest.fixture
def from_source(monkeypatch):
    """An MXNet built from source that fails on these GPUs; returns the tries' log."""

    def make(library="/opt/libmxnet.so", **errors):
        monkeypatch.setenv("MXNET_LIBRARY_PATH", library)
        monkeypatch.delenv(devices.TRIED, raising=False)
        tries = []

        def answer_of(code, seconds):
            number = code.partition("compute_on_gpu(")[2].rstrip(")")
            tries.append(int(number))
            return {"error": errors.get(f"gpu{number}", "")}

        monkeypatch.setattr(devices, "answer_of", answer_of)
        return tries

    yield make
    os.environ.pop(devices.TRIED, None)


def test_any_gpu_on_which_a_build_from_source_computes_is_taken(machine, from_source):
    machine(H200, K80, T4)
    tries = from_source()
    assert devices.parse("gpu:0,1") == [mx.gpu(0), mx.gpu(1)]
    assert sorted(tries) == [0, 1]  # only those that are asked for
    assert devices.parse("auto") == [mx.gpu(i) for i in range(3)]
    assert sorted(tries) == [0, 1, 2]  # each once


def test_a_gpu_on_which_it_fails_is_refused_with_the_reason(machine, from_source):
    made = machine(T4, H200)
    from_source(gpu1="no kernel image is available for execution")
    message = refusal("gpu:2")
    assert "gpu(1) NVIDIA H200" in message and "built from source" in message
    assert "(no kernel image is available for execution)" in message
    assert "docs/newer-gpus.md" in message and "cpu:N" in message
    assert "5.0-8.9" not in message and made == []
    assert devices.parse("gpu:1") == [mx.gpu(0)]


def test_auto_says_once_which_gpu_it_leaves_out(machine, from_source, caplog):
    machine(H200, T4)
    from_source(gpu0="no kernel image is available")
    assert devices.parse("auto") == devices.parse("auto") == [mx.gpu(1)]
    (warning,) = caplog.messages
    assert "gpu(0) NVIDIA H200" in warning and "no kernel image" in warning


def test_what_was_tried_is_known_to_the_processes_that_follow(
    machine, from_source, monkeypatch
):
    machine(H200, H200)
    tries = from_source(gpu1="broken")
    refusal("gpu:1,")
    assert tries == [1] and json.loads(os.environ[devices.TRIED])["1"] == "broken"
    for variable, value in (
        ("CUDA_VISIBLE_DEVICES", "1,0"),  # other GPUs have these numbers
        ("MXNET_LIBRARY_PATH", "/opt/other.so"),
    ):
        monkeypatch.setenv(variable, value)
        refusal("gpu:1,")
        refusal("gpu:1,")
        assert tries.count(1) == len(tries)
    assert len(tries) == 3


def test_the_wheels_are_not_tried(machine, monkeypatch):
    machine(T4, H200)
    monkeypatch.delenv("MXNET_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(devices, "answer_of", pytest.fail)
    assert devices.parse("auto") == [mx.gpu(0)]


def test_a_try_without_a_gpu_names_the_cause():
    code = "from d2lpar import devices; devices.compute_on_gpu(0)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    answer = json.loads(done.stdout)
    if mx.context.num_gpus() == 0:
        assert answer["error"] and "\n" not in answer["error"]


# Peer access


def test_peer_access_is_for_several_gpus(monkeypatch):
    reduced = []
    monkeypatch.setattr(devices, "_reduce_once", reduced.append)
    devices.enable_peer_access([mx.cpu(0), mx.cpu(1)])
    devices.enable_peer_access([mx.gpu(0)])
    assert reduced == []
    devices.enable_peer_access([mx.gpu(1), mx.gpu(0)])
    assert reduced == [(mx.gpu(1), mx.gpu(0))]


def test_a_device_kvstore_reduces_once_for_the_same_devices(monkeypatch):
    devices._reduce_once.cache_clear()
    names, create = [], mx.kv.create
    monkeypatch.setattr(
        mx.kv, "create", lambda name: names.append(name) or create(name)
    )
    two = (mx.cpu(0), mx.cpu(1))
    assert devices._reduce_once(two) == devices._reduce_once(two) == [2.0, 2.0]
    assert names == ["device"]
    devices._reduce_once.cache_clear()


def test_parse_counts():
    assert devices.parse_counts("1", 1) == [1]
    assert devices.parse_counts("1,2,4", 4) == [1, 2, 4]
    assert devices.parse_counts("4, 1", 4) == [4, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "num-devices '': write whole numbers"),
        ("two", "num-devices 'two': write whole numbers"),
        ("1.5", "num-devices '1.5': write whole numbers"),
        ("1,", "num-devices '1,': write whole numbers"),
        ("0", "num-devices '0': write whole numbers above 0, as in 1,2,4"),
        ("-1", "num-devices '-1': write whole numbers above 0"),
        ("1_0", "num-devices '1_0': write whole numbers above 0"),
        ("9" * 5000, "num-devices '999999999999"),
        ("1,300", "num-devices '1,300': 256 are the most"),
        ("1,5", "num-devices 5: --devices gives 4; ask for 1 to 4"),
        ("2,1,2", "num-devices '2,1,2': names a count twice"),
    ],
)
def test_parse_counts_refuses(text, says):
    with pytest.raises(DeviceError) as caught:
        devices.parse_counts(text, 4)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_too_many_devices_are_told_how_to_get_them():
    with pytest.raises(DeviceError, match="--devices cpu:5"):
        devices.parse_counts("5", 4)


@pytest.mark.parametrize(
    ("available", "counts"),
    [(1, "1"), (2, "1,2"), (3, "1,2,3"), (4, "1,2,4"), (6, "1,2,4,6"), (8, "1,2,4,8")],
)
def test_default_counts_double_up_to_all(available, counts):
    assert devices.default_counts(available) == counts
    assert devices.parse_counts(counts, available)[-1] == available


def test_label_of_a_cpu_context(machine, monkeypatch):
    machine(cores=2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert devices.label(mx.cpu(1)) == "cpu(1) (1 thread of 2 cores)"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert devices.label(mx.cpu(0)) == "cpu(0) (2 threads of 2 cores)"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert devices.label(mx.cpu(0)) == "cpu(0) (threads unset of 2 cores)"
    machine(cores=1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert devices.label(mx.cpu(0)) == "cpu(0) (1 thread of 1 core)"


def test_label_of_a_gpu(machine):
    machine(T4, L4)
    assert devices.label(mx.gpu(1)) == "gpu(1) NVIDIA L4"
    assert devices.label(mx.gpu(2)) == "gpu(2)"  # unknown to the driver: no name


def test_the_books_try_gpu_falls_back_and_parse_does_not(machine):
    machine(build="CPU")
    assert devices.try_gpu() == devices.try_gpu(3) == mx.cpu()
    assert devices.try_all_gpus() == [mx.cpu()]
    refusal("gpu:1")


def test_the_books_try_gpu_with_gpus(machine):
    machine(T4, T4)
    assert devices.try_gpu() == mx.gpu(0)
    assert devices.try_gpu(1) == mx.gpu(1)
    assert devices.try_gpu(2) == mx.cpu()
    assert devices.try_all_gpus() == [mx.gpu(0), mx.gpu(1)]

"""The line that helps where memory runs out, and the memory that comes back."""

import numpy
import pytest

from d2lpar._mxnet import mx, np, npx
from d2lpar.memory import free, out_of_memory
from d2lpar.memory.shapes import gan_layers, lenet_layers

MIB = 2**20


lenet, gan = lenet_layers, gan_layers


def cpus(n):
    return [mx.cpu(k) for k in range(n)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), True),
        (mx.MXNetError("x\nMXNetError: Failed to allocate CPU Memory"), True),
        (mx.MXNetError("cudaMalloc retry failed: out of memory"), True),
        *(
            (mx.MXNetError(f"Traceback\nMXNetError: Check failed: {words}"), True)
            for words in (
                "e == CUBLAS_STATUS_SUCCESS (1 vs. 0) : cuBLAS: "
                "CUBLAS_STATUS_NOT_INITIALIZED",
                "e == CUDNN_STATUS_SUCCESS (1 vs. 0) : cuDNN: "
                "CUDNN_STATUS_NOT_INITIALIZED",
                "e == CUDNN_STATUS_SUCCESS (2 vs. 0) : cuDNN: "
                "CUDNN_STATUS_ALLOC_FAILED",
                "err == CUBLAS_STATUS_SUCCESS (1 vs. 0) : Create cublas handle failed",
                "Failed to find any forward convolution algorithm.  with workspace "
                "size of 1073741824 bytes, please consider reducing batch/model size",
                "Failed to find any backprop-to-filter deconvolution algorithm.",
            )
        ),
        (mx.MXNetError("CUDNN_STATUS_BAD_PARAM"), False),
        (mx.MXNetError("Check failed: shapes differ"), False),
        (RuntimeError("out of memory of what to say"), False),
    ],
)
def test_what_is_out_of_memory(error, told):
    assert out_of_memory.is_out_of_memory(error) is told
    line = out_of_memory.explain(error, lenet, {"global_batch_size": 9}, cpus(1))
    assert (line is not None) is told


def test_the_line_names_what_helps(monkeypatch):
    monkeypatch.setattr(free, "host_free", lambda running: 700 * MIB)
    settings = {"global_batch_size": 6000, "micro_batch_size": None}
    line = out_of_memory.advice(gan, settings, cpus(2))
    assert line.startswith("out of memory on cpu(0) to cpu(1): ")
    assert "float32 (3000, 128, 12, 12), takes 210.9 MiB" in line
    assert "700 MiB are free: use at most --global-batch-size " in line
    assert " or --micro-batch-size " in line and "\n" not in line
    monkeypatch.setattr(free, "host_free", lambda running: MIB)
    line = out_of_memory.advice(lenet, {"global_batch_size": 60}, cpus(1))
    assert line.endswith("not even a batch of 1 fits: free some of it")
    monkeypatch.setattr(free, "host_free", lambda running: 2**40)
    line = out_of_memory.advice(lenet, {"global_batch_size": 60}, cpus(1))
    assert line.endswith("use a --global-batch-size well below 60")
    line = out_of_memory.advice(None, {}, cpus(1), said="no!")
    assert line == (
        "out of memory on cpu(0) (no!), where 1,024 GiB are free: "
        "use less data or a smaller batch"
    )


def test_numpys_own_words_name_the_array():
    with pytest.raises(MemoryError) as info:
        numpy.zeros((2**20, 2**30))
    line = out_of_memory.explain(
        info.value, lenet, {"global_batch_size": 9}, cpus(1), None
    )
    assert "unable to allocate 8.00 PiB for an array with shape (1048576," in line


def test_among_gpus_the_tightest_is_named(gpus):
    chosen = gpus(900 * MIB, 20 * MIB)
    line = out_of_memory.advice(lenet, {"global_batch_size": 4000}, chosen)
    assert line.startswith("out of memory on gpu(1): ") and "20 MiB are free" in line


def test_an_error_keeps_its_frames_until_it_is_released():
    import weakref

    def fails():
        array = np.ones((3, 3))
        seen.append(weakref.ref(array))
        raise MemoryError

    seen = []
    try:
        fails()
    except MemoryError as error:
        kept = error
    assert seen[0]() is not None
    out_of_memory.release(cpus(1), kept)
    assert seen[0]() is None


def test_release_drops_the_errors_of_work_that_failed():
    no_root = -np.eye(3)
    failing = [np.linalg.cholesky(no_root)]
    with pytest.raises(mx.MXNetError):
        npx.waitall()
    failing += [np.linalg.cholesky(no_root) for _ in range(3)]
    out_of_memory.release(cpus(1))
    npx.waitall()  # nothing is left to tell


MANY_RUNS = """
import importlib
from d2lpar import datasets, devices
from d2lpar.memory import out_of_memory
from d2lpar.memory.free import process_status
from d2lpar.memory.shapes import lenet_layers
one = devices.parse("cpu:{num_devices}")
train = importlib.import_module("d2lpar.{workload}").train
many = datasets.load("synthetic", n_train=4000, n_test=1000)
few = datasets.load("synthetic", n_train=64, n_test=100)
def run(size, data):
    for _ in train(devices=one, data=data, num_epochs=1, global_batch_size=size):
        pass
run(2000, many)
run(32, few)
out_of_memory.release(one)
failed, resident = 0, []
with out_of_memory.limited(150 * 2**20):
    for k in range(50):
        try:
            run(32, few) if k % 2 else run(2000, many)
        except Exception as error:
            settings = {{"global_batch_size": 2000}}
            layers = lambda settings: lenet_layers(settings, {compiled})
            line = out_of_memory.explain(error, layers, settings, one)
            assert line.startswith("out of memory on cpu(0)"), line
            failed += k % 2 == 0
        else:
            failed -= 100 * (k % 2 == 0)  # it ought to have failed
        out_of_memory.release(one)
        resident.append(process_status("VmRSS"))
print(failed, resident[9], resident[49])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "num_devices"), [("lenet", 1), ("lenet", 2), ("lenet_concise", 1)]
)
def test_fifty_runs_that_fail_and_succeed_leave_nothing(
    workload, num_devices, in_a_process
):
    """The GPU wiki: memory kept after a failure, and more with every call."""
    code = MANY_RUNS.format(
        workload=workload,
        num_devices=num_devices,
        compiled=workload == "lenet_concise",
    )
    printed = in_a_process(code, MALLOC_MMAP_THRESHOLD_="1000000")
    failed, after_10, after_50 = map(int, printed.split())
    assert failed == 25
    assert after_50 - after_10 < 8 * MIB

"""The sources' operations: NumPy's results on any number of devices, or an error."""

import importlib.util

import numpy as np
import pytest

from d2lpar import timing
from d2lpar._mxnet import mx
from d2lpar.arrays import operations, timings
from d2lpar.devices import cpus
from d2lpar.kernels import CudaKernel, KernelError

TINY = {"x2": 1001, "sum_rows": 103, "trig": 41, "product": 67, "largest_copy": 2**14}
DATA = operations.Sizes(**TINY)
HAS_TORCH = importlib.util.find_spec("torch") is not None


def work_of(make, n):
    return next(make(DATA, cpus(n), np.random.default_rng(0)))


def results(work, n, call):
    work.checks.get("before", lambda: None)()
    parts = [call(device) for device in cpus(n)]
    return [p if isinstance(p, np.ndarray) else p.asnumpy() for p in parts]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("n", [1, 3])
def test_operations_equal_numpy(n):
    """Not `expected`, which the operation computes, but the sources' own lines."""

    def rng():
        return np.random.default_rng(0)

    x = rng().random(1001, dtype="float32")
    numbers = rng().standard_normal((103, 10), dtype="float32")
    angles = rng().random((41, 41), dtype="float32").astype("f8")
    tangents = (np.tan(angles) ** 2).sum()
    a, b = rng().standard_normal((2, 67, 67), dtype="float32")
    right = {
        operations.x2: (np.concatenate, x * np.float32(2), 0),
        operations.total: (sum, numbers.sum(dtype="f8"), 1e-6 * abs(numbers).sum()),
        operations.trig: (sum, tangents, 1e-6 * tangents),
        operations.product: (np.concatenate, a.astype("f8") @ b.T, 1e-4),
    }
    for make, (join, expected, error) in right.items():
        work = work_of(make, n)
        for call in work.on_devices.values():
            actual = join(results(work, n, call))
            np.testing.assert_allclose(actual, expected, rtol=0, atol=error)


@pytest.mark.parametrize("n", [1, 3])
def test_copies(n):
    rng = np.random.default_rng(0)
    hosts = [rng.random(1024, dtype="float32") for _ in range(n)]
    names = ["host to device", "device to host", "device to device"]
    right = dict.fromkeys(names, np.concatenate(hosts))
    for work in operations.copies(4096, cpus(n), np.random.default_rng(0)):
        (call,) = work.on_devices.values()
        actual = np.concatenate(results(work, n, call))
        np.testing.assert_array_equal(actual, right.pop(work.operation))
        if work.operation == "device to device":  # the next device of the ring
            there = [call(device).ctx for device in cpus(n)]
            assert there == [mx.cpu((k + 1) % n) for k in range(n)]
    assert not right


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_kernels_tangent_in_every_quadrant(kind):
    """Beyond the source's [0, 1) too: any quadrant, near poles, negative, large."""
    values = np.array([0, 1e-3, 0.5, 1, 1.5, 1.6, 3.1, 4.7, -7e3, 99], "float32")
    sums, n = mx.np.zeros(len(values)), len(values)
    kernel = operations.SUM_TAN_SQUARED[kind]  # each of n threads sums one number
    kernel.launch([mx.np.array(values), sums, n, 1], mx.cpu(), (1, 1, 1), (n, 1, 1))
    right = np.tan(values.astype("f8")) ** 2
    np.testing.assert_allclose(sums.asnumpy(), right, rtol=2e-6, atol=1e-30)


@pytest.mark.usefixtures("compiler")
def test_an_operation_that_does_nothing_is_an_error():
    """The right result is there already, from before: it is cleared every time."""
    for work in operations.x2(DATA, cpus(1), np.random.default_rng(0)):
        *_, form = work.on_devices.values()
        there = form(mx.cpu())
        np.testing.assert_array_equal(there.asnumpy(), work.checks["expected"])
        with pytest.raises(timing.TimingError):
            timing.measure(lambda device: there, cpus(1), **work.checks)  # noqa: B023


def lines(n, **settings):
    how = {"warmup": 1, "repeats": 2, **settings}
    return list(timings.time_all(n, devices=f"cpu:{n}", data=DATA, **how))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("n", [1, 2])
def test_records(n):
    records = lines(n, product_repeats=1)
    libraries = {"MXNet", "NumPy", "PyTorch"} if HAS_TORCH else {"MXNet", "NumPy"}
    assert {line.library for line in records} == (libraries if n == 1 else {"MXNet"})
    for line in records:
        repeats = 1 if line.operation == "product" else 2
        assert len(line.seconds) == len(line.naive_seconds) == repeats
        assert all(0 < a <= b for a, b in zip(line.naive_seconds, line.seconds))
    by_form = {(line.operation, line.library, line.form): line for line in records}
    product = by_form["product", "MXNet", "dense layer"]
    assert (product.flops, product.num_bytes) == (2 * 67**3, 3 * 4 * 67**2)
    assert by_form["x2", "MXNet", "in place"].num_bytes == 8 * 1001
    assert by_form["trig", "MXNet", "as written"].flops == 6 * 41**2
    if n == 1:  # as many threads as the context has
        assert by_form["sum", "NumPy", "as written"].devices == ["host (1 thread)"]
    sizes = [x.num_bytes for x in records if x.operation == "device to host"]
    assert sizes == [4096, 16384] and len(product.devices) == n


@pytest.mark.usefixtures("compiler")
def test_a_kernel_that_does_not_compile_is_left_out_with_a_line(monkeypatch, caplog):
    def launch(*arguments):
        raise KernelError("kernel sum_tan_squared does not compile: no such type")

    monkeypatch.setattr(CudaKernel, "launch", launch)
    forms = {(line.operation, line.form) for line in lines(2)}
    assert ("trig", "one kernel") not in forms
    assert {("trig", "as written"), ("x2", "one kernel")} <= forms
    (line,) = caplog.messages
    assert "no such type" in line

"""The sources' operations: NumPy's results on any number of devices, or an error."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from d2lpar import timing
from d2lpar._mxnet import mx
from d2lpar.errors import SettingError
from d2lpar.kernels import CudaKernel, KernelError
from d2lpar.studies import array_timings, array_work

TINY = {"x2": 1001, "sum_rows": 103, "trig": 41, "product": 67, "largest_copy": 2**14}
DATA = array_work.Sizes(**TINY)


def contexts(n):
    return [mx.cpu(k) for k in range(n)]


def work_of(make, n, data=DATA):
    return make(data, contexts(n), np.random.default_rng(0), None)


def results(work, n, fn):
    work.checks.get("before", lambda: None)()
    parts = [fn(device) for device in contexts(n)]
    return [p if isinstance(p, np.ndarray) else p.asnumpy() for p in parts]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_operations_equal_numpy(n):
    """Not `expected`, which the workload computes, but the sources' own lines."""
    rng = np.random.default_rng(0)
    x = rng.random(TINY["x2"], dtype="float32")
    for fn in work_of(array_work.x2, n).on_devices.values():
        actual = np.concatenate(results(work_of(array_work.x2, n), n, fn))
        np.testing.assert_array_equal(actual, x * np.float32(2))

    rng = np.random.default_rng(0)
    x = rng.standard_normal((TINY["sum_rows"], 10), dtype="float32")
    work = work_of(array_work.total, n)
    for fn in work.on_devices.values():
        assert sum(results(work, n, fn)) == pytest.approx(
            x.astype("f8").sum(), abs=1e-6 * float(np.abs(x).sum())
        )

    x = np.random.default_rng(0).random((41, 41), dtype="float32").astype("f8")
    work = work_of(array_work.trig, n)
    assert set(work.on_devices) == {"as written", "in place", "one kernel"}
    for fn in work.on_devices.values():
        assert sum(results(work, n, fn)) == pytest.approx(
            (np.tan(x) ** 2).sum(), rel=1e-6
        )

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((67, 67), dtype="float32") for _ in range(2))
    work = work_of(array_work.product, n)
    for fn in work.on_devices.values():
        actual = np.concatenate(results(work, n, fn))
        right = a.astype("f8") @ b.T.astype("f8")
        np.testing.assert_allclose(actual, right, atol=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_copies_and_all_reduce(n):
    results_of = {}
    for work in array_work.copies(4096, contexts(n), np.random.default_rng(0)):
        (fn,) = work.on_devices.values()
        results_of[work.operation] = np.concatenate(results(work, n, fn))
    rng = np.random.default_rng(0)
    hosts = [rng.random(1024, dtype="float32") for _ in range(n)]
    for direction in ("host to device", "device to host"):
        np.testing.assert_array_equal(results_of[direction], np.concatenate(hosts))
    assert ("all-reduce" in results_of) == (n > 1)
    if n > 1:
        np.testing.assert_allclose(
            results_of["all-reduce"], np.tile(sum(hosts), n), 1e-6
        )


def test_copies_reach_the_next_device():
    """A copy returns the array on the next device of the ring: with what was here."""
    devices = contexts(3)
    across = list(array_work.copies(4096, devices, np.random.default_rng(0)))[2]
    across.checks["before"]()
    (fn,) = across.on_devices.values()
    assert [fn(device).ctx for device in devices] == [mx.cpu(1), mx.cpu(2), mx.cpu(0)]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("x", [[0.0, 1e-3, 0.5, 1.0], [1.5, 1.6, 3.1, 4.7], [-7e3, 99]])
def test_the_kernels_tangent_in_every_quadrant(x, kind):
    """Beyond the source's [0, 1) too: any quadrant, near poles, negative, large."""
    (device,) = contexts(1)
    for value in np.array(x, "float32"):
        here, sums = mx.np.full((1,), value), mx.np.zeros(1)
        one = (1, 1, 1)
        kernel = array_work.SUM_TAN_SQUARED[kind]
        kernel.launch([here, sums, 1, 1], device, one, one)
        right = np.tan(np.float64(value)) ** 2
        assert float(sums) == pytest.approx(right, rel=2e-6, abs=1e-30)


@pytest.mark.parametrize("n", [1, 255, 4097, 300_000])
def test_the_kernel_for_gpus_sums_the_same_numbers(n):
    """It runs here too: every number once, whichever thread adds it."""
    (device,), each = contexts(1), array_work.EACH["gpu"]
    host = np.random.default_rng(n).random(n, dtype="float32")
    x, sums = mx.np.array(host, ctx=device), mx.np.zeros(-(-n // each), ctx=device)
    blocks = (-(-sums.size // 256), 1, 1)
    array_work.SUM_TAN_SQUARED["gpu"].launch(
        [x, sums, n, each], device, blocks, (256, 1, 1)
    )
    right = np.tan(host.astype("f8")) ** 2
    np.testing.assert_allclose(float(sums.sum()), right.sum(), rtol=1e-6)
    threads = sums.size  # neighbouring threads read neighbouring numbers
    firsts = [right[t::threads].sum() for t in range(threads)]
    np.testing.assert_allclose(sums.asnumpy(), firsts, rtol=1e-5)


def test_a_kernel_that_does_not_compile_is_left_out_with_a_line(monkeypatch, caplog):
    def launch(*arguments):
        raise KernelError("kernel sum_tan_squared does not compile: no such type")

    monkeypatch.setattr(CudaKernel, "launch", launch)
    forms = {(line.operation, line.form) for line in lines(2)}
    assert ("trig", "one kernel") not in forms
    assert {("trig", "in place"), ("x2", "one kernel"), ("product", "dot")} <= forms
    (line,) = caplog.messages
    assert line == (
        "trig in MXNet, one kernel, is not measured: kernel sum_tan_squared does not "
        "compile: no such type"
    )


def test_a_wrong_product_is_an_error():
    work = work_of(array_work.product, 1)
    (device,) = contexts(1)

    def one_element_off(device):
        product = work.on_devices["dense layer"](device).asnumpy()
        product[5, 7] += 0.1
        return product

    with pytest.raises(timing.TimingError, match="wrong result"):
        timing.measure(one_element_off, [device], **work.checks)


@pytest.mark.parametrize(
    ("make", "form"), [(array_work.x2, "in place"), (array_work.copy, "copyto")]
)
def test_an_operation_that_does_nothing_is_an_error(make, form):
    """The right result is there already, from before: it is cleared every time."""
    work = work_of(make, 1)
    (device,) = contexts(1)
    there = work.on_devices[form](device)
    np.testing.assert_array_equal(there.asnumpy(), work.checks["expected"])
    with pytest.raises(timing.TimingError, match="repetition 1 gives a wrong result"):
        timing.measure(lambda device: there, [device], **work.checks)


def lines(n, **settings):
    return list(
        array_timings.train(
            n, devices=f"cpu:{n}", data=DATA, warmup=1, repeats=2, **settings
        )
    )


@pytest.mark.parametrize("n", [1, 2])
def test_records(n):
    records = lines(n)
    mxnet = [line for line in records if line.library == "MXNet"]
    operations = {line.operation for line in mxnet}
    assert {"x2", "copy", "sum", "trig", "product", "host to device"} <= operations
    assert ("all-reduce" in operations) == (n == 2)
    assert ("NumPy" in {line.library for line in records}) == (n == 1)
    for line in records:
        assert len(line.seconds) == len(line.naive_seconds) == 2
        assert len(line.warmup_seconds) == 1
        assert all(0 < a <= b for a, b in zip(line.naive_seconds, line.seconds))
        json.dumps(asdict(line), allow_nan=False)
    by_form = {(line.operation, line.library, line.form): line for line in records}
    product = by_form["product", "MXNet", "dense layer"]
    assert (product.flops, product.num_bytes) == (2 * 67**3, 3 * 4 * 67**2)
    assert by_form["x2", "MXNet", "in place"].num_bytes == 8 * 1001
    sizes = [x.num_bytes for x in records if x.operation == "device to host"]
    assert sizes == [4096, 16384] and len(product.devices) == n


def test_pytorch_beside_one_device():
    torch = pytest.importorskip("torch", reason="no PyTorch: extra peers")
    records = [line for line in lines(1) if line.library == "PyTorch"]
    assert {line.operation for line in records} == {
        "x2", "copy", "sum", "trig", "product",
    }  # fmt: skip
    assert {line.version for line in records} == {torch.__version__}


def test_without_a_compiler_kernels_are_left_out_with_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    forms = {line.form for line in lines(2)}
    assert "one kernel" not in forms and "in place" in forms
    assert "'one kernel' is not measured: CXX=no-such-compiler" in caplog.text


def test_without_pytorch_a_warning_says_so(monkeypatch, caplog):
    find = array_timings.importlib.util.find_spec
    monkeypatch.setattr(
        array_timings.importlib.util, "find_spec",
        lambda name: None if name == "torch" else find(name),
    )  # fmt: skip
    assert {line.library for line in lines(1)} == {"MXNet", "NumPy"}
    assert "PyTorch is not measured: pip install" in caplog.text


def test_dot_is_not_run_where_it_would_deadlock(monkeypatch):
    monkeypatch.setattr(array_work, "omp_threads", lambda: 2)
    assert set(work_of(array_work.product, 2).on_devices) == {"dense layer"}
    assert set(work_of(array_work.product, 1).on_devices) == {"dense layer", "dot"}


def test_the_products_own_repeats():
    records = [
        line for line in lines(2, product_repeats=1) if "product" == line.operation
    ]
    assert [len(line.seconds) for line in records] == [1, 1]


def test_sizes():
    book = array_work.Sizes()
    assert (book.x2, book.sum_rows, book.trig, book.product) == (
        50_000_000, 100_000, 10_000, 30 * 512,
    )  # fmt: skip
    assert book.copies[0] == 4096 and book.copies[-1] == 2**28
    assert book.sizes["product"] == 15_360 and json.dumps(book.sizes)
    assert book.sha256 == array_work.Sizes().sha256
    assert book.sha256 != array_work.Sizes(seed=1).sha256


@pytest.mark.parametrize("wrong", [{"x2": 0}, {"trig": -1}, {"largest_copy": 4095}])
def test_sizes_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=str(next(iter(wrong.values())))):
        array_work.Sizes(**{**TINY, **wrong})


def test_fewer_rows_than_devices():
    data = array_work.Sizes(**{**TINY, "trig": 2})
    with pytest.raises(SettingError, match="size 2: cannot be shared by 3 devices"):
        list(array_timings.train(3, devices="cpu:3", data=data))

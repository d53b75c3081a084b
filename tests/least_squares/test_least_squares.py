"""Least squares against LAPACK: every method, any number of devices, any problem."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar import datasets
from d2lpar._mxnet import mx
from d2lpar.errors import DataError, DeviceError
from d2lpar.least_squares import METHODS, LeastSquare, direct, solve, train
from d2lpar.least_squares import rows as row_shards
from d2lpar.least_squares.problem import rows_of
from d2lpar.machine import cores

DIRECT = ("normal", "tsqr")
COUNTS = (1, 2, 3, 7)


def lapack(A, b):
    return np.linalg.lstsq(np.asarray(A, float), np.asarray(b, float), rcond=None)[0]


def norm(A, x, b):
    return np.linalg.norm(A @ x - b)


def problem(m, n, seed=0, k=None):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, n)), rng.normal(size=m if k is None else (m, k))


def with_condition(m, n, condition, seed=0):
    """Singular values from 1 down to 1 / condition, evenly on a logarithmic scale.

    b is A times a vector of ordinary size, and a residual that A cannot reach.
    """
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(m, n)))
    V, _ = np.linalg.qr(rng.normal(size=(n, n)))
    A = (U * np.logspace(0, -np.log10(condition), n)) @ V.T
    rest = rng.normal(size=m)
    return A, A @ rng.normal(size=n) + rest - U @ (U.T @ rest)


def check_against_lapack(A, b, solution, relative=1e-10):
    """Assert a residual no larger than LAPACK's, and norms that are true."""
    expected = norm(A, lapack(A, b), b)
    actual = norm(A, solution.x, b)
    assert actual <= expected + relative * np.linalg.norm(b)
    assert solution.residual_norm == pytest.approx(actual, abs=1e-9)


@pytest.mark.parametrize("method", [*DIRECT, "cgls", "gradient"])
@pytest.mark.parametrize("num_devices", COUNTS)
def test_every_method_finds_lapacks_solution(method, num_devices):
    A, b = problem(101, 13)
    solution = solve(A, b, devices=f"cpu:{num_devices}", method=method)
    check_against_lapack(A, b, solution)
    tolerance = 1e-10 if method in DIRECT else 1e-7
    np.testing.assert_allclose(solution.x, lapack(A, b), rtol=tolerance, atol=tolerance)
    assert solution.method == method and len(solution.devices) == num_devices
    last = solution.history[-1]
    assert last.residual_norm == pytest.approx(solution.residual_norm)
    assert len(last.device_residual_norms) == num_devices
    total = np.linalg.norm(last.device_residual_norms)
    assert total == pytest.approx(solution.residual_norm)
    assert solution.seconds >= last.seconds > 0


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 50),
    num_devices=st.integers(1, 7),
    k=st.integers(1, 3),
    method=st.sampled_from([*DIRECT, "cgls"]),
    seed=st.integers(0, 1000),
)
def test_any_shape_on_any_devices(n, m, num_devices, k, method, seed):
    """Rows that do not divide, fewer than devices or columns, several sides."""
    A, b = problem(m, n, seed, k)
    if m < n and method == "normal":
        method = "tsqr"
    if np.linalg.cond(A) > 1e4:
        return  # the ill-conditioned have tests of their own
    solution = solve(A, b, devices=f"cpu:{num_devices}", method=method)
    assert solution.x.shape == (n, k) and solution.residual_norm.shape == (k,)
    best = lapack(A, b)  # the minimum-norm solution, as is ours, where m < n
    expected = np.linalg.norm(A @ best - b, axis=0)
    np.testing.assert_allclose(solution.residual_norm, expected, atol=1e-8)
    np.testing.assert_allclose(solution.x, best, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", [*DIRECT, "cgls"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: problem(500, 40),
        lambda: with_condition(300, 20, 1e3),
        lambda: problem(20_000, 5),
    ],
    ids=["random", "ill", "tall"],
)
def test_the_answer_does_not_depend_on_the_number_of_devices(method, make):
    A, b = make()
    options = {"tol": 1e-13} if method == "cgls" else {}
    xs = [solve(A, b, devices=f"cpu:{n}", method=method, **options).x for n in COUNTS]
    for x in xs[1:]:
        assert np.linalg.norm(x - xs[0]) <= 1e-9 * np.linalg.norm(xs[0])


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("num_devices", COUNTS)
def test_ill_conditioned(condition, num_devices, caplog):
    A, b = with_condition(400, 30, condition)
    solution = solve(A, b, devices=f"cpu:{num_devices}", method="tsqr")
    check_against_lapack(A, b, solution)
    assert condition / 3 < solution.condition < 3 * condition or condition > 1e11
    options = {"devices": f"cpu:{num_devices}", "method": "normal"}
    if condition <= 1e6:
        check_against_lapack(A, b, solve(A, b, **options))
        assert ("normal equations square it" in caplog.text) == (condition > 1e5)
    else:
        with pytest.raises(ValueError, match="ill-conditioned.*use method tsqr"):
            solve(A, b, **options)


def test_messages_say_whether_columns_were_scaled(caplog):
    A, b = with_condition(400, 30, 1e6)
    solve(A, b, devices="cpu:2", method="normal")
    assert "A's condition is about 1e+06: the normal" in caplog.text
    caplog.clear()
    solve(A * np.logspace(-5, 5, 30), b, devices="cpu:2", method="normal")
    assert "1e+06 after scaling its columns: the normal" in caplog.text
    A, b = with_condition(400, 30, 1e10)
    with pytest.raises(ValueError, match=r"(about .e\+..|not finite)\): use method"):
        solve(A, b, devices="cpu:2", method="normal")
    with pytest.raises(ValueError, match=r" after scaling its columns\): use method"):
        solve(A * np.logspace(-5, 5, 30), b, devices="cpu:2", method="normal")


@pytest.mark.parametrize("method", DIRECT)
@pytest.mark.parametrize("num_devices", COUNTS)
def test_badly_scaled_columns_do_no_harm(method, num_devices):
    A, b = problem(200, 10)
    A = A * np.logspace(-9, 9, 10)
    solution = solve(A, b, devices=f"cpu:{num_devices}", method=method)
    check_against_lapack(A, b, solution)


@pytest.mark.parametrize("num_devices", COUNTS)
def test_rank_deficient(num_devices):
    A, b = problem(60, 6)
    A[:, 4] = A[:, 1] - 2 * A[:, 2]
    with pytest.raises(ValueError, match="rank-deficient.*tsqr"):
        solve(A, b, devices=f"cpu:{num_devices}", method="normal")
    solution = solve(A, b, devices=f"cpu:{num_devices}", method="tsqr")
    assert solution.rank == 5
    np.testing.assert_allclose(solution.x, lapack(A, b), atol=1e-10)  # minimum-norm


def test_a_column_of_zeros_is_named():
    A, b = problem(60, 6)
    A[:, 3] = 0
    with pytest.raises(ValueError, match="column 3 of A is zero.*tsqr"):
        solve(A, b, devices="cpu:2", method="normal")
    solution = solve(A, b, devices="cpu:3", method="tsqr")
    assert solution.rank == 5 and abs(solution.x[3]) < 1e-12


def test_fewer_rows_than_columns():
    A, b = problem(4, 9)
    with pytest.raises(ValueError, match="4 x 9.*tsqr"):
        solve(A, b, devices="cpu:2", method="normal")
    for num_devices in (1, 2, 7):
        solution = solve(A, b, devices=f"cpu:{num_devices}", method="tsqr")
        np.testing.assert_allclose(solution.x, lapack(A, b), atol=1e-12)


def test_tall_and_thin():
    A, b = problem(1_000_000, 20)
    best = lapack(A, b)
    least = norm(A, best, b)
    for method in DIRECT:
        for num_devices in COUNTS:
            solution = solve(A, b, devices=f"cpu:{num_devices}", method=method)
            assert solution.residual_norm == pytest.approx(least, rel=1e-10)
            np.testing.assert_allclose(solution.x, best, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(30, 1), (1, 1), (1, 4)])
def test_a_single_column_or_row(method, shape):
    A, b = problem(*shape)
    if shape[0] < shape[1] and method == "normal":
        return  # refused, and tested above
    solution = solve(A, b, devices="cpu:3", method=method)
    assert solution.x.shape == shape[1:]
    if method == "averaging":  # it ends near the optimum, not there
        assert norm(A, solution.x, b) < 1.1 * np.linalg.norm(b)
    else:
        np.testing.assert_allclose(solution.x, lapack(A, b), rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("with_reference", [True, False])
def test_a_right_hand_side_of_zeros(method, with_reference):
    A, _ = problem(40, 5)
    options = {"x0": np.zeros(5)} if method == "averaging" else {}
    reference = np.zeros(5) if with_reference else None
    with np.errstate(divide="raise", invalid="raise"):
        solution = solve(
            A, np.zeros(40), devices="cpu:2", method=method, reference=reference,
            **options,
        )  # fmt: skip
    np.testing.assert_array_equal(solution.x, np.zeros(5))
    assert solution.residual_norm == 0
    distance = solution.history[-1].distance
    assert distance == (0 if with_reference else None)


@pytest.mark.parametrize("method", ["cgls", "gradient"])
def test_zeros_are_reached_from_elsewhere(method):
    A, b = problem(40, 5, k=2)
    b[:, 0] = 0
    options = {"x0": np.ones((5, 2)), "reference": np.zeros((5, 2))}
    with np.errstate(divide="raise", invalid="raise"):
        solution = solve(A, b, devices="cpu:2", method=method, **options)
    np.testing.assert_allclose(solution.x, lapack(A, b), atol=1e-6)
    assert solution.history[-1].distance == pytest.approx(np.linalg.norm(solution.x))


@pytest.mark.parametrize("method", ["tsqr", "cgls", "gradient"])
def test_a_matrix_of_zeros_has_the_solution_zero(method):
    with np.errstate(divide="raise", invalid="raise"):
        solution = solve(np.zeros((9, 3)), np.ones(9), devices="cpu:2", method=method)
    np.testing.assert_array_equal(solution.x, np.zeros(3))


def test_mxnets_own_arrays():
    A, b = problem(30, 3)
    on_device = [mx.np.array(array, dtype="float64") for array in (A, b)]
    np.testing.assert_array_equal(
        solve(*on_device, devices="cpu:2").x, solve(A, b, devices="cpu:2").x
    )


def test_lists_are_arrays():
    A, b = [[1, 0], [0, 2], [1, 1]], [1, 2, 3]
    x = solve(A, b, devices="cpu:2").x
    np.testing.assert_allclose(x, lapack(A, b), atol=1e-12)
    as_column = solve(A, [[value] for value in b], devices="cpu:2")
    assert as_column.x.shape == (2, 1) and as_column.residual_norm.shape == (1,)
    np.testing.assert_array_equal(as_column.x[:, 0], x)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_x_is_of_the_computations_dtype(method, dtype):
    A, b = problem(40, 3)
    options = {"tol": 1e-3} if method in ("cgls", "gradient") else {}
    x = solve(A, b, devices="cpu:2", method=method, dtype=dtype, **options).x
    assert x.dtype == dtype
    deficient = solve(0 * A, b, devices="cpu:2", method="tsqr", dtype=dtype)
    assert deficient.x.dtype == dtype and deficient.rank == 0


def test_float32_and_whole_numbers():
    A, b = problem(300, 8)
    for method in (*DIRECT, "cgls"):
        options = {"tol": 1e-6} if method == "cgls" else {}
        x = solve(A, b, devices="cpu:2", method=method, dtype="float32", **options).x
        np.testing.assert_allclose(x, lapack(A, b), atol=1e-4)
    A = np.arange(12).reshape(6, 2) ** 2
    b = np.arange(6)
    x = solve(A, b, devices="cpu:2").x
    np.testing.assert_allclose(x, lapack(A, b), atol=1e-12)


def test_warnings_where_the_iterations_do_not_suffice(caplog):
    A, b = with_condition(100, 10, 1e4)
    solve(A, b, devices="cpu:2", method="gradient", max_iterations=3)
    assert "3 iterations brought the gradient to" in caplog.text


# Larger than memory


@pytest.mark.parametrize("method", [*DIRECT, "cgls"])
@pytest.mark.parametrize("kind", ["path", "memmap", "sliceable"])
def test_rows_in_blocks_give_the_same(tmp_path, method, kind):
    A, b = problem(1003, 7)
    np.save(tmp_path / "A.npy", A)
    source = {
        "path": tmp_path / "A.npy",
        "memmap": np.load(tmp_path / "A.npy", mmap_mode="r"),
        "sliceable": Sliceable(A),
    }[kind]
    solution = solve(
        source,
        b,
        devices="cpu:3",
        method=method,
        block_bytes=7 * 8 * 50,
        resident_bytes=0,
    )
    check_against_lapack(A, b, solution)
    np.testing.assert_allclose(solution.x, lapack(A, b), atol=1e-8)


def as_hdf5(A, folder):
    h5py = pytest.importorskip("h5py", reason="no h5py: extra arrays")
    file = h5py.File(folder / "problem.h5", "w")
    return file.create_dataset("A", data=A, chunks=(64, *A.shape[1:]))


def as_zarr(A, folder):
    zarr = pytest.importorskip("zarr", reason="no zarr: extra arrays")
    chunks = (64, *A.shape[1:])
    array = zarr.open_array(
        str(folder / "A.zarr"), mode="w", shape=A.shape, chunks=chunks, dtype=A.dtype
    )
    array[...] = A
    return array


STORES = pytest.mark.parametrize("store", [as_hdf5, as_zarr])


@STORES
@pytest.mark.parametrize("method", [*DIRECT, "cgls"])
@pytest.mark.parametrize("num_devices", [1, 3])
def test_hdf5_and_zarr_in_blocks(tmp_path, store, method, num_devices):
    """Blocks of 50 rows, which are not the chunks of the file."""
    A, b = problem(1003, 7)
    stored = store(A, tmp_path)
    assert not isinstance(stored, np.ndarray)
    solution = solve(
        stored,
        b,
        devices=f"cpu:{num_devices}",
        method=method,
        block_bytes=7 * 8 * 50,
        resident_bytes=0,
    )
    check_against_lapack(A, b, solution)
    np.testing.assert_allclose(solution.x, lapack(A, b), atol=1e-8)


@STORES
def test_hdf5_and_zarr_in_memory_and_of_other_dtypes(tmp_path, store):
    A, b = problem(203, 7, k=2)
    stored = store(A.astype("float32"), tmp_path)
    (tmp_path / "b").mkdir()
    solution = solve(stored, store(b, tmp_path / "b"), devices="cpu:2")
    assert solution.x.shape == (7, 2) and solution.x.dtype == np.float64
    np.testing.assert_allclose(solution.x, lapack(A.astype("float32"), b), atol=1e-10)


@STORES
def test_hdf5_and_zarr_that_cannot_be_solved(tmp_path, store):
    A, b = problem(203, 7)
    A[150, 3] = np.nan
    stored = store(A, tmp_path)
    blocks = {"block_bytes": 7 * 8 * 50, "resident_bytes": 0}
    for method in (*DIRECT, "cgls"):
        with pytest.raises(ValueError, match="A is nan in row 150, column 3"):
            solve(stored, b, devices="cpu:2", method=method, **blocks)
    (tmp_path / "complex").mkdir()
    with pytest.raises(ValueError, match="A is of dtype complex128"):
        solve(store(A * 1j, tmp_path / "complex"), b, devices="cpu:2")


@STORES
def test_blocks_are_read_beside_the_main_thread(tmp_path, store):
    A, b = problem(500, 7)
    stored, readers = store(A, tmp_path), set()

    class Watched(Sliceable):
        def __getitem__(self, rows):
            readers.add(threading.current_thread())
            return super().__getitem__(rows)

    blocks = {"block_bytes": 7 * 8 * 50, "resident_bytes": 0}
    x = solve(Watched(stored), b, devices="cpu:2", method="cgls", **blocks).x
    np.testing.assert_allclose(x, lapack(A, b), atol=1e-8)
    assert readers and threading.main_thread() not in readers


def test_what_is_not_finite_in_a_block_is_named(tmp_path):
    A, b = problem(1003, 7)
    A[777, 5] = np.inf
    np.save(tmp_path / "A.npy", A)
    for method in (*DIRECT, "cgls", "gradient"):
        with pytest.raises(ValueError, match="A is inf in row 777, column 5"):
            solve(
                tmp_path / "A.npy", b, devices="cpu:3", method=method,
                block_bytes=7 * 8 * 50, resident_bytes=0,
            )  # fmt: skip


def test_a_part_of_a_memmap_is_that_part(tmp_path):
    A, b = problem(500, 6)
    np.save(tmp_path / "A.npy", A)
    part = np.load(tmp_path / "A.npy", mmap_mode="r")[100:400]
    x = solve(part, b[100:400], devices="cpu:2", resident_bytes=0).x
    np.testing.assert_allclose(x, lapack(A[100:400], b[100:400]), atol=1e-10)


class Sliceable:
    """What Zarr and HDF5 arrays have in common."""

    def __init__(self, array):
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        return self._array[rows]


def test_a_file_that_is_shorter_than_it_claims(tmp_path):
    A, b = problem(1000, 10)
    path = tmp_path / "A.npy"
    np.save(path, A)
    with open(path, "r+b") as f:
        f.truncate(40_000)
    with pytest.raises(ValueError, match=r"A\.npy cannot be opened"):
        solve(path, b, devices="cpu:2")
    mapped = np.memmap(tmp_path / "raw", "float64", "w+", shape=(1000, 10))
    mapped[:] = A
    mapped.flush()
    with open(tmp_path / "raw", "r+b") as f:
        f.truncate(40_000)
    says = "raw is 40000 bytes long, not 80000: truncated"
    for A in (mapped, mapped[600:], mapped.T[:, :10]):
        for options in ({}, {"block_bytes": 8000, "resident_bytes": 0}):
            with pytest.raises(ValueError, match=f"A: .*{says}"):
                solve(A, np.ones(len(A)), devices="cpu:2", **options)
    with pytest.raises(ValueError, match=f"b: .*{says}"):
        solve(np.ones((1000, 2)), mapped, devices="cpu:2")
    with pytest.raises(ValueError, match="raw: ends before row 1000 of 1000"):
        rows_of(mapped, 400, 1000, mapped.dtype)  # shortened meanwhile


PEAK = """
import resource, sys

import numpy

from d2lpar.least_squares import solve

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

path, method = sys.argv[1:]
A = numpy.load(path, mmap_mode="r")
b = numpy.arange(len(A)) % 7 / 7
blocks = {"block_bytes": 2**22, "resident_bytes": 0}
warm = slice(0, len(A) // 50)
solve(A[warm], b[warm], devices="cpu:2", method=method, **blocks)
before = peak()
solution = solve(path, b, devices="cpu:2", method=method, **blocks)
assert numpy.isfinite(solution.x).all()
print(peak() - before)
"""


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """An A of 1,000,000 x 50 on disk, 400 MB: random rows, over and over."""
    folder = tmp_path_factory.mktemp("large")
    if shutil.disk_usage(folder).free < 2**30:
        pytest.skip("less than 1 GiB is free for temporary files")
    rows = np.random.default_rng(0).random((20_000, 50))
    with open(folder / "A.npy", "wb") as f:
        header = {"descr": "<f8", "fortran_order": False, "shape": (1_000_000, 50)}
        np.lib.format.write_array_header_1_0(f, header)
        for _ in range(50):
            rows.tofile(f)
    yield folder / "A.npy"
    (folder / "A.npy").unlink()


@pytest.mark.parametrize("method", ["normal", "cgls"])
def test_memory_does_not_grow_with_the_rows(large_file, method):
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(large_file), method],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 0.25 * large_file.stat().st_size


# What cannot be solved


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_with_its_place(method, value):
    A, b = problem(50, 4)
    A[37, 2] = value
    with pytest.raises(ValueError, match=f"A is {value} in row 37, column 2"):
        solve(A, b, devices="cpu:2", method=method)
    A, b = problem(50, 4)
    b[11] = value
    with pytest.raises(ValueError, match=f"b is {value} in row 11, column 0"):
        solve(A, b, devices="cpu:2", method=method)


@pytest.mark.parametrize(
    ("A", "b", "says"),
    [
        (np.ones((4, 2)), np.ones(3), r"b is of shape \(3,\).*4 rows"),
        (np.ones((4, 2)), np.ones((1, 4)), "as b.T has"),
        (np.ones(4), np.ones(4), r"A is of shape \(4,\)"),
        (np.ones((4, 2, 1)), np.ones(4), r"A is of shape \(4, 2, 1\)"),
        (np.ones((0, 2)), np.ones(0), "empty"),
        (np.ones((4, 0)), np.ones(4), "empty"),
        (np.ones((4, 2)) * 1j, np.ones(4), "A is of dtype complex128"),
        (np.ones((4, 2)), np.array(["a"] * 4), "b is of dtype <U1"),
        (np.array([[None, 1]]), np.ones(1), "A is of dtype object"),
    ],
)
def test_what_is_no_problem_is_refused(A, b, says):
    with pytest.raises(ValueError, match=says):
        solve(A, b, devices="cpu:2")


def test_what_would_hang_is_refused(monkeypatch):
    A, b = problem(30, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    solve(A, b, devices="cpu:1")
    with pytest.raises(DeviceError, match="OMP_NUM_THREADS is 2: several CPU contexts"):
        solve(A, b, devices="cpu:2")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    with pytest.raises(DeviceError, match="OMP_NUM_THREADS is 4"):
        solve(A, b, devices="cpu:2")


def test_unknown_names_are_refused():
    A, b = problem(10, 2)
    with pytest.raises(ValueError, match="method 'svd': write one of normal"):
        solve(A, b, devices="cpu:1", method="svd")
    with pytest.raises(ValueError, match="dtype float16"):
        solve(A, b, devices="cpu:1", dtype="float16")
    with pytest.raises(ValueError, match="dtype real: write float64"):
        solve(A, b, devices="cpu:1", dtype="real")
    with pytest.raises(ValueError, match="the list is empty"):
        solve(A, b, devices=[])
    with pytest.raises(ValueError, match="absent.npy cannot be opened"):
        solve("absent.npy", b, devices="cpu:1")
    for options in ({"tol": 0}, {"tol": np.nan}, {"max_iterations": 0}):
        with pytest.raises(ValueError, match="above 0"):
            solve(A, b, devices="cpu:1", method="cgls", **options)
    for option in ("num_epochs", "num_samples", "steps_per_epoch"):
        with pytest.raises(ValueError, match=f"{option} 0: write a whole number above"):
            solve(A, b, devices="cpu:1", method="averaging", **{option: 0})
    for method in ("averaging", "cgls", "gradient"):
        for x0 in (np.zeros(3), [np.nan, 1]):
            with pytest.raises(
                ValueError, match="x0 is of shape .* write 2 x 1 finite"
            ):
                solve(A, b, devices="cpu:1", method=method, x0=x0)
    with pytest.raises(ValueError, match=r"reference is of shape \(3,\)"):
        solve(A, b, devices="cpu:1", reference=np.zeros(3))


# The method of the least-squares notes


def notes_averaging(A, b, epochs, rng, x, num_samples, steps):
    """The notes' run(), with random row numbers of ours and their aliasing."""
    x_hat, halves = x, np.split(np.arange(len(A)), 2)
    lr = 1e-3 / A.shape[1]
    for _ in range(epochs):
        x, x_list = x_hat, []
        rows = [half[rng.integers(len(half), size=num_samples)] for half in halves]
        for index in rows:
            for _ in range(steps):
                x -= 2 * A[index].T @ (A[index] @ x - b[index]) * lr
            x_list.append(x.copy())
        x_hat = sum(x_list) / 2
    return x_hat


def test_not_independent_is_the_notes_code():
    data = datasets.uniform_problem(400, 20, seed=1)
    options = {"num_samples": 50, "steps_per_epoch": 30}
    x0 = np.random.default_rng(5).random(20)
    ours = solve(
        data.A, data.b, devices="cpu:2", method="averaging", independent=False,
        num_epochs=4, seed=9, x0=x0, **options,
    )  # fmt: skip
    rng = np.random.default_rng([9, 1])
    theirs = notes_averaging(data.A, data.b, 4, rng, x0.copy(), 50, 30)
    np.testing.assert_allclose(ours.x, theirs, rtol=1e-10)
    independent = solve(
        data.A, data.b, devices="cpu:2", method="averaging", num_epochs=4, seed=9,
        x0=x0, **options,
    )  # fmt: skip
    assert np.abs(independent.x - theirs).max() > 1e-6


def test_on_the_notes_problem_averaging_ends_where_the_notes_do():
    """28.6 to 29.0, where the optimum is about 27.3: the notes printed 28.81.

    Independent devices get half as far in as many epochs: they do not build on each
    other's steps.
    """
    data = datasets.uniform_problem(10_000, 1_000)
    ends = {}
    for independent in (True, False):
        (*_, last) = train(
            2, devices="cpu:2", method="averaging", data=data, independent=independent
        )
        assert last.iteration == 40 and 0.1 < last.distance < 3
        ends[independent] = last.residual_norm
    assert 28.6 < ends[False] < 29.0
    assert ends[False] < ends[True] < 35


def test_averaging_that_diverges_says_so():
    data = datasets.uniform_problem(200, 20)
    with pytest.raises(ValueError, match="diverged in epoch 1: use a smaller lr"):
        solve(data.A, data.b, devices="cpu:2", method="averaging", lr=10.0)


@pytest.mark.parametrize("independent", [True, False])
def test_averaging_on_more_devices_than_rows(independent):
    """Devices without rows take no part: 3 rows are the work of three."""
    A, b = problem(3, 2)
    options = {"method": "averaging", "num_epochs": 3, "independent": independent}
    many = solve(A, b, devices="cpu:7", **options)
    three = solve(A, b, devices="cpu:3", **options)
    assert np.isfinite(many.x).all() and len(many.devices) == 7
    np.testing.assert_array_equal(many.x, three.x)
    assert len(many.history[-1].device_residual_norms) == 3


def test_the_notes_class():
    data = datasets.uniform_problem(600, 30)
    lstsq = LeastSquare(data.A, data.b, num_gpu=2, epoches=3)
    theta = lstsq.run()
    assert theta.shape == (30,) and len(lstsq.error_list) == 6
    error = lstsq.check(theta)
    assert error == pytest.approx(norm(data.A, theta, data.b))
    assert lstsq.error_list[-1] == error and len(lstsq.error_list) == 7


def test_train_yields_points_for_the_runner():
    data = datasets.uniform_problem(300, 20)
    points = list(train(2, devices="cpu:2", method="cgls", data=data))
    assert points[0].distance > points[-1].distance < 1e-8
    seconds = [point.seconds for point in points]
    assert seconds == sorted(seconds)
    np.testing.assert_allclose(
        points[-1].extra["x_begins"], lapack(data.A, data.b)[:5], atol=1e-7
    )
    assert "x" not in points[-1].extra


def test_iterative_methods_start_at_the_x_of_averaging():
    """So that their distances to the optimum can be compared."""
    data = datasets.uniform_problem(300, 20)
    x0 = np.random.default_rng([3, 1]).random(20)
    brief = {"devices": "cpu:2", "data": data, "seed": 3}
    averaged = list(train(2, method="averaging", num_epochs=1, **brief))
    assert len(averaged[-1].extra["x"]) == 20  # all of it, as the notes print
    first = next(iter(train(2, method="gradient", max_iterations=1, **brief)))
    best = lapack(data.A, data.b)
    step = 0.95 / np.linalg.eigvalsh(data.A.T @ data.A)[-1]
    x1 = x0 - step * data.A.T @ (data.A @ x0 - data.b)
    expected = np.linalg.norm(x1 - best) / np.linalg.norm(best)
    assert first.distance == pytest.approx(expected, rel=1e-3)


def test_a_problem_in_a_file_is_the_one_in_memory():
    in_memory = datasets.uniform_problem(300, 20, seed=4)
    in_file = datasets.uniform_file(300, 20, seed=4)
    np.testing.assert_array_equal(in_file.A, in_memory.A)
    np.testing.assert_array_equal(in_file.b, in_memory.b)
    assert in_file.sha256 == in_memory.sha256
    where = re.escape(tempfile.gettempdir())
    with pytest.raises(
        DataError, match=f"^{where}: .* GiB are needed for 1000000000 x"
    ):
        datasets.uniform_file(10**9, 10**6)


def test_a_file_that_cannot_be_written_names_its_folder(monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        where = re.escape(tempfile.gettempdir())
        with pytest.raises(OSError, match=f"File too large: '{where}'$"):
            datasets.uniform_file(300, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_devices", [1, 2])
def test_what_is_solved_is_left_as_it_is(method, num_devices):
    """cpu(0) reads A where it is: it must neither change nor become read-only."""
    A, b = problem(300, 8)
    were = A.copy(), b.copy()
    solve(A, b, devices=f"cpu:{num_devices}", method=method)
    assert (A == were[0]).all() and (b == were[1]).all()
    assert A.flags.writeable and b.flags.writeable
    A.flags.writeable = False
    solve(A, b, devices=f"cpu:{num_devices}", method=method)


# As on GPUs


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_cholesky_factor_that_is_none_is_refused(monkeypatch, dtype, num_devices):
    """MXNet on a GPU does not see that a factorisation fails, and goes on."""
    A, b = problem(300, 8)
    potrf = mx.nd.linalg.potrf
    halved = np.r_[np.ones(4), np.full(4, 0.5)]

    def first_half(G):
        L = potrf(G).asnumpy() * halved  # the last columns are not what they should be
        return mx.nd.array(L, ctx=G.context, dtype=dtype)

    garbage = {
        "G itself": lambda G: G * 1,
        "ones": lambda G: mx.nd.ones_like(G),
        "NaN": lambda G: mx.nd.ones_like(G) * np.nan,
        "negative": lambda G: -potrf(G),
        "half a factor": first_half,
    }
    options = {"devices": f"cpu:{num_devices}", "method": "normal", "dtype": dtype}
    solve(A, b, **options)
    for make in garbage.values():
        monkeypatch.setattr(mx.nd.linalg, "potrf", make)
        with pytest.raises(ValueError, match="method normal in .*use method tsqr"):
            solve(A, b, **options)


def rows_that_stay(monkeypatch, rows, overlaps=True):
    """CPU contexts that behave as GPUs with room for so many rows each."""
    monkeypatch.setattr(row_shards, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(row_shards.RowShards, "_room_on_gpus", lambda self: rows)
    monkeypatch.setattr(row_shards.RowShards, "_overlaps", overlaps)


@pytest.mark.parametrize("method", [*DIRECT, "cgls", "gradient"])
@pytest.mark.parametrize("num_devices", [1, 2, 3])
@pytest.mark.parametrize("rows", [0, 49, 50, 120, 400])
def test_as_many_rows_stay_as_there_is_room_for(method, num_devices, rows, monkeypatch):
    A, b = problem(401, 7)
    rows_that_stay(monkeypatch, rows)
    watched = Counted(A)
    options = {"devices": f"cpu:{num_devices}", "method": method, "block_bytes": 2800}
    solution = solve(watched, b, **options)
    check_against_lapack(A, b, solution)
    longest = -(-401 // num_devices)
    stay = longest if longest <= rows else rows // 50 * 50
    read = [watched.count[k] for k in range(len(A))]
    for k in range(num_devices):
        begin, end = (sum(divmod(401, num_devices)[0] + (j < 401 % num_devices)
                          for j in range(n)) for n in (k, k + 1))  # fmt: skip
        assert read[begin : begin + stay][: end - begin] == [1] * min(stay, end - begin)
        rest = set(read[begin + stay : end])
        assert not rest or min(rest) > 1  # every pass, and the residual's


def test_averaging_takes_what_stays(monkeypatch):
    A, b = problem(400, 5)
    options = {"devices": "cpu:2", "method": "averaging", "num_epochs": 2}
    expected = solve(A, b, **options)
    rows_that_stay(monkeypatch, 200)
    np.testing.assert_array_equal(solve(A, b, **options).x, expected.x)
    rows_that_stay(monkeypatch, 199)
    with pytest.raises(ValueError, match="an A in memory"):
        solve(A, b, **options)


def test_the_room_on_gpus_leaves_a_margin(monkeypatch):
    """80 % of the fullest GPU's free memory, less ten matrices and two blocks."""
    A, b = problem(40, 5)
    asked = []

    def free_memory(devices, running):
        asked.append((devices, running))
        return [3_000_000, 1_000_000]

    monkeypatch.setattr(row_shards, "free_memory", free_memory)
    monkeypatch.setattr(row_shards, "RESIDENT_BYTES", 100)
    gpus = [mx.gpu(0), mx.gpu(1)]
    shards = row_shards.RowShards(A, b, gpus, block_bytes=8 * 5 * 3)
    row = 8 * (5 + 1)
    assert shards._room == (800_000 - 10 * 5 * row - 2 * 3 * row) // row
    assert shards.resident and asked == [(gpus, True)]
    small = row_shards.RowShards(A[:2], b[:2], gpus)
    assert small.resident and len(asked) == 1  # NVML is not asked for 100 bytes
    streamed = row_shards.RowShards(A, b, gpus, resident_bytes=0)
    assert not streamed.resident and streamed._room == 0 and len(asked) == 1


def test_tsqr_takes_a_large_block_in_parts(monkeypatch):
    A, b = problem(500, 6)
    whole = solve(A, b, devices="cpu:2", method="tsqr")
    heights = []
    triangle = direct._triangle

    def watched(rows, width):
        heights.append(sum(part.shape[0] for part in rows))
        return triangle(rows, width)

    monkeypatch.setattr(direct, "_triangle", watched)
    monkeypatch.setattr(direct, "RESIDENT_BYTES", 100)
    parts = solve(A, b, devices="cpu:2", method="tsqr", block_bytes=8 * 6 * 60)
    np.testing.assert_allclose(parts.x, whole.x, rtol=1e-12)
    assert max(heights) == 60 + 7 and parts.rank == 6


class Counted:
    """Counts how often each row is read."""

    def __init__(self, array):
        self._array, self.shape, self.dtype = array, array.shape, array.dtype
        self.count = dict.fromkeys(range(len(array)), 0)

    def __getitem__(self, rows):
        for k in range(*rows.indices(len(self._array))):
            self.count[k] += 1
        return self._array[rows]

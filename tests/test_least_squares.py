"""Least squares against LAPACK: every method, any number of devices, any problem."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar import datasets, devices
from d2lpar.errors import DeviceError
from d2lpar.least_squares import METHODS, LeastSquare, solve, train

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


def is_as_good_as_lapack(A, b, solution, relative=1e-10):
    """A residual no larger than LAPACK's, and norms that are true."""
    expected = norm(A, lapack(A, b), b)
    actual = norm(A, solution.x, b)
    assert actual <= expected + relative * np.linalg.norm(b)
    assert solution.residual_norm == pytest.approx(actual, abs=1e-9)


@pytest.mark.parametrize("method", [*DIRECT, "cgls", "gradient"])
@pytest.mark.parametrize("num_devices", COUNTS)
def test_every_method_finds_lapacks_solution(method, num_devices):
    A, b = problem(101, 13)
    solution = solve(A, b, devices=f"cpu:{num_devices}", method=method)
    is_as_good_as_lapack(A, b, solution)
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
    more=st.integers(0, 40),
    num_devices=st.integers(1, 7),
    k=st.integers(1, 3),
    method=st.sampled_from([*DIRECT, "cgls"]),
    seed=st.integers(0, 1000),
)
def test_any_shape_on_any_devices(n, more, num_devices, k, method, seed):
    """Rows that do not divide, more devices than rows, several right-hand sides."""
    A, b = problem(n + more, n, seed, k)
    if np.linalg.cond(A) > 1e4:
        return  # the ill-conditioned have tests of their own
    solution = solve(A, b, devices=f"cpu:{num_devices}", method=method)
    assert solution.x.shape == (n, k) and solution.residual_norm.shape == (k,)
    expected = np.linalg.norm(A @ lapack(A, b) - b, axis=0)
    np.testing.assert_allclose(solution.residual_norm, expected, atol=1e-8)


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
@pytest.mark.parametrize("num_devices", [1, 3])
def test_ill_conditioned(condition, num_devices, caplog):
    A, b = with_condition(400, 30, condition)
    solution = solve(A, b, devices=f"cpu:{num_devices}", method="tsqr")
    is_as_good_as_lapack(A, b, solution)
    assert condition / 3 < solution.condition < 3 * condition or condition > 1e11
    if condition <= 1e6:
        is_as_good_as_lapack(A, b, solve(A, b, devices="cpu:2", method="normal"))
        assert ("normal equations square it" in caplog.text) == (condition > 1e5)
    else:
        with pytest.raises(ValueError, match="ill-conditioned.*use method tsqr"):
            solve(A, b, devices="cpu:2", method="normal")


@pytest.mark.parametrize("method", DIRECT)
def test_badly_scaled_columns_do_no_harm(method):
    A, b = problem(200, 10)
    A = A * np.logspace(-9, 9, 10)
    solution = solve(A, b, devices="cpu:2", method=method)
    is_as_good_as_lapack(A, b, solution)


def test_rank_deficient():
    A, b = problem(60, 6)
    A[:, 4] = A[:, 1] - 2 * A[:, 2]
    with pytest.raises(ValueError, match="rank-deficient.*tsqr"):
        solve(A, b, devices="cpu:2", method="normal")
    solution = solve(A, b, devices="cpu:2", method="tsqr")
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
    for method in DIRECT:
        is_as_good_as_lapack(A, b, solve(A, b, devices="cpu:2", method=method))


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
    is_as_good_as_lapack(A, b, solution)
    np.testing.assert_allclose(solution.x, lapack(A, b), atol=1e-8)


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
    with pytest.raises(ValueError, match="raw: ends before row"):
        solve(mapped, b, devices="cpu:2", block_bytes=8000, resident_bytes=0)


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
    monkeypatch.setattr(devices, "usable_cores", lambda: 8)
    with pytest.raises(DeviceError, match="OMP_NUM_THREADS is 4"):
        solve(A, b, devices="cpu:2")


def test_unknown_names_are_refused():
    A, b = problem(10, 2)
    with pytest.raises(ValueError, match="method 'svd': write one of normal"):
        solve(A, b, devices="cpu:1", method="svd")
    with pytest.raises(ValueError, match="dtype float16"):
        solve(A, b, devices="cpu:1", dtype="float16")
    with pytest.raises(ValueError, match="absent.npy cannot be opened"):
        solve("absent.npy", b, devices="cpu:1")
    for options in ({"tol": 0}, {"tol": np.nan}, {"max_iterations": 0}):
        with pytest.raises(ValueError, match="above 0"):
            solve(A, b, devices="cpu:1", method="cgls", **options)


# The seed's method


def seeds_averaging(A, b, epochs, rng, x, num_samples, steps):
    """The seed's run(), with its random row numbers and its aliasing."""
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


def test_not_independent_is_the_seeds_code():
    data = datasets.uniform_problem(400, 20, seed=1)
    options = {"num_samples": 50, "steps_per_epoch": 30}
    x0 = np.random.default_rng(5).random(20)
    ours = solve(
        data.A, data.b, devices="cpu:2", method="averaging", independent=False,
        num_epochs=4, seed=9, x0=x0, **options,
    )  # fmt: skip
    rng = np.random.default_rng([9, 1])
    theirs = seeds_averaging(data.A, data.b, 4, rng, x0.copy(), 50, 30)
    np.testing.assert_allclose(ours.x, theirs, rtol=1e-10)
    slowly = solve(
        data.A, data.b, devices="cpu:2", method="averaging", independent=False,
        num_epochs=4, seed=9, x0=x0, step_by_step=True, **options,
    )  # fmt: skip
    np.testing.assert_allclose(slowly.x, theirs, rtol=1e-10)
    independent = solve(
        data.A, data.b, devices="cpu:2", method="averaging", num_epochs=4, seed=9,
        x0=x0, **options,
    )  # fmt: skip
    assert np.abs(independent.x - theirs).max() > 1e-6


def test_on_the_seeds_problem_averaging_ends_where_the_seed_does():
    """28.6 to 29.0, where the optimum is about 27.3: the seed printed 28.81.

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


def test_the_seeds_class():
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


def test_a_problem_in_a_file_is_the_one_in_memory():
    in_memory = datasets.uniform_problem(300, 20, seed=4)
    in_file = datasets.uniform_file(300, 20, seed=4)
    np.testing.assert_array_equal(in_file.A, in_memory.A)
    np.testing.assert_array_equal(in_file.b, in_memory.b)
    assert in_file.sha256 == in_memory.sha256
    with pytest.raises(datasets.DataError, match="GiB are needed for 1000000000 x"):
        datasets.uniform_file(10**9, 10**6)

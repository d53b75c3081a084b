"""Least squares against LAPACK: every method, any number of devices, any problem."""

import numpy as np
import pytest
from support.command import python

from d2lpar import datasets
from d2lpar._mxnet import mx
from d2lpar.devices import for_chunks, parse
from d2lpar.errors import DeviceError, DivergedError
from d2lpar.least_squares import METHODS, LeastSquare, measure, solve
from d2lpar.machine import host

DIRECT = ("normal", "tsqr")
EXACT = (*DIRECT, "cgls", "gradient")
BLOCKS = {"block_bytes": 7 * 8 * 50, "resident_bytes": 0}  # 50 rows of 7 numbers


def lapack(A, b):
    """The minimum-norm solution, and the norm of its residual."""
    A, b = np.asarray(A, float), np.asarray(b, float)
    x = np.linalg.lstsq(A, b, rcond=None)[0]
    return x, np.linalg.norm(A @ x - b)


def problem(m, n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, n)), rng.normal(size=m)


def with_condition(condition, n=30, m=200, seed=0):
    """Singular values evenly on a logarithmic scale.

    b is A times a vector of ordinary size, and a residual that A cannot reach.
    """
    rng = np.random.default_rng(seed)
    s = np.logspace(0, -np.log10(condition), n)
    U, _ = np.linalg.qr(rng.normal(size=(m, n)))
    V, _ = np.linalg.qr(rng.normal(size=(n, n)))
    A, rest = (U * s) @ V.T, rng.normal(size=m)
    return A, A @ rng.normal(size=n) + rest - U @ (U.T @ rest)


# Right answers


# Fewer rows than devices, fewer rows than columns, rank lost.
SHAPES_AND_RANKS = [
    ("float64", 5, 5, 5),
    ("float64", 30, 1, 1),
    ("float64", 3, 10, 3),
    ("float64", 40, 6, 5),
    ("float32", 40, 6, 6),
    ("float32", 3, 10, 3),
]


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(("dtype", "m", "n", "rank"), SHAPES_AND_RANKS)
def test_residual_and_norm_are_lapacks(method, dtype, m, n, rank):
    rng = np.random.default_rng(0)
    U, _ = np.linalg.qr(rng.normal(size=(m, rank)))
    V, _ = np.linalg.qr(rng.normal(size=(n, rank)))
    A, b = (U * np.linspace(1, 3, rank)) @ V.T, rng.normal(size=m)
    options = {"devices": "cpu:7", "method": method, "dtype": dtype}
    if method == "normal" and rank < n:
        with pytest.raises(ValueError, match="rank-deficient.*tsqr"):
            solve(A, b, **options)
        return
    best, left = lapack(A, b)
    solution = solve(A, b, **options)
    assert solution.x.dtype == dtype and solution.x.shape == (n,)
    near = 1e-6 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(solution.x, best, rtol=near, atol=near)
    assert abs(solution.residual_norm - left) <= near * np.linalg.norm(b)


@pytest.mark.parametrize("method", EXACT)
def test_every_method_finds_lapacks_solution(method, caplog):
    A, b = problem(101, 13)
    best, left = lapack(A, b)
    solution = solve(A, b, devices="cpu:7", method=method, reference=best)
    tolerance = 1e-10 if method in DIRECT else 1e-7
    np.testing.assert_allclose(solution.x, best, rtol=tolerance, atol=tolerance)
    assert solution.residual_norm == pytest.approx(left, rel=1e-12)
    assert solution.method == method and len(solution.devices) == 7
    last = solution.history[-1]
    assert last.distance < tolerance and last.residual_norm == solution.residual_norm
    assert solution.seconds >= last.seconds > 0
    assert not caplog.messages


@pytest.mark.parametrize("method", EXACT)
def test_shared_by_8_chunks_the_answer_has_the_same_bits(method):
    A, b = problem(603, 20)
    chunks = [for_chunks(parse(f"cpu:{n}")) for n in (1, 2, 3, 8)]
    x, *others = (solve(A, b, devices=of, method=method).x for of in chunks)
    assert all(np.array_equal(x, other) for other in others)


# Ill-conditioned, rank-deficient, badly scaled


@pytest.mark.parametrize(
    ("dtype", "condition", "normal"),
    [
        ("float64", 1e4, "solves"),
        ("float64", 1e6, "solves"),
        ("float64", 1e7, "warns"),
        ("float64", 1e10, "refuses"),
        ("float32", 1e1, "solves"),
        ("float32", 3e3, "refuses"),
    ],
)
def test_ill_conditioned(dtype, condition, normal, caplog):
    A, b = with_condition(condition)
    _, left = lapack(A, b)
    most = left + (1e-9 if dtype == "float64" else 1e-4) * np.linalg.norm(b)
    options = {"devices": "cpu:3", "dtype": dtype}
    assert solve(A, b, method="cgls", **options).residual_norm <= most
    caplog.clear()
    solution = solve(A, b, method="tsqr", **options)
    assert solution.residual_norm <= most
    assert condition / 3 < solution.condition < 3 * condition
    assert not caplog.messages
    if normal == "refuses":
        with pytest.raises(ValueError, match="ill-conditioned.*use method tsqr"):
            solve(A, b, method="normal", **options)
    else:
        assert solve(A, b, method="normal", **options).residual_norm <= most
        assert ("normal equations square it" in caplog.text) == (normal == "warns")


@pytest.mark.parametrize("condition", [1e2, 1e4, 2e5, 1e8])
def test_cgls_warns_of_an_x_that_is_off_though_its_residual_is_right(condition, caplog):
    A, b = with_condition(condition)
    best, _ = lapack(A, b)
    x = solve(A, b, devices="cpu:2", method="cgls").x
    off = np.linalg.norm(x - best) / np.linalg.norm(best)
    assert ("x may be off" in caplog.text) == (off > 0.05) == (condition > 1e5)
    assert off < 1e-5 or caplog.messages


def some_system(seed, dtype="float64"):
    """Any shape, rank, condition and scale; b is reached, nearly reached, or random."""
    rng = np.random.default_rng(seed)
    m, n = rng.integers(2, 60), rng.integers(1, 15)
    rank = min(m, n, rng.integers(1, 15)) if seed % 4 == 0 else min(m, n)
    U, _ = np.linalg.qr(rng.normal(size=(m, rank)))
    V, _ = np.linalg.qr(rng.normal(size=(n, rank)))
    A = (U * np.logspace(0, -rng.uniform(0, 14), rank)) @ V.T
    A = [A, A + 1e5, rng.normal(size=(m, n)) * np.logspace(-5, 5, n)][seed % 3]
    b = A @ rng.normal(size=n)
    b = b + np.linalg.norm(b) * rng.normal(size=m) * [0, 1e-6, 1][seed % 5 % 3]
    largest = 30 if dtype == "float64" else 3
    A, b = (array * 10 ** rng.uniform(-largest, largest) for array in (A, b))
    return A.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(("dtype", "near"), [("float64", 1e-5), ("float32", 1e-3)])
def test_any_answer_is_right_or_warned_of_or_refused(method, dtype, near, caplog):
    options, right = {"max_iterations": 200} if method == "gradient" else {}, 0
    for seed in range(20 if dtype == "float32" or method == "gradient" else 60):
        A, b = some_system(seed, dtype)
        options["devices"] = f"cpu:{seed % 3 + 1}"
        caplog.clear()
        try:
            x = solve(A, b, method=method, dtype=dtype, **options).x
        except ValueError:
            continue
        A, b = A.astype(float), b.astype(float)
        excess = np.linalg.norm(A @ x - b) - lapack(A, b)[1]
        wrong = excess > near * np.linalg.norm(b)
        assert caplog.messages or not wrong, seed
        right += not wrong
    assert right > 5


def test_gradient_descent_looks_for_a_hidden_singular_value(caplog):
    for smallest in (0.5, 1e-9):
        A, b = np.diag([1, 1, smallest]), np.ones(3)
        solve(A, b, devices="cpu:1", method="gradient")
        assert ("conjugate steps still lower" in caplog.text) == (smallest == 1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_cgls_stops_at_rounding(dtype):
    """A goal that cannot be reached; null spaces, in which steps would be huge."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        m, n, rank = rng.integers(2, 30, size=3)
        A = rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n))
        b = rng.normal(size=m)
        solution = solve(A, b, devices="cpu:2", method="cgls", dtype=dtype, tol=1e-30)
        assert solution.history[-1].iteration < 20 * n
        s = np.linalg.svd(A, compute_uv=False)
        if s[min(m, n, rank) - 1] > s[0] / 30:
            best = np.linalg.lstsq(A, b, rcond=1e-8)[0]
            off = np.linalg.norm(solution.x - best) / np.linalg.norm(best)
            assert off < (1e-6 if dtype == "float64" else 1e-2)
        assert np.linalg.norm(A @ solution.x - b) <= np.linalg.norm(b)


@pytest.mark.parametrize("method", ["cgls", "gradient"])
def test_the_limit_of_iterations_is_named(method, caplog):
    solve(*problem(60, 9), devices="cpu:1", method=method, max_iterations=2)
    assert "after 2 iterations" in caplog.text


@pytest.mark.parametrize("method", DIRECT)
def test_badly_scaled_columns_do_no_harm(method):
    """Unlike in NumPy, lengths of columns are units, and say nothing of the rank."""
    A, b = problem(200, 10)
    _, left = lapack(A, b)
    A = A * np.logspace(-9, 9, 10)
    solution = solve(A, b, devices="cpu:2", method=method)
    assert solution.residual_norm == pytest.approx(left, rel=1e-10)
    assert solution.rank == 10 > np.linalg.matrix_rank(A)
    A[:, 4] = A[:, 3] * 1e3
    assert solve(A, b, devices="cpu:2", method="tsqr").rank < 10


def test_the_rank_is_that_of_the_computations_dtype(caplog):
    A, b = problem(100, 3)
    A = (A + 1e6).astype("float32")
    assert np.linalg.lstsq(A, b, rcond=None)[2] == 3
    for dtype, rank in (("float64", 3), ("float32", 1)):
        solution = solve(A, b, devices="cpu:2", method="tsqr", dtype=dtype)
        assert solution.rank == rank
    assert "A has rank 1, not 3" in caplog.text


@pytest.mark.parametrize("residual", [True, False])
def test_a_cholesky_factor_that_is_none_is_refused(residual, monkeypatch):
    """MXNet on a GPU does not see that a factorisation fails, and goes on."""
    A, b = problem(300, 8)
    potrf = mx.nd.linalg.potrf
    halved = np.r_[np.ones(4), np.full(4, 0.5)]

    def first_half(G):
        L = potrf(G).asnumpy() * halved  # the last columns are not what they should be
        return mx.nd.array(L, ctx=G.context, dtype="float64")

    for make in (lambda G: mx.nd.ones_like(G) * np.nan, first_half):
        monkeypatch.setattr(mx.nd.linalg, "potrf", make)
        with pytest.raises(ValueError, match=r"method normal in float64.* tsqr"):
            solve(A, b, devices="cpu:2", method="normal", residual=residual)


@pytest.mark.parametrize("method", EXACT)
def test_large_numbers_are_solved_and_too_large_ones_refused(method):
    A, b = problem(60, 4)
    x = solve(A * 1e40, b * 1e-20, devices="cpu:2", method=method).x
    np.testing.assert_allclose(x * 1e60, lapack(A, b)[0], rtol=1e-5)
    with pytest.raises(ValueError, match="scale|tsqr"):  # its squares overflow
        solve(A * 1e200, b, devices="cpu:2", method=method)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(
    ("dtype", "of_A", "of_b"), [("float64", 1e-250, 1e-100), ("float32", 1e-36, 1e-11)]
)
def test_numbers_whose_products_underflow_are_refused(method, dtype, of_A, of_b):
    """A^T b is 0, as if b were orthogonal to A."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(13, 6)) * of_A, rng.normal(size=13) * of_b
    with pytest.raises(ValueError, match="scale A|too ill-conditioned"):
        solve(
            A.astype(dtype),
            b.astype(dtype),
            method=method,
            dtype=dtype,
            devices="cpu:2",
        )


@pytest.mark.parametrize("method", EXACT)
def test_of_zeros(method):
    A, b = problem(30, 4)
    with np.errstate(all="raise"):  # the user's own setting does no harm
        zero = solve(A, 0 * b, devices="cpu:2", method=method)
    np.testing.assert_array_equal(zero.x, np.zeros(4))
    assert zero.residual_norm == 0


# What may be given, larger than memory


def test_lists_whole_numbers_and_mxnets_arrays():
    A, b = [[1, 0], [0, 2], [1, 1]], [1, 2, 3]
    x = solve(A, b, devices="cpu:2").x
    np.testing.assert_allclose(x, lapack(A, b)[0], atol=1e-12)
    of_mxnet = [mx.np.array(array, dtype="float64") for array in (A, b)]
    np.testing.assert_array_equal(solve(*of_mxnet, devices="cpu:2").x, x)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_solved_is_left_as_it_is(method):
    """cpu(0) reads A where it is: it must neither change nor become read-only."""
    A, b = problem(300, 8)
    before = A.copy(), b.copy()
    solve(A, b, devices="cpu:2", method=method)
    assert (A == before[0]).all() and (b == before[1]).all()
    assert A.flags.writeable and b.flags.writeable
    A.flags.writeable = False
    solve(A, b, devices="cpu:2", method=method)


def as_path(A, folder):
    np.save(folder / "A.npy", A)
    return folder / "A.npy"


def as_path_in_columns(A, folder):
    return str(as_path(np.asfortranarray(A), folder))


def as_mapping(A, folder):
    return np.load(as_path(A, folder), mmap_mode="r")


@pytest.mark.parametrize("store", [as_path, as_path_in_columns, as_mapping])
def test_rows_in_blocks_give_the_same(tmp_path, store):
    A, b = problem(1003, 7)
    stored = store(A, tmp_path)
    best, left = lapack(A, b)
    for method in EXACT:
        solution = solve(stored, b, devices="cpu:3", method=method, **BLOCKS)
        np.testing.assert_allclose(solution.residual_norm, left, rtol=1e-8)
        np.testing.assert_allclose(solution.x, best, atol=1e-8)
    x = solve(stored, b, devices="cpu:2").x  # at once
    np.testing.assert_allclose(x, best, atol=1e-8)


@pytest.mark.parametrize("method", EXACT)
def test_the_pass_that_measures_the_residual_can_be_left_out(method):
    A, b = problem(500, 7)
    options = {"devices": "cpu:2", "method": method, **BLOCKS}
    with_residual = solve(A, b, **options)
    solution = solve(A, b, residual=False, **options)
    np.testing.assert_array_equal(solution.x, with_residual.x)
    assert np.isnan(solution.residual_norm) and solution.history == ()
    assert solution.condition == with_residual.condition


PEAK = """if True:
    import sys, numpy
    from d2lpar.least_squares import solve
    from d2lpar.machine.host import process_status

    path, options = sys.argv[1], {"block_bytes": 2**22, "resident_bytes": 0}
    A = numpy.load(path, mmap_mode="r")
    b = numpy.arange(len(A)) % 7 / 7
    solve(A[:20_000], b[:20_000], devices="cpu:2", method="cgls", **options)
    before = process_status("VmHWM")
    solve(path, b, devices="cpu:2", method="cgls", **options)
    print(process_status("VmHWM") - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """An A of 1,000,000 x 50 on disk, 400 MB: random rows, over and over."""
    rows, path = np.random.default_rng(0).random((20_000, 50)), tmp_path / "A.npy"
    with open(path, "wb") as f:
        header = {"descr": "<f8", "fortran_order": False, "shape": (1_000_000, 50)}
        np.lib.format.write_array_header_1_0(f, header)
        for _ in range(50):
            rows.tofile(f)
    peak = python(PEAK, path, OMP_NUM_THREADS="1")
    path.unlink()
    assert int(peak) < 100e6


# What cannot be solved


def test_a_path_that_is_no_right_array_is_named(tmp_path):
    A, b = problem(9, 3)
    paths = {name: tmp_path / name for name in ("A.npy", "b.npy", "A.npz", "A.csv")}
    np.save(paths["A.npy"], A)
    np.save(paths["b.npy"], b[:, None])
    np.savez(paths["A.npz"], A=A)
    np.savetxt(paths["A.csv"], A, delimiter=",")
    (tmp_path / "short.npy").write_bytes(paths["A.npy"].read_bytes()[:-8])
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"A is of shape \(9, 3\), b of shape \(9, 1\)"
    ):
        solve(paths["A.npy"], paths["b.npy"], devices="cpu:2")
    for name in ("A.npz", "A.csv", "short.npy", "empty.npy"):
        with pytest.raises(ValueError, match=rf"A, .*{name}: write the path of a .npy"):
            solve(tmp_path / name, b, devices="cpu:2")


@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_finite_is_refused(method):
    value = np.inf if method == "normal" else np.nan
    A, b = problem(150, 4)
    A[137, 2] = value
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        solve(A, b, devices="cpu:2", method=method)
    A, b = problem(50, 4)
    b[11] = value
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        solve(A, b, devices="cpu:2", method=method)


SOME = np.ones((60, 4)), np.ones(60)


@pytest.mark.parametrize(
    ("A", "b", "options", "error", "named"),
    [
        (np.ones((4, 2)), np.ones(3), {}, ValueError, r"b of shape \(3,\)"),
        (np.ones((0, 2)), np.ones(0), {}, ValueError, r"A is of shape \(0, 2\)"),
        (
            np.ones((4, 2)) * 1j,
            np.ones(4),
            {},
            TypeError,
            "A is complex128: convert",
        ),
        (np.ma.ones((4, 2)), np.ones(4), {}, TypeError, "A is a masked array, whose"),
        (*SOME, {"method": "svd"}, ValueError, "method 'svd': write one of normal"),
        (*SOME, {"dtype": "float16"}, ValueError, "dtype float16"),
        (*SOME, {"method": "normal", "tol": 1e-3}, TypeError, "'tol'"),
        (*SOME, {"tol": 5}, ValueError, "tol 5: write a number between 0 and 1"),
        (*SOME, {"tol": [0.1]}, ValueError, r"tol \[0.1\]: write a number between"),
        (*SOME, {"x0": np.ones(7)}, ValueError, r"x0 \(7,\): write \("),
        (*SOME, {"reference": np.ones(7)}, ValueError, r"reference \(7,\): write \("),
        (*SOME, {"max_iterations": 1.5}, ValueError, "max_iterations 1.5: write a"),
        (*SOME, {"method": "averaging", "resident_bytes": 0}, ValueError, "A in mem"),
        (*SOME, {"method": "averaging", "lr": np.inf}, ValueError, "lr inf: write a"),
        (*SOME, {"method": "averaging", "x0": np.ones(7)}, ValueError, r"x0 \(7,\): w"),
    ],
)
def test_what_is_no_problem_is_refused(A, b, options, error, named):
    with pytest.raises(error, match=named):
        solve(A, b, **{"devices": "cpu:2", "method": "cgls", **options})


def test_what_would_hang_is_refused(monkeypatch):
    A, b = problem(30, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    solve(A, b, devices="cpu:1")
    with pytest.raises(DeviceError, match="OMP_NUM_THREADS is 2: several CPU contexts"):
        solve(A, b, devices="cpu:2")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(host, "usable_cores", lambda: 8)
    with pytest.raises(DeviceError, match="OMP_NUM_THREADS is 4"):
        solve(A, b, devices="cpu:2")


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
    x0 = np.random.default_rng(5).random(20)
    options = {
        "devices": "cpu:2", "method": "averaging", "num_samples": 50,
        "steps_per_epoch": 30, "num_epochs": 4, "seed": 9, "x0": x0,
    }  # fmt: skip
    ours = solve(data.A, data.b, independent=False, **options)
    rng = np.random.default_rng([9, 1])
    theirs = notes_averaging(data.A, data.b, 4, rng, x0.copy(), 50, 30)
    np.testing.assert_allclose(ours.x, theirs, rtol=1e-10)
    independent = solve(data.A, data.b, **options)
    assert np.abs(independent.x - theirs).max() > 1e-6


@pytest.mark.slow
def test_on_the_notes_problem_averaging_ends_where_the_notes_do():
    """28.6 to 29.0, where the optimum is about 27.3: the notes printed 28.81."""
    data = datasets.uniform_problem(10_000, 1_000)
    (*_, last) = measure(
        2, devices="cpu:2", method="averaging", data=data, independent=False
    )
    assert last.iteration == 40 and 0.1 < last.distance < 3
    assert 28.6 < last.residual_norm < 29.0


@pytest.mark.parametrize("lr", [2e-4, 1e300])
def test_averaging_that_diverges_says_so(lr):
    """Also if it diverges so slowly that all numbers stay finite."""
    data = datasets.uniform_problem(200, 20)
    options = {"num_epochs": 2, "steps_per_epoch": 20}
    with pytest.raises(DivergedError, match="in epoch .: use a smaller lr"):
        solve(data.A, data.b, devices="cpu:2", method="averaging", lr=lr, **options)


def test_the_notes_class():
    data = datasets.uniform_problem(600, 30)
    lstsq = LeastSquare(data.A, data.b, num_gpu=2, epoches=3)
    theta = lstsq.run()
    assert theta.shape == (30,) and len(lstsq.error_list) == 6
    error = lstsq.check(theta)
    assert error == pytest.approx(np.linalg.norm(data.A @ theta - data.b))
    assert lstsq.error_list[-1] == error and len(lstsq.error_list) == 7


# What the runner measures


def test_a_repeated_solve_warns_once_and_its_warm_up_never(caplog):
    data = datasets.uniform_problem(200, 20, 0)
    list(measure(1, devices="cpu", method="gradient", data=data, repeats=3,
                 max_iterations=2))  # fmt: skip
    assert len(caplog.messages) == 1 and "after 2 iterations" in caplog.messages[0]


def test_measure_yields_points():
    data = datasets.uniform_problem(300, 20)
    points = list(measure(2, devices="cpu:2", method="cgls", data=data, repeats=3))
    once = [point for point in points if point.repeat == 0]
    assert [p.residual_norm for p in points] == 3 * [p.residual_norm for p in once]
    assert once[0].distance > once[-1].distance < 1e-8
    seconds = [point.seconds for point in once]
    assert seconds == sorted(seconds)
    best, _ = lapack(data.A, data.b)
    np.testing.assert_allclose(once[-1].x_begins, best[:5], atol=1e-7)
    assert once[-1].x == [] and once[0].peak_resident_mb > 10
    on_disk = datasets.uniform_file(300, 20)
    (*_, last) = measure(
        2, devices="cpu:2", method="cgls", data=on_disk, resident_bytes=0
    )
    assert last.distance is None
    assert last.residual_norm == pytest.approx(points[-1].residual_norm)


def test_iterative_methods_start_at_the_x_of_averaging():
    """So that their distances to the optimum can be compared."""
    data = datasets.uniform_problem(300, 20)
    x0 = np.random.default_rng([3, 1]).random(20)
    brief = {"devices": "cpu:2", "data": data, "seed": 3}
    averaged = list(measure(2, method="averaging", num_epochs=1, **brief))
    assert len(averaged[-1].x) == 20  # all of it, as the notes print
    first = next(iter(measure(2, method="gradient", max_iterations=1, **brief)))
    best, _ = lapack(data.A, data.b)
    step = 0.95 / np.linalg.eigvalsh(data.A.T @ data.A)[-1]
    x1 = x0 - step * data.A.T @ (data.A @ x0 - data.b)
    expected = np.linalg.norm(x1 - best) / np.linalg.norm(best)
    assert first.distance == pytest.approx(expected, rel=1e-3)


def test_a_problem_in_a_file_is_the_one_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_memory = datasets.uniform_problem(300, 20, seed=4)
    in_file = datasets.uniform_file(300, 20, seed=4)
    np.testing.assert_array_equal(in_file.A, in_memory.A)
    np.testing.assert_array_equal(in_file.b, in_memory.b)
    assert in_file.sha256 == in_memory.sha256 and list(tmp_path.iterdir())
    in_file.folder.cleanup()
    assert not list(tmp_path.iterdir())

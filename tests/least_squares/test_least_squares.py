"""Least squares against LAPACK: every method, any number of devices, any problem."""

import numpy as np
import pytest

from d2lpar import datasets
from d2lpar._mxnet import mx
from d2lpar.errors import DeviceError, DivergedError
from d2lpar.least_squares import METHODS, LeastSquare, measure, solve
from d2lpar.machine import host

DIRECT = ("normal", "tsqr")
EXACT = (*DIRECT, "cgls")


def lapack(A, b):
    """The minimum-norm solution, and the norm of its residual."""
    A, b = np.asarray(A, float), np.asarray(b, float)
    x = np.linalg.lstsq(A, b, rcond=None)[0]
    return x, np.linalg.norm(A @ x - b)


def problem(m, n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, n)), rng.normal(size=m)


def graded(m, n, rng, condition):
    """A with singular values evenly on a logarithmic scale, from 1 down."""
    k = min(m, n)
    U, _ = np.linalg.qr(rng.normal(size=(m, k)))
    V, _ = np.linalg.qr(rng.normal(size=(n, k)))
    return (U * np.logspace(0, -np.log10(condition), k)) @ V.T


# Right answers


# Fewer rows than devices, fewer rows than columns, rank lost.
SHAPES_AND_RANKS = [
    ("float64", 5, 5, 5),
    ("float64", 603, 20, 20),
    ("float64", 30, 1, 1),
    ("float64", 3, 10, 3),
    ("float64", 40, 6, 5),
    ("float32", 603, 20, 20),
    ("float32", 3, 10, 3),
]


@pytest.mark.parametrize("num_devices", [1, 2, 7])
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(("dtype", "m", "n", "rank"), SHAPES_AND_RANKS)
def test_residual_and_norm_are_lapacks(
    method, dtype, m, n, rank, num_devices, contexts, caplog
):
    """On a GPU MXNet ignores that a Cholesky factorisation fails."""
    rng = np.random.default_rng(0)
    U, _ = np.linalg.qr(rng.normal(size=(m, rank)))
    V, _ = np.linalg.qr(rng.normal(size=(n, rank)))
    A, b = (U * np.linspace(1, 3, rank)) @ V.T, rng.normal(size=m)
    options = {"devices": contexts(num_devices), "method": method, "dtype": dtype}
    if method == "normal" and rank < n:
        with pytest.raises(ValueError, match="rank-deficient.*tsqr"):
            solve(A, b, **options)
        return
    best, left = lapack(A, b)
    solution = solve(A, b, **options)
    assert solution.x.dtype == dtype and solution.x.shape == (n,)
    near = 1e-12 if dtype == "float64" else 1e-5
    assert abs(solution.residual_norm - left) <= near * np.linalg.norm(b)
    near *= 1e5 if method == "cgls" and dtype == "float64" else 20
    np.testing.assert_allclose(solution.x, best, rtol=near, atol=near)
    lost = {"normal": False, "tsqr": rank < n, "cgls": rank < min(m, n)}[method]
    assert bool(caplog.messages) == lost


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
    rng = np.random.default_rng(0)
    A, rest = graded(200, 30, rng, condition), rng.normal(size=200)
    U, _ = np.linalg.qr(A)
    b = A @ rng.normal(size=30) + rest - U @ (U.T @ rest)  # rest is out of A's reach
    _, left = lapack(A, b)
    most = left + (1e-9 if dtype == "float64" else 1e-4) * np.linalg.norm(b)
    options = {"devices": "cpu:3", "dtype": dtype}
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


@pytest.mark.parametrize("condition", [8e2, 3e4])
def test_normal_equations_are_refined(condition):
    """So that they lose the digits of the condition, and not of its square."""
    rng = np.random.default_rng(0)
    A, x = graded(200, 30, rng, condition), rng.normal(size=30)
    found = solve(A, A @ x, devices="cpu:2", method="normal").x
    assert np.linalg.norm(found - x) < 1e-14 * condition


@pytest.mark.parametrize(
    ("dtype", "near", "limit"), [("float64", 1e-5, 1e5), ("float32", 1e-2, 1e3)]
)
@pytest.mark.parametrize("shape", [(90, 9), (12, 12), (5, 17)])
def test_cgls_is_right_up_to_a_condition_and_warns_above(
    dtype, near, limit, shape, caplog
):
    for seed, condition in enumerate((0.4 * limit, 2.5 * limit)):
        rng = np.random.default_rng(seed)
        A, b = graded(*shape, rng, condition), rng.normal(size=shape[0])
        caplog.clear()
        x = solve(A, b, devices="cpu:2", method="cgls", dtype=dtype).x
        assert ("condition is about" in caplog.text) == (condition > limit)
        if condition < limit:
            excess = np.linalg.norm(A @ x - b) - lapack(A, b)[1]
            assert excess <= near * np.linalg.norm(b)


def nearly_equal_columns(seed):
    """A column that another one and noise of any size make: of any condition."""
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(3, 9)), int(rng.integers(2, 7))
    A, b = rng.random((m, n)), rng.random(m)
    A[:, 0] = 3 * A[:, -1] + 10 ** rng.uniform(-13, -1) * rng.random(m)
    return A, b


def some_system(seed):
    """Any shape, rank, condition and scale; b is reached, nearly reached, or random."""
    rng = np.random.default_rng(seed)
    m, n = rng.integers(2, 60), rng.integers(1, 15)
    A = graded(m, n, rng, 10 ** rng.uniform(0, [3, 14][seed % 2]))
    if seed % 4 == 0:
        A[:, -1] = A[:, 0]
    A = [A, A + 1e5, rng.normal(size=(m, n)) * np.logspace(-5, 5, n)][seed % 3]
    b = A @ rng.normal(size=n)
    b = b + np.linalg.norm(b) * rng.normal(size=m) * [0, 1e-6, 1][seed % 5 % 3]
    return A * 10 ** rng.uniform(-3, 3), b * 10 ** rng.uniform(-3, 3)


# How many of 20 systems in float64, and of 8 in float32, are answered without a word.
SILENT = {"normal": (8, 2), "tsqr": (10, 3), "cgls": (4, 1)}


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(("dtype", "near"), [("float64", 1e-5), ("float32", 1e-3)])
@pytest.mark.parametrize("system", [some_system, nearly_equal_columns])
def test_any_answer_is_right_or_warned_of_or_refused(
    method, dtype, near, system, caplog
):
    silent = 0
    for seed in range(20 if dtype == "float64" else 8):
        A, b = (array.astype(dtype) for array in system(seed))
        caplog.clear()
        try:
            x = solve(A, b, method=method, dtype=dtype, devices=f"cpu:{seed % 3 + 1}").x
        except ValueError:
            continue
        if caplog.messages:
            continue
        silent += 1
        A, b = A.astype(float), b.astype(float)
        excess = np.linalg.norm(A @ x - b) - lapack(A, b)[1]
        # No computation of A x is nearer than the second term.
        computed = 10 * np.finfo(dtype).eps * np.linalg.norm(A) * np.linalg.norm(x)
        assert excess <= near * np.linalg.norm(b) + computed, seed
    if system is some_system:
        assert silent >= SILENT[method][dtype == "float32"]


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


@pytest.mark.parametrize("rows", [200, 2_000, 50_000])
def test_a_rank_in_float32_does_not_depend_on_the_number_of_rows(rows, caplog):
    """Of condition 800; and a column that is twice another one, whatever the rows."""
    rng = np.random.default_rng(rows)
    A = rng.random((rows, 4))
    A[:, 0] = A[:, 2] - 5e-4 * A[:, 0]
    b = A @ [4.0, -3.0, 2.0, 1.0]
    options = {"devices": "cpu:2", "method": "tsqr", "dtype": "float32"}
    solution = solve(A, b, **options)
    assert solution.rank == 4 and not caplog.messages
    np.testing.assert_allclose(solution.x, [4, -3, 2, 1], atol=2e-2)
    A[:, 0] = 2 * A[:, 3]
    assert solve(A, b, **options).rank == 3
    assert "in float32: rank 3 of 4" in caplog.text and "float64 dec" in caplog.text


def test_a_cholesky_factor_that_is_none_is_refused(monkeypatch):
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
            solve(A, b, devices="cpu:2", method="normal")


@pytest.mark.parametrize("method", EXACT)
def test_large_numbers_are_solved_and_too_large_ones_refused(method):
    A, b = problem(60, 4)
    x = solve(A * 1e40, b * 1e-20, devices="cpu:2", method=method).x
    np.testing.assert_allclose(x * 1e60, lapack(A, b)[0], rtol=1e-5)
    with pytest.raises(ValueError, match="scale|tsqr"):  # its squares overflow
        solve(A * 1e200, b, devices="cpu:2", method=method)


@pytest.mark.parametrize("method", EXACT)
def test_of_zeros(method):
    A, b = problem(30, 4)
    with np.errstate(all="raise"):  # the user's own setting does no harm
        zero = solve(A, 0 * b, devices="cpu:2", method=method)
    np.testing.assert_array_equal(zero.x, np.zeros(4))
    assert zero.residual_norm == 0


# What may be given


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
    brief = {"num_epochs": 1, "steps_per_epoch": 2} if method == "averaging" else {}
    before = A.copy(), b.copy()
    solve(A, b, devices="cpu:2", method=method, **brief)
    assert (A == before[0]).all() and (b == before[1]).all()
    assert A.flags.writeable and b.flags.writeable
    A.flags.writeable = False
    solve(A, b, devices="cpu:2", method=method, **brief)


# What cannot be solved


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_the_array_that_is_not_finite_is_named(method, value):
    for name, place in (("A", (41, 3)), ("b", 17)):
        A, b = problem(64, 5)
        {"A": A, "b": b}[name][place] = value
        with pytest.raises(ValueError, match=f"{name} holds NaN or infinity"):
            solve(A, b, devices="cpu:2", method=method)


SOME = np.ones((60, 4)), np.ones(60)


@pytest.mark.parametrize(
    ("A", "b", "options", "error", "named"),
    [
        (np.ones((4, 2)), np.ones(3), {}, ValueError, r"b of shape \(3,\)"),
        (np.ones((0, 2)), np.ones(0), {}, ValueError, r"A is of shape \(0, 2\)"),
        (SOME[0] * 1j, SOME[1], {}, TypeError, "A is complex128: convert"),
        (*SOME, {"method": "svd"}, ValueError, "method 'svd': write one of normal"),
        (*SOME, {"dtype": "float16"}, ValueError, "dtype float16"),
        (*SOME, {"tol": 5}, ValueError, "tol 5: write a number between 0 and 1"),
        (*SOME, {"x0": np.ones(7)}, ValueError, r"x0 \(7,\): write \("),
        (*SOME, {"x0": [0, 1, np.inf, 0]}, ValueError, "x0 holds NaN or infinity"),
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


def test_not_independent_is_the_notes_code(contexts):
    data = datasets.uniform_problem(400, 20, seed=1)
    x0 = np.random.default_rng(5).random(20)
    options = {
        "devices": contexts(2), "method": "averaging", "num_samples": 50,
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


@pytest.mark.parametrize("times", [1.015, 3, 1e300])
def test_averaging_that_diverges_says_so(times):
    """Also if it diverges so slowly that all numbers stay finite."""
    data = datasets.uniform_problem(200, 20)
    # Of its 100 rows a device draws 20,000: each 200 times.
    limit = 1 / (200 * np.linalg.norm(data.A[:100], 2) ** 2)
    options = {"method": "averaging", "num_epochs": 1, "steps_per_epoch": 20}
    options.update(num_samples=20_000, x0=np.zeros(20), devices="cpu:2")
    solve(data.A, data.b, lr=0.97 * limit, **options)
    with pytest.raises(DivergedError, match="in epoch .: use a smaller lr"):
        solve(data.A, data.b, lr=times * limit, **options)


def test_the_notes_class():
    """As their script calls it."""
    data = datasets.uniform_problem(600, 30)
    lstsq = LeastSquare(data.A, data.b, num_gpu=2, epoches=3, steps_per_epoch=20)
    theta = lstsq.run()
    assert theta.shape == (30,) and len(lstsq.error_list) == 6
    error = lstsq.check(theta)
    assert error == pytest.approx(np.linalg.norm(data.A @ theta - data.b))
    assert lstsq.error_list[-1] == error and len(lstsq.error_list) == 7


# What the runner measures


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
    assert once[-1].x == []


def test_cgls_starts_at_the_x_of_averaging():
    """So that their distances to the optimum can be compared."""
    data = datasets.uniform_problem(300, 20)
    x0 = np.random.default_rng([3, 1]).random(20)
    brief = {"devices": "cpu:2", "data": data, "seed": 3}
    averaged = list(measure(2, method="averaging", num_epochs=1, steps_per_epoch=2,
                            **brief))  # fmt: skip
    assert len(averaged[-1].x) == 20  # all of it, as the notes print
    first = next(iter(measure(2, method="cgls", **brief)))
    best, _ = lapack(data.A, data.b)
    s = data.A.T @ (data.b - data.A @ x0)
    x1 = x0 + (s @ s) / np.sum((data.A @ s) ** 2) * s
    expected = np.linalg.norm(x1 - best) / np.linalg.norm(best)
    assert first.distance == pytest.approx(expected, rel=1e-6)

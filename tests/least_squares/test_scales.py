"""Least squares at any scale, ill-conditioned for cgls, and options that cannot be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar._mxnet import mx
from d2lpar.least_squares import METHODS, solve
from d2lpar.least_squares.rows import RowShards

EXACT = ("normal", "tsqr", "cgls", "gradient")


def problem(m=60, n=4, k=None, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, n)), rng.normal(size=m if k is None else (m, k))


def best(A, b):
    """The solution, and its residuals' norms."""
    x = np.linalg.lstsq(A, b, rcond=None)[0]
    return x, np.linalg.norm(A @ x - b, axis=0)


@settings(deadline=None, max_examples=60)
@given(
    method=st.sampled_from(EXACT),
    a=st.integers(-150, 150),
    b=st.integers(-150, 150),
    k=st.sampled_from([None, 1, 3]),
    blocks=st.booleans(),
    num_devices=st.integers(1, 3),
)
def test_any_scale_is_solved(method, a, b, k, blocks, num_devices):
    A, y = problem(k=k)
    expected, left = best(A, y)
    options = {"block_bytes": 320, "resident_bytes": 0} if blocks else {}
    solution = solve(
        A * 10.0**a, y * 10.0**b, devices=f"cpu:{num_devices}", method=method,
        reference=expected * 10.0 ** (b - a), **options,
    )  # fmt: skip
    np.testing.assert_allclose(solution.x / 10.0 ** (b - a), expected, rtol=1e-6)
    np.testing.assert_allclose(solution.residual_norm / 10.0**b, left, rtol=1e-9)
    last = solution.history[-1]
    assert last.distance < 1e-6
    total = np.linalg.norm(np.array(last.device_residual_norms) / 10.0**b)
    assert total == pytest.approx(last.residual_norm / 10.0**b)


@settings(deadline=None, max_examples=40)
@given(
    method=st.sampled_from(EXACT),
    given_in=st.sampled_from(["float64", "float32"]),
    data=st.data(),
)
def test_any_scale_is_solved_in_float32(method, given_in, data):
    """Also an A that float32 cannot hold, if it is given in float64."""
    most = 36 if given_in == "float32" else 150
    a = data.draw(st.integers(-most, most))
    b = data.draw(st.integers(max(-most, a - 35), min(most, a + 35)))
    A, y = problem()
    expected, _ = best(A, y)
    options = {"tol": 1e-5} if method in ("cgls", "gradient") else {}
    solution = solve(
        (A * 10.0**a).astype(given_in), (y * 10.0**b).astype(given_in),
        devices="cpu:2", method=method, dtype="float32", **options,
    )  # fmt: skip
    found = solution.x / 10.0 ** (b - a)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-5)
    assert solution.x.dtype == "float32"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("a", "b"), [(-200, 0), (0, -200), (-200, 90), (200, 200)])
def test_every_method_at_the_limits(method, a, b):
    rng = np.random.default_rng(0)
    A = rng.random((60, 4))
    y = A @ np.full(4, 0.5) + 0.1 * rng.random(60)
    found = solve(A * 10.0**a, y * 10.0**b, devices="cpu:2", method=method)
    _, left = best(A, y)
    near = 1.5 if method == "averaging" else 1 + 1e-9
    assert found.residual_norm / 10.0**b <= near * left


def test_averaging_takes_the_lr_of_the_given_problem():
    A, y = problem()
    options = {"devices": "cpu:2", "method": "averaging", "x0": np.zeros(4)}
    plain = solve(A, y, lr=1e-4, **options)
    scaled = solve(A * 2.0**500, y * 2.0**300, lr=1e-4 * 2.0**-1000, **options)
    np.testing.assert_allclose(scaled.x * 2.0**200, plain.x, rtol=1e-12)


def test_each_right_hand_side_has_its_own_scale():
    A, y = problem(k=3)
    sizes = np.array([1e-200, 1, 1e200])
    expected, left = best(A, y)
    for method in EXACT:
        solution = solve(A, y * sizes, devices="cpu:2", method=method)
        np.testing.assert_allclose(solution.x / sizes, expected, rtol=1e-6)
        np.testing.assert_allclose(solution.residual_norm / sizes, left, rtol=1e-9)


@pytest.mark.parametrize("method", ["cgls", "gradient"])
def test_a_start_is_scaled_as_x_is(method):
    A, y = problem()
    x0, _ = best(A, y)
    A, y = A * 1e150, y * 1e-100
    solution = solve(A, y, devices="cpu:2", method=method, x0=x0 * 1e-250)
    assert solution.history[-1].iteration <= 6
    np.testing.assert_allclose(solution.x * 1e250, x0, rtol=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "dtype", "says"),
    [
        (-200, 200, "float64", "x is too large for float64: scale A or b"),
        (200, -200, "float64", "x is too small for float64: scale A or b"),
        (-30, 30, "float32", "x is too large for float32: .*or use float64"),
        (30, -30, "float32", "x is too small for float32: .*or use float64"),
        (308, 308, "float64", "is too large for float64: scale b"),
    ],
)
@pytest.mark.parametrize("method", EXACT)
def test_what_a_dtype_cannot_hold_is_said(method, a, b, dtype, says):
    A, y = problem(600)
    A, y = A / abs(A).max(), y / abs(y).max()
    options = {"tol": 1e-4} if method in ("cgls", "gradient") else {}
    with pytest.raises(ValueError, match=says):
        solve(
            A * 10.0**a, y * 10.0**b, devices="cpu:2", method=method, dtype=dtype,
            **options,
        )  # fmt: skip


def test_rows_of_zeros_do_not_hide_the_scale():
    A, y = problem()
    A, y = np.vstack([np.zeros((40, 4)), A]), np.concatenate([np.zeros(40), y])
    expected, _ = best(A, y)
    blocks = {"block_bytes": 320, "resident_bytes": 0}
    for method in EXACT:
        x = solve(A * 1e-200, y, devices="cpu:2", method=method, **blocks).x
        np.testing.assert_allclose(x / 1e200, expected, rtol=1e-6)


def test_a_pass_that_is_cut_short_leaves_nothing_behind():
    A, y = problem()
    shards = RowShards(A, y, [mx.cpu(0), mx.cpu(1)])
    next(iter(next(shards.rounds())))  # one block of two
    for _ in range(2):
        blocks = [block for blocks in shards.rounds() for block in blocks]
        assert sum(len(block.A) for block in blocks) == 60


# Ill-conditioned


def with_singular_values(s, seed, m=200):
    """A with these singular values, b, and the x of least squares."""
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(m, len(s))))
    V, _ = np.linalg.qr(rng.normal(size=(len(s), len(s))))
    A, x, rest = (U * s) @ V.T, rng.normal(size=len(s)), rng.normal(size=m)
    return A, A @ x + rest - U @ (U.T @ rest), x


SPECTRA = {
    "even": lambda n, c: np.logspace(0, -np.log10(c), n),
    "one": lambda n, c: np.r_[np.ones(n - 1), 1 / c],
    "half": lambda n, c: np.r_[np.ones(n // 2), np.ones(n - n // 2) / c],
    "linear": lambda n, c: np.linspace(1, 1 / c, n),
}


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e4, 1e6, 1e7, 1e8, 1e10, 1e13])
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("seed", [0, 1])
def test_cgls_finds_x_or_says_that_it_does_not(condition, spectrum, seed, caplog):
    A, b, x = with_singular_values(SPECTRA[spectrum](20, condition), seed)
    found = solve(A, b, devices="cpu:2", method="cgls").x
    off = np.linalg.norm(found - x) / np.linalg.norm(x)
    warned = "method tsqr keeps the digits" in caplog.text
    assert off < 1e-4 or warned
    assert not warned or condition > 1e4
    assert off < 3  # no rounding errors that have grown


def test_cgls_gives_the_minimum_norm_solution_without_a_word(caplog):
    A, b = problem(4, 9)
    found = solve(A, b, devices="cpu:2", method="cgls").x
    np.testing.assert_allclose(found, best(A, b)[0], atol=1e-8)
    assert not caplog.text


def test_the_rank_is_that_of_scaled_columns():
    """Unlike NumPy's: lengths of columns are units, and say nothing of the rank."""
    A, b = problem(40, 5)
    A = A * np.logspace(-9, 9, 5)
    assert solve(A, b, devices="cpu:2", method="tsqr").rank == 5
    assert np.linalg.matrix_rank(A) < 5
    A[:, 4] = A[:, 3] * 1e3
    assert solve(A, b, devices="cpu:2", method="tsqr").rank < 5


# Options


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"devices": None}, TypeError, "devices None: write a list of contexts"),
        ({"devices": 2}, TypeError, "devices 2: write a list of contexts"),
        ({"devices": ["cpu:0"]}, TypeError, r"devices \['cpu:0'\]: write a list"),
        ({"method": "normal", "tol": 1e-3}, TypeError, "normal has no option 'tol': "),
        ({"method": "tsqr", "tol": 1e-3}, TypeError, "'tol': it has none"),
        ({"tolerance": 1}, TypeError, "'tolerance': it has tol, max_iterations, x0"),
        ({"lr": 1}, TypeError, "cgls has no option 'lr'"),
        ({"tol": "x"}, ValueError, "tol 'x': write a finite number above 0"),
        ({"tol": None}, ValueError, "tol None: write a finite number above 0"),
        ({"tol": True}, ValueError, "tol True: write a finite number above 0"),
        ({"tol": -1}, ValueError, "tol -1: write a finite number above 0"),
        ({"tol": np.inf}, ValueError, "tol inf: write a finite number above 0"),
        ({"max_iterations": 1.5}, ValueError, "max_iterations 1.5: write a whole"),
        ({"max_iterations": "9"}, ValueError, "max_iterations '9': write a whole"),
        ({"max_iterations": True}, ValueError, "max_iterations True: write a whole"),
        ({"x0": "zero"}, ValueError, "x0 'zero': write 4 x 1 finite numbers"),
        ({"x0": [1, [2]]}, ValueError, r"x0 \[1, \[2\]\]: write 4 x 1 finite numbers"),
        ({"reference": "r"}, ValueError, "reference is of shape"),
        ({"reference": list("abcd")}, ValueError, "reference .*: write numbers"),
        ({"method": "averaging", "lr": 0}, ValueError, "lr 0: write a finite number"),
        ({"method": "averaging", "lr": "a"}, ValueError, "lr 'a': write a finite"),
        ({"method": "averaging", "seed": -1}, ValueError, "seed -1: write 0 or more"),
        ({"method": ["cgls"]}, ValueError, r"method \['cgls'\]: write one of"),
        ({"block_bytes": 0}, ValueError, "block_bytes 0: write a whole number above 0"),
        ({"block_bytes": "1M"}, ValueError, "block_bytes '1M': write a whole number"),
        ({"resident_bytes": -1}, ValueError, "resident_bytes -1: write 0 or more"),
        ({"dtype": None}, ValueError, "dtype None: write float64 or float32"),
    ],
)
def test_options_that_cannot_be_are_named(options, error, says):
    A, b = problem()
    with pytest.raises(error, match=says):
        solve(A, b, **{"devices": "cpu:1", "method": "cgls", **options})

"""Conjugate gradients, which need no n x n matrix."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Iterator
from itertools import accumulate

import numpy

from d2lpar.least_squares.rows import Answer, RowShards, matmul

log = logging.getLogger("d2lpar")

# Iterations that become points of the history: 1, 2, 3, 5, 8, 12, 18, ...
POINTS = set(accumulate([1] * 40, lambda n, _: math.ceil(1.5 * n)))


def cgls(
    shards: RowShards,
    *,
    tol: float = 1e-10,
    x0: numpy.ndarray | None = None,
) -> Iterator[Answer]:
    """Solve by conjugate gradients: all-reduces of 1 and n + 1 numbers per iteration.

    Starts at `x0` (None is 0), and stops when ||A^T r|| of r = b - A x is `tol` times
    ||A|| ||r||, when r is `tol` of what it is computed from, or, with a warning, after
    20 n iterations. From 0, x is the minimum-norm solution if A is rank-deficient.
    """
    if not isinstance(tol, numbers.Real) or not 0 < float(tol) < 1:
        raise ValueError(f"tol {tol!r}: write a number between 0 and 1")
    x = numpy.zeros(shards.n) if x0 is None else shards.vector("x0", x0)
    xs = shards.copies(x)  # on each device
    rs = [b - matmul(A, xs[A.context]) for A, b in shards]
    norms = [A.norm() for A, _ in shards]  # on all devices, before any is waited for
    norm_of_A = float(numpy.linalg.norm([norm.asscalar() for norm in norms]))
    norm_of_r, s = shards.products(rs)  # s is A^T r, from here to the end
    shards.check_finite(norm_of_A, norm_of_r, s)
    tol = max(float(tol), 10 * shards.eps)  # a smaller one cannot be computed
    p, gamma, iteration, limit = s, s @ s, 0, 20 * shards.n
    while True:
        reached = norm_of_A * numpy.linalg.norm(x) + shards.norm_of_b
        if gamma**0.5 <= tol * norm_of_A * norm_of_r or norm_of_r <= tol * reached:
            break
        if iteration == limit:
            log.warning("cgls has not converged after %d iterations: use tsqr", limit)
            break
        iteration += 1
        length = float(numpy.linalg.norm(p))
        ps = shards.copies(p / length)  # of length 1: squares soon overflow float32
        qs = [matmul(A, ps[A.context]) for A, _ in shards]
        norms = [q.norm() for q in qs]
        norm_of_q = float(numpy.linalg.norm([norm.asscalar() for norm in norms]))
        step = gamma / (length * norm_of_q**2)
        x = x + step / length * p
        rs = [r - step * q for r, q in zip(rs, qs)]
        norm_of_r, s = shards.products(rs)
        before, gamma = gamma, s @ s
        p = s + gamma / before * p
        if iteration in POINTS:
            yield Answer(x, iteration)
    yield Answer(x, iteration, norm_of_A=norm_of_A)

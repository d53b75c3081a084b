"""Direct solvers: one pass over the rows, and one all-reduce of n x n numbers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.rows import Answer, RowShards, matmul

log = logging.getLogger("d2lpar")

# Condition numbers of A. A Gram matrix squares them, and loses twice as many digits. In
# float64 a step of refinement restores them up to about 5e6.
REFINE_ABOVE_CONDITION = 1e2
WARN_ABOVE_CONDITION = {"float64": 5e6, "float32": 3e1}
MAX_CONDITION = {"float64": 3e7, "float32": 2e3}
PART_NUMBERS = 2**23  # of A, in one QR


def normal(shards: RowShards) -> Iterator[Answer]:
    """Solve the normal equations A^T A x = A^T b by Cholesky.

    Warns if half the digits are lost, by an estimate; raises ValueError if nearly all
    are, or A is deficient.
    """
    # All devices work before the first one waits for their products.
    parts = [
        (mx.nd.linalg.syrk(A, transpose=True), matmul(A, b, transpose=True))
        for A, b in shards
    ]
    G, c = parts.pop()  # A^T A (n, n) and A^T b (n, 1), on the first device
    while parts:  # freed when they have been added: they may take gigabytes
        for total, other in zip((G, c), parts.pop()):
            total += other.as_in_context(total.context)
    lengths = numpy.sqrt(mx.nd.linalg.extractdiag(G).asnumpy())
    shards.check_finite(lengths, c.asnumpy())
    condition = numpy.inf
    if shards.m >= shards.n and lengths.all():
        with contextlib.suppress(mx.base.MXNetError):  # a GPU's L is not finite instead
            L = mx.nd.linalg.potrf(G)
            condition = _condition(L, lengths)
    if not condition < MAX_CONDITION[shards.dtype.name]:
        raise ValueError(
            f"A, {shards.m} x {shards.n}, is rank-deficient or too ill-conditioned for "
            f"method normal in {shards.dtype} (condition about {condition:.0e}): use "
            "method tsqr"
        )
    if condition > WARN_ABOVE_CONDITION[shards.dtype.name]:
        found = "A's condition is about %.0e, and the normal equations square it: "
        log.warning(f"{found}use method tsqr", condition)
    x = _cholesky_solve(L, c)
    if condition > REFINE_ABOVE_CONDITION:
        _, gradient = shards.residual(x.asnumpy()[:, 0])
        gradient = mx.nd.array(gradient[:, None], ctx=G.context, dtype=shards.dtype)
        x = x + _cholesky_solve(L, gradient)
    norm = float(numpy.linalg.norm(lengths))
    x = x.asnumpy()[:, 0]
    yield Answer(x, norm_of_A=norm, condition=condition, rank=shards.n)


def _condition(L: mx.nd.NDArray, lengths: numpy.ndarray) -> float:
    """Return a lower bound of the condition of A, its columns scaled to length 1."""
    # Power and inverse iteration with L L^T = A^T A; often within a factor of 3.
    scale = mx.nd.array(1 / lengths[:, None], ctx=L.context, dtype=L.dtype)
    v = numpy.random.default_rng(0).normal(size=(len(lengths), 1))
    largest = smallest = mx.nd.array(v, ctx=L.context, dtype=L.dtype)
    for _ in range(4):
        u = largest / largest.norm() * scale
        largest = matmul(L, matmul(L, u, transpose=True)) * scale
        u = smallest / smallest.norm() / scale
        smallest = _cholesky_solve(L, u) / scale
    # They are at most the largest eigenvalues of the Gram matrix and of its inverse.
    squared = float(largest.norm().asscalar()) * float(smallest.norm().asscalar())
    return squared**0.5 if squared > 0 else numpy.inf


def _cholesky_solve(L: mx.nd.NDArray, c: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return the solution of L L^T x = c."""
    return mx.nd.linalg.trsm(L, mx.nd.linalg.trsm(L, c), transpose=True)


def tsqr(shards: RowShards) -> Iterator[Answer]:
    """Solve by tall-skinny QR: as accurate as LAPACK, ill-conditioned or not.

    If A is rank-deficient, or m < n, x is the minimum-norm solution, and a warning says
    which singular values were taken for 0: up to (n + sqrt(m)) eps times the largest.
    """
    triangle = r_factor(shards)
    R, z = triangle[: shards.n, : shards.n], triangle[: shards.n, shards.n :]
    lengths = (R * R).sum(axis=0).sqrt().asnumpy()
    shards.check_finite(lengths)
    L, least = R.T, shards.rank_cut
    condition = _condition(L, lengths) if lengths.all() else numpy.inf
    if condition < 0.01 / least:
        rank, x = shards.n, mx.nd.linalg.trsm(L, z, transpose=True).asnumpy()[:, 0]
    else:
        # The shortest of the x that minimise ||R x - z||, on the host: n x n is small.
        U, s, Vt = numpy.linalg.svd(R.asnumpy())
        rank = int((s > s[0] * least).sum())
        x = Vt[:rank].T @ ((U[:, :rank].T @ z.asnumpy()[:, 0]) / s[:rank])
    if rank < shards.n:
        log.warning(
            "singular values of A below %.0e of the largest are taken for 0 in %s: "
            "rank %d of %d, and x is the minimum-norm solution%s",
            least, shards.dtype, rank, shards.n,
            "" if shards.dtype == "float64" else "; float64 decides",
        )  # fmt: skip
    norm = float(numpy.linalg.norm(lengths))
    yield Answer(x, norm_of_A=norm, condition=condition, rank=rank)


def r_factor(shards: RowShards) -> mx.nd.NDArray:
    """Return the R factor (n + 1, n + 1) of [A b], on the first device."""
    width = shards.n + 1
    # A QR of fewer rows than columns gains nothing, and it takes several times its
    # rows' memory, so that large shards are taken in parts.
    rows = max(PART_NUMBERS // width, width)
    triangles = []
    for A, b in shards:
        above: list[mx.nd.NDArray] = []  # the R factor of the rows before
        for start in range(0, A.shape[0], rows):
            A_rows, b_rows = A[start : start + rows], b[start : start + rows]
            part = mx.nd.concat(A_rows, b_rows, dim=1)
            above = [_triangle([*above, part], width)]
        triangles += above
    first = shards.devices[0]
    stacked = [triangle.as_in_context(first) for triangle in reversed(triangles)]
    try:
        R = stacked[0] if len(stacked) == 1 else _triangle(stacked, width)
        R.wait_to_read()
    except mx.base.MXNetError:  # of MXNet 2, whose LAPACK refuses a NaN
        shards.check_finite(numpy.nan)
    shards.check_finite(R.asnumpy())
    return R


def _triangle(rows: list[mx.nd.NDArray], width: int) -> mx.nd.NDArray:
    """Return the R factor (width, width) of the stacked rows, each (.., width)."""
    M = mx.nd.concat(*rows, dim=0) if len(rows) > 1 else rows[0]
    short = width - M.shape[0]
    if short > 0:  # rows of zeros change nothing
        zeros = mx.nd.zeros((short, width), ctx=M.context, dtype=M.dtype)
        M = mx.nd.concat(M, zeros, dim=0)
    _, L = mx.nd.linalg.gelqf(M.T)  # A^T = L Q, of wide matrices
    return L.T

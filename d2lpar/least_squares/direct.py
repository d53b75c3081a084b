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


def normal(shards: RowShards) -> Iterator[Answer]:
    """Solve the normal equations A^T A x = A^T b by Cholesky.

    Warns if half the digits are lost, by an estimate; raises ValueError if nearly all
    are, or A is deficient.
    """
    G, c = _gram(shards)
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
        gradient = shards.residual(x.asnumpy()[:, 0]).gradient[:, None]
        gradient = mx.nd.array(gradient, ctx=G.context, dtype=shards.dtype)
        x = x + _cholesky_solve(L, gradient)
    gradient = (c - matmul(G, x)).asnumpy()[:, 0]
    facts = {"lengths": lengths, "condition": condition, "rank": shards.n}
    yield Answer(x.asnumpy()[:, 0], gradient=gradient, **facts)


def _gram(shards: RowShards) -> list[mx.nd.NDArray]:
    """Return A^T A (n, n) and A^T b (n, 1) over all rows, on the first device."""
    parts: dict[int, list] = {}
    for blocks in shards.rounds():
        for k, A, b in blocks:
            terms = [mx.nd.linalg.syrk(A, transpose=True), matmul(A, b, transpose=True)]
            if k in parts:
                for so_far, term in zip(parts[k], terms):
                    so_far += term
            else:
                parts[k] = terms
    totals = parts.pop(min(parts))
    while parts:  # freed when they have been added: they may take gigabytes
        _, others = parts.popitem()
        for total, other in zip(totals, others):
            # cpu(0) reads what cpu(1) has: they share the memory.
            if {total.context.device_type, other.context.device_type} != {"cpu"}:
                other = other.as_in_context(total.context)
            total += other
    return totals


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
    y = mx.nd.linalg.trsm(L, c)
    return mx.nd.linalg.trsm(L, y, transpose=True)


def tsqr(shards: RowShards) -> Iterator[Answer]:
    """Solve by tall-skinny QR: as accurate as LAPACK, ill-conditioned or not.

    If A is rank-deficient, or m < n, x is the minimum-norm solution. The rank is n if
    the estimated condition of A, columns scaled to length 1, is below 0.01 / (max(m, n)
    eps); else it counts singular values above max(m, n) eps times the largest.
    """
    try:
        triangle = _reduced(shards)
        triangle.wait_to_read()
    except mx.base.MXNetError as error:  # of MXNet 2, whose LAPACK refuses a NaN
        raise ValueError(f"A or b holds NaN or infinity: {error}") from error
    R, z = triangle[: shards.n, : shards.n], triangle[: shards.n, shards.n :]
    lengths = (R * R).sum(axis=0).sqrt().asnumpy()
    shards.check_finite(lengths, z.asnumpy())
    L, least = R.T, max(shards.m, shards.n) * shards.eps
    condition = _condition(L, lengths) if lengths.all() else numpy.inf
    R_host, z_host = R.asnumpy(), z.asnumpy()[:, 0]
    if condition < 0.01 / least:
        rank, x = shards.n, mx.nd.linalg.trsm(L, z, transpose=True).asnumpy()[:, 0]
    else:
        # The shortest of the x that minimise ||R x - z||, on the host: n x n is small.
        U, s, Vt = numpy.linalg.svd(R_host)
        rank = int((s > s[0] * least).sum())
        x = Vt[:rank].T @ ((U[:, :rank].T @ z_host) / s[:rank])
        lengths = numpy.full(shards.n, numpy.linalg.norm(lengths))  # s is not scaled
    if rank < shards.n:
        log.warning(
            "A has rank %d, not %d: x is the minimum-norm solution", rank, shards.n
        )
    gradient = R_host.T @ (z_host - R_host @ x)
    facts = {"lengths": lengths, "condition": condition, "rank": rank}
    yield Answer(x, gradient=gradient, **facts)


def _reduced(shards: RowShards) -> mx.nd.NDArray:
    """Return the R factor (n + 1, n + 1) of [A b], on the first device."""
    width = shards.n + 1
    # A QR of fewer rows than columns gains nothing, and it takes several times its
    # rows' memory, so that large blocks are taken in parts.
    shards.block_rows = rows = max(shards.block_rows, width)
    triangles: dict[int, mx.nd.NDArray] = {}
    for blocks in shards.rounds():
        for k, A, b in blocks:
            for start in range(0, A.shape[0], rows):
                A_rows, b_rows = A[start : start + rows], b[start : start + rows]
                parts = [mx.nd.concat(A_rows, b_rows, dim=1)]
                if k in triangles:
                    parts.insert(0, triangles[k])
                triangles[k] = _triangle(parts, width)
    first = shards.devices[min(triangles)]
    stacked = [triangles[k].as_in_context(first) for k in sorted(triangles)]
    return stacked[0] if len(stacked) == 1 else _triangle(stacked, width)


def _triangle(rows: list[mx.nd.NDArray], width: int) -> mx.nd.NDArray:
    """Return the R factor (width, width) of the stacked rows, each (.., width)."""
    M = mx.nd.concat(*rows, dim=0) if len(rows) > 1 else rows[0]
    short = width - M.shape[0]
    if short > 0:  # rows of zeros change nothing
        zeros = mx.nd.zeros((short, width), ctx=M.context, dtype=M.dtype)
        M = mx.nd.concat(M, zeros, dim=0)
    _, L = mx.nd.linalg.gelqf(M.T)  # A^T = L Q, of wide matrices
    return L.T

"""Direct least-squares solvers: a Gram matrix or a QR per device, then a small problem.

Both pass over the rows once and communicate once: n x n numbers per device, however
many rows there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.progress import Answer, Progress
from d2lpar.least_squares.rows import RowShards, times

log = logging.getLogger("d2lpar")

# Condition numbers of A. A Gram matrix squares them, and loses twice as many digits.
REFINE_ABOVE_CONDITION = 1e2
WARN_ABOVE_CONDITION = {"float64": 1e5, "float32": 3e1}
MAX_CONDITION = {"float64": 3e7, "float32": 2e3}
# Largest ||L L^T - G|| / ||G|| of a valid Cholesky factor. Rounding causes n * eps at
# most, or 1e-3 where products are rounded to TF32; a failed factor has about 1.
SMALL_RESIDUAL = {"float64": 1e-9, "float32": 5e-3}


def normal(shards: RowShards, progress: Progress) -> Answer:
    """Solve the normal equations A^T A x = A^T b by Cholesky.

    One Gram matrix per device (syrk) is summed over the devices. If the lengths of A's
    columns differ tenfold or are far from 1, the columns are scaled to length 1. If
    half the digits are lost, by an estimate of the condition, it warns; if nearly all
    are lost, or A is rank-deficient, it raises ValueError naming "tsqr". Above a
    condition of 100 one step of iterative refinement on the rows' residual regains
    digits. It holds at most two matrices (n, n) per device, and blocks of rows.
    """
    if shards.m < shards.n:
        raise ValueError(
            f"A is {shards.m} x {shards.n}, rank-deficient: method tsqr gives the "
            "minimum-norm solution"
        )
    syrk = mx.nd.linalg.syrk
    G, c = _sums(
        shards,
        lambda k, A, b: [syrk(A, transpose=True), times(A, b, transpose=True)],
    )
    lengths = numpy.sqrt(mx.nd.linalg.extractdiag(G).asnumpy())
    shards.check_finite(lengths, c.asnumpy())
    if lengths.min() < shards.too_small:
        shards.check_not_tiny()
        raise ValueError(
            f"column {numpy.argmin(lengths)} of A is zero, or too small for its square "
            f"in {shards.dtype}: method tsqr gives the minimum-norm solution"
        )
    scale = mx.nd.array(1 / lengths[:, None], ctx=G.context, dtype=shards.dtype)
    if 1e-4 < lengths.min() and lengths.max() < min(1e4, 10 * lengths.min()):
        scale = mx.nd.ones_like(scale)
    else:
        G *= scale  # in place: another (n, n) may be gigabytes
        G *= scale.T
    condition = numpy.inf
    try:
        L = mx.nd.linalg.potrf(G)
        L.wait_to_read()
        if _is_factor(L, G):
            condition = _condition(L, G)
    except mx.base.MXNetError:
        pass  # on a CPU; on a GPU a failed factor shows in _is_factor
    if not condition < MAX_CONDITION[shards.dtype.name]:
        raise ValueError(
            "A is rank-deficient or too ill-conditioned for method normal in "
            f"{shards.dtype} (condition about {condition:.0e}): use method tsqr"
        )
    x = _cholesky_solve(L, c * scale) * scale
    if condition > WARN_ABOVE_CONDITION[shards.dtype.name]:
        log.warning(
            "A's condition is about %.0e: the normal equations square it; method tsqr "
            "keeps the digits",
            condition,
        )
    if condition > REFINE_ABOVE_CONDITION:
        xs = [x.as_in_context(device) for device in shards.devices]
        (descent,) = _sums(
            shards, lambda k, A, b: [times(A, b - times(A, xs[k]), transpose=True)]
        )
        x = x + _cholesky_solve(L, descent * scale) * scale
    x = x.asnumpy()
    progress.record(1, x)
    return Answer(x, condition, shards.n)


def _sums(shards: RowShards, terms: Callable) -> list[mx.nd.NDArray]:
    """The sum over all rows of each of ``terms(k, A, b)``, on the first device.

    They are the arrays that a block of device `k` contributes. The devices' sums are
    freed as soon as they have been added: they may take gigabytes.
    """
    parts: dict[int, list] = {}
    for blocks in shards.rounds():
        for k, A, b in blocks:
            if k not in parts:
                parts[k] = terms(k, A, b)
                continue
            for so_far, term in zip(parts[k], terms(k, A, b)):
                so_far += term
    totals = parts.pop(min(parts))
    while parts:
        _, others = parts.popitem()
        for total, other in zip(totals, others):
            # cpu(0) reads what cpu(1) has: they share the memory.
            if {total.context.device_type, other.context.device_type} != {"cpu"}:
                other = other.as_in_context(total.context)
            total += other
    if shards.workers is None:
        return totals
    return [
        mx.nd.array(shards.total(t.asnumpy()), ctx=t.context, dtype=shards.dtype)
        for t in totals
    ]


def _is_factor(L: mx.nd.NDArray, G: mx.nd.NDArray) -> bool:
    """Whether L L^T is G: on a GPU MXNet ignores what cuSOLVER says of a failure.

    The diagonal of L must be finite and positive. L L^T v must be G v, for random v
    whose numbers have variance 1/4 in 4 columns: then the norms of M v and of M are the
    same on average, for L L^T - G and for G. That takes n^2 operations, not n^3.
    """
    diagonal = mx.nd.linalg.extractdiag(L).asnumpy()
    if not (numpy.isfinite(diagonal).all() and (diagonal > 0).all()):
        return False
    v = numpy.random.default_rng(0).normal(size=(L.shape[0], 4)) / 2
    v = mx.nd.array(v, ctx=L.context, dtype=L.dtype)
    Gv = times(G, v)
    off = times(L, times(L, v, transpose=True)) - Gv
    ratio = off.norm().asscalar() / Gv.norm().asscalar()
    return bool(ratio <= SMALL_RESIDUAL[numpy.dtype(L.dtype).name])


def _condition(
    L: mx.nd.NDArray, G: mx.nd.NDArray | None = None, steps: int = 4
) -> float:
    """Condition number of a triangular factor, by power and inverse iteration.

    A lower bound, usually within a factor of 3: enough to choose a method by. If `G`,
    which is L L^T, is known, a product with it takes half the time of two with L.
    """
    v = numpy.random.default_rng(0).normal(size=(L.shape[0], 1))
    largest = smallest = mx.nd.array(v, ctx=L.context, dtype=L.dtype)
    for _ in range(steps):
        u = _unit(largest)
        largest = times(L, times(L, u, transpose=True)) if G is None else times(G, u)
        smallest = _cholesky_solve(L, _unit(smallest))
    # They are at most the largest eigenvalues of L L^T and of its inverse.
    squared = float(largest.norm().asscalar()) * float(smallest.norm().asscalar())
    return squared**0.5 if squared > 0 else numpy.inf


def _unit(v: mx.nd.NDArray) -> mx.nd.NDArray:
    return v / v.norm()


def _cholesky_solve(L: mx.nd.NDArray, c: mx.nd.NDArray) -> mx.nd.NDArray:
    """The solution of L L^T x = c."""
    y = mx.nd.linalg.trsm(L, c)
    return mx.nd.linalg.trsm(L, y, transpose=True)


def tsqr(shards: RowShards, progress: Progress) -> Answer:
    """Solve by tall-skinny QR: as accurate as LAPACK, ill-conditioned or not.

    Each device reduces its rows of [A b] to a triangle, block by block; the triangles
    are stacked and reduced to one. If A is rank-deficient, or m < n, x is the
    minimum-norm solution. The rank is n where A's columns, scaled to length 1, are
    independent: where an estimate of their condition is below 0.01 / (max(m, n) eps).
    Else it is ``numpy.linalg.lstsq``'s for rcond None, which does not scale: the number
    of A's singular values above max(m, n) eps times the largest. So for independent
    columns of lengths from 1e-8 to 1e8 it is n, and less in NumPy. A block has at
    least n rows; with its copies it takes about ten times the memory of a matrix (n, n)
    on the first device, and three to four times on each other device.
    """
    width = shards.n + shards.num_rhs
    # A QR of fewer rows than columns gains nothing; it takes several times its rows'
    # memory, so that large blocks are taken in parts.
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
    triangle = stacked[0] if len(stacked) == 1 else _triangle(stacked, width)
    R, z = triangle[: shards.n, : shards.n], triangle[: shards.n, shards.n :]
    lengths = (R * R).sum(axis=0).sqrt().asnumpy()
    shards.check_finite(lengths, z.asnumpy())
    if lengths.max() < shards.too_small:
        shards.check_not_tiny()
    condition = numpy.inf
    if lengths.all():
        scale = mx.nd.array(1 / lengths[:, None], ctx=first, dtype=shards.dtype)
        L = (R * scale.T).T  # lower, as _condition and trsm need it
        condition = _condition(L)
    if condition < 0.01 / (max(shards.m, shards.n) * numpy.finfo(shards.dtype).eps):
        rank, x = shards.n, (mx.nd.linalg.trsm(L, z, transpose=True) * scale).asnumpy()
    else:
        # The shortest of the x that minimise ||R x - z||, on the host: n x n is small.
        U, s, Vt = numpy.linalg.svd(R.asnumpy())
        eps = numpy.finfo(shards.dtype).eps
        rank = int((s > s[0] * eps * max(shards.m, shards.n)).sum())
        x = Vt[:rank].T @ ((U[:, :rank].T @ z.asnumpy()) / s[:rank, None])
    if rank < shards.n:
        log.warning(
            "A has rank %d, not %d: x is the minimum-norm solution", rank, shards.n
        )
    progress.record(1, x)
    return Answer(x, condition, rank)


def _triangle(rows: list[mx.nd.NDArray], width: int) -> mx.nd.NDArray:
    """The R factor (width, width) of the stacked rows, each (.., width).

    MXNet has the transposed factorisation, A^T = L Q, for wide matrices. Rows of zeros
    make a short matrix long enough, and change nothing.
    """
    M = mx.nd.concat(*rows, dim=0) if len(rows) > 1 else rows[0]
    short = width - M.shape[0]
    if short > 0:
        zeros = mx.nd.zeros((short, width), ctx=M.context, dtype=M.dtype)
        M = mx.nd.concat(M, zeros, dim=0)
    _, L = mx.nd.linalg.gelqf(M.T)
    return L.T

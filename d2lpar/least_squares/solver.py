"""Data-parallel least squares: four methods behind one function.

Sources: the notes; Paige and Saunders (1982) for CGLS; Demmel et al.,
"Communication-optimal parallel and sequential QR" (2012) for TSQR.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy

from d2lpar import datasets
from d2lpar._mxnet import mx, npx
from d2lpar.devices import parse
from d2lpar.epochs import check_whole, choose
from d2lpar.errors import DeviceError
from d2lpar.least_squares.averaging import averaging
from d2lpar.least_squares.direct import normal, r_factor, tsqr
from d2lpar.least_squares.iterative import cgls
from d2lpar.least_squares.rows import RowShards
from d2lpar.machine import host
from d2lpar.records.kinds import PointRecord

log = logging.getLogger("d2lpar")

METHODS = {"normal": normal, "tsqr": tsqr, "cgls": cgls, "averaging": averaging}
BRIEF: dict[str, dict] = {
    "averaging": {"num_epochs": 1, "steps_per_epoch": 2},
    "cgls": {"tol": 0.5},
}
# A condition is estimated after cgls for so many columns; above these it is no proof.
MOST_COLUMNS = 300
MAX_CONDITION = {"float64": 1e5, "float32": 1e3}


@dataclass(frozen=True)
class Solution:
    """Hold what :func:`solve` found: `x` (n,), in the dtype of the computation.

    `residual_norm` is ||A x - b||; the seconds of `history` leave measuring it out.
    `condition` (of A with columns scaled to length 1) and `rank` are from "normal" and
    "tsqr"; below rank n, x is the minimum-norm solution.
    """

    x: numpy.ndarray
    residual_norm: float
    history: tuple[PointRecord, ...]
    condition: float | None = None
    rank: int | None = None


def solve(
    A,
    b,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    method: str = "normal",
    dtype: str = "float64",
    reference: numpy.ndarray | None = None,
    **options,
) -> Solution:
    """Return the x (n,) that minimises ||A x - b||, for arrays A (m, n) and b (m,).

    `dtype`, of computation and x, is float64 or float32; squares of the numbers must be
    in its range. The history has distances to a `reference` (n,). `options` are the
    method's.

    "normal" and "tsqr" raise ValueError unless A^T (A x - b) is zero up to rounding;
    "normal" refuses a rank-deficient or too ill-conditioned A. "cgls" warns of a
    condition above 1e5 (float64) or 1e3 (float32), at which its stopping proves little,
    for up to 300 columns, at the cost of a "tsqr"; for more columns the condition is
    not known. "averaging" misses the optimum.

    Raises ValueError for NaN and infinity; TypeError for masked, sparse and complex
    arrays; :class:`DivergedError` by "averaging"; :class:`DeviceError` for a deadlock.
    """
    devices = choose(devices, None)
    if method not in METHODS:
        raise ValueError(f"method {method!r}: write one of {', '.join(METHODS)}")
    # Without OMP_NUM_THREADS, MXNet takes half the cores.
    threads = host.omp_threads() or max(1, host.usable_cores() // 2)
    if threads > 1 and sum(device.device_type == "cpu" for device in devices) > 1:
        raise DeviceError(
            f"OMP_NUM_THREADS is {threads}: several CPU contexts need 1 here, because "
            "MXNet's OpenBLAS would deadlock; set it before Python starts (run: "
            "--threads 1), or use one context"
        )
    with numpy.errstate(all="ignore"):  # what over- or underflows is found out
        history, seconds, begin = [], 0.0, time.perf_counter()
        shards = RowShards(A, b, devices, dtype)
        if reference is not None:
            reference = shards.vector("reference", reference)
        for answer in METHODS[method](shards, **options):
            npx.waitall()
            seconds += time.perf_counter() - begin
            norm, gradient = shards.residual(answer.x)
            of_devices = [shards.residual(x)[0] for x in answer.device_xs]
            distance = None
            if reference is not None:  # relative, or ||x|| if the reference is 0
                size = numpy.linalg.norm(reference) or 1
                distance = float(numpy.linalg.norm(answer.x - reference) / size)
            history.append(
                PointRecord(answer.iteration, seconds, norm, of_devices, distance)
            )
            begin = time.perf_counter()
        if not numpy.isfinite(answer.x.astype(shards.dtype)).all():
            raise ValueError(f"x is too large for {shards.dtype}: scale A or b")
        if answer.norm_of_A is not None:
            shards.check_finite(norm, gradient)
            size, norm_of_A = numpy.linalg.norm(gradient), answer.norm_of_A
            reached = norm_of_A * numpy.linalg.norm(answer.x) + shards.norm_of_b
            least = norm_of_A * reached * 10 * shards.rank_cut  # of rounding
            if method == "cgls" and shards.n <= MOST_COLUMNS:
                R = r_factor(shards).asnumpy()[:-1, :-1]
                s = numpy.linalg.svd(R, compute_uv=False)
                condition = s[0] / s[: shards.m][-1]
                if condition > MAX_CONDITION[shards.dtype.name]:
                    log.warning(
                        "A's condition is about %.0e: x of cgls and its residual may "
                        "be far off, although A^T r is small: use method tsqr",
                        condition,
                    )
            if method != "cgls" and size > least:
                raise ValueError(
                    f"method {method} in {shards.dtype}: ||A^T r|| is {size:.1e}, and "
                    f"rounding explains {least:.1e}: use float64 or method tsqr, or "
                    "scale A"
                )
    return Solution(
        x=answer.x.astype(shards.dtype),
        residual_norm=norm,
        history=tuple(history),
        condition=answer.condition,
        rank=answer.rank,
    )


def measure(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    method: str = "normal",
    seed: int = 0,
    data: datasets.LinearProblem | None = None,
    num_epochs: int = 40,
    repeats: int = 1,
    **options,
) -> Iterator[PointRecord]:
    """Solve a problem `repeats` times, yielding a record per point of each history.

    `data` defaults to the notes' problem, 10,000 x 1,000; `num_epochs` are of
    "averaging"; `options` are for :func:`solve`. "cgls" starts at the notes' x. The
    last record of a repeat holds the first five elements of x, and for "averaging" up
    to 1,000.
    """
    check_whole("repeats", repeats)
    data = data or datasets.uniform_problem(10_000, 1_000, seed)
    A, b = data.A, data.b
    options.update(devices=choose(devices, num_devices), method=method)
    if method == "averaging":
        options.update(num_epochs=num_epochs, seed=seed)
    if method == "cgls":  # from the x that averaging starts at
        x0 = numpy.random.default_rng([seed, 1]).random(A.shape[1])
        options.setdefault("x0", x0)
    reference = numpy.linalg.lstsq(A, b, rcond=None)[0]
    # The first call of an operator is slow: solve few, well-conditioned rows briefly.
    few = datasets.uniform_problem(2 * A.shape[1], A.shape[1], seed)
    solve(few.A, few.b, **{**options, **BRIEF.get(method, {})})
    for repeat in range(repeats):
        solution = solve(A, b, reference=reference, **options)
        *points, last = solution.history
        whole = method == "averaging" and len(solution.x) <= 1_000
        last = msgspec.structs.replace(
            last,
            x=[float(f"{number:.8e}") for number in solution.x] if whole else [],
            x_begins=solution.x[:5].tolist(),
        )
        for point in (*points, last):
            yield msgspec.structs.replace(point, repeat=repeat)


class LeastSquare:
    """Average as the class of the least-squares notes: only its import changes.

    :meth:`run` is "averaging" on the first `num_gpu` GPUs, or on CPU contexts.
    `error_list` keeps :meth:`check`'s errors and, after each epoch, every device's.
    `options` are of "averaging"; ``independent=False`` restores the notes' order.
    """

    def __init__(self, A, b, num_gpu: int = 2, epoches: int = 2, **options) -> None:
        self.A, self.b, self.num_gpu = A, b, num_gpu
        self.options = {"num_epochs": epoches, **options}
        self.error_list: list[float] = []

    def run(self) -> numpy.ndarray:
        """Return the averaged x (n,) after the last epoch."""
        devices = parse("auto")
        if devices[0].device_type == "cpu":
            devices = parse(f"cpu:{self.num_gpu}")
        devices = choose(devices, self.num_gpu)
        solution = solve(
            self.A, self.b, devices=devices, method="averaging", **self.options
        )
        for point in solution.history:
            self.error_list += point.device_residual_norms
        return solution.x

    def check(self, x: numpy.ndarray) -> float:
        """Return ||A x - b||, and append it to `error_list`."""
        error = float(numpy.linalg.norm(self.b - self.A @ x))
        self.error_list.append(error)
        return error

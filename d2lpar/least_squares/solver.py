"""Data-parallel least squares on MXNet contexts: five methods behind one function.

min ||A x - b|| over x, with the rows of A and b shared over devices:

========== ===================================================================
averaging  local gradient descent, parameters averaged after each epoch
gradient   synchronous gradient descent, one all-reduce per step
cgls       conjugate gradients, one all-reduce of length n + 1 per iteration
normal     one Gram matrix per device, summed; Cholesky. Fastest
tsqr       one QR per device, QR of the stacked R factors. Most accurate
========== ===================================================================

Source: the least-squares notes for "averaging"; Paige and Saunders (1982) for CGLS;
Demmel et al., "Communication-optimal parallel and sequential QR" (2012) for TSQR.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy

from d2lpar import datasets
from d2lpar._mxnet import mx
from d2lpar.devices import label, parse
from d2lpar.errors import DeviceError
from d2lpar.least_squares.averaging import averaging
from d2lpar.least_squares.direct import normal, tsqr
from d2lpar.least_squares.iterative import cgls, gradient
from d2lpar.least_squares.progress import Answer, Progress
from d2lpar.least_squares.rows import BLOCK_BYTES, RESIDENT_BYTES, RowShards
from d2lpar.machine import host
from d2lpar.records.kinds import PointRecord
from d2lpar.training import choose

if TYPE_CHECKING:
    from d2lpar.workers.group import Workers

log = logging.getLogger("d2lpar")

LONGEST_X = 1_000  # that is recorded whole
DISTRIBUTED_METHODS = ("normal", "cgls", "gradient")  # those that need only sums
METHODS = {
    "normal": normal,
    "tsqr": tsqr,
    "cgls": cgls,
    "gradient": gradient,
    "averaging": averaging,
}
WARN_IF_OFF_BY = 1e-3  # x, relative, as a gradient within `tol` allows


@dataclass(frozen=True)
class Solution:
    """What :func:`solve` returns.

    `x` is (n,), in the dtype of the computation. `residual_norm` is ||A x - b||; if
    :func:`solve` was told to leave it out, it is NaN and the history is empty.
    `seconds` are those of the work, without measuring residuals. `condition` and `rank`
    are known to "normal" and "tsqr" alone: an estimate of the condition number of A
    with columns scaled to length 1, and a rank that is less than n if A is
    rank-deficient (:func:`~d2lpar.least_squares.direct.tsqr` has the rule): then `x` is
    the minimum-norm solution.
    """

    x: numpy.ndarray
    residual_norm: float
    history: tuple[PointRecord, ...]
    method: str
    devices: tuple[str, ...]
    seconds: float
    condition: float | None = None
    rank: int | None = None


def solve(
    A,
    b,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    method: str = "normal",
    dtype: str = "float64",
    block_bytes: int = BLOCK_BYTES,
    resident_bytes: int = RESIDENT_BYTES,
    reference: numpy.ndarray | None = None,
    workers: Workers | None = None,
    residual: bool = True,
    **options,
) -> Solution:
    """Return the x (n,) that minimises ||A x - b||, for A (m, n) and b (m,).

    A and b are arrays or paths of ``.npy`` files. For all methods but "averaging" A may
    exceed the memory: beyond `resident_bytes` on all devices together it is read in
    blocks of `block_bytes` per device. `dtype` is that of the computation and of x,
    float64 or float32. The history holds the distance to a `reference` (n,). Several
    `workers` read a part each and get the same x. Without `residual` the last pass over
    A is left out, and with it the history. `options` are the method's.

    Every x but that of "averaging" is examined: A^T (A x - b) must be zero up to
    rounding and the method's `tol`. Otherwise "cgls" and "gradient" log a warning.
    Raises ValueError if it is that of "normal" or "tsqr", for an impossible problem (it
    names the row and column of a NaN), and for "normal" on an A that is rank-deficient
    or too ill-conditioned for it; TypeError for masked arrays and sparse matrices;
    :class:`DivergedError` if "averaging" diverges; and :class:`DeviceError` if the
    devices would deadlock.
    """
    devices = choose(devices, None)
    if method not in METHODS:
        raise ValueError(f"method {method!r}: write one of {', '.join(METHODS)}")
    if workers is not None and method not in DISTRIBUTED_METHODS:
        raise ValueError(
            f"method {method} cannot be shared among workers; these can: "
            + ", ".join(DISTRIBUTED_METHODS)
        )
    _check_threads(devices)
    shards = RowShards(
        A, b, devices, dtype=dtype, block_bytes=block_bytes,
        resident_bytes=resident_bytes, workers=workers,
    )  # fmt: skip
    progress = Progress(shards, reference, residual)
    with numpy.errstate(all="ignore"):  # what over- or underflows is found out below
        answer = METHODS[method](shards, progress, **options)
        x = answer.x.astype(shards.dtype)
        _examine(shards, method, answer)
    return Solution(
        x=x,
        residual_norm=progress.history[-1].residual_norm if residual else numpy.nan,
        history=tuple(progress.history),
        method=method,
        devices=tuple(map(label, devices)),
        seconds=progress.seconds,
        condition=answer.condition,
        rank=answer.rank,
    )


def _check_threads(devices: Sequence[mx.Context]) -> None:
    """Raise DeviceError for several CPU contexts with several threads each.

    The OpenBLAS in MXNet's wheel spins on a flag that it reads only once when two
    threads call it at the same time and each call would use several threads. Without
    OMP_NUM_THREADS, MXNet takes half the cores.
    """
    threads = host.omp_threads() or max(1, host.usable_cores() // 2)
    if threads > 1 and sum(device.device_type == "cpu" for device in devices) > 1:
        raise DeviceError(
            f"OMP_NUM_THREADS is {threads}: several CPU contexts need 1 here, because "
            "MXNet's OpenBLAS would deadlock; set it before Python starts (run: "
            "--threads 1), or use one context"
        )


def _examine(shards: RowShards, method: str, answer: Answer) -> None:
    """Refuse or warn of an x whose residual r is not orthogonal to A's columns a_j.

    The x of a backward stable method solves a problem whose columns and b are off by
    about c eps of their lengths, with c = max(m, n) or less (Higham, Accuracy and
    Stability of Numerical Algorithms, theorem 20.3). So |a_j^T r| / |a_j| is at most
    c eps (sum_k |a_k| |x_k| + |b|); computing a_j^T r adds errors of this size. If r
    itself is no larger, x solves A x = b to rounding, and it passes.
    """
    if not numpy.isfinite(answer.x.astype(shards.dtype)).all():
        raise ValueError(f"x is too large for {shards.dtype}: scale A or b")
    at, lengths = answer.residual, answer.lengths
    if at is None:
        return
    shards.check_finite(at.norms, at.gradient)
    if lengths is None:  # a warning has told that the method was stopped early
        return
    if not lengths.any():
        raise ValueError(f"A is zero in {shards.dtype}, or its squares are: scale A")
    rounding = max(shards.m, shards.n, 10) * shards.rounding(at.x, lengths)
    asked_for = 10 * answer.tol * shards.n**0.5 * at.norm
    seen = lengths > 0
    largest = float((abs(at.gradient[seen]) / lengths[seen]).max())
    if largest > max(rounding, asked_for):
        found = (
            f"method {method} in {shards.dtype}: the residual has a cosine of "
            f"{largest / at.norm:.0e} with a column of A, and rounding explains "
            f"{rounding / at.norm:.0e}: use float64 or method tsqr, or scale A"
        )
        if not answer.tol:
            raise ValueError(found)
        log.warning("%s", found)
    # With columns of length 1, ||x|| is at most condition * ||A x||.
    condition = numpy.linalg.norm(lengths * at.x) / (shards.norm_of_b or 1)
    tol = min(max(answer.tol, 10 * shards.eps), 1e-6)
    if answer.tol and tol * condition**2 > WARN_IF_OFF_BY:
        log.warning(
            "x may be off, A's condition is at least about %.0e: method tsqr keeps the "
            "digits",
            condition,
        )


def measure(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    method: str = "normal",
    seed: int = 0,
    data: datasets.LinearProblem | None = None,
    num_epochs: int = 40,
    workers: Workers | None = None,
    **options,
) -> Iterator[PointRecord]:
    """Solve a problem for the runner, yielding a record for each point of the history.

    `data` defaults to the least-squares notes' problem, 10,000 x 1,000. `num_epochs`
    are those of "averaging"; `options` are arguments of :func:`solve`. If A is in
    memory, all iterative methods start at the x of the notes, so that their distances
    can be compared. The last record also holds the first five elements of x, and for
    "averaging" all of at most 1,000, as in the notes.
    """
    data = datasets.uniform_problem(10_000, 1_000, seed) if data is None else data
    devices = choose(devices, num_devices)
    if method == "averaging":
        options.update(num_epochs=num_epochs, seed=seed)
    A: object = data.A
    reference = None
    if isinstance(data.A, numpy.memmap):
        A = data.A.filename  # a mapping's pages would count in the peak of the memory
    else:
        reference = numpy.linalg.lstsq(data.A, data.b, rcond=None)[0]
        if method in ("gradient", "cgls"):  # from the x that averaging starts at
            rng = numpy.random.default_rng([seed, 1])
            options.setdefault("x0", rng.random(data.A.shape[1]))
    # The first call of an operator is slow: solve a hundredth of the rows, briefly.
    rows = len(data.b) // 100 + 1
    if method in ("normal", "tsqr"):
        rows = max(rows, data.A.shape[1])
    brief: dict[str, dict] = {"averaging": {"num_epochs": 1}, "gradient": {"tol": 0.5}}
    brief["cgls"] = brief["gradient"]
    solve(
        data.A[:rows], data.b[:rows], devices=devices, method=method,
        **{**options, **brief.get(method, {})},
    )  # fmt: skip
    solution = solve(
        A, data.b, devices=devices, method=method, reference=reference,
        workers=workers, **options,
    )  # fmt: skip
    peak = host.process_status("VmHWM")
    *points, last = solution.history
    if method == "averaging" and len(solution.x) <= LONGEST_X:
        rounded = [float(f"{number:.8e}") for number in solution.x]
        last = msgspec.structs.replace(last, x=rounded)
    last = msgspec.structs.replace(last, x_begins=solution.x[:5].tolist())
    for point in (*points, last):
        yield msgspec.structs.replace(point, peak_resident_mb=round(peak / 1e6))


class LeastSquare:
    """The class of the least-squares notes: only its import changes in their script.

    ``LeastSquare(A, b, num_gpu=2, epoches=40).run()`` is method "averaging" on the
    first `num_gpu` devices (GPUs that MXNet can use, else CPU contexts). As in the
    notes, `error_list` keeps the errors of :meth:`check` and, after each epoch, every
    device's. `options` are those of
    :func:`~d2lpar.least_squares.averaging.averaging`: ``independent=False`` restores
    the notes' order of devices.
    """

    def __init__(self, A, b, num_gpu: int = 2, epoches: int = 2, **options) -> None:
        self.A, self.b, self.num_gpu = A, b, num_gpu
        self.options = {"num_epochs": epoches, **options}
        self.error_list: list[float] = []

    def run(self) -> numpy.ndarray:
        """The averaged x (n,) after the last epoch."""
        available = parse("auto")
        if available[0].device_type == "cpu":
            available = parse(f"cpu:{self.num_gpu}")
        devices = choose(available, self.num_gpu)
        solution = solve(
            self.A, self.b, devices=devices, method="averaging", **self.options
        )
        for point in solution.history:
            self.error_list += point.device_residual_norms
        return solution.x

    def check(self, x: numpy.ndarray) -> float:
        """||A x - b||, also appended to `error_list`."""
        error = float(numpy.linalg.norm(self.b - self.A @ x))
        self.error_list.append(error)
        return error

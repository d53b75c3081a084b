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
from d2lpar.least_squares.progress import Progress
from d2lpar.least_squares.rows import BLOCK_BYTES, RESIDENT_BYTES, RowShards
from d2lpar.machine import host
from d2lpar.records.kinds import PointRecord
from d2lpar.training import choose

if TYPE_CHECKING:
    from d2lpar.workers.group import Workers

LONGEST_X = 1_000  # that is recorded whole
DISTRIBUTED_METHODS = ("normal", "cgls", "gradient")  # those that need only sums
ONE_RIGHT_HAND_SIDE = ("cgls", "gradient", "averaging")
METHODS = {
    "normal": normal,
    "tsqr": tsqr,
    "cgls": cgls,
    "gradient": gradient,
    "averaging": averaging,
}


@dataclass(frozen=True)
class Solution:
    """What :func:`solve` returns.

    `x` is (n,) or (n, k), as b is (m,) or (m, k), in the dtype of the computation.
    `residual_norm` is ||A x - b||, a number or (k,), NaN if :func:`solve` was told to
    leave it out: then the history is empty. `seconds` are those of the work,
    without measuring residuals, as in the history. `condition` and `rank` are known to
    "normal" and "tsqr" alone, else None: an estimate of the condition number of A with
    columns scaled to length 1 ("normal" scales only if their lengths differ tenfold),
    and a rank that is less than n if A is rank-deficient: then `x` is the minimum-norm
    solution. Badly scaled columns alone do not lower the rank, unlike that of
    ``numpy.linalg.lstsq``; :func:`~d2lpar.least_squares.direct.tsqr` has the rule.
    """

    x: numpy.ndarray
    residual_norm: float | numpy.ndarray
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
    """The x that minimises ||A x - b||.

    A is (m, n): an array, a memmap, the path of an ``.npy`` file, or a Zarr or HDF5
    array. b is any of these or a list: (m,), or (m, k) for methods "normal" and "tsqr".
    The rows of a path are read from its file; those of a memmap from its mapping, whose
    pages count as this process's memory until the system needs them.
    `dtype` is that of the computation and of x, float64 or float32. For all methods but
    "averaging" A may exceed the memory: beyond `resident_bytes` on all devices together
    it is read in blocks of `block_bytes` per device. The history holds the distance to
    a `reference`, shaped as x. Several `workers` read a part each and get the same x.
    Without `residual` the last pass over A is left out, and with it the history and all
    that compares ||A x - b||, which is NaN. `options` are the method's.

    Raises ValueError for an impossible problem (it names the row and column of a NaN),
    for an A or b whose products overflow or underflow (all numbers beyond about 1e±65
    in float64 or 1e±15 in float32: scale them), for an x that is worse than 0, and for
    "normal" on an A that is rank-deficient or too ill-conditioned for it: "tsqr" solves
    those. Raises TypeError for masked arrays, sparse matrices and other libraries'
    tensors. Raises :class:`DivergedError` if "averaging" diverges, and
    :class:`DeviceError` if the devices would deadlock.
    """
    devices = choose(devices, None)
    if method not in METHODS:
        raise ValueError(f"method {method!r}: write one of {', '.join(METHODS)}")
    if workers is not None and method not in DISTRIBUTED_METHODS:
        raise ValueError(
            f"method {method} cannot be shared among workers; these can: "
            + ", ".join(DISTRIBUTED_METHODS)
        )
    # The OpenBLAS in MXNet's wheel spins on a flag that it reads only once when two
    # threads call it at the same time and each call would use several threads. Without
    # OMP_NUM_THREADS, MXNet takes half the cores.
    threads = host.omp_threads() or max(1, host.usable_cores() // 2)
    if threads > 1 and sum(device.device_type == "cpu" for device in devices) > 1:
        raise DeviceError(
            f"OMP_NUM_THREADS is {threads}: several CPU contexts need 1 here, because "
            "MXNet's OpenBLAS would deadlock; set it before Python starts (run: "
            "--threads 1), or use one context"
        )
    shards = RowShards(
        A, b, devices, dtype=dtype, block_bytes=block_bytes,
        resident_bytes=resident_bytes, workers=workers,
    )  # fmt: skip
    if shards.num_rhs > 1 and method in ONE_RIGHT_HAND_SIDE:
        raise ValueError(
            f"b has {shards.num_rhs} columns, method {method} takes one: use method "
            "normal or tsqr, or solve for one column at a time"
        )
    progress = Progress(shards, reference, residual=residual)
    answer = METHODS[method](shards, progress, **options)
    norms = progress.column_norms
    with numpy.errstate(over="ignore"):
        x = answer.x.astype(shards.dtype)
    if not numpy.isfinite(x).all():
        raise ValueError(f"x is too large for {shards.dtype}: scale A or b")
    if residual and not numpy.isfinite(norms).all():
        raise ValueError(
            f"method {method}: ||A x - b|| overflows {shards.dtype}: use another "
            "method, or scale A or b"
        )
    slack = 1 + numpy.finfo(shards.dtype).eps ** 0.5
    from_zero = method != "averaging" and options.get("x0") is None
    if residual and from_zero and (norms > slack * shards.norms_of_b).any():
        raise ValueError(
            f"method {method} in {shards.dtype} found an x that is worse than 0: use "
            "float64 or method tsqr"
        )
    return Solution(
        x=x[:, 0] if shards.flat else x,
        residual_norm=float(norms[0]) if shards.flat else norms,
        history=tuple(progress.history),
        method=method,
        devices=tuple(map(label, devices)),
        seconds=progress.seconds,
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
    workers: Workers | None = None,
    **options,
) -> Iterator[PointRecord]:
    """Solve a problem for the runner, yielding a record for each point of the history.

    `data` defaults to the least-squares notes' problem, 10,000 x 1,000. `num_epochs`
    are those of "averaging"; `options` are arguments of :func:`solve`. If A is in
    memory, all iterative methods start at the x of the notes, so that their distances
    can be compared. Records hold the peak of the process's resident memory, in MB; the
    last one also holds the first five elements of x, and for "averaging" all of at most
    1,000, as in the notes.
    """
    data = datasets.uniform_problem(10_000, 1_000, seed) if data is None else data
    devices = choose(devices, num_devices)
    if method == "averaging":
        options.update(num_epochs=num_epochs, seed=seed)
    reference = None
    if not isinstance(data.A, numpy.memmap):
        reference = numpy.linalg.lstsq(data.A, data.b, rcond=None)[0]
        if method in ("gradient", "cgls"):  # from the x that averaging starts at
            rng = numpy.random.default_rng([seed, 1])
            options.setdefault("x0", rng.random(data.A.shape[1]))
    # The first call of an operator is slow: solve a hundredth of the rows, briefly.
    rows = len(data.b) // 100 + 1
    if method in ("normal", "tsqr"):
        rows = max(rows, data.A.shape[1])
    brief: dict[str, dict] = {"averaging": {"num_epochs": 1}, "gradient": {"tol": 0.5}}
    solve(
        data.A[:rows], data.b[:rows], devices=devices, method=method,
        **{**options, **brief.get(method, {})},
    )  # fmt: skip
    A: object = data.A
    if isinstance(data.A, numpy.memmap) and data.folder is not None:
        A = data.A.filename  # a mapping's pages would count in the peak of the memory
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
    first `num_gpu` devices (GPUs that MXNet can use, else CPU contexts), and
    ``check(x)`` is ||A x - b||. As in the notes, `error_list` keeps these errors and,
    after each epoch, every device's. Unlike in the notes, the devices work
    independently and in parallel; `options` are those of
    :func:`~d2lpar.least_squares.averaging.averaging`, such as ``independent=False``,
    which restores their order. As published, in NumPy, the class stands in
    ``benchmarks/peers/least_squares_notes.py``.
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

"""Data-parallel least squares on MXNet contexts: the seed's averaging and better ways.

min ||A x - b|| over x, with the rows of A and b shared out over devices. Five methods:

========== ===================================================================
averaging  local gradient descent, parameters averaged after each epoch (seed)
gradient   synchronous gradient descent, one all-reduce a step
cgls       conjugate gradients, one all-reduce of length n + k an iteration
normal     one Gram matrix a device, summed; Cholesky. Fastest
tsqr       one QR a device, QR of the stacked R factors. Most accurate
========== ===================================================================

Source: seed 000 (``LeastSquare``); Paige and Saunders (1982) for CGLS; Demmel et al.,
"Communication-optimal parallel and sequential QR" (2012) for TSQR.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy

from d2lpar import datasets
from d2lpar import devices as _devices
from d2lpar._mxnet import mx, npx
from d2lpar.errors import DeviceError
from d2lpar.least_squares.averaging import averaging
from d2lpar.least_squares.direct import normal, tsqr
from d2lpar.least_squares.iterative import cgls, gradient
from d2lpar.least_squares.rows import BLOCK_BYTES, RESIDENT_BYTES, RowShards
from d2lpar.machine import cores
from d2lpar.records.kinds import PointRecord
from d2lpar.training import Workload
from d2lpar.workers.group import Workers

DIRECT = ("normal", "tsqr")
OF_WORKERS = ("normal", "cgls", "gradient")  # those that need nothing but sums
METHODS = {
    "normal": normal,
    "tsqr": tsqr,
    "cgls": cgls,
    "gradient": gradient,
    "averaging": averaging,
}


@dataclass(frozen=True)
class Point:
    """Where a method had got to: one line of a solution's history.

    `seconds` are of work alone: measuring the residual is not counted. The residual
    norms are Frobenius norms over all right-hand sides; `device_residual_norms` are of
    each device's own rows, or, for "averaging", of the own x of every device that has
    rows, over all rows. `distance` is ||x - reference|| / ||reference||, or ||x|| where
    the reference is 0; None without a reference.
    """

    iteration: int
    seconds: float
    residual_norm: float
    device_residual_norms: tuple[float, ...]
    distance: float | None = None


@dataclass(frozen=True)
class Solution:
    """What :func:`solve` found.

    `x` is (n,) or (n, k), as b is (m,) or (m, k), of the computation's dtype.
    `residual_norm` is ||A x - b||, a number or (k,). `seconds` are of work, as in the
    history. `condition` and `rank` are known to "normal" and "tsqr" alone, else None:
    an estimate of the condition number of A, its columns scaled to length 1 ("normal"
    scales only where their lengths differ tenfold), and a rank that is less than n
    where A was found to be rank-deficient: then `x` is the minimum-norm solution.
    """

    x: numpy.ndarray
    residual_norm: float | numpy.ndarray
    history: tuple[Point, ...]
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
    **options,
) -> Solution:
    """The x that makes ||A x - b|| least.

    A is (m, n): an array, a memmap, the path of an ``.npy`` file, or a Zarr or HDF5
    array; b is (m,) or (m, k), any of these or a list. `dtype` is that of the
    computation and of x, float64 or float32. Larger than memory is fine for all methods
    but "averaging": beyond `resident_bytes` rows are read in blocks of `block_bytes` a
    device, the next while this one is worked on. With a `reference` solution, shaped as
    x, the history holds the distance to it. One of several `workers` reads its part of
    A's rows alone; all get the same x (methods "normal", "cgls", "gradient").

    `options` are those of the method, explained in :mod:`d2lpar.least_squares.iterative`:
    `tol`, `max_iterations` and `x0` of "cgls" and "gradient"; `num_epochs`,
    `independent`, `seed`, ... of "averaging".

    Raises ValueError for a problem that cannot be (the offending row and column of a
    NaN are named), and for "normal" on an A that is rank-deficient or too
    ill-conditioned for it: "tsqr" solves those.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r}: write one of {', '.join(METHODS)}")
    if workers is not None and method not in OF_WORKERS:
        raise ValueError(
            f"method {method} is not shared among workers: {', '.join(OF_WORKERS)} are"
        )
    if isinstance(devices, str):
        devices = _devices.parse(devices)
    _refuse_to_hang(devices)
    shards = RowShards(A, b, devices, dtype, block_bytes, resident_bytes, workers)
    progress = Progress(shards, reference)
    found = METHODS[method](shards, progress, **options)
    x, norms = found.x.astype(shards.dtype, copy=False), progress.column_norms
    return Solution(
        x=x[:, 0] if shards.flat else x,
        residual_norm=float(norms[0]) if shards.flat else norms,
        history=tuple(progress.history),
        method=method,
        devices=tuple(_devices.label(device) for device in devices),
        seconds=progress.seconds,
        condition=found.condition,
        rank=found.rank,
    )


def _refuse_to_hang(devices: Sequence[mx.Context]) -> None:
    """Raise :class:`DeviceError` where MXNet would wait for ever.

    The OpenBLAS in its wheel spins on a flag that it reads once, when two threads call
    it at the same time and each call would use several threads of its own.
    """
    on_cpu = [device for device in devices if device.device_type == "cpu"]
    threads = cores.omp_threads()
    if threads is None:  # MXNet came first, and takes half the cores
        threads = max(1, cores.usable_cores() // 2)
    if len(on_cpu) > 1 and threads > 1:
        raise DeviceError(
            f"OMP_NUM_THREADS is {threads}: several CPU contexts need 1 here, because "
            "the OpenBLAS in MXNet's wheel would wait for ever; set it before Python "
            "starts, or use one context"
        )


def train(
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

    Same arguments as :func:`d2lpar.lenet.train`; `data` defaults to the seed's problem,
    10,000 x 1,000. `num_epochs` are those of "averaging". Every call warms up on a
    hundredth of the rows. The last record also holds the first five numbers of x.
    """
    data = datasets.uniform_problem(10_000, 1_000, seed) if data is None else data
    chosen = _devices.parse(devices) if isinstance(devices, str) else list(devices)
    chosen = chosen[:num_devices]
    if method == "averaging":
        options.update(num_epochs=num_epochs, seed=seed)
    best = None
    if not isinstance(data.A, numpy.memmap):
        best = numpy.linalg.lstsq(data.A, data.b, rcond=None)[0]
    few = len(data.b) // 100 + 1
    warm = slice(0, max(few, data.A.shape[1]) if method in DIRECT else few)
    brief = {"averaging": {"num_epochs": 1}, "gradient": {"tol": 0.5}}.get(method, {})
    solve(
        data.A[warm], data.b[warm], devices=chosen, method=method,
        **{**options, **brief},
    )  # fmt: skip
    solution = solve(
        data.A, data.b, devices=chosen, method=method, reference=best,
        workers=workers, **options,
    )  # fmt: skip
    for point in solution.history:
        extra = {"peak_resident_mb": _peak_resident_mb()}
        if point is solution.history[-1]:
            extra["x_begins"] = solution.x[:5].tolist()
        yield PointRecord(
            iteration=point.iteration,
            seconds=point.seconds,
            residual_norm=point.residual_norm,
            device_residual_norms=list(point.device_residual_norms),
            distance=point.distance,
            extra=extra,
        )


def _peak_resident_mb() -> int:
    """The most memory this process has had resident, in MB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes / 1000)


class Progress:
    """The clock and the history of a run; the clock stands still while it is read."""

    def __init__(self, shards: RowShards, reference=None) -> None:
        self.shards, self.history, self.seconds = shards, [], 0.0
        self.reference = reference
        if reference is not None and numpy.size(reference) != shards.n * shards.num_rhs:
            raise ValueError(
                f"reference is of shape {numpy.shape(reference)}: write one of x's, "
                f"{shards.n} x {shards.num_rhs}"
            )
        self.column_norms = None
        self._begin = time.perf_counter()

    def pause(self) -> None:
        npx.waitall()
        self.seconds += time.perf_counter() - self._begin

    def resume(self) -> None:
        npx.waitall()
        self._begin = time.perf_counter()

    def point(self, iteration: int, x: numpy.ndarray, locals_=None) -> None:
        """Keep the residual of host array `x` (n, k); the clock must be paused.

        `locals_` are the devices' own (n, k), where they are not one and the same.
        """
        squares = self.shards.residual_squares(x)
        self.column_norms = numpy.sqrt(squares.sum(axis=0))
        if locals_ is None:
            per_device = squares.sum(axis=1)
        else:
            per_device = [self.shards.residual_squares(x_k).sum() for x_k in locals_]
        self.history.append(
            Point(
                iteration,
                self.seconds,
                float(numpy.sqrt(squares.sum())),
                tuple(float(numpy.sqrt(s)) for s in per_device),
                self._distance(x),
            )
        )

    def _distance(self, x: numpy.ndarray) -> float | None:
        if self.reference is None:
            return None
        best = numpy.reshape(self.reference, x.shape)
        size = numpy.linalg.norm(best)
        return float(numpy.linalg.norm(x - best) / (size if size > 0 else 1))


class LeastSquare:
    """The seed's class, so that its script runs with only its import changed.

    ``LeastSquare(A, b, num_gpu=2, epoches=40).run()`` is method "averaging" on the
    first `num_gpu` devices (GPUs that MXNet can use, else CPU contexts), and
    ``check(x)`` is ||A x - b||, kept in `error_list` as the seed keeps it: every
    device's error after each epoch, in turn. Not the seed's: the devices work
    independently and in parallel (``independent=False`` gives its order back), and the
    randomness is `seed`'s.
    """

    def __init__(
        self, A, b, num_gpu: int = 2, epoches: int = 2, *, independent=True, seed=0
    ) -> None:
        self.A, self.b = A, b
        self.lr = 1e-3 / A.shape[1]
        self.num_gpu, self.epoches = num_gpu, epoches
        self.independent, self.seed = independent, seed
        self.error_list: list[float] = []

    def run(self) -> numpy.ndarray:
        """The averaged x (n,) after the last epoch."""
        found = _devices.parse("auto")
        if found[0].device_type == "cpu":
            found = _devices.parse(f"cpu:{self.num_gpu}")
        solution = solve(
            self.A,
            self.b,
            devices=found[: _devices.parse_counts(str(self.num_gpu), len(found))[0]],
            method="averaging",
            num_epochs=self.epoches,
            independent=self.independent,
            seed=self.seed,
            lr=self.lr,
        )
        for point in solution.history:
            self.error_list += point.device_residual_norms
        return solution.x

    def check(self, x: numpy.ndarray) -> float:
        """||A x - b||, also appended to `error_list`."""
        error = float(numpy.linalg.norm(self.b - self.A @ x))
        self.error_list.append(error)
        return error


WORKLOAD = Workload(
    train,
    load=datasets.uniform_problem,
    locate=None,
    train_with_workers=train,
    unit="point",
)
WORKLOAD_ON_DISK = replace(WORKLOAD, load=datasets.uniform_file)

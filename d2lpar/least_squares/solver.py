"""Data-parallel least squares on MXNet contexts: five methods behind one function.

min ||A x - b|| over x, with the rows of A and b shared over devices:

========== ===================================================================
averaging  local gradient descent, parameters averaged after each epoch
gradient   synchronous gradient descent, one all-reduce per step
cgls       conjugate gradients, one all-reduce of length n + k per iteration
normal     one Gram matrix per device, summed; Cholesky. Fastest
tsqr       one QR per device, QR of the stacked R factors. Most accurate
========== ===================================================================

Source: the least-squares notes for "averaging"; Paige and Saunders (1982) for CGLS;
Demmel et al., "Communication-optimal parallel and sequential QR" (2012) for TSQR.
"""

from __future__ import annotations

import inspect
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy

from d2lpar import datasets
from d2lpar._mxnet import mx
from d2lpar.devices import label
from d2lpar.errors import DeviceError
from d2lpar.least_squares.averaging import averaging
from d2lpar.least_squares.direct import normal, tsqr
from d2lpar.least_squares.iterative import cgls, gradient
from d2lpar.least_squares.progress import Progress
from d2lpar.least_squares.rows import BLOCK_BYTES, RowShards
from d2lpar.machine import cores
from d2lpar.records.kinds import PointRecord
from d2lpar.training import Workload, choose
from d2lpar.workers.group import Workers

LONGEST_X = 1_000  # that is recorded; NumPy prints no longer one whole, either
OF_WORKERS = ("normal", "cgls", "gradient")  # those that need nothing but sums
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

    `x` is (n,) or (n, k), as b is (m,) or (m, k), of the computation's dtype.
    `residual_norm` is ||A x - b||, a number or (k,). `seconds` are of work, without
    measuring residuals, as in the history. `condition` and `rank` are known to "normal"
    and "tsqr" alone, else None: an estimate of the condition number of A with columns
    scaled to length 1 ("normal" scales only if their lengths differ tenfold), and a
    rank that is less than n if A is rank-deficient: then `x` is the minimum-norm
    solution. Badly scaled columns alone do not lower the rank, unlike that of
    ``numpy.linalg.lstsq``: :func:`~d2lpar.least_squares.direct.tsqr` has the rule.
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
    resident_bytes: int | None = None,
    reference: numpy.ndarray | None = None,
    workers: Workers | None = None,
    **options,
) -> Solution:
    """The x that minimises ||A x - b||.

    A is (m, n): an array, a memmap, the path of an ``.npy`` file, or a Zarr or HDF5
    array; b is (m,) or (m, k), any of these or a list. `dtype` is that of the
    computation and of x, float64 or float32. For all methods but "averaging" A may
    exceed the memory: beyond `resident_bytes` it is read in blocks of `block_bytes` per
    device. None stands for 1 GiB in all on CPU contexts, and on GPUs for what their
    free memory holds. The history holds the distance to a `reference`, shaped as x.
    Several `workers` read a part each and get the same x. `options` are the method's.

    Raises ValueError for an impossible problem (it names the row and column of a NaN),
    for an x that its dtype cannot hold, and for "normal" on an A that is rank-deficient
    or too ill-conditioned for it: "tsqr" solves those. Raises TypeError for an option
    that the method lacks, :class:`DeviceError` if the devices would deadlock.
    """
    devices = choose(devices, None)
    _check(method, devices, workers)
    _check_options(method, options)
    shards = RowShards(
        A, b, devices, dtype=dtype, block_bytes=block_bytes,
        resident_bytes=resident_bytes, workers=workers,
    )  # fmt: skip
    progress = Progress(shards, reference)
    answer = METHODS[method](shards, progress, **options)
    x = shards.unscaled(answer.x)
    norms: numpy.ndarray | float = progress.column_norms
    if shards.flat:
        x, norms = x[:, 0], float(progress.column_norms[0])
    return Solution(
        x, norms, tuple(progress.history), method, tuple(map(label, devices)),
        progress.seconds, answer.condition, answer.rank,
    )  # fmt: skip


def _check(method: str, devices: Sequence[mx.Context], workers: Workers | None) -> None:
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method {method!r}: write one of {', '.join(METHODS)}")
    if workers is not None and method not in OF_WORKERS:
        raise ValueError(
            f"method {method} is not shared among workers: {', '.join(OF_WORKERS)} are"
        )
    # The OpenBLAS in MXNet's wheel spins on a flag that it reads only once when two
    # threads call it at the same time and each call would use several threads.
    on_cpu = [device for device in devices if device.device_type == "cpu"]
    # Without OMP_NUM_THREADS, MXNet takes half the cores.
    threads = cores.omp_threads() or max(1, cores.usable_cores() // 2)
    if len(on_cpu) > 1 and threads > 1:
        raise DeviceError(
            f"OMP_NUM_THREADS is {threads}: several CPU contexts need 1 here, because "
            "MXNet's OpenBLAS would deadlock; set it before Python starts (run: "
            "--threads 1), or use one context"
        )


def _check_options(method: str, options: dict) -> None:
    kinds = inspect.signature(METHODS[method]).parameters.values()
    known = [kind.name for kind in kinds if kind.kind is kind.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise TypeError(
                f"method {method} has no option {name!r}: it has "
                + (", ".join(known) or "none")
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

    The arguments are those of :func:`d2lpar.lenet.train`; `data` defaults to the
    least-squares notes' problem, 10,000 x 1,000. `num_epochs` are those of "averaging".
    Where A is in memory, all iterative methods start at the x of the notes, so that
    their distances can be compared. Records hold the most memory the process has had
    resident, in MB; the last one also holds the first five numbers of x, and for
    "averaging" all of at most 1,000, as in the notes.
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
    _warm_up(data, devices, method, options)
    solution = solve(
        data.A, data.b, devices=devices, method=method, reference=reference,
        workers=workers, **options,
    )  # fmt: skip
    for point in solution.history:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        extra: dict = {"peak_resident_mb": round(kilobytes / 1000)}
        if point is solution.history[-1]:
            extra["x_begins"] = solution.x[:5].tolist()
            if method == "averaging" and len(solution.x) <= LONGEST_X:
                extra["x"] = [float(f"{number:.8e}") for number in solution.x]
        yield replace(point, extra=extra)


def _warm_up(data: datasets.LinearProblem, devices, method: str, options: dict) -> None:
    """Solve a hundredth of the rows, briefly: the first call of an operator is slow."""
    rows = len(data.b) // 100 + 1
    if method in ("normal", "tsqr"):
        rows = max(rows, data.A.shape[1])
    short: dict[str, dict] = {"averaging": {"num_epochs": 1}, "gradient": {"tol": 0.5}}
    brief = short.get(method, {})
    solve(
        data.A[:rows], data.b[:rows], devices=devices, method=method,
        **{**options, **brief},
    )  # fmt: skip


WORKLOAD = Workload(
    train, load=datasets.uniform_problem, locate=None, train_with_workers=train,
    unit="point",
)  # fmt: skip
WORKLOAD_ON_DISK = replace(WORKLOAD, load=datasets.uniform_file)

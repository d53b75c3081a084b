"""Seconds to solve least squares: our methods, NumPy, SciPy, Dask, and the notes' code.

    python benchmarks/least_squares.py --rounds 2 --repeats 3

Every arm runs in a fresh process, one after the other, round after round; the first
solve in a process warms up. Copying A to the devices counts. Each solve is checked: its
residual must be LAPACK's to 1e-9, except for the averaging methods, which do not
converge. Writes least_squares.jsonl, .png and .svg to runs/benchmarks. An arm whose
library is not installed says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy

from d2lpar import datasets, devices
from d2lpar.errors import RunError
from d2lpar.figures import bars
from d2lpar.machine.host import usable_cores
from d2lpar.records import arms
from d2lpar.runs import in_turn
from d2lpar.text import plural

LARGE = (10_000, 1_000)  # the notes' rows and columns
ROWS = (1_000, 10_000, 100_000, 1_000_000)  # at 100 columns
# The notes' second run. Their text says ten thousand columns, but for numbers uniform
# in [0, 1) the optimum is about sqrt((m - n) / 12): theirs, 90.83, is that of 1,000.
HUNDREDFOLD = (100_000, 1_000)
EPOCHS = {LARGE: 40, HUNDREDFOLD: 20}  # of averaging, as in the notes


def numpy_lstsq(A, b):
    return numpy.linalg.lstsq(A, b, rcond=None)[0]


def scipy_gelsy(A, b):
    import scipy.linalg

    return scipy.linalg.lstsq(A, b, lapack_driver="gelsy")[0]


def dask_lstsq(A, b):
    import dask.array as da

    rows = -(-len(A) // 2)
    A = da.from_array(A, chunks=(max(rows, A.shape[1]), A.shape[1]))
    b = da.from_array(b, chunks=A.chunks[0][0])
    return da.linalg.lstsq(A, b)[0].compute()


LIBRARIES = {"numpy": numpy_lstsq, "scipy gelsy": scipy_gelsy, "dask": dask_lstsq}


def ours(method: str, num_devices: int) -> Callable:
    """The function of A and b that solves by one of our methods."""
    from d2lpar.least_squares import solve

    contexts = devices.parse(f"cpu:{num_devices}")
    options = {"tol": 1e-10} if method == "cgls" else {}
    return lambda A, b: solve(A, b, devices=contexts, method=method, **options).x


def timed_solves(
    method: str, num_devices: int, rows: int, columns: int, repeats: int
) -> Iterator[dict]:
    """Time solves by one of our methods, or by a library on no devices; check each."""
    data = datasets.uniform_problem(rows, columns)
    solve = ours(method, num_devices) if num_devices else LIBRARIES[method]
    optimum = numpy.linalg.norm(data.A @ numpy_lstsq(data.A, data.b) - data.b)
    solve(data.A, data.b)
    for _ in range(repeats):
        start = time.perf_counter()
        x = solve(data.A, data.b)
        seconds = time.perf_counter() - start
        excess = numpy.linalg.norm(data.A @ x - data.b) / optimum - 1
        if not abs(excess) < 1e-9:
            raise RunError(f"the residual is off by {excess:.1e}")
        yield {"seconds": seconds, "error": float(optimum * (1 + excess))}


def timed_averaging(rows: int, columns: int, independent: bool) -> Iterator[dict]:
    """Time the notes' method on two devices, as published or with independent ones."""
    from d2lpar.least_squares import solve

    data = datasets.uniform_problem(rows, columns)
    options = {"devices": devices.parse("cpu:2"), "method": "averaging"}
    options["independent"] = independent
    solve(data.A, data.b, num_epochs=1, **options)
    start = time.perf_counter()
    epochs = EPOCHS[rows, columns]
    solution = solve(data.A, data.b, num_epochs=epochs, **options)
    # solution.seconds leaves the history out; the notes' code counts its own.
    seconds = time.perf_counter() - start
    yield {"seconds": seconds, "error": solution.residual_norm}


def write_problem(path: str) -> Iterator[dict]:
    """Write the notes' problem and our solution's error, for their code to check."""
    from d2lpar.least_squares import solve

    data = datasets.uniform_problem(*LARGE)
    solution = solve(data.A, data.b, devices=devices.parse("cpu:1"), method="normal")
    numpy.savez(path, A=data.A, b=data.b, optimum=solution.residual_norm)
    yield {"optimum": solution.residual_norm}


def arms_of(cores: int, repeats: int, check: str) -> Iterator[in_turn.Arm]:
    all_cores = {"OMP_NUM_THREADS": str(cores)}

    def arm(method: str, num_devices: int, size: tuple[int, int]) -> in_turn.Arm:
        rows, columns = size
        work = f"{rows:,} x {columns:,}"
        job = {
            "method": method,
            "num_devices": num_devices,
            "rows": rows,
            "columns": columns,
            "repeats": repeats,
        }
        call = f"{__file__}:timed_solves"
        if num_devices:
            name = f"{method} on {plural(num_devices, 'context')}"
            return in_turn.ours(name, 1, call, work=work, **job)
        return in_turn.Arm(method, call, job, all_cores, is_peer=True, work=work)

    yield arm("normal", 1, LARGE)
    for size in (LARGE, HUNDREDFOLD):
        for method in ("normal", "tsqr", "cgls"):
            yield arm(method, cores, size)
        for library in LIBRARIES:
            yield arm(library, 0, size)
        yield from averaging_arms(*size)
    notes = in_turn.peer(
        "least-squares notes", "least_squares_notes.py", {"check": check}, all_cores
    )
    yield notes._replace(work=f"{LARGE[0]:,} x {LARGE[1]:,}")
    for rows in ROWS:
        for method in ("normal", "tsqr", "cgls"):
            yield arm(method, cores, (rows, 100))
        for library in LIBRARIES:
            yield arm(library, 0, (rows, 100))


def averaging_arms(rows: int, columns: int) -> Iterator[in_turn.Arm]:
    """The notes' method as they have it, and with devices that do work in parallel."""
    work, epochs = f"{rows:,} x {columns:,}", EPOCHS[rows, columns]
    call = f"{__file__}:timed_averaging"
    for independent in (True, False):
        method = "averaging" if independent else "averaging as published"
        yield in_turn.ours(
            f"{method}, {epochs} epochs, on 2 contexts", 1, call, work=work, rows=rows,
            columns=columns, independent=independent,
        )  # fmt: skip


def main() -> None:
    parser = in_turn.parser(__doc__, rounds=2)
    parser.add_argument("--repeats", type=int, default=3, help="solves after a warm-up")
    args = parser.parse_args()

    cores = usable_cores()
    with tempfile.TemporaryDirectory() as folder:
        check = str(Path(folder) / "problem.npz")
        problem = in_turn.ours("", cores, f"{__file__}:write_problem", path=check)
        in_turn.run(problem)
        arms_in_turn = list(arms_of(cores, args.repeats, check))
        lines = in_turn.measure(arms_in_turn, args.rounds, warm_up=0)
    run = in_turn.record(
        args.out / "least_squares.jsonl",
        arms_in_turn,
        lines,
        work="min ||A x - b||",
        note="Ours with one thread per context, the others with all cores. Copying A "
        "to the devices counts.",
    )
    print(arms.table(run))
    bars.draw([run], args.out, "least_squares")


if __name__ == "__main__":
    main()

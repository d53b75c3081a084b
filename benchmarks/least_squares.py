"""Seconds to solve least squares: our methods, NumPy, SciPy, Dask, and the notes' code.

    python benchmarks/least_squares.py --rounds 2 --repeats 3
    python benchmarks/least_squares.py --arms normal,lstsq           # a part
    python benchmarks/least_squares.py --arms "GPU,numpy normal"     # those on a GPU

Every arm runs in a fresh process, one after the other, round after round; the first
solve in a process warms up. Copying A to the devices counts. Each solve is checked: its
residual must be LAPACK's to 1e-9, except for the averaging methods, which do not
converge. Writes least_squares.jsonl and .png to runs/benchmarks. An arm whose
library is not installed says so.

NumPy's lstsq is an SVD, which takes several times the arithmetic of normal equations.
So `normal` stands beside the same equations in NumPy, SciPy and PyTorch: these find x
alone, without estimating the condition of A or measuring ||A x - b||. "x alone" is
`normal` without that last measurement.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import arms
import numpy

from d2lpar import datasets, devices
from d2lpar.errors import RunError
from d2lpar.machine.gpus import cuda_devices
from d2lpar.machine.host import usable_cores
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


def numpy_normal(A, b):
    return numpy.linalg.solve(A.T @ A, A.T @ b)


def scipy_normal(A, b):
    import scipy.linalg

    return scipy.linalg.cho_solve(scipy.linalg.cho_factor(A.T @ A), A.T @ b)


def torch_normal(A, b, device="cpu"):
    import torch

    A, b = torch.from_numpy(A).to(device), torch.from_numpy(b).to(device)
    L = torch.linalg.cholesky(A.T @ A)
    return torch.cholesky_solve((A.T @ b)[:, None], L)[:, 0].cpu().numpy()


def torch_normal_on_a_gpu(A, b):
    return torch_normal(A, b, "cuda")


def dask_lstsq(A, b):
    import dask.array as da

    rows = -(-len(A) // 2)
    A = da.from_array(A, chunks=(max(rows, A.shape[1]), A.shape[1]))
    b = da.from_array(b, chunks=A.chunks[0][0])
    return da.linalg.lstsq(A, b)[0].compute()


LIBRARIES = {
    "numpy lstsq": numpy_lstsq,
    "numpy normal equations": numpy_normal,
    "scipy normal equations, cho_solve": scipy_normal,
    "pytorch normal equations": torch_normal,
    "scipy gelsy": scipy_gelsy,
    "dask": dask_lstsq,
}
ON_A_GPU = {"pytorch normal equations on 1 GPU": torch_normal_on_a_gpu}


def ours(method: str, chosen: str, residual: bool) -> Callable:
    """The function of A and b that solves by one of our methods, on chosen devices."""
    from d2lpar.least_squares import solve

    contexts = devices.parse(chosen)
    options: dict = {"tol": 1e-10} if method == "cgls" else {}
    options.update(devices=contexts, method=method, residual=residual)
    return lambda A, b: solve(A, b, **options).x


def timed_solves(
    method: str,
    chosen: str,
    rows: int,
    columns: int,
    repeats: int,
    residual: bool = True,
) -> Iterator[dict]:
    """Time solves by our method on chosen devices, or by a library; check each."""
    data = datasets.uniform_problem(rows, columns)
    libraries = {**LIBRARIES, **ON_A_GPU}
    solve = ours(method, chosen, residual) if chosen else libraries[method]
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


def work_of(size: tuple[int, int]) -> str:
    return f"{size[0]:,} x {size[1]:,}"


def arms_of(cores: int, repeats: int, check: str) -> Iterator[arms.Arm]:
    all_cores, every_core = {"OMP_NUM_THREADS": str(cores)}, f"cpu:{cores}"

    def arm(
        method: str, chosen: str, size: tuple[int, int], residual: bool = True
    ) -> arms.Arm:
        rows, columns = size
        work = work_of(size)
        job = {
            "method": method,
            "chosen": chosen,
            "rows": rows,
            "columns": columns,
            "repeats": repeats,
            "residual": residual,
        }
        call = "least_squares:timed_solves"
        if chosen:
            kind, count = chosen.split(":")
            where = plural(int(count), "context" if kind == "cpu" else "GPU")
            name = f"{method} on {where}" + ("" if residual else ", x alone")
            return arms.ours(name, 1, call, work=work, **job)
        return arms.Arm(method, call, job, all_cores, is_peer=True, work=work)

    def arms_of_size(size: tuple[int, int]) -> Iterator[arms.Arm]:
        for method in ("normal", "tsqr", "cgls"):
            yield arm(method, every_core, size)
        yield arm("normal", every_core, size, residual=False)
        for library in LIBRARIES:
            yield arm(library, "", size)
        if cuda_devices():
            for method in ("normal", "tsqr", "cgls"):
                yield arm(method, "gpu:1", size)
            yield arm("normal", "gpu:1", size, residual=False)
            for library in ON_A_GPU:
                yield arm(library, "", size)

    yield arm("normal", "cpu:1", LARGE)
    for size in (LARGE, HUNDREDFOLD):
        yield from arms_of_size(size)
        yield from averaging_arms(*size)
    notes = arms.peer(
        "least-squares notes", "least_squares_notes.py", {"check": check}, all_cores
    )
    yield notes._replace(work=work_of(LARGE))
    for rows in ROWS:
        yield from arms_of_size((rows, 100))


def averaging_arms(rows: int, columns: int) -> Iterator[arms.Arm]:
    """The notes' method as they have it, and with devices that do work in parallel."""
    work, epochs = work_of((rows, columns)), EPOCHS[rows, columns]
    call = "least_squares:timed_averaging"
    for independent in (True, False):
        method = "averaging" if independent else "averaging as published"
        yield arms.ours(
            f"{method}, {epochs} epochs, on 2 contexts", 1, call, work=work, rows=rows,
            columns=columns, independent=independent,
        )  # fmt: skip


def main() -> None:
    parser = arms.parser(__doc__, rounds=2)
    parser.add_argument("--repeats", type=int, default=3, help="solves after a warm-up")
    parser.add_argument("--arms", help="words of their names, by commas; else all")
    args = parser.parse_args()

    cores, gpus = usable_cores(), [gpu.name for gpu in cuda_devices()]
    with tempfile.TemporaryDirectory() as folder:
        check = str(Path(folder) / "problem.npz")
        arms.answer("least_squares:write_problem", path=check)
        timed = list(arms_of(cores, args.repeats, check))
        if args.arms:
            words = args.arms.split(",")
            timed = [arm for arm in timed if any(word in arm.name for word in words)]
        if not timed:
            parser.error(f"no arm of --arms {args.arms}")
        lines = arms.measure(timed, args.rounds, warm_up=0)
    run = arms.record(
        args.out / "least_squares.jsonl",
        timed,
        lines,
        work="min ||A x - b||",
        on_gpus=gpus[:1] if any("GPU" in arm.name for arm in timed) else [],
        note="Ours with one thread per context, the others with all cores. Copying A "
        "to the devices counts. numpy lstsq is an SVD; normal and the normal equations "
        "are the same method.",
    )
    arms.show(run)


if __name__ == "__main__":
    main()

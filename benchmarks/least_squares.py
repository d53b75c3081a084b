"""Seconds to solve least squares by `normal`, and by the same equations elsewhere.

    python benchmarks/least_squares.py --rounds 4 --repeats 5
    python benchmarks/least_squares.py --arms GPU                    # those on a GPU

Every arm runs in a fresh process, one after the other, round after round; the first
solve in a process warms up. Copying A to the devices counts. Each solve is checked: its
residual must be LAPACK's to 1e-9. Writes least_squares.jsonl and .png to
runs/benchmarks. An arm whose library is not installed says so.

NumPy, SciPy and PyTorch find x alone, without estimating the condition of A or
measuring ||A x - b||. "x alone" is `normal` without that last measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import arms
import numpy

from d2lpar import datasets, devices
from d2lpar.errors import RunError
from d2lpar.machine.gpus import cuda_devices
from d2lpar.machine.host import usable_cores
from d2lpar.text import plural

SIZES = ((10_000, 1_000), (100_000, 1_000), (100_000, 100))  # rows and columns


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


LIBRARIES = {
    "numpy normal equations": numpy_normal,
    "scipy normal equations, cho_solve": scipy_normal,
    "pytorch normal equations": torch_normal,
}
ON_A_GPU = {"pytorch normal equations on 1 GPU": torch_normal_on_a_gpu}


def ours(chosen: str, residual: bool) -> Callable:
    """The function of A and b that solves by `normal`, on chosen devices."""
    from d2lpar.least_squares import solve

    contexts = devices.parse(chosen)
    options = {"devices": contexts, "method": "normal", "residual": residual}
    return lambda A, b: solve(A, b, **options).x


def timed_solves(
    library: str, chosen: str, rows: int, columns: int, repeats: int, residual: bool
) -> Iterator[dict]:
    """Time solves by `normal` on chosen devices, or by a library; check each."""
    data = datasets.uniform_problem(rows, columns)
    solve = ours(chosen, residual) if chosen else {**LIBRARIES, **ON_A_GPU}[library]
    best = numpy.linalg.lstsq(data.A, data.b, rcond=None)[0]
    optimum = numpy.linalg.norm(data.A @ best - data.b)
    solve(data.A, data.b)
    for _ in range(repeats):
        start = time.perf_counter()
        x = solve(data.A, data.b)
        seconds = time.perf_counter() - start
        excess = numpy.linalg.norm(data.A @ x - data.b) / optimum - 1
        if not abs(excess) < 1e-9:
            raise RunError(f"the residual is off by {excess:.1e}")
        yield {"seconds": seconds, "error": float(optimum * (1 + excess))}


def arms_of(cores: int, repeats: int) -> Iterator[arms.Arm]:
    """Ours on all cores and on a GPU, and the libraries, for each size."""
    all_cores = {"OMP_NUM_THREADS": str(cores)}
    for rows, columns in SIZES:
        job = {"rows": rows, "columns": columns, "repeats": repeats}
        call, work = "least_squares:timed_solves", f"{rows:,} x {columns:,}"
        chosen = {f"cpu:{cores}": plural(cores, "context")}
        libraries = dict(LIBRARIES)
        if cuda_devices():
            chosen["gpu:1"], libraries = "1 GPU", {**LIBRARIES, **ON_A_GPU}
        for on, where in chosen.items():
            for residual in (True, False):
                name = f"normal on {where}" + ("" if residual else ", x alone")
                ours = {"library": "", "chosen": on, "residual": residual}
                yield arms.ours(name, 1, call, work=work, **ours, **job)
        for name in libraries:
            theirs = {"library": name, "chosen": "", "residual": False}
            job_of = {**theirs, **job}
            yield arms.Arm(name, call, job_of, all_cores, is_peer=True, work=work)


def main() -> None:
    parser = arms.parser(__doc__, rounds=4)
    parser.add_argument("--repeats", type=int, default=5, help="solves after a warm-up")
    parser.add_argument("--arms", help="words of their names, by commas; else all")
    args = parser.parse_args()

    gpus = [gpu.name for gpu in cuda_devices()]
    timed = list(arms_of(usable_cores(), args.repeats))
    if args.arms:
        words = args.arms.split(",")
        timed = [arm for arm in timed if any(word in arm.name for word in words)]
    if not timed:
        parser.error(f"no arm of --arms {args.arms}")
    run = arms.record(
        args.out / "least_squares.jsonl",
        timed,
        arms.measure(timed, args.rounds, warm_up=0),
        work="min ||A x - b||",
        on_gpus=gpus[:1] if any("GPU" in arm.name for arm in timed) else [],
        note="Ours with one thread per context, the others with all cores. Copying A "
        "to the devices counts.",
    )
    arms.show(run)


if __name__ == "__main__":
    main()

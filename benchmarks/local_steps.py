"""How far averaging ends above the optimum, by the local steps between two averages.

    python benchmarks/local_steps.py --rounds 5
    python benchmarks/local_steps.py --rounds 1 --total 200     # tiny

min ||A x - b|| with A of 1,000 x 50, as in chapter least_squares, on two devices and
four: each takes some steps of gradient descent on 1,000 drawn rows, and then all go on
from the average, until each has taken 10,000 steps. The excess is that of ||A x - b||
over LAPACK's. A round is a seed. Writes local_steps.jsonl to runs/benchmarks, prints
the medians.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import arms
import numpy

from d2lpar import datasets
from d2lpar.records.kinds import group
from d2lpar.text import plain_table

ROWS, COLUMNS = 1_000, 50
LOCAL_STEPS = (5, 20, 100, 500, 2_000)


def excess(chosen: str, total: int, seed: int) -> Iterator[dict]:
    """The excess of ||A x - b|| after `total` steps, by local steps."""
    from d2lpar import devices
    from d2lpar.least_squares import solve

    data = datasets.uniform_problem(ROWS, COLUMNS)
    x = numpy.linalg.lstsq(data.A, data.b, rcond=None)[0]
    optimum = float(numpy.linalg.norm(data.A @ x - data.b))
    on = devices.parse(chosen)
    for steps in LOCAL_STEPS:
        start = time.perf_counter()
        x = solve(
            data.A, data.b, devices=on, method="averaging", seed=seed,
            num_epochs=max(1, total // steps), steps_per_epoch=steps,
        ).x  # fmt: skip
        seconds = time.perf_counter() - start
        error = float(numpy.linalg.norm(data.A @ x - data.b)) - optimum
        yield {"steps": steps, "error": error, "optimum": optimum, "seconds": seconds}


def main() -> None:
    parser = arms.parser(__doc__, rounds=5)
    parser.add_argument("--total", type=int, default=10_000, help="steps per device")
    args = parser.parse_args()

    def arms_of(seed: int) -> list[arms.Arm]:
        return [
            arms.ours(
                f"{n} devices", 1, "local_steps:excess", chosen=f"cpu:{n}",
                total=args.total, seed=seed,
            )
            for n in (2, 4)
        ]  # fmt: skip

    every, lines = arms.measure_seeds(arms_of, range(args.rounds), warm_up=0)
    run = arms.record(
        args.out / "local_steps.jsonl",
        every,
        lines,
        work=f"min ||A x - b||, A of {ROWS:,} x {COLUMNS}",
        settings={"total_steps": args.total},
    )
    rows = [
        [arm, str(steps), f"{median(line.error for line in same):.2e}", str(len(same))]
        for (arm, steps), same in group(
            run.lines, lambda line: (line.arm, line.steps)
        ).items()
    ]
    print(plain_table(["", "local steps", "excess", "n"], rows))


if __name__ == "__main__":
    main()

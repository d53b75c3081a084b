"""The same solution on real devices, by the clock, beside d2lpar's all-reduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy

from puzzles.checking import PUZZLES, TARGETS, check

TIMED = [name for name in TARGETS if name not in ("zero1", "local_sgd")]


def run(
    solution: Callable,
    devices: str = "cpu:4",
    sizes: Sequence[int] = (1_000, 100_000, 1_000_000),
    repeats: int = 15,
) -> None:
    """Time a solution on MXNet contexts: medians, quartiles and n, in milliseconds.

    `devices` is a device string as in ``d2lpar.devices``; every device has an array of
    each of the `sizes`, in float32. The solution and ``d2lpar.allreduce`` take turns,
    the first turn warms up, and each result is checked. Both clock readings wait for
    the devices. A solution that `check` finds wrong is not run.
    """
    name = getattr(solution, "__name__", type(solution).__name__)
    if name not in TIMED:
        print(f"{name}: only {', '.join(TIMED)} can be run on devices")
        return
    if not check(solution):
        return
    from d2lpar import allreduce, np, npx
    from d2lpar.devices import parse
    from d2lpar.timing import summarize

    contexts = parse(devices)
    rng = numpy.random.default_rng(0)

    def place(k, values):
        return np.array(values, dtype="float32", ctx=contexts[k])

    def exchange(messages):
        return [array.copyto(contexts[to]) for array, to in messages]

    def milliseconds(function, puzzle, size, *args):
        case = PUZZLES[puzzle](len(contexts), size, rng, place)
        npx.waitall()
        start = time.perf_counter()
        function(*case.args, *args)
        npx.waitall()
        end = time.perf_counter()
        for array, wanted in zip(case.results, case.wanted):
            if not numpy.allclose(array.asnumpy(), wanted):
                raise ValueError(f"{function.__name__} is wrong on {array.ctx}")
        return 1e3 * (end - start)

    for size in sizes:
        times = [
            (
                milliseconds(solution, name, size, exchange),
                milliseconds(allreduce, "ring", size),
            )
            for _ in range(repeats + 1)
        ][1:]
        ours, packages = map(summarize, zip(*times))
        print(
            f"{devices}, {size:,} numbers: {name} {ours} ms, "
            f"d2lpar.allreduce {packages} ms"
        )

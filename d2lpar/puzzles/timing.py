"""The same solution on real devices, by the clock, beside d2lpar's all-reduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy

from d2lpar.puzzles.apart import file_of, in_one_line
from d2lpar.puzzles.cases import PUZZLES, WITH_ROUNDS
from d2lpar.puzzles.checking import check

TIMED = [*WITH_ROUNDS[:6], "rebinding"]


def run(
    solution: Callable,
    devices: str = "cpu:4",
    sizes: Sequence[int] = (1_000, 100_000, 1_000_000),
    repeats: int = 15,
) -> bool:
    """Time a solution on MXNet contexts: medians, ranges and n, in milliseconds.

    `devices` is a device string; each device gets float32 arrays of the `sizes`, in
    turns with ``d2lpar.allreduce``. What `check` finds wrong is not run. Results are
    checked. Returns whether all went well.
    """
    name = getattr(solution, "__name__", type(solution).__name__)
    if name not in TIMED:
        print(f"{name}: only {', '.join(TIMED)} run on devices")
        return False
    if not check(solution):
        return False
    try:
        from d2lpar.devices import parse
        from d2lpar.parallel import allreduce
        from d2lpar.timing import summarize

        contexts = parse(devices)
        both = (solution, True), (lambda arrays, exchange: allreduce(arrays), False)
        for size in sizes:
            case = name, contexts, size
            turns = [
                [_ms(f, checks, *case) for f, checks in both]
                for _ in range(repeats + 1)
            ]
            ours, packages = map(summarize, zip(*turns[1:]))
            print(f"{devices}, {size:,} numbers each: {name} {ours} ms, ", end="")
            print(f"d2lpar.allreduce {packages} ms")
    except Exception as error:
        print(f"{name} on {devices}: {in_one_line(error, file_of(solution))}")
        return False
    return True


def _ms(
    function: Callable, is_checked: bool, name: str, contexts: list, size: int
) -> float:
    """Milliseconds of one call. Raises ValueError for a wrong result, if checked."""
    from d2lpar._mxnet import np, npx

    def place(k, values):
        return np.array(values, dtype="float32", ctx=contexts[k])

    def exchange(messages):
        return [array.copyto(contexts[to]) for array, to in messages]

    case = PUZZLES[name].case(len(contexts), size, numpy.random.default_rng(0), place)
    npx.waitall()
    start = time.perf_counter()
    function(*case.args, exchange)
    npx.waitall()
    seconds = time.perf_counter() - start
    [results], [wanted] = (case.results or {}).values(), case.wanted.values()
    for array, right in zip(results, wanted):
        if is_checked and not numpy.allclose(array.asnumpy(), right, atol=1e-3):
            raise ValueError(f"wrong on {array.ctx}, though right in NumPy")
    return 1e3 * seconds

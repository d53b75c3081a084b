"""Check a solution: right or not, on which sizes, and its scores against the target."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy

from puzzles.network import Network

SCORED = 4, 1000  # devices, numbers per device


class Case(NamedTuple):
    """Arguments, what is wanted, and where: `results`, or what the solution returns."""

    args: Sequence
    wanted: object
    results: object = None
    says: str = ""


def check(*solutions: Callable) -> bool:
    """Check solutions, which are called as their puzzles in ``puzzles.tasks`` are.

    Each is called with random arguments, the same in every call of `check`, and prints
    one line. Returns whether all are right and, where a puzzle has a target, within it.
    """
    return all([_check_one(solution) for solution in solutions])


def _check_one(solution: Callable) -> bool:
    name = getattr(solution, "__name__", type(solution).__name__)
    if not callable(solution) or name not in PUZZLES:
        print(f"{name} is no puzzle: pass a function called {', '.join(PUZZLES)}")
        return False
    over = ""
    for n, size, rng in _sizes():
        network = Network(n)
        case = PUZZLES[name](n, size, rng, network.place)
        says = case.says or f"{n} device(s) with {size} number(s) each"
        if wrong := _wrong(solution, name, case, network.exchange):
            print(wrong if wrong.endswith("yet") else f"{name}: wrong, {says}: {wrong}")
            return False
        if name in TARGETS:
            scores, target = network.scores(), TARGETS[name](n, size)
            within = all(score <= most for score, most in zip(scores, target))
            line = f"{says}: " + _in_words(scores, target, size)
            over = over or ("" if within else line)
    if over:
        print(f"{name}: right, but over its target, {over}")
    else:
        print(f"{name}: right" + (f", {line}" if name in TARGETS else ""))
    return not over


def _sizes() -> Iterator[tuple[int, int, numpy.random.Generator]]:
    for n in (2, 1, 3, 4, 5, 8):
        rng = numpy.random.default_rng(n)
        for size in (n, 1, *map(int, rng.integers(n + 1, 4 * n + 4, size=3))):
            yield n, size, rng
    yield (*SCORED, numpy.random.default_rng(0))


def _in_words(scores: Sequence[int], target: Sequence[int], size: int) -> str:
    (rounds, link, memory), (r, l, m) = scores, target
    return (
        f"rounds {rounds} of {r}, busiest link {link / size:.4g} of {l / size:.4g} "
        f"arrays, memory {memory / size:.4g} of {m / size:.4g} arrays"
    )


def _wrong(solution: Callable, name: str, case: Case, exchange: Callable) -> str:
    """What is wrong with a solution's answer in one line, or ""."""
    more = [exchange] if name in TARGETS else []
    try:
        with numpy.errstate(all="ignore"):
            returned = solution(*case.args, *more)
    except NotImplementedError:
        return f"{name}: not solved yet"
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        file = getattr(getattr(solution, "__code__", None), "co_filename", "")
        lines = [frame.lineno for frame in frames if frame.filename == file]
        where = f"line {lines[-1]}: " if lines else ""
        what = " ".join(str(error).split())
        if "read-only" in what:
            what += " (the arguments must stay as they are)"
        return f"{where}{type(error).__name__}: {what}"
    if case.results is None:
        return _difference(returned, case.wanted, "it returns")
    return _difference(case.results, case.wanted, "at the end")


def _difference(got, wanted, where: str) -> str:
    """The first place where two nested results differ, in words, or ""."""
    if got is None:
        return f"{where} None: is there a `return`?"
    if isinstance(wanted, (list, tuple)):
        if not isinstance(got, (list, tuple, numpy.ndarray)):
            return f"{where} a {type(got).__name__}, wanted is a list of {len(wanted)}"
        if len(got) != len(wanted):
            return f"{where} {len(got)} elements, wanted are {len(wanted)}"
        pairs = enumerate(zip(got, wanted))
        found = (_difference(g, w, f"{where} [{k}] is") for k, (g, w) in pairs)
        return next(filter(None, found), "")
    if isinstance(wanted, slice):
        same = got == wanted
    else:
        try:
            values = numpy.asarray(got, dtype=float)
        except (TypeError, ValueError):
            return f"{where} {got!r:.60}, wanted is {_short(wanted)}"
        same = values.shape == numpy.shape(wanted) and numpy.allclose(
            values, wanted, rtol=1e-4, atol=1e-4
        )
    return "" if same else f"{where} {_short(got)}, wanted is {_short(wanted)}"


def _short(value) -> str:
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop})"
    return numpy.array2string(
        numpy.asarray(value), precision=4, threshold=8, edgeitems=3
    ).replace("\n", "")


# What each puzzle is called with, for n devices and arrays of `size` numbers. Small
# whole numbers, so that a message can be checked by hand.


def _numbers(rng, *shape) -> numpy.ndarray:
    array = rng.integers(1, 10, size=shape).astype("float32")
    array.flags.writeable = False
    return array


def _parts(n, size) -> list[slice]:
    starts = [k * (size // n) + min(k, size % n) for k in range(n + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def _split_unevenly(n, size, rng, place) -> Case:
    return Case((size, n), _parts(n, size), says=f"n = {size}, num_devices = {n}")


def _shard_gradients(n, size, rng, place) -> Case:
    X, y, w = _numbers(rng, size, 3), _numbers(rng, size), _numbers(rng, 3)
    wanted = [
        sum((2 * (X[i] @ w - y[i]) * X[i] for i in range(size)[part]), numpy.zeros(3))
        for part in _parts(n, size)
    ]
    says = f"{size} row(s) on {n} device(s)"
    return Case((X, y, w, _parts(n, size)), wanted, says=says)


def _all_reduce(n, size, rng, place) -> Case:
    values = [_numbers(rng, size) for _ in range(n)]
    arrays = [place(k, value) for k, value in enumerate(values)]
    return Case([list(arrays)], [sum(values)] * n, arrays)


def _reduce_scatter(n, size, rng, place) -> Case:
    case, parts = _all_reduce(n, size, rng, place), _parts(n, size)
    wanted = [total[part] for total, part in zip(case.wanted, parts)]
    return Case(case.args, wanted, [a[part] for a, part in zip(case.results, parts)])


def _all_gather(n, size, rng, place) -> Case:
    wanted = _numbers(rng, size)
    values = numpy.zeros((n, size), "float32")
    for value, part in zip(values, _parts(n, size)):
        value[part] = wanted[part]
    arrays = [place(k, value) for k, value in enumerate(values)]
    return Case([list(arrays)], [wanted] * n, arrays)


def _zero1(n, size, rng, place) -> Case:
    p, v, lr = _numbers(rng, size), _numbers(rng, size), 0.5
    grads = [_numbers(rng, size) for _ in range(n)]
    params = [place(k, p) for k in range(n)]
    velocities = [place(k, v[part]) for k, part in enumerate(_parts(n, size))]
    new_v = 0.9 * v + sum(grads)
    args = params, [place(k, g) for k, g in enumerate(grads)], velocities, lr
    wanted = [[p - lr * new_v] * n, [new_v[part] for part in _parts(n, size)]]
    return Case([*map(_copied, args)], wanted, [params, velocities])


def _copied(value):
    """A list of our own, so that a solution cannot put other arrays into ours."""
    return list(value) if isinstance(value, list) else value


LOCAL_STEPS, BETWEEN = 5, 2


def _local_sgd(n, size, rng, place) -> Case:
    goals, w, lr = [_numbers(rng, size) for _ in range(n)], _numbers(rng, size), 0.25
    steep = [1.0 + k % 2 for k in range(n)]

    def gradient_of(k):
        return lambda w: place(k, steep[k] * (w.view(numpy.ndarray) - goals[k]))

    ws, mean = [place(k, w) for k in range(n)], w
    for steps in (2, 2, 1):
        shrink = [(1 - lr * s) ** steps for s in steep]
        ends = [goal + f * (mean - goal) for f, goal in zip(shrink, goals)]
        mean = sum(ends) / n
    gradients = [gradient_of(k) for k in range(n)]
    return Case((list(ws), gradients, lr, LOCAL_STEPS, BETWEEN), [mean] * n, ws)


def _batch_norm(n, size, rng, place) -> Case:
    counts = [int(c) for c in rng.integers(1, 5, size=n)]
    shards = [_numbers(rng, count, 2) for count in counts]
    means, variances = ([f(s, axis=0) for s in shards] for f in (numpy.mean, numpy.var))
    batch = numpy.concatenate(shards)
    wanted = batch.mean(axis=0), batch.var(axis=0)
    return Case((counts, means, variances), wanted, says=f"counts {counts}")


def _grid(n, size, rng, place) -> Case:
    nx, ny = int(rng.integers(1, 20)), size % 50 + 1
    block, seen = tuple(int(b) for b in rng.integers(1, 9, size=2)), []

    def launch(blocks, kernel):
        seen.append(blocks)
        elements = [
            kernel((bx, by), (tx, ty))
            for bx in range(blocks[0])
            for by in range(blocks[1])
            for tx in range(block[0])
            for ty in range(block[1])
        ]
        seen.append(sorted(e for e in elements if e is not None))

    wanted = [
        (math.ceil(nx / block[0]), math.ceil(ny / block[1])),
        list(range(nx * ny)),
    ]
    return Case((nx, ny, block, launch), wanted, seen, f"{nx} x {ny} in blocks {block}")


def _least_squares(n, size, rng, place) -> Case:
    As = [rng.normal(size=(6, 3)) for _ in range(n)]
    bs = [rng.normal(size=6) for _ in range(n)]
    xs = [numpy.linalg.lstsq(A, b, rcond=None)[0] for A, b in zip(As, bs)]
    everything = numpy.concatenate(As), numpy.concatenate(bs)
    wanted = numpy.linalg.lstsq(*everything, rcond=None)[0]
    return Case(([A.T @ A for A in As], xs), wanted, says=f"{n} device(s)")


def _who_divides(n, size, rng, place) -> Case:
    counts = [len(range(size)[part]) for part in _parts(n, size)]
    samples = _numbers(rng, size, 2)
    sums = [samples[part].sum(axis=0) for part in _parts(n, size)]
    return Case((sums, counts), samples.mean(axis=0), says=f"counts {counts}")


def _idle_device(n, size, rng, place) -> Case:
    X, grads = _numbers(rng, size, 2), [_numbers(rng, 2).copy() for _ in range(n)]
    shards = [X[part] for part in _parts(n, size)]
    says = f"shards of {[len(shard) for shard in shards]} sample(s)"
    args = shards, grads, lambda shard: shard.sum(axis=0)
    return Case(args, X.sum(axis=0), says=says)


def _clock(n, size, rng, place) -> Case:
    time, pending, seconds = [100.0], [float(n)], float(size)

    def work():
        pending[0] += seconds

    def wait():
        time[0] += pending[0]
        pending[0] = 0.0

    return Case(
        (work, wait, lambda: time[0]),
        seconds,
        says=f"work of {size} s after {n} s that are still to do",
    )


PUZZLES = {
    "split_unevenly": _split_unevenly,
    "shard_gradients": _shard_gradients,
    "central": _all_reduce,
    "tree": _all_reduce,
    "ring": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "zero1": _zero1,
    "local_sgd": _local_sgd,
    "batch_norm": _batch_norm,
    "grid": _grid,
    "least_squares": _least_squares,
    "rebinding": _all_reduce,
    "who_divides": _who_divides,
    "idle_device": _idle_device,
    "clock": _clock,
}


# The targets: rounds, numbers over the busiest link, numbers held, of n devices with
# `size` numbers. The longest part counts where the parts are uneven.


def _central_target(n, size):
    return 2 * (n - 1), (n - 1) * size, 3 * size


def _tree_target(n, size):
    depth = math.ceil(math.log2(n))
    return 2 * depth, depth * size, 3 * size


def _ring_target(n, size, turns=2, own=1, messages=2):
    part = math.ceil(size / n)
    return turns * (n - 1), turns * (n - 1) * part, own * size + messages * part


def _zero1_target(n, size):
    return _ring_target(n, size, own=2, messages=4)


def _local_sgd_target(n, size):
    return (*_ring_target(n, size, turns=2 * math.ceil(LOCAL_STEPS / BETWEEN))[:2],
            4 * size)  # fmt: skip


def _half_target(n, size):
    return _ring_target(n, size, turns=1)


TARGETS = {
    "central": _central_target,
    "tree": _tree_target,
    "ring": _ring_target,
    "reduce_scatter": _half_target,
    "all_gather": _half_target,
    "zero1": _zero1_target,
    "local_sgd": _local_sgd_target,
    "rebinding": _central_target,
}

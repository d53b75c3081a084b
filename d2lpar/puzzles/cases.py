"""What each puzzle is called with, its right answer, and its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

from d2lpar.puzzles.network import DeviceArray, read
from d2lpar.puzzles.schedules import Overlap, Pipeline


class Case(NamedTuple):
    """Arguments, and the function `wanted` of `results`, or of the solution's answer.

    The solution's process does not call `wanted`. `says` describes the arguments.
    `machine` counts the scores for `target`, if the network of devices does not.
    `numbers` are sent `times` times; None: as many as an array has.
    """

    args: Sequence
    wanted: Callable[[], Any]
    results: dict | None = None
    says: str = ""
    machine: Any = None
    target: tuple = ()
    times: int = 1
    numbers: int | None = None


class Rows(NamedTuple):
    """A slice of n rows: the rows that it takes count, not how it is written."""

    part: slice
    n: int


# A case is made for n devices and `size` numbers; place(k, array) puts one on device k.
# Small whole numbers, so that a message can be checked by hand.


def _numbers(rng, *shape) -> numpy.ndarray:
    return rng.integers(1, 10, size=shape).astype("float32")


def _parts(n, size) -> list[slice]:
    starts = [k * (size // n) + min(k, size % n) for k in range(n + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def _cut(array, n) -> list:
    return [array[part] for part in _parts(n, len(array))]


def _on_each(place, values) -> list:
    return [place(k, value) for k, value in enumerate(values)]


def _split_unevenly(n, size, rng, place):
    rows = [Rows(part, size) for part in _parts(n, size)]
    return Case((size, n), lambda: rows, says=f"n = {size}, num_devices = {n}")


def _shard_gradients(n, size, rng, place):
    # Features of three magnitudes: differences of losses lose the small ones.
    X, w = _numbers(rng, size, 3) * numpy.float32([1, 1e-4, 1e2]), _numbers(rng, 3)
    y = 1e5 * _numbers(rng, size)

    def wanted():
        rows = numpy.array([2 * (x @ w - t) * x for x, t in zip(X, y)])
        return [shard.sum(axis=0) for shard in _cut(rows, n)]

    args = X, y, w, _parts(n, size)
    return Case(args, wanted, says=f"{size} row(s), N = {n}")


def _all_reduce(n, size, rng, place):
    values = [_numbers(rng, size) for _ in range(n)]
    arrays = _on_each(place, values)
    return Case(
        [list(arrays)], lambda: {"arrays": [sum(values)] * n}, {"arrays": arrays}
    )


def _own(arrays):
    parts = _parts(len(arrays), len(arrays[0]))
    return {"own part of arrays": [array[part] for array, part in zip(arrays, parts)]}


def _reduce_scatter(n, size, rng, place):
    args, wanted, results, *_ = _all_reduce(n, size, rng, place)
    return Case(args, lambda: _own(wanted()["arrays"]), _own(results["arrays"]))


def _all_gather(n, size, rng, place):
    wanted, values = _numbers(rng, size), _numbers(rng, n, size)  # the rest is noise
    for value, part in zip(values, _parts(n, size)):
        value[part] = wanted[part]
    arrays = _on_each(place, values)
    return Case([list(arrays)], lambda: {"arrays": [wanted] * n}, {"arrays": arrays})


def _zero1(n, size, rng, place):
    p, v, g = _numbers(rng, size), _numbers(rng, size), _numbers(rng, n, size)
    lr = float(rng.choice([0.25, 0.5, 1.0]))
    values = [p] * n, g, _cut(v, n)
    params, grads, velocities = (_on_each(place, of_each) for of_each in values)

    def wanted():
        new_v = 0.9 * v + sum(g)
        return {"params": [p - lr * new_v] * n, "velocities": _cut(new_v, n)}

    results = {"params": params, "velocities": velocities}
    return Case((list(params), grads, list(velocities), lr), wanted, results)


def _on(k, array, what):
    """The numbers of an array of device k. Raises ValueError for another one's."""
    if not isinstance(array, DeviceArray) or array.device != k:
        raise ValueError(f"{what}[{k}] takes an array of device {k}")
    return read(array)


def _local_sgd(n, size, rng, place):
    goals, start = _numbers(rng, n, size), _numbers(rng, size)
    lr = float(rng.choice([0.125, 0.25]))
    num_steps, between = rng.choice([[5, 2], [7, 3], [3, 4], [3, 1], [8, 2]]).tolist()
    ws, steepness = _on_each(place, [start] * n), [1 + k % 2 for k in range(n)]
    begins = range(0, num_steps, between)

    def gradient_of(k):
        return lambda w: place(k, steepness[k] * (_on(k, w, "gradients") - goals[k]))

    def wanted():
        mean, shrinks = start, 1 - lr * numpy.array(steepness)[:, None]
        for begin in begins:
            steps = min(between, num_steps - begin)
            mean = (goals + shrinks**steps * (mean - goals)).mean(axis=0)
        return {"ws": [mean] * n}

    args = list(ws), [gradient_of(k) for k in range(n)], lr, num_steps, between
    says = f"N = {n}, {num_steps} steps, {between} between means"
    return Case(args, wanted, {"ws": ws}, says, times=len(begins))


def _fsdp(n, size, rng, place):
    w, goals = _numbers(rng, 3, size), _numbers(rng, n, 3, size)
    lr = float(rng.choice([0.0625, 0.125]))
    shards = [[place(k, l) for l in w_k.T] for k, w_k in enumerate(_cut(w.T, n))]
    buffers = _on_each(place, [numpy.zeros(size, "float32")] * n)

    def gradient_of(k):
        return lambda l, whole: place(k, _on(k, whole, "gradients") - goals[k][l])

    def wanted():
        new = w - lr * (n * w - goals.sum(axis=0))
        return {"shards": [list(part.T) for part in _cut(new.T, n)]}

    args = shards, buffers, [gradient_of(k) for k in range(n)], lr
    return Case(args, wanted, {"shards": shards}, times=len(w))


def _plain(method):
    """A function without the object that counts."""
    return lambda *args: method(*args)


def _pipeline(n, size, rng, place):
    pipeline = Pipeline(n, size)
    results, says = {"finished": pipeline.finished}, f"{n} stages, {size} micro-batches"
    target = 2 * (size + n - 1), 2 * n * (n - 1), min(n, size)
    args = n, size, _plain(pipeline.run)
    return Case(args, lambda: {"finished": [size] * n}, results, says, pipeline, target)


def _overlap(n, size, rng, place):
    compute, seconds = rng.integers(1, 10, size=(2, size % 7 + 1)).tolist()
    device = Overlap(compute, seconds)
    calls = map(_plain, (device.backward, device.send, device.wait))
    says = f"layers that compute for {compute} s and send for {seconds} s"
    wanted, results = {"waited": [True] * len(compute)}, {"waited": device.waited}
    args, target = (len(compute), *calls), (device.least(),)
    return Case(args, lambda: wanted, results, says, device, target)


def _batch_norm(n, size, rng, place):
    counts = [int(count) for count in rng.integers(1, 5, size=n)]
    shards = [_numbers(rng, count, 2) for count in counts]
    means, variances = ([f(s, axis=0) for s in shards] for f in (numpy.mean, numpy.var))

    def wanted():
        batch = numpy.concatenate(shards)
        return batch.mean(axis=0), batch.var(axis=0)

    return Case((counts, means, variances), wanted, says=f"counts = {counts}")


def _grid(n, size, rng, place):
    nx, ny, *block = (int(i) for i in rng.integers(1, [20, 20, 9, 9]))
    blocks = [len(range(0, nx, block[0])), len(range(0, ny, block[1]))]
    at, thread = (tuple(map(int, rng.integers(most))) for most in (blocks, block))
    args = nx, ny, tuple(block), at, thread

    def wanted():
        memory = numpy.arange(nx * ny).reshape(ny, nx)
        x, y = (b * size + t for b, size, t in zip(at, block, thread))
        return blocks, memory[y, x] if x < nx and y < ny else -1

    return Case(args, wanted, says=f"grid{args}")


def _least_squares(n, size, rng, place):
    # Columns of three magnitudes: too ill-conditioned for steps along the gradient.
    A, b = rng.normal(size=(n, 6, 3)) * [1, 1e-2, 1e-3], rng.normal(size=(n, 6))
    xs = [numpy.linalg.lstsq(*rows, rcond=None)[0] for rows in zip(A, b)]

    def wanted():
        return numpy.linalg.lstsq(A.reshape(-1, 3), b.reshape(-1), rcond=None)[0]

    return Case(([rows.T @ rows for rows in A], xs), wanted, says=f"N = {n}")


def _who_divides(n, size, rng, place):
    samples = _numbers(rng, size, 2)
    shards = _cut(samples, n)
    args = [shard.sum(axis=0) for shard in shards], [len(shard) for shard in shards]
    return Case(args, lambda: samples.mean(axis=0), says=f"counts = {args[1]}")


def _idle_device(n, size, rng, place):
    shards, grads = _cut(_numbers(rng, size, 2), n), list(_numbers(rng, n, 2))

    def gradient(shard):
        if len(shard) == 0:
            raise ValueError("gradient takes a shard of one sample or more")
        return shard.sum(axis=0)

    def wanted():
        return {"grads": [shard.sum(axis=0) for shard in shards]}

    args = shards, list(grads), gradient
    says = f"shards of {[len(shard) for shard in shards]} sample(s)"
    return Case(args, wanted, {"grads": grads}, says)


def _clock(n, size, rng, place):
    at = {"now": 100.0, "done": 100.0 + n}

    def work():
        at["done"] = max(at.values()) + size

    def wait():
        at["now"] = max(at.values())

    args = work, wait, lambda: at["now"]
    return Case(args, lambda: size, says=f"{size} s of work, after {n} s still to do")


def _clip(n, size, rng, place):
    g = _numbers(rng, size)
    norm = float(numpy.linalg.norm(g))
    most = norm * float(rng.choice([0.25, 0.5, 2]))
    shards = _on_each(place, _cut(g, n))
    says = f"N = {n}, {size} numbers, and at most {most:.4g} of a norm of {norm:.4g}"
    return Case(
        (list(shards), most),
        lambda: {"shards": _cut(g * min(1, most / norm), n)},
        {"shards": shards},
        says,
        numbers=1,
    )


def _accumulate(n, size, rng, place):
    num_parts = int(rng.integers(2, 5))
    counts = rng.integers(1, 5, size=(n, num_parts)).tolist()
    sums = _numbers(rng, n, num_parts, size)
    grads = _on_each(place, _numbers(rng, n, size))
    gradients = [lambda m, k=k: place(k, sums[k][m]) for k in range(n)]

    def wanted():
        return {"grads": [sums.sum(axis=(0, 1)) / sum(map(sum, counts))] * n}

    return Case((list(grads), gradients, counts), wanted, {"grads": grads})


def _tied(n, size, rng, place):
    values = _numbers(rng, n, size)
    grads = _on_each(place, values)

    def wanted():
        new = values.copy()
        new[[0, -1]] = values[0] + values[-1] if n > 1 else values[0]
        return {"grads": list(new)}

    return Case([list(grads)], wanted, {"grads": grads})


def _dropout(n, size, rng, place):
    h, numbers, rate = _numbers(rng, size), rng.integers(1, 1000, size=n), 0.5
    shards = _on_each(place, _cut(h, n))
    seeds = _on_each(place, [numpy.array([float(s)]) for s in numbers])

    def draws(seed, start, stop):
        return numpy.random.default_rng(int(seed[0])).random(size)[start:stop]

    def draw_of(k):
        return lambda seed, *rows: place(k, draws(_on(k, seed, "draws"), *rows))

    def wanted():
        return {"shards": _cut(h * (draws(numbers, 0, size) > rate) / (1 - rate), n)}

    args = list(shards), list(seeds), [draw_of(k) for k in range(n)], rate
    return Case(args, wanted, {"shards": shards}, numbers=1)


def _sync_bn_backward(n, size, rng, place):
    h, g = rng.normal(size=size), rng.normal(size=size)
    deviation = float(h.std()) or 1.0
    h = (h - h.mean()) / deviation
    normed, grads = (_on_each(place, _cut(a, n)) for a in (h, g))
    buffers = _on_each(place, [numpy.zeros(2)] * n)

    def wanted():
        dx = (g - g.mean() - h * (g * h).mean()) / deviation
        return {"grads": _cut(dx, n)}

    args = list(grads), normed, buffers, size, deviation
    return Case(args, wanted, {"grads": grads}, numbers=2)


class Puzzle(NamedTuple):
    """A function that makes cases and, with `exchange`, what a solution may need.

    `sends` names a row of :func:`limits`. `memory` counts arrays, parts of an array and
    further numbers that a device may hold. The `route` is a `Network`'s.
    """

    case: Callable[..., Case]
    sends: str = ""
    memory: tuple[int, int, int] = (0, 0, 0)
    route: str = ""


PUZZLES = {
    "split_unevenly": Puzzle(_split_unevenly),
    "shard_gradients": Puzzle(_shard_gradients),
    "central": Puzzle(_all_reduce, "hub", (3, 0, 0), "hub"),
    "tree": Puzzle(_all_reduce, "tree", (3, 0, 0)),
    "recursive_doubling": Puzzle(_all_reduce, "pairs", (3, 0, 0)),
    "reduce_scatter": Puzzle(_reduce_scatter, "half a ring", (1, 2, 0)),
    "all_gather": Puzzle(_all_gather, "half a ring", (1, 2, 0)),
    "ring": Puzzle(_all_reduce, "ring", (1, 2, 0), "ring"),
    "zero1": Puzzle(_zero1, "ring", (2, 4, 0)),
    "local_sgd": Puzzle(_local_sgd, "ring", (4, 0, 0)),
    "fsdp": Puzzle(_fsdp, "ring", (2, 5, 0)),
    "pipeline": Puzzle(_pipeline),
    "overlap": Puzzle(_overlap),
    "batch_norm": Puzzle(_batch_norm),
    "grid": Puzzle(_grid),
    "least_squares": Puzzle(_least_squares),
    "rebinding": Puzzle(_all_reduce, "hub", (3, 0, 0), "hub"),
    "who_divides": Puzzle(_who_divides),
    "idle_device": Puzzle(_idle_device),
    "clock": Puzzle(_clock),
    "clip": Puzzle(_clip, "ring", (0, 2, 4)),
    "accumulate": Puzzle(_accumulate, "ring", (3, 0, 0)),
    "tied": Puzzle(_tied, "one round", (3, 0, 0)),
    "dropout": Puzzle(_dropout, "half a tree", (0, 5, 4)),
    "sync_bn_backward": Puzzle(_sync_bn_backward, "ring", (0, 6, 8)),
}
WITH_ROUNDS = [name for name, puzzle in PUZZLES.items() if puzzle.sends]
SCORED = (*WITH_ROUNDS, "pipeline", "overlap")


def limits(name: str, case: Case, n: int, size: int) -> tuple[int, tuple]:
    """How many numbers are sent at least, and the target of each score, or ().

    For a sum the other devices send each number once, and to know it they receive it
    once: so each is sent N - 1 or 2 (N - 1) times. A tree sends no more.
    """
    puzzle = PUZZLES[name]
    if not puzzle.sends:
        return 0, case.target
    numbers = case.numbers or size
    part, other = -(-numbers // n), n - 1
    depth, is_power = other.bit_length(), n & other == 0
    pairs = depth if is_power else depth + 1  # rounds of recursive doubling
    any_other = min(other, 1)
    least, rounds, link = {  # numbers are sent how often; rounds; the busiest link
        "hub": (2 * other, 2 * other, other * numbers),
        "tree": (2 * other, 2 * depth, depth * numbers),
        "half a tree": (other, depth, depth * numbers),
        "pairs": (2 * other, pairs, pairs * numbers),
        "ring": (2 * other, 2 * other, 2 * other * part),
        "half a ring": (other, other, other * part),
        "one round": (0, any_other, any_other * numbers),
    }[puzzle.sends]
    arrays, parts, more = puzzle.memory
    held = arrays * size + parts * -(-size // n) + more
    return case.times * numbers * least, (case.times * rounds, case.times * link, held)

"""What each puzzle is called with, its right answer, and its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

from d2lpar.puzzles.interconnect import DeviceArray, read
from d2lpar.puzzles.schedules import Overlap, Pipeline


class Case(NamedTuple):
    """Arguments, and what `results`, or the solution's answer, are to be.

    `says` describes the arguments. `machine` counts the scores for `target`, if the
    network of devices does not. `numbers` are sent `times` times; None: as many as an
    array has.
    """

    args: Sequence
    wanted: Any
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


def _numbers(rng, *shape) -> numpy.ndarray:
    """Numbers of one decimal, to be checked by hand; some are zero."""
    numbers = rng.integers(-99, 100, size=shape) * (rng.random(shape) > 0.1)
    return (numbers / 10).astype("float32")


def _parts(n, size) -> list[slice]:
    starts = [k * (size // n) + min(k, size % n) for k in range(n + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def _cut(array, n) -> list:
    return [array[part] for part in _parts(n, len(array))]


def _on_each(place, values) -> list:
    return [place(k, value) for k, value in enumerate(values)]


def _split_unevenly(n, size, rng, place):
    rows = [Rows(part, size) for part in _parts(n, size)]
    return Case((size, n), rows, says=f"n = {size}, num_devices = {n}")


def _shard_gradients(n, size, rng, place):
    # Features of three magnitudes: differences of losses lose the small ones.
    X, w, y = (rng.uniform(1, 9, size=shape) for shape in [(size, 3), 3, size])
    X, y = X * [1, 1e-4, 1e2], 1e5 * y
    rows = numpy.array([2 * (x @ w - t) * x for x, t in zip(X, y)])
    wanted = [shard.sum(axis=0) for shard in _cut(rows, n)]
    return Case((X, y, w, _parts(n, size)), wanted, says=f"{size} row(s), N = {n}")


def _all_reduce(n, size, rng, place):
    values = _numbers(rng, n, size)
    arrays = _on_each(place, values)
    return Case([list(arrays)], {"arrays": [sum(values)] * n}, {"arrays": arrays})


def _own(arrays):
    parts = _parts(len(arrays), len(arrays[0]))
    return {"own part of arrays": [array[part] for array, part in zip(arrays, parts)]}


def _reduce_scatter(n, size, rng, place):
    args, wanted, results, *_ = _all_reduce(n, size, rng, place)
    return Case(args, _own(wanted["arrays"]), _own(results["arrays"]))


def _all_gather(n, size, rng, place):
    wanted, values = _numbers(rng, size), _numbers(rng, n, size)  # the rest is noise
    for value, part in zip(values, _parts(n, size)):
        value[part] = wanted[part]
    arrays = _on_each(place, values)
    return Case([list(arrays)], {"arrays": [wanted] * n}, {"arrays": arrays})


def _zero1(n, size, rng, place):
    p, v, g = _numbers(rng, size), _numbers(rng, size), _numbers(rng, n, size)
    lr = float(rng.choice([0.2, 0.5, 1.0]))
    values = [p] * n, g, _cut(v, n)
    params, grads, velocities = (_on_each(place, of_each) for of_each in values)
    new_v = 0.9 * v + sum(g)
    wanted = {"params": [p - lr * new_v] * n, "velocities": _cut(new_v, n)}
    results = {"params": params, "velocities": velocities}
    return Case((list(params), grads, list(velocities), lr), wanted, results)


def _on(k, array, what):
    """The numbers of an array of device k. Raises ValueError for another one's."""
    if not isinstance(array, DeviceArray) or array.device != k:
        raise ValueError(f"{what}[{k}] takes an array of device {k}")
    return read(array)


def _local_sgd(n, size, rng, place):
    goals, start = _numbers(rng, n, size), _numbers(rng, size)
    lr = float(rng.choice([0.1, 0.2]))
    num_steps, between = rng.choice([[5, 2], [7, 3], [3, 4], [3, 1], [8, 2]]).tolist()
    ws = _on_each(place, [start] * n)

    def gradient(k, w):  # steeper on every other device, and no number by itself
        return (1 + k % 2) * (w - goals[k]) + w.mean()

    def gradient_of(k):
        return lambda w: place(k, gradient(k, _on(k, w, "gradients")))

    each = [start] * n
    for step in range(1, num_steps + 1):
        each = [w - lr * gradient(k, w) for k, w in enumerate(each)]
        if step % between == 0 or step == num_steps:
            each = [sum(each) / n] * n
    args = list(ws), [gradient_of(k) for k in range(n)], lr, num_steps, between
    says = f"N = {n}, {num_steps} steps, {between} between means"
    times = -(-num_steps // between)
    return Case(args, {"ws": each}, {"ws": ws}, says, times=times)


def _fsdp(n, size, rng, place):
    w, goals = _numbers(rng, 3, size), _numbers(rng, n, 3, size)
    lr = float(rng.choice([0.05, 0.1]))
    shards = [[place(k, l) for l in w_k.T] for k, w_k in enumerate(_cut(w.T, n))]
    buffers = _on_each(place, [numpy.zeros(size, "float32")] * n)

    def gradient(k, l, w):  # of all of a layer
        return w.mean() * w - goals[k][l]

    def gradient_of(k):
        return lambda l, whole: place(k, gradient(k, l, _on(k, whole, "gradients")))

    sums = [sum(gradient(k, l, w[l]) for k in range(n)) for l in range(3)]
    new = _cut((w - lr * numpy.array(sums)).T, n)
    args = shards, buffers, [gradient_of(k) for k in range(n)], lr
    wanted = {"shards": [list(part.T) for part in new]}
    return Case(args, wanted, {"shards": shards}, times=len(w))


def _pipeline(n, size, rng, place):
    pipeline = Pipeline(n, size)
    results, says = {"finished": pipeline.finished}, f"{n} stages, {size} micro-batches"
    target = 2 * (size + n - 1), 2 * n * (n - 1), min(n, size)
    wanted = {"finished": [size] * n}
    return Case((n, size, pipeline.run), wanted, results, says, pipeline, target)


def _overlap(n, size, rng, place):
    compute, seconds = rng.integers(1, 10, size=(2, size % 7 + 1)).tolist()
    device = Overlap(compute, seconds)
    says = f"layers that compute for {compute} s and send for {seconds} s"
    wanted, results = {"waited": [True] * len(compute)}, {"waited": device.waited}
    args = len(compute), device.backward, device.send, device.wait
    return Case(args, wanted, results, says, device, (device.least(),))


def _batch_norm(n, size, rng, place):
    counts = [int(count) for count in rng.integers(1, 5, size=n)]
    shards = [rng.normal(3, 2, size=(count, 2)) for count in counts]
    means, variances = ([f(s, axis=0) for s in shards] for f in (numpy.mean, numpy.var))
    batch = numpy.concatenate(shards)
    wanted = batch.mean(axis=0), batch.var(axis=0)
    return Case((counts, means, variances), wanted, says=f"counts = {counts}")


def _grid(n, size, rng, place):
    beyond = None
    while beyond != (n + size) % 3:  # a thread of the array; beyond a row; a column
        nx, ny, *block = (int(i) for i in rng.integers(1, [20, 20, 9, 9]))
        blocks = [len(range(0, nx, block[0])), len(range(0, ny, block[1]))]
        at, thread = (tuple(map(int, rng.integers(most))) for most in (blocks, block))
        x, y = (b * size + t for b, size, t in zip(at, block, thread))
        beyond = 1 if x >= nx and y < ny else 2 * (y >= ny)
    args = nx, ny, tuple(block), at, thread
    memory = numpy.arange(nx * ny).reshape(ny, nx)
    wanted = blocks, -1 if beyond else memory[y, x]
    return Case(args, wanted, says=f"grid{args}")


def _least_squares(n, size, rng, place):
    # Columns of three magnitudes: too ill-conditioned for steps along the gradient.
    A, b = rng.normal(size=(n, 6, 3)) * [1, 1e-2, 1e-3], rng.normal(size=(n, 6))
    xs = [numpy.linalg.lstsq(*rows, rcond=None)[0] for rows in zip(A, b)]
    wanted = numpy.linalg.lstsq(A.reshape(-1, 3), b.reshape(-1), rcond=None)[0]
    return Case(([rows.T @ rows for rows in A], xs), wanted, says=f"N = {n}")


def _who_divides(n, size, rng, place):
    samples = _numbers(rng, size, 2)
    shards = _cut(samples, n)
    args = [shard.sum(axis=0) for shard in shards], [len(shard) for shard in shards]
    return Case(args, samples.mean(axis=0), says=f"counts = {args[1]}")


def _idle_device(n, size, rng, place):
    shards = _cut(_numbers(rng, size, 2), n)
    grads = _on_each(place, _numbers(rng, n, 2) + 0.05)  # never zero

    def gradient(shard):
        if len(shard) == 0:
            raise ValueError("gradient takes a shard of one sample or more")
        return shard.sum(axis=0)

    wanted = {"grads": [shard.sum(axis=0) for shard in shards]}
    says = f"shards of {[len(shard) for shard in shards]} sample(s)"
    return Case((shards, list(grads), gradient), wanted, {"grads": grads}, says)


def _clock(n, size, rng, place):
    at = {"now": float(rng.integers(100, 1000))}
    at["done"] = at["now"] + n

    def work():
        at["done"] = max(at.values()) + size

    def wait():
        at["now"] = max(at.values())

    args = work, wait, lambda: at["now"]
    return Case(args, size, says=f"{size} s of work, after {n} s still to do")


def _clip(n, size, rng, place):
    g = _numbers(rng, size)
    if size == 1:
        g[:] = n % 2  # zero for an even N
    norm = float(numpy.linalg.norm(g))
    most = norm * float(rng.choice([0.25, 0.5, 2])) or 1.0
    shards = _on_each(place, _cut(g, n))
    says = f"N = {n}, {size} numbers, and at most {most:.4g} of a norm of {norm:.4g}"
    wanted = {"shards": _cut(g * min(1, most / norm if norm else 1), n)}
    return Case((list(shards), most), wanted, {"shards": shards}, says, numbers=1)


def _accumulate(n, size, rng, place):
    counts = [rng.integers(1, 5, size=m).tolist() for m in rng.integers(1, 5, size=n)]
    sums = [_numbers(rng, len(of_device), size) for of_device in counts]
    grads = _on_each(place, _numbers(rng, n, size))
    gradients = [lambda m, k=k: place(k, sums[k][m]) for k in range(n)]
    mean = numpy.concatenate(sums).sum(axis=0) / sum(map(sum, counts))
    args = list(grads), gradients, counts
    says = f"N = {n}, arrays of length {size:,} and counts = {counts}"
    return Case(args, {"grads": [mean] * n}, {"grads": grads}, says)


def _tied(n, size, rng, place):
    values = _numbers(rng, n, size)
    grads, wanted = _on_each(place, values), [*values]
    if n > 1:
        wanted[0] = wanted[-1] = values[0] + values[-1]
    return Case([list(grads)], {"grads": wanted}, {"grads": grads})


def _dropout(n, size, rng, place):
    h, rate = _numbers(rng, size), float(rng.choice([0.1, 0.3, 0.5, 0.9]))
    numbers = rng.integers(1, 2**24, size=n)
    shards = _on_each(place, _cut(h, n))
    seeds = _on_each(place, [numpy.array([s], "float32") for s in numbers])

    def draws(seed, start, stop):
        seed = abs(int(numpy.nan_to_num(seed[0])))  # no error tells what it is
        return numpy.random.default_rng(seed).random(size, "float32")[start:stop]

    def draw_of(k):
        return lambda seed, *rows: place(k, draws(_on(k, seed, "draws"), *rows))

    args = list(shards), list(seeds), [draw_of(k) for k in range(n)], rate
    wanted = {"shards": _cut(h * (draws(numbers, 0, size) > rate) / (1 - rate), n)}
    says = f"N = {n}, {size} row(s) and rate = {rate}"
    return Case(args, wanted, {"shards": shards}, says, numbers=1)


def _sync_bn_backward(n, size, rng, place):
    h, g = rng.normal(size=(2, size))
    h, deviation = (h - h.mean()) / (h.std() or 1.0), float(rng.uniform(0.5, 2))
    h, g = h.astype("float32"), g.astype("float32")
    normed, grads = (_on_each(place, _cut(a, n)) for a in (h, g))
    buffers = _on_each(place, [numpy.zeros(2, "float32")] * n)
    dx = (g - g.mean() - h * (g * h).mean()) / deviation
    args = list(grads), normed, buffers, size, deviation
    return Case(args, {"grads": _cut(dx, n)}, {"grads": grads}, numbers=2)


class Puzzle(NamedTuple):
    """A function that makes cases and, with `exchange`, what a solution may need.

    `sends` names a row of :func:`limits`. `memory` counts arrays, parts of an array and
    further numbers that a device may hold. The `route` is that of the network.
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

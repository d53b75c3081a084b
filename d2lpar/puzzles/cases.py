"""What each puzzle is called with, its right answer, and its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

from d2lpar.puzzles.network import DeviceArray, read
from d2lpar.puzzles.schedules import Overlap, Pipeline


class Case(NamedTuple):
    """Arguments, and what is wanted of `results`, or of what the solution returns.

    `wanted` is a function, which the process of the solution does not call. `says`
    describes the arguments, if the number of devices and numbers is not enough.
    `machine` counts the scores, if that is not the network of devices, for `target`.
    `times` says how often `TARGETS` and `LEAST` allow and need what is sent, and
    `numbers` how many numbers are summed, if not those of an array.
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


def _split_unevenly(n, size, rng, place):
    def wanted():
        return [Rows(part, size) for part in _parts(n, size)]

    return Case((size, n), wanted, says=f"n = {size}, num_devices = {n}")


def _shard_gradients(n, size, rng, place):
    # Features of three magnitudes: differences of losses lose the small ones.
    X, w = _numbers(rng, size, 3) * numpy.float32([1, 1e-4, 1e2]), _numbers(rng, 3)
    y, parts = 1e5 * _numbers(rng, size), _parts(n, size)

    def wanted():
        rows = [
            (2 * (x @ w - t) * x for x, t in zip(X[part], y[part])) for part in parts
        ]
        return [sum(of_shard, 0 * w) for of_shard in rows]

    return Case((X, y, w, parts), wanted, says=f"{size} row(s), N = {n}")


def _all_reduce(n, size, rng, place):
    values = [_numbers(rng, size) for _ in range(n)]
    arrays = [place(k, value) for k, value in enumerate(values)]
    return Case(
        [list(arrays)], lambda: {"arrays": [sum(values)] * n}, {"arrays": arrays}
    )


def _own(arrays, size):
    parts = _parts(len(arrays), size)
    return {"own part of arrays": [array[part] for array, part in zip(arrays, parts)]}


def _reduce_scatter(n, size, rng, place):
    args, wanted, results, *_ = _all_reduce(n, size, rng, place)
    own = _own(results["arrays"], size)
    return Case(args, lambda: _own(wanted()["arrays"], size), own)


def _all_gather(n, size, rng, place):
    wanted, values = _numbers(rng, size), _numbers(rng, n, size)  # the rest is noise
    for value, part in zip(values, _parts(n, size)):
        value[part] = wanted[part]
    arrays = [place(k, value) for k, value in enumerate(values)]
    return Case([list(arrays)], lambda: {"arrays": [wanted] * n}, {"arrays": arrays})


def _zero1(n, size, rng, place):
    p, v, g = _numbers(rng, size), _numbers(rng, size), _numbers(rng, n, size)
    parts, lr = _parts(n, size), float(rng.choice([0.25, 0.5, 1.0]))
    params = [place(k, p) for k in range(n)]
    velocities = [place(k, v[part]) for k, part in enumerate(parts)]
    grads = [place(k, g_k) for k, g_k in enumerate(g)]

    def wanted():
        new_v = 0.9 * v + sum(g)
        own = [new_v[part] for part in parts]
        return {"params": [p - lr * new_v] * n, "velocities": own}

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
    ws = [place(k, start) for k in range(n)]
    steepness = [1 + k % 2 for k in range(n)]
    begins = range(0, num_steps, between)

    def gradient_of(k):
        goal, steep = goals[k], steepness[k]
        return lambda w: place(k, steep * (_on(k, w, "gradients") - goal))

    def wanted():
        mean, shrinks = start, 1 - lr * numpy.array(steepness)[:, None]
        for begin in begins:
            steps = min(between, num_steps - begin)
            mean = (goals + shrinks**steps * (mean - goals)).mean(axis=0)
        return {"ws": [mean] * n}

    return Case(
        (list(ws), [gradient_of(k) for k in range(n)], lr, num_steps, between),
        wanted,
        {"ws": ws},
        f"N = {n}, {num_steps} steps, {between} between means",
        times=len(begins),
    )


NUM_LAYERS = 3


def _fsdp(n, size, rng, place):
    w, goals = _numbers(rng, NUM_LAYERS, size), _numbers(rng, n, NUM_LAYERS, size)
    parts, lr = _parts(n, size), float(rng.choice([0.0625, 0.125]))
    shards = [[place(k, layer[part]) for layer in w] for k, part in enumerate(parts)]
    buffers = [place(k, numpy.zeros(size, "float32")) for k in range(n)]

    def gradient_of(k):
        return lambda l, whole: place(k, _on(k, whole, "gradients") - goals[k][l])

    def wanted():
        new = w - lr * (n * w - goals.sum(axis=0))
        return {"shards": [[layer[part] for layer in new] for part in parts]}

    args = shards, buffers, [gradient_of(k) for k in range(n)], lr
    return Case(args, wanted, {"shards": shards}, times=NUM_LAYERS)


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
    return Case(
        (len(compute), *calls),
        lambda: {"waited": [True] * len(compute)},
        {"waited": device.waited},
        says,
        device,
        (device.least(),),
    )


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


def _shards(n, size, rng):
    return [_numbers(rng, len(range(size)[part]), 2) for part in _parts(n, size)]


def _who_divides(n, size, rng, place):
    shards = _shards(n, size, rng)
    args = [shard.sum(axis=0) for shard in shards], [len(shard) for shard in shards]
    return Case(
        args, lambda: numpy.concatenate(shards).mean(0), says=f"counts = {args[1]}"
    )


def _idle_device(n, size, rng, place):
    shards, grads = _shards(n, size, rng), list(_numbers(rng, n, 2))

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
    g, parts = _numbers(rng, size), _parts(n, size)
    norm = float(numpy.linalg.norm(g))
    most = norm * float(rng.choice([0.25, 0.5, 2]))
    shards = [place(k, g[part]) for k, part in enumerate(parts)]

    def wanted():
        clipped = g * min(1, most / norm)
        return {"shards": [clipped[part] for part in parts]}

    says = f"N = {n}, {size} numbers, and at most {most:.4g} of a norm of {norm:.4g}"
    return Case((list(shards), most), wanted, {"shards": shards}, says, numbers=1)


def _accumulate(n, size, rng, place):
    num_parts = int(rng.integers(2, 5))
    counts = rng.integers(1, 5, size=(n, num_parts)).tolist()
    sums, stale = _numbers(rng, n, num_parts, size), _numbers(rng, n, size)
    grads = [place(k, old) for k, old in enumerate(stale)]
    gradients = [lambda m, k=k: place(k, sums[k][m]) for k in range(n)]

    def wanted():
        return {"grads": [sums.sum(axis=(0, 1)) / sum(map(sum, counts))] * n}

    says = f"N = {n}, arrays of length {size:,} and {num_parts} micro-batches each"
    return Case((list(grads), gradients, counts), wanted, {"grads": grads}, says)


def _tied(n, size, rng, place):
    values = _numbers(rng, n, size)
    grads = [place(k, value) for k, value in enumerate(values)]

    def wanted():
        new = values.copy()
        new[[0, -1]] = values[0] + values[-1] if n > 1 else values[0]
        return {"grads": list(new)}

    return Case([list(grads)], wanted, {"grads": grads})


def _dropout(n, size, rng, place):
    h, numbers, rate = _numbers(rng, size), rng.integers(1, 1000, size=n), 0.5
    parts = _parts(n, size)
    shards = [place(k, h[part]) for k, part in enumerate(parts)]
    seeds = [place(k, numpy.array([float(s)])) for k, s in enumerate(numbers)]

    def draws(seed, start, stop):
        return numpy.random.default_rng(int(seed[0])).random(size)[start:stop]

    def draw_of(k):
        return lambda seed, *rows: place(k, draws(_on(k, seed, "draws"), *rows))

    def wanted():
        whole = h * (draws(numbers, 0, size) > rate) / (1 - rate)
        return {"shards": [whole[part] for part in parts]}

    return Case(
        (list(shards), list(seeds), [draw_of(k) for k in range(n)], rate),
        wanted,
        {"shards": shards},
        f"N = {n} and {size} rows",
        numbers=1,
    )


def _sync_bn_backward(n, size, rng, place):
    h, g = rng.normal(size=size), rng.normal(size=size)
    deviation = float(h.std()) or 1.0
    h = (h - h.mean()) / deviation
    parts = _parts(n, size)
    normed, grads = ([place(k, a[p]) for k, p in enumerate(parts)] for a in (h, g))
    buffers = [place(k, numpy.zeros(2)) for k in range(n)]

    def wanted():
        dx = (g - g.mean() - h * (g * h).mean()) / deviation
        return {"grads": [dx[part] for part in parts]}

    args = list(grads), normed, buffers, size, deviation
    says = f"N = {n} and {size} samples"
    return Case(args, wanted, {"grads": grads}, says, numbers=2)


PUZZLES = {
    "split_unevenly": _split_unevenly,
    "shard_gradients": _shard_gradients,
    "central": _all_reduce,
    "tree": _all_reduce,
    "recursive_doubling": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "ring": _all_reduce,
    "zero1": _zero1,
    "local_sgd": _local_sgd,
    "fsdp": _fsdp,
    "pipeline": _pipeline,
    "overlap": _overlap,
    "batch_norm": _batch_norm,
    "grid": _grid,
    "least_squares": _least_squares,
    "rebinding": _all_reduce,
    "who_divides": _who_divides,
    "idle_device": _idle_device,
    "clock": _clock,
    "clip": _clip,
    "accumulate": _accumulate,
    "tied": _tied,
    "dropout": _dropout,
    "sync_bn_backward": _sync_bn_backward,
}
ROUTES = {"ring": "ring", "central": "hub", "rebinding": "hub"}


def _depth(n) -> int:
    """log2 n, rounded up."""
    return (n - 1).bit_length()


def _pairs(n) -> int:
    """Rounds of recursive doubling: two more where n is no power of 2."""
    return _depth(n) if n & (n - 1) == 0 else _depth(n) + 1


# How often, at least, each number is sent to another device, in units of N - 1: for a
# sum the other devices send theirs once, and to know it they receive it once. For
# local SGD this is for each mean, for FSDP for each layer. A tree sends no more.
LEAST = {
    "central": 2,
    "tree": 2,
    "recursive_doubling": 2,
    "reduce_scatter": 1,
    "all_gather": 1,
    "ring": 2,
    "zero1": 2,
    "local_sgd": 2,
    "fsdp": 2,
    "rebinding": 2,
    "clip": 2,
    "accumulate": 2,
    "dropout": 1,
    "sync_bn_backward": 2,
}

# Rounds, numbers over the busiest link and numbers held, for n devices, arrays of
# `size` numbers, and the longest part of one.
TARGETS = {
    "central": lambda n, size, part: (2 * (n - 1), (n - 1) * size, 3 * size),
    "tree": lambda n, size, part: (2 * _depth(n), _depth(n) * size, 3 * size),
    "recursive_doubling": lambda n, size, part: (_pairs(n), _pairs(n) * size, 3 * size),
    "reduce_scatter": lambda n, size, part: (n - 1, (n - 1) * part, size + 2 * part),
    "all_gather": lambda n, size, part: (n - 1, (n - 1) * part, size + 2 * part),
    "ring": lambda n, size, part: (2 * (n - 1), 2 * (n - 1) * part, size + 2 * part),
    "zero1": lambda n, size, part: (2 * n - 2, 2 * (n - 1) * part, 2 * size + 4 * part),
    "local_sgd": lambda n, size, part: (2 * (n - 1), 2 * (n - 1) * part, 4 * size),
    "fsdp": lambda n, size, part: (
        2 * (n - 1),
        2 * (n - 1) * part,
        2 * size + (NUM_LAYERS + 2) * part,
    ),
    "rebinding": lambda n, size, part: (2 * (n - 1), (n - 1) * size, 3 * size),
    "clip": lambda n, size, part: (2 * (n - 1), 2 * (n - 1), 2 * part + 4),
    "accumulate": lambda n, size, part: (2 * n - 2, 2 * (n - 1) * part, 3 * size),
    "tied": lambda n, size, part: (min(n - 1, 1), min(n - 1, 1) * size, 3 * size),
    "dropout": lambda n, size, part: (_depth(n), _depth(n), 5 * part + 4),
    "sync_bn_backward": lambda n, size, part: (
        2 * (n - 1),
        2 * (n - 1),
        6 * part + 8,
    ),
}
SCORED = (*TARGETS, "pipeline", "overlap")


def target(name: str, case: Case, n: int, size: int) -> tuple[int, int, int]:
    """A puzzle's target for this case."""
    rounds, link, held = TARGETS[name](n, size, -(-size // n))
    return case.times * rounds, case.times * link, held

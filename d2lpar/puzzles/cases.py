"""What each puzzle is called with, its right answer, and its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from d2lpar.puzzles.schedules import Overlap, Pipeline


class Case(NamedTuple):
    """Arguments, and what is wanted of `results`, or of what the solution returns.

    `says` describes the arguments, if the number of devices and numbers is not enough.
    `machine` counts the scores, if that is not the network of devices, for `target`.
    `times` says how often `TARGETS` and `LEAST` allow and need what is sent.
    """

    args: Sequence
    wanted: Any
    results: dict | None = None
    says: str = ""
    machine: Any = None
    target: tuple = ()
    times: int = 1


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
    wanted = [Rows(part, size) for part in _parts(n, size)]
    return Case((size, n), wanted, says=f"n = {size}, num_devices = {n}")


def _shard_gradients(n, size, rng, place):
    X, y, w, parts = _numbers(rng, size, 3), _numbers(rng, size), _numbers(rng, 3), []
    for part in _parts(n, size):
        parts.append(
            sum((2 * (x @ w - t) * x for x, t in zip(X[part], y[part])), 0 * w)
        )
    return Case((X, y, w, _parts(n, size)), parts, says=f"{size} row(s), N = {n}")


def _all_reduce(n, size, rng, place):
    values = [_numbers(rng, size) for _ in range(n)]
    arrays = [place(k, value) for k, value in enumerate(values)]
    return Case([list(arrays)], {"arrays": [sum(values)] * n}, {"arrays": arrays})


def _reduce_scatter(n, size, rng, place):
    args, wanted, results, *_ = _all_reduce(n, size, rng, place)
    wanted, got = (
        [array[part] for array, part in zip(arrays["arrays"], _parts(n, size))]
        for arrays in (wanted, results)
    )
    return Case(args, {"own part of arrays": wanted}, {"own part of arrays": got})


def _all_gather(n, size, rng, place):
    wanted, values = _numbers(rng, size), numpy.zeros((n, size), "float32")
    for value, part in zip(values, _parts(n, size)):
        value[part] = wanted[part]
    arrays = [place(k, value) for k, value in enumerate(values)]
    return Case([list(arrays)], {"arrays": [wanted] * n}, {"arrays": arrays})


def _zero1(n, size, rng, place):
    p, v, grads = _numbers(rng, size), _numbers(rng, size), _numbers(rng, n, size)
    parts, new_v = _parts(n, size), 0.9 * v + sum(grads)
    lr = float(rng.choice([0.25, 0.5, 1.0]))
    params = [place(k, p) for k in range(n)]
    velocities = [place(k, v[part]) for k, part in enumerate(parts)]
    grads = [place(k, g) for k, g in enumerate(grads)]
    return Case(
        (list(params), grads, list(velocities), lr),
        {"params": [p - lr * new_v] * n, "velocities": [new_v[part] for part in parts]},
        {"params": params, "velocities": velocities},
    )


def _local_sgd(n, size, rng, place):
    goals, mean = _numbers(rng, n, size), _numbers(rng, size)
    lr = float(rng.choice([0.125, 0.25]))
    num_steps, between = rng.choice([[5, 2], [7, 3], [3, 4], [3, 1], [8, 2]]).tolist()
    ws = [place(k, mean) for k in range(n)]
    gradients = [lambda w, k=k: (1 + k % 2) * (w - goals[k]) for k in range(n)]
    shrinks = numpy.array([[1 - lr * (1 + k % 2)] for k in range(n)])
    starts = range(0, num_steps, between)
    for start in starts:
        steps = min(between, num_steps - start)
        mean = (goals + shrinks**steps * (mean - goals)).mean(axis=0)
    return Case(
        (list(ws), gradients, lr, num_steps, between),
        {"ws": [mean] * n},
        {"ws": ws},
        f"N = {n}, {num_steps} steps, {between} between means",
        times=len(starts),
    )


NUM_LAYERS = 3


def _fsdp(n, size, rng, place):
    w, goals = _numbers(rng, NUM_LAYERS, size), _numbers(rng, n, NUM_LAYERS, size)
    parts, lr = _parts(n, size), float(rng.choice([0.0625, 0.125]))
    shards = [[place(k, layer[part]) for layer in w] for k, part in enumerate(parts)]
    buffers = [place(k, numpy.zeros(size, "float32")) for k in range(n)]

    def gradient_of(k):
        def gradient(l, whole):
            if getattr(whole, "home", None) is None or whole.home[1] != k:
                raise ValueError(f"gradients[{k}] takes an array of device {k}")
            return place(k, numpy.asarray(whole) - goals[k][l])

        return gradient

    new = w - lr * (n * w - goals.sum(axis=0))
    args = shards, buffers, [gradient_of(k) for k in range(n)], lr
    wanted = [[layer[part] for layer in new] for part in parts]
    return Case(args, {"shards": wanted}, {"shards": shards}, times=NUM_LAYERS)


def _pipeline(n, size, rng, place):
    pipeline = Pipeline(n, size)
    results, says = {"finished": pipeline.finished}, f"{n} stages, {size} micro-batches"
    target = 2 * (size + n - 1), 2 * n * (n - 1), min(n, size)
    args, wanted = (n, size, pipeline.run), {"finished": [size] * n}
    return Case(args, wanted, results, says, pipeline, target)


def _overlap(n, size, rng, place):
    compute, seconds = rng.integers(1, 10, size=(2, size % 7 + 1)).tolist()
    device = Overlap(compute, seconds)
    args = len(compute), device.backward, device.send, device.wait
    wanted, results = [True] * len(compute), {"waited": device.waited}
    says = f"layers that compute for {compute} s and send for {seconds} s"
    return Case(args, {"waited": wanted}, results, says, device, (device.least(),))


def _batch_norm(n, size, rng, place):
    counts = [int(count) for count in rng.integers(1, 5, size=n)]
    shards = [_numbers(rng, count, 2) for count in counts]
    means, variances = ([f(s, axis=0) for s in shards] for f in (numpy.mean, numpy.var))
    batch = numpy.concatenate(shards)
    wanted = batch.mean(axis=0), batch.var(axis=0)
    return Case((counts, means, variances), wanted, says=f"counts = {counts}")


def _grid(n, size, rng, place):
    nx, ny, *block = (int(i) for i in rng.integers(1, [20, 20, 9, 9]))
    memory = numpy.arange(nx * ny).reshape(ny, nx)
    blocks = [len(range(0, nx, block[0])), len(range(0, ny, block[1]))]
    at, thread = (tuple(map(int, rng.integers(most))) for most in (blocks, block))
    x, y = (b * size + t for b, size, t in zip(at, block, thread))
    args = nx, ny, tuple(block), at, thread
    wanted = blocks, memory[y, x] if x < nx and y < ny else -1
    return Case(args, wanted, says=f"grid{args}")


def _least_squares(n, size, rng, place):
    A, b = rng.normal(size=(n, 6, 3)), rng.normal(size=(n, 6))
    xs = [numpy.linalg.lstsq(*rows, rcond=None)[0] for rows in zip(A, b)]
    wanted = numpy.linalg.lstsq(A.reshape(-1, 3), b.reshape(-1), rcond=None)[0]
    return Case(([rows.T @ rows for rows in A], xs), wanted, says=f"N = {n}")


def _who_divides(n, size, rng, place):
    shards = [_numbers(rng, len(range(size)[part]), 2) for part in _parts(n, size)]
    args = [shard.sum(axis=0) for shard in shards], [len(shard) for shard in shards]
    return Case(args, numpy.concatenate(shards).mean(0), says=f"counts = {args[1]}")


def _idle_device(n, size, rng, place):
    shards = [_numbers(rng, len(range(size)[part]), 2) for part in _parts(n, size)]
    grads, wanted = list(_numbers(rng, n, 2)), [shard.sum(axis=0) for shard in shards]

    def gradient(shard):
        if len(shard) == 0:
            raise ValueError("gradient takes a shard of one sample or more")
        return shard.sum(axis=0)

    args = shards, list(grads), gradient
    says = f"shards of {[len(shard) for shard in shards]} sample(s)"
    return Case(args, {"grads": wanted}, {"grads": grads}, says)


def _clock(n, size, rng, place):
    at = {"now": 100.0, "done": 100.0 + n}

    def work():
        at["done"] = max(at.values()) + size

    def wait():
        at["now"] = max(at.values())

    args = work, wait, lambda: at["now"]
    return Case(args, size, says=f"{size} s of work, after {n} s still to do")


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
}


def _depth(n) -> int:
    """log2 n, rounded up."""
    return (n - 1).bit_length()


def _pairs(n) -> int:
    """Rounds of recursive doubling: two more where n is no power of 2."""
    return _depth(n) if n & (n - 1) == 0 else _depth(n) + 1


# How often, at least, each number is sent to another device, in units of N - 1: for a
# sum the other devices send theirs once, and to know it they receive it once. For
# local SGD this is for each mean, for FSDP for each layer.
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
}
SCORED = (*TARGETS, "pipeline", "overlap")


def target(name: str, case: Case, n: int, size: int) -> tuple[int, int, int]:
    """A puzzle's target for this case."""
    rounds, link, held = TARGETS[name](n, size, -(-size // n))
    return case.times * rounds, case.times * link, held

"""What each puzzle is called with, the right answer, and the targets."""

from __future__ import annotations

import numpy

from .devices import Case

# A function makes a case for n devices and arrays of `size` numbers.


def parts(n: int, size: int) -> list[slice]:
    starts = [k * (size // n) + min(k, size % n) for k in range(n + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def cut(array, n: int) -> list:
    return [array[part] for part in parts(n, len(array))]


def targets(how: str, n: int, size: int, times: int = 1) -> dict:
    """The rounds, bytes and numbers of an all-reduce of `size` float32, or of half one.

    For a sum the other devices send each number once, and to know it they receive it
    once: so each number is sent n - 1 or 2 (n - 1) times. A tree sends no more.
    """
    other, part = n - 1, -(-size // n)
    depth = other.bit_length()
    pairs = depth + (n & other > 0)
    least, rounds, link = {
        "hub": (2 * other, 2 * other, other * size),
        "tree": (2 * other, 2 * depth, depth * size),
        "pairs": (2 * other, pairs, pairs * size),
        "ring": (2 * other, 2 * other, 2 * other * part),
        "half a ring": (other, other, other * part),
    }[how]
    return {
        "rounds": times * rounds,
        "link": 4 * times * link,
        "least": times * least * size,
    }


def numbers(rng, *shape) -> numpy.ndarray:
    """Numbers of which all bits are in use."""
    return rng.normal(size=shape).astype("float32")


def split_unevenly(n, size, rng):
    wanted = [[[part.start, part.stop]] for part in parts(n, size)]
    args = [(k, n, size) for k in range(n)]
    return Case(args, 1, wanted, f"{size} numbers on {n} devices", "")


def all_reduce(how, route=""):
    def case(n, size, rng):
        values = numbers(rng, n, size)
        args = [(k, n, value) for k, value in enumerate(values)]
        says = f"{n} devices, {size} numbers"
        wanted = [[values.sum(axis=0)]] * n
        return Case(args, (2,), wanted, says, route=route, **targets(how, n, size))

    return case


def reduce_scatter(n, size, rng):
    case = all_reduce("half a ring")(n, size, rng)
    wanted = [[(*of_all, part)] for of_all, part in zip(case.wanted, parts(n, size))]
    return case._replace(wanted=wanted)


def all_gather(n, size, rng):
    case, right = all_reduce("half a ring")(n, size, rng), numbers(rng, size)
    for (*_, value), part in zip(case.args, parts(n, size)):
        value[part] = right[part]  # the rest is noise
    return case._replace(wanted=[[right]] * n)


def zero1(n, size, rng):
    p, v, g = numbers(rng, size), numbers(rng, size), numbers(rng, n, size)
    lr, new_v = float(rng.choice([0.2, 0.5, 1.0])), 0.9 * v + g.sum(axis=0)
    velocities, new = cut(v, n), p - lr * new_v
    args = [(k, n, p.copy(), g[k], velocities[k], lr) for k in range(n)]
    wanted = [[new, part] for part in cut(new_v, n)]
    says = f"{n} devices, {size} numbers"
    return Case(args, (2, 4), wanted, says, **targets("ring", n, size))


def local_sgd(n, size, rng):
    goals, start = numbers(rng, n, size), numbers(rng, size)
    lr = float(rng.choice([0.1, 0.2]))
    steps, between = rng.choice([[5, 2], [7, 3], [3, 4], [3, 1], [8, 2]]).tolist()
    text = "lambda w: s * (w - goal) + w.mean()"  # steeper on every other device
    args, each = [], [start] * n
    for k in range(n):
        gradient = {"lambda": text, "s": 1 + k % 2, "goal": goals[k]}
        args.append((k, n, start.copy(), gradient, lr, steps, between))
    for step in range(1, steps + 1):
        for k, w in enumerate(each):
            each[k] = w - lr * ((1 + k % 2) * (w - goals[k]) + w.mean())
        if step % between == 0 or step == steps:
            each = [sum(each) / n] * n
    says = f"{n} devices, {size} numbers, {steps} steps, {between} between means"
    limits = targets("ring", n, size, -(-steps // between))
    return Case(args, (2,), [[w] for w in each], says, **limits)


def fsdp(n, size, rng):
    w, goals = numbers(rng, 3, size), numbers(rng, n, 3, size)
    lr, text = float(rng.choice([0.05, 0.1])), "lambda l, w: w.mean() * w - goals[l]"
    args = []
    for k, part in enumerate(parts(n, size)):
        gradient = {"lambda": text, "goals": goals[k]}
        args.append((k, n, [*w[:, part].copy()], size, gradient, lr))
    new = w - lr * (n * w.mean(axis=1, keepdims=True) * w - goals.sum(axis=0))
    wanted = [[*new[:, part]] for part in parts(n, size)]
    says = f"{n} devices, layers of {size} numbers"
    return Case(args, (2,), wanted, says, **targets("ring", n, size, 3))


def pipeline(n, size, rng):
    m, W, x = size % 5 + 1, numbers(rng, n, 4, 4), numbers(rng, size % 5 + 1, 4)
    right = x
    for layer in W:
        right = numpy.tanh(right @ layer)
    rooms = [x, *numbers(rng, n - 1, m, 4)]
    layers = [{"lambda": "lambda x: numpy.tanh(x @ W)", "W": W_k} for W_k in W]
    args = [(k, n, rooms[k], layers[k]) for k in range(n)]
    wanted = [[(right, slice(None) if k == n - 1 else slice(0))] for k in range(n)]
    says, rounds = f"{n} stages, {m} micro-batches", (m + n - 2) * (n > 1)
    link, least = 16 * m * (n > 1), 4 * m * (n - 1)
    return Case(args, (2,), wanted, says, rounds=rounds, link=link, least=least)


def clip(n, size, rng):
    g = numbers(rng, size) * (size > 1 or n % 2)  # zero for one number, and an even n
    norm = float(numpy.linalg.norm(g))
    most = norm * float(rng.choice([0.25, 0.5, 2])) or 1.0
    wanted = [[part] for part in cut(g * min(1, most / (norm or most)), n)]
    args = [(k, n, shard, most) for k, shard in enumerate(cut(g, n))]
    says = f"{n} devices, {size} numbers, at most {most:.4g} of a norm of {norm:.4g}"
    limits = targets("ring", n, 1)
    return Case(args, (2,), wanted, says, **limits)


def grid(n, size, rng):
    beyond = None
    while beyond != (n + size) % 3:  # a thread of the array; beyond a row; a column
        nx, ny, *block = (int(i) for i in rng.integers(1, [20, 20, 9, 9]))
        blocks = [-(-nx // block[0]), -(-ny // block[1])]
        at, thread = (tuple(map(int, rng.integers(most))) for most in (blocks, block))
        x, y = (b * size + t for b, size, t in zip(at, block, thread))
        beyond = 1 if x >= nx and y < ny else 2 * (y >= ny)
    args = nx, ny, tuple(block), at, thread
    memory = numpy.arange(nx * ny).reshape(ny, nx)
    wanted = [*blocks, -1 if beyond else memory[y, x]]
    return Case([(0, 1, *args)], 1, [[wanted]], f"grid(0, 1, *{args})", "")


def least_squares(n, size, rng):
    # Columns of three magnitudes: too ill-conditioned for steps along the gradient.
    A, b = rng.normal(size=(n, 6, 3)) * [1, 1e-2, 1e-3], rng.normal(size=(n, 6))
    args = []
    for k in range(n):
        x = numpy.linalg.lstsq(A[k], b[k], rcond=None)[0]
        args.append((k, n, A[k].T @ A[k], x))
    wanted = numpy.linalg.lstsq(A.reshape(-1, 3), b.reshape(-1), rcond=None)[0]
    least = 2 * (n - 1) * 9  # the sums have 6 + 3 different numbers
    return Case(args, 1, [[wanted]] * n, f"{n} devices", "float64", least=least)


def who_divides(n, size, rng):
    samples = numbers(rng, size, 2)
    shards = [samples[part] for part in parts(n, size)]
    args = [(k, n, s.sum(axis=0), len(s)) for k, s in enumerate(shards)]
    says, least = f"samples {[len(shard) for shard in shards]}", 2 * (n - 1) * 2
    return Case(args, 1, [[samples.mean(axis=0)]] * n, says, least=least)


PUZZLES = {
    "split_unevenly": split_unevenly,
    "central": all_reduce("hub", "hub"),
    "tree": all_reduce("tree"),
    "recursive_doubling": all_reduce("pairs"),
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "ring": all_reduce("ring", "ring"),
    "zero1": zero1,
    "local_sgd": local_sgd,
    "fsdp": fsdp,
    "pipeline": pipeline,
    "clip": clip,
    "grid": grid,
    "least_squares": least_squares,
    "rebinding": all_reduce("hub", "hub"),
    "who_divides": who_divides,
}

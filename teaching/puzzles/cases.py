"""What each puzzle is called with, the right answer, and the targets."""

from __future__ import annotations

import numpy

from .devices import Case

# A function makes a case for n devices and arrays of `size` numbers.


def parts(n: int, size: int) -> list[slice]:
    starts = [k * (size // n) + min(k, size % n) for k in range(n + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def targets(how: str, n: int, size: int, times: int = 1) -> dict:
    """The targets of an all-reduce of `size` float32, or of half one.

    For a sum the other devices send each number once, and to know it they receive it
    once: so each number is sent n - 1 or 2 (n - 1) times. A tree sends no more.
    """
    other, part = n - 1, -(-size // n)
    depth = other.bit_length()
    pairs = depth + (n & other > 0)
    rounds, link = {
        "hub": (2 * other, other * size),
        "tree": (2 * depth, depth * size),
        "pairs": (pairs, pairs * size),
        "ring": (2 * other, 2 * other * part),
        "half a ring": (other, other * part),
    }[how]
    least = other * size * (1 if how == "half a ring" else 2)
    return {"rounds": times * rounds, "link": 4 * times * link, "least": times * least}


def numbers(rng, *shape) -> numpy.ndarray:
    """Numbers of which all bits are in use."""
    return rng.normal(size=shape).astype("float32")


def split_unevenly(n, size, rng):
    wanted = [[[part.start, part.stop]] for part in parts(n, size)]
    return Case([(k, n, size) for k in range(n)], 1, wanted, dtype="")


def all_reduce(how, route=""):
    def case(n, size, rng):
        values = numbers(rng, n, size)
        args = [(k, n, value) for k, value in enumerate(values)]
        wanted = [[values.sum(axis=0)]] * n
        return Case(args, (2,), wanted, route=route, **targets(how, n, size))

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
    velocities, new = numpy.array_split(v, n), p - lr * new_v
    args = [(k, n, p.copy(), g[k], velocities[k], lr) for k in range(n)]
    wanted = [[new, part] for part in numpy.array_split(new_v, n)]
    return Case(args, (2, 4), wanted, **targets("ring", n, size))


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
    return Case(args, (2,), wanted, **targets("ring", n, size, 3))


def clip(n, size, rng):
    g = numbers(rng, size) * (size > 1 or n % 2)  # zero for one number, and an even n
    norm = float(numpy.linalg.norm(g))
    most = norm * float(rng.choice([0.25, 0.5, 2])) or 1.0
    clipped = numpy.array_split(g * min(1, most / (norm or most)), n)
    wanted = [[part] for part in clipped]
    args = [(k, n, shard, most) for k, shard in enumerate(numpy.array_split(g, n))]
    says = f"{size} numbers, at most {most:.4g} of a norm of {norm:.4g}"
    return Case(args, (2,), wanted, says, **targets("ring", n, 1))


def least_squares(n, size, rng):
    # Columns of three magnitudes: too ill-conditioned for steps along the gradient.
    A, b = rng.normal(size=(n, 6, 3)) * [1, 1e-2, 1e-3], rng.normal(size=(n, 6))
    args = []
    for k in range(n):
        x = numpy.linalg.lstsq(A[k], b[k], rcond=None)[0]
        args.append((k, n, A[k].T @ A[k], x))
    wanted = numpy.linalg.lstsq(A.reshape(-1, 3), b.reshape(-1), rcond=None)[0]
    least = 2 * (n - 1) * 9  # the sums have 6 + 3 different numbers
    return Case(args, 1, [[wanted]] * n, dtype="float64", least=least)


def who_divides(n, size, rng):
    samples = numbers(rng, size, 2)
    shards = [samples[part] for part in parts(n, size)]
    args = [(k, n, s.sum(axis=0), len(s)) for k, s in enumerate(shards)]
    return Case(args, 1, [[samples.mean(axis=0)]] * n, least=4 * (n - 1))


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
    "clip": clip,
    "least_squares": least_squares,
    "rebinding": all_reduce("hub", "hub"),
    "who_divides": who_divides,
}

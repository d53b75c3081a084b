"""What each puzzle is called with on n devices, the right answer, and the targets."""

from __future__ import annotations

import numpy

from .devices import Case


def parts(n: int, size: int) -> list[slice]:
    starts = [k * (size // n) + min(k, size % n) for k in range(n + 1)]
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def targets(how: str, n: int, size: int) -> dict:
    """The targets of an all-reduce of `size` float32, or of half one.

    For a sum the other devices send each number once, and to know it they receive it
    once: so each number is sent n - 1 or 2 (n - 1) times. A tree sends no more.
    """
    other, part, depth = n - 1, -(-size // n), (n - 1).bit_length()
    rounds, link = {
        "hub": (2 * other, other * size),
        "tree": (2 * depth, depth * size),
        "ring": (2 * other, 2 * other * part),
        "half a ring": (other, other * part),
    }[how]
    least = other * size * (1 if how == "half a ring" else 2)
    return {"rounds": rounds, "link": 4 * link, "least": least}


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
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "ring": all_reduce("ring", "ring"),
    "zero1": zero1,
    "clip": clip,
    "least_squares": least_squares,
    "rebinding": all_reduce("hub", "hub"),
    "who_divides": who_divides,
}

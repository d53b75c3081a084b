"""How often the rule by which something is faster is wrong, and what it finds.

    python tests/support/simulated_rule.py

It prints the tables of docs/usage.md, as "false alarms/power" in percent, in half
a minute. d2lpar.records.rule judges log ratios of turns that are drawn here.
"""

import math
from functools import partial

import numpy

from d2lpar.records.rule import LEVEL, SAME, intervals
from d2lpar.text import plain_table

rng = numpy.random.default_rng(0)


def drifting(sides):
    """Add a slowdown by a half, evenly, to logs (2, turns, trials) of A B, B A."""
    n = sides.shape[1]
    place = numpy.arange(2 * n).reshape(n, 2)
    place[1::2] = place[1::2, ::-1]
    return sides + numpy.log(numpy.linspace(1, 1.5, 2 * n))[place.T, None]


# What a kind of noise makes of normal logs of times (2, turns, trials), spread 10 %.
NOISE = {
    "log-normal": lambda sides: sides,
    "skewed": lambda sides: numpy.log(1 + rng.exponential(0.15, sides.shape)),
    "outliers": lambda sides: sides + math.log(3) * (rng.random(sides.shape) < 0.1),
    "drift": drifting,
    "30 % shared": lambda sides: 0.3 * (sides + rng.normal(size=sides.shape[1:])),
}
SPREADS = {  # of the batches of a study, times 10 %
    "equal": numpy.ones(13),
    "small: four times": numpy.geomspace(2, 0.5, 13),
    "three: thrice": numpy.where(numpy.arange(13) < 3, 2.0, 0.7),
    "one: five times": numpy.where(numpy.arange(13) == 0, 3.0, 0.6),
}


def told(logs):
    """Return which are told apart, for log ratios (settings, turns, trials)."""
    found = intervals(list(logs), LEVEL)
    return numpy.array([abs(mean) > half for mean, half in found])


def ratios(kind, turns, spread=0.1):
    """Draw log ratios (1, turns, 20,000) of two equal settings."""
    a, b = NOISE[kind](spread * rng.normal(size=(2, turns, 20_000)))
    return (a - b)[None]


def study(spreads, turns):
    """Draw log ratios (13, turns, 4,000) of equal batches."""
    return 0.1 * spreads[:, None, None] * rng.normal(size=(13, turns, 4_000))


def tables():
    """Return the tables of the page: two settings, and studies of 13 batches."""

    def rows(counts, draws):
        yield ["", *(f"{n} turns" for n in counts)]
        for name, draw in draws.items():
            pairs = [draw(n) for n in counts]
            yield [
                name,
                *(f"{100 * a.mean():.1f}/{100 * b.mean():.0f}" for a, b in pairs),
            ]

    def two(n, kind):
        logs = ratios(kind, n)
        return told(logs), told(logs + math.log(1.3))

    def alike(n, spread):
        logs = ratios("log-normal", n, spread)
        ((mean, half),) = intervals(list(logs), 2 * LEVEL)
        ends = [mean + shift for shift in (math.log(SAME), 0.0)]
        return [abs(end) + half <= math.log(SAME) for end in ends]

    def batches(n, spreads):
        logs = study(spreads, n)
        return told(logs).any(axis=0), told(logs + math.log(1.3))[6]

    draws = {kind: partial(two, kind=kind) for kind in NOISE}
    draws |= {f"the same, {x:.0%}": partial(alike, spread=x) for x in (0.05,)}
    studies = {name: partial(batches, spreads=x) for name, x in SPREADS.items()}
    return [[*rows((2, 4, 6, 12), draws)], [*rows((4, 8), studies)]]


if __name__ == "__main__":
    for columns, *rows in tables():
        print(plain_table(columns, rows, names=1), end="\n\n")

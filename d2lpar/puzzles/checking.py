"""Check a solution, in a process apart: right or not, and its scores' targets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from d2lpar.puzzles.apart import apart
from d2lpar.puzzles.cases import PUZZLES, Case, Rows, limits
from d2lpar.puzzles.interconnect import Network, read


def check(solution: Callable, seconds: float = 20) -> bool:
    """Check a solution: a function named like its puzzle in `d2lpar.puzzles.tasks`.

    Prints one line. Returns whether it is right on many sizes, within the target, and
    in `seconds` in all. The numbers differ in each call.
    """
    name = getattr(solution, "__name__", type(solution).__name__)
    if name not in PUZZLES:
        print(f"{name} is no puzzle: the puzzles are {', '.join(PUZZLES)}")
        return False
    puzzle = PUZZLES[name]
    function: Any = apart(solution, seconds)
    rng = numpy.random.default_rng()  # drawn after the fork
    with contextlib.closing(function):
        for n, size in _sizes(rng):
            network = Network(n, puzzle.route)
            case = puzzle.case(n, size, rng, network.place)
            says = case.says or f"N = {n} and arrays of length {size:,}"
            try:
                exchange = [network.exchange] if puzzle.sends else []
                got, wrong = function(*case.args, *exchange), ""
            except NotImplementedError:
                print(f"{name}: not solved yet")
                return False
            except AssertionError as error:
                got, wrong = None, str(error)
            least, most = limits(name, case, n, size)
            scores = (case.machine or network).scores()
            got = _plain(got if case.results is None else case.results)
            wrong = wrong or _difference(got, case.wanted, "its answer")
            wrong = wrong or _too_little(name, n, case, scores, network.sent, least)
            if wrong:
                print(f"{name}: wrong with {says}: {wrong}")
                return False
            if most:
                units = (1,) * 3 if case.machine else (1, size, size)
                what = (case.machine or Network).SCORES
                says += ": " + ", ".join(
                    f"{what} {score / unit:.4g} of {limit / unit:.4g}"
                    for what, unit, score, limit in zip(what, units, scores, most)
                )
                if any(score > limit for score, limit in zip(scores, most)):
                    print(f"{name}: right so far, but over its target with {says}")
                    return False
    print(f"{name}: right" + (f"; {says}" if most else ""))
    return True


def _sizes(rng: numpy.random.Generator) -> Iterator[tuple[int, int]]:
    """Devices and numbers for each: uneven, even, few. The last one is the score."""
    for n in (2, 1, 3, 4, 5, 6, 7, 8):
        few = (n, 1) if n < 5 else ()
        for size in (2 * n + 1, *few, int(rng.integers(1, 5 * n))):
            yield n, size
    yield 4, 1000


def _plain(value):
    """An answer without devices: their arrays as NumPy's."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return read(value)


def _too_little(
    name: str, n: int, case: Case, scores: tuple, sent: list[int], least: int
) -> str:
    """Why the answer cannot have come as the puzzle asks, or ""."""
    if case.machine and scores[0] < case.target[0]:
        what = case.machine.SCORES[0]
        return f"{scores[0]} {what}, at least {case.target[0]} are needed"
    numbers = sum(sent)
    rounds = (n - 1).bit_length() if least else 0
    if scores[0] < rounds or numbers < least:
        return (
            f"{scores[0]} round(s) sent {numbers:,} numbers in all, at least {rounds} "
            f"and {least:,} are needed"
        )
    if name == "tree" and numbers > least:
        return f"{numbers:,} numbers were sent in all, a tree sends {least:,}"
    return ""


def _difference(got, wanted, name: str) -> str:
    """The first place where two nested results differ, in words, or ""."""
    if isinstance(wanted, dict):
        found = (_difference(got[key], wanted[key], key) for key in wanted)
        return next(filter(None, found), "")
    if got is None:
        return f"{name} is None: is there a `return`?"
    if isinstance(wanted, Rows):
        text = f"{name} is {' '.join(repr(got).split()):.60}, wanted is {wanted.part}"
        return "" if _takes(got, wanted) else text
    if isinstance(wanted, (list, tuple)):
        if not isinstance(got, (list, tuple, numpy.ndarray)):
            return f"{name} is of type {type(got).__name__}, not a list or tuple"
        if len(got) != len(wanted):
            return f"{name} has {len(got)} elements, wanted are {len(wanted)}"
        found = (
            _difference(g, w, f"{name}[{k}]")
            for k, (g, w) in enumerate(zip(got, wanted))
        )
        return next(filter(None, found), "")
    try:
        values = numpy.asarray(got)
        if values.dtype.kind in "USc":
            raise TypeError("text or complex numbers are no answer")
        values = values.astype(float)
    except (TypeError, ValueError):
        return f"{name} is {got!r:.60}, wanted is {_short(wanted)}"
    same = values.shape == numpy.shape(wanted) and numpy.allclose(
        values, wanted, rtol=1e-4, atol=1e-4
    )
    return "" if same else f"{name} is {_short(values)}, wanted is {_short(wanted)}"


def _takes(got, wanted: Rows) -> bool:
    rows = range(wanted.n)
    try:
        return isinstance(got, slice) and rows[got] == rows[wanted.part]
    except (TypeError, ValueError):  # slice(0.0, 2.5), or a step of 0
        return False


def _short(value) -> str:
    text = numpy.array2string(numpy.asarray(value), precision=4, threshold=8)
    return " ".join(text.split())

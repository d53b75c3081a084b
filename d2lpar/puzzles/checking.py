"""Check a solution: right or not, on which sizes, and its scores against the target."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import numpy

from d2lpar.puzzles.cases import LEAST, PUZZLES, SCORED, TARGETS, Case, Rows, target
from d2lpar.puzzles.network import Network


def check(solution: Callable) -> bool:
    """Check a solution: a function named like its puzzle in `d2lpar.puzzles.tasks`.

    Calls it with arguments of many sizes, random but the same every time, and prints
    one line. Returns whether it is right and, where the puzzle has a target, within it.
    """
    name = getattr(solution, "__name__", type(solution).__name__)
    if name not in PUZZLES:
        print(f"{name} is no puzzle: the puzzles are {', '.join(PUZZLES)}")
        return False
    for n, size, rng in _sizes():
        network = Network(n, is_ring=name == "ring")
        case = PUZZLES[name](n, size, rng, network.place)
        extra = [network.exchange] if name in TARGETS else []
        try:
            wrong = _wrong(solution, case, extra)
            if not wrong and name in TARGETS:
                wrong = _unsent(network, n, LEAST[name] * case.times * size)
        except NotImplementedError:
            print(f"{name}: not solved yet")
            return False
        says = case.says or f"N = {n} and arrays of length {size:,}"
        if wrong:
            print(f"{name}: wrong with {says}: {wrong}")
            return False
        if name in SCORED:
            machine = case.machine or network
            most = case.target or target(name, case, n, size)
            units = (1,) * 3 if case.machine else (1, size, size)
            scores = machine.scores()
            says += ": " + ", ".join(
                f"{what} {score / unit:.4g} of {limit / unit:.4g}"
                for what, unit, score, limit in zip(machine.SCORES, units, scores, most)
            )
            if any(score > limit for score, limit in zip(scores, most)):
                print(f"{name}: right so far, but over its target with {says}")
                return False
    print(f"{name}: right" + (f"; {says}" if name in SCORED else ""))
    return True


def _sizes() -> Iterator[tuple[int, int, numpy.random.Generator]]:
    """Devices and numbers for each: uneven, even, few. The last one is the score."""
    for n in (2, 1, 3, 4, 5, 8):
        rng = numpy.random.default_rng(n)
        for size in (2 * n + 1, n, 1, *map(int, rng.integers(n, 5 * n, size=2))):
            yield n, size, rng
    yield 4, 1000, numpy.random.default_rng(0)


def _wrong(solution: Callable, case: Case, extra: list) -> str:
    """What is wrong with a solution's answer, in one line, or ""."""
    for arg in case.args if case.results is None else ():
        for array in arg if isinstance(arg, list) else [arg]:
            if isinstance(array, numpy.ndarray):
                array.flags.writeable = False
    try:
        with numpy.errstate(all="ignore"):
            returned = solution(*case.args, *extra)
    except NotImplementedError:
        raise
    except (Exception, SystemExit) as error:  # an exit would end a notebook
        return in_one_line(error, solution)
    if case.results is None:
        return _difference(returned, case.wanted, "its answer")
    return _difference(case.results, case.wanted, "")


def _unsent(network: Network, n: int, least: int) -> str:
    """Why the answer cannot have come by `exchange` alone, or "".

    What each device knows at most doubles in a round, and each of `least` numbers must
    be sent at least N - 1 times.
    """
    rounds, sent = (n - 1).bit_length(), (n - 1) * least
    if network.rounds >= rounds and sum(network.sent) >= sent:
        return ""
    return (
        f"{network.rounds} round(s) sent {sum(network.sent):,} numbers in all, at "
        f"least {rounds} and {sent:,} are needed: a device has read another one's array"
    )


def in_one_line(error: BaseException, solution: Callable) -> str:
    """What was raised, and by which line of the solution's file."""
    file = getattr(getattr(solution, "__code__", None), "co_filename", "")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"line {frame.lineno}: " for frame in frames if frame.filename == file]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    hint = " (leave the arguments as they are)" if "read-only" in text else ""
    return "".join(lines[-1:]) + text + hint


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
    """Whether `got` is a slice of the same rows, however it is written."""
    rows = range(wanted.n)
    try:
        return isinstance(got, slice) and rows[got] == rows[wanted.part]
    except (TypeError, ValueError):  # slice(0.0, 2.5), or a step of 0
        return False


def _short(value) -> str:
    text = numpy.array2string(numpy.asarray(value), precision=4, threshold=8)
    return " ".join(text.split())

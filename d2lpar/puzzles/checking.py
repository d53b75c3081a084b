"""Check a solution, in a process apart: right or not, and its scores' targets."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable, Iterator

import numpy

from d2lpar.puzzles.apart import ENDED, stream
from d2lpar.puzzles.cases import PUZZLES, Case, Rows, limits
from d2lpar.puzzles.network import Network, read


def check(solution: Callable) -> bool:
    """Check a solution: a function named like its puzzle in `d2lpar.puzzles.tasks`.

    Prints one line. Returns whether it is right on many sizes, and within the target.
    """
    name = getattr(solution, "__name__", type(solution).__name__)
    if name not in PUZZLES:
        print(f"{name} is no puzzle: the puzzles are {', '.join(PUZZLES)}")
        return False
    with contextlib.closing(stream(lambda: _attempts(solution, name))) as attempts:
        for n, size, rng in _sizes():
            try:
                wrong, got, scores, sent = next(attempts)
            except EOFError:
                wrong, got, scores, sent = ENDED, None, (), 0
            case = PUZZLES[name].case(n, size, rng, Network(n).place)
            least, most = limits(name, case, n, size)
            says = case.says or f"N = {n} and arrays of length {size:,}"
            if wrong is None:
                print(f"{name}: not solved yet")
                return False
            wrong = wrong or _difference(got, case.wanted(), "its answer")
            wrong = wrong or _too_little(name, n, case, scores, sent, least)
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


def _sizes() -> Iterator[tuple[int, int, numpy.random.Generator]]:
    """Devices and numbers for each: uneven, even, few. The last one is the score."""
    for n in (2, 1, 3, 4, 5, 8):
        rng = numpy.random.default_rng(n)
        for size in (2 * n + 1, n, 1, *map(int, rng.integers(n, 5 * n, size=2))):
            yield n, size, rng
    yield 4, 1000, numpy.random.default_rng(0)


def _attempts(solution: Callable, name: str) -> Iterator[tuple]:
    """For each size what went wrong (None: unsolved), answer, scores, numbers sent."""
    puzzle = PUZZLES[name]
    for n, size, rng in _sizes():
        network = Network(n, puzzle.route)
        args, _, results, _, machine, *_ = puzzle.case(n, size, rng, network.place)
        if results is None:
            _protect(args)
        if puzzle.sends:
            args = *args, lambda messages, network=network: network.exchange(messages)
        wrong: str | None = ""
        got = None
        try:
            with numpy.errstate(all="ignore"):
                returned = solution(*args)
            got = _plain(returned if results is None else results)
            pickle.dumps(got)
        except NotImplementedError:
            wrong = None
        except (Exception, SystemExit) as error:
            wrong, got = in_one_line(error, solution), None
        yield wrong, got, (machine or network).scores(), sum(network.sent)


def _protect(args) -> None:
    for arg in args:
        for array in arg if isinstance(arg, list) else [arg]:
            if isinstance(array, numpy.ndarray):
                array.flags.writeable = False


def _plain(value):
    """An answer without devices: their arrays as NumPy's."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return read(value)


def _too_little(
    name: str, n: int, case: Case, scores: tuple, sent: int, least: int
) -> str:
    """Why the answer cannot have come as the puzzle asks, or ""."""
    if case.machine and scores[0] < case.target[0]:
        what = case.machine.SCORES[0]
        return f"{scores[0]} {what}, at least {case.target[0]} are needed"
    rounds = (n - 1).bit_length() if least else 0
    if scores[0] < rounds or sent < least:
        return (
            f"{scores[0]} round(s) sent {sent:,} numbers in all, at least {rounds} and "
            f"{least:,} are needed"
        )
    if name == "tree" and sent > least:
        return f"{sent:,} numbers were sent in all, a tree sends {least:,}"
    return ""


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
    rows = range(wanted.n)
    try:
        return isinstance(got, slice) and rows[got] == rows[wanted.part]
    except (TypeError, ValueError):  # slice(0.0, 2.5), or a step of 0
        return False


def _short(value) -> str:
    text = numpy.array2string(numpy.asarray(value), precision=4, threshold=8)
    return " ".join(text.split())

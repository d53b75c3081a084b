"""What the fields of a record may hold: types with ranges, checked when it is read.

A record may come from anywhere. A field's annotation says all of it: ``list[Share]`` is
a list of numbers from 0 to 1. The annotations stay texts, which Python 3.9 can read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import cache

# For annotations; TYPES says what each of them admits.
Whole = int
Number = int
Real = float
Amount = float
Positive = float
Share = float
Name = str
Variant = str
Date = str
Settings = dict
Extra = dict

MOST_DEPTH = 20  # of lists and objects in one another
MOST_WORDS = 10_000  # characters of a text
_MOST_INT = 2**63 - 1
# Neither a folder nor a pattern, neither hidden nor an option.
_NAME = re.compile(r"[\w+=][\w.,+= -]{0,99}")
# Control characters would reach the terminal, and no SVG may hold them.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.+Z-]{0,40})?")


def _integer(low: int) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        return type(value) is int and low <= value <= _MOST_INT

    return fits


def _number(low: float, high: float) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        return type(value) in (int, float) and low <= value <= high

    return fits


def _one_of(*choices: str) -> tuple[str, Callable[[object], bool]]:
    def fits(value: object) -> bool:
        return type(value) is str and value in choices

    return f"one of {', '.join(choices)}", fits


def _text(pattern: re.Pattern) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        return type(value) is str and bool(pattern.fullmatch(value))

    return fits


# By its name in an annotation: a type in words, and whether a value is of it.
TYPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "str": (
        f"a text of up to {MOST_WORDS:,} characters",
        lambda value: type(value) is str and len(value) <= MOST_WORDS,
    ),
    "Text": ("a text", lambda value: type(value) is str),
    "bool": ("true or false", lambda value: type(value) is bool),
    "dict": ("an object", lambda value: type(value) is dict),
    "list": ("a list", lambda value: type(value) is list),
    "Whole": ("a whole number, 0 or more", _integer(0)),
    "Number": ("a whole number, 1 or more", _integer(1)),
    "Real": ("a number between -1e200 and 1e200", _number(-1e200, 1e200)),
    "Amount": ("a number from 0 to 1e200", _number(0, 1e200)),
    "Positive": ("a number from 1e-12 to 1e15", _number(1e-12, 1e15)),
    "Share": ("a number from 0 to 1", _number(0, 1)),
    "Name": ("a name of letters, digits and .,+=-, not of a folder", _text(_NAME)),
    "Variant": (
        "empty, or a name of letters, digits and .,+=-, not of a folder",
        _text(re.compile(f"({_NAME.pattern})?")),
    ),
    "Date": ("a date such as 2024-01-31T12:00:00+00:00", _text(_DATE)),
    "Picture": ("a PNG file in base64", _text(re.compile("[A-Za-z0-9+/]+=*"))),
    "DeviceKind": _one_of("cpu", "gpu"),
    "Resumed": _one_of("elsewhere", "here"),
    "Weights": _one_of("trained", "stretched", "equalised"),
}
Picture = str
DeviceKind = str
Resumed = str
Weights = str

# Of the objects that may hold anything, what is read from them.
KEYS: dict[str, Mapping[str, str]] = {
    "Settings": {
        "num_epochs": "Number",
        "global_batch_size": "Number",
        "lr": "Positive",
        "n_train": "Number | None",
        "n_test": "Number | None",
        "rows": "Number",
        "columns": "Number",
        "threads": "Number | None",
        "resumed_at": "Number | None",
    },
    "Extra": {
        "wire_bytes": "Whole | None",
        "x_begins": "list[Real]",
        "x": "list[Real]",
        "floor": "Amount",
    },
}


def misfit(name: str, annotation: str, value: object) -> str:
    """Why a field's value is not what its annotation asks for; "" if it is.

    >>> misfit("seconds", "list[Positive]", [0.5, "x"])
    "seconds[1]: 'x' is not a number from 1e-12 to 1e15"
    """
    return _misfit(name, _parsed(annotation), value)


@cache
def _parsed(annotation: str) -> ast.expr:
    return ast.parse(annotation, mode="eval").body


def _misfit(place: str, node: ast.expr, value: object) -> str:
    if isinstance(node, ast.BinOp):  # "Number | None"
        return "" if value is None else _misfit(place, node.left, value)
    if isinstance(node, ast.Subscript) and node.value.id == "list":
        items, inner = _items(place, value, list), node.slice
    elif isinstance(node, ast.Subscript):  # "dict[str, Real]"
        items, inner = _items(place, value, dict), node.slice.elts[1]
    elif node.id in KEYS:
        return _misfit_of_known(place, KEYS[node.id], value)
    else:
        words, fits = TYPES[node.id]
        return "" if fits(value) else _is_not(place, value, words)
    if isinstance(items, str):
        return items
    return next(filter(None, (_misfit(at, inner, item) for at, item in items)), "")


def _items(place: str, value: object, kind: type) -> list[tuple[str, object]] | str:
    """The places and values of a list or object; what is wrong if it is neither."""
    if type(value) is not kind:
        return _is_not(place, value, TYPES[kind.__name__][0])
    pairs = enumerate(value) if kind is list else value.items()
    return [(f"{place}[{key}]", item) for key, item in pairs]


def _misfit_of_known(place: str, known: Mapping[str, str], value: object) -> str:
    if type(value) is not dict:
        return _is_not(place, value, "an object")
    wrong = (
        misfit(f"{place}[{key}]", known[key], item)
        for key, item in value.items()
        if key in known
    )
    return next(filter(None, wrong), "")


def _is_not(place: str, value: object, words: str) -> str:
    shown = repr(value)
    return f"{place}: {shown[:40] + '...' * (len(shown) > 40)} is not {words}"


def depth(value: object) -> int:
    """How many lists and objects lie in one another: 0 for a number, 1 for [2]."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 0
    return 1 + max(map(depth, value), default=0)


def not_text(value: object) -> str:
    """A character in a value's texts that is none, such as NUL; "" without any."""
    if isinstance(value, str):
        return (_NOT_TEXT.findall(value) or [""])[0]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if not isinstance(value, list):
        return ""
    return next(filter(None, map(not_text, value)), "")

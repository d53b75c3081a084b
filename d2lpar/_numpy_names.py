"""Put back what MXNet 1.9.1 expects of NumPy 1.

Names that NumPy 1.20, 1.24, 2.0 and later removed are restored before MXNet is
imported, and NumPy's numbers are written as plain text.
"""

from __future__ import annotations

import builtins
import sys
import types

import numpy

BUILTINS = ("bool", "int", "float", "object", "str", "complex")
RENAMED = {
    "Inf": "inf",
    "NaN": "nan",
    "NAN": "nan",
    "product": "prod",
    "sometrue": "any",
    "alltrue": "all",
    "row_stack": "vstack",
    "trapz": "trapezoid",
    "round_": "round",
}
# MXNet lists them at its import; they left NumPy in 1.20, and nothing replaces them.
FINANCIAL = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")


def restore_numpy_names() -> None:
    """Put back the names that this NumPy lacks; a second call changes nothing."""
    names = {name: getattr(builtins, name) for name in BUILTINS}
    # The new name of a function may be younger than this NumPy, which has the old one.
    have = vars(numpy)
    names |= {old: have[new] for old, new in RENAMED.items() if new in have}
    names |= {"PINF": float("inf"), "NINF": -float("inf"), "PZERO": 0.0, "NZERO": -0.0}
    names["msort"] = lambda a: numpy.sort(a, axis=0)
    names["in1d"] = lambda a, *args, **how: numpy.isin(a, *args, **how).ravel()
    names["compat"] = types.SimpleNamespace(basestring=str)  # asked for by mx.np.pad
    names |= dict.fromkeys(FINANCIAL)
    for name, value in names.items():
        # Not hasattr: NumPy answers for some removed names, but warns.
        if name not in have:
            setattr(numpy, name, value)


def write_numbers_plainly() -> None:
    """Let MXNet take NumPy 2's numbers as shapes and indices.

    MXNet writes arguments as text, and no operator reads "[0, np.int64(2)]". A second
    call changes nothing.
    """

    def as_text(argument) -> str:
        if type(argument) in (list, tuple):
            argument = type(argument)(
                n.item() if isinstance(n, numpy.generic) else n for n in argument
            )
        return str(argument)

    for name in ("ndarray", "symbol"):  # they call str() for nothing else
        module = sys.modules.get(f"mxnet._ctypes.{name}")
        if module:
            setattr(module, "str", as_text)  # noqa: B010  (mypy knows no such name)

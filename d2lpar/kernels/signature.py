"""The parameters of a kernel, read from a signature in C."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy

from d2lpar.errors import D2lparError


class KernelError(D2lparError, ValueError):
    """A kernel does not compile here, or arguments do not fit it."""


# Types that CUDA C has without a header. Not __half: NVRTC has it from cuda_fp16.h,
# and mx.rtc passes no path on which NVRTC would look for a header.
DTYPES: dict[str, numpy.dtype] = {
    "float": numpy.dtype("float32"),
    "double": numpy.dtype("float64"),
    "int": numpy.dtype("int32"),
    "long long": numpy.dtype("int64"),
    "unsigned char": numpy.dtype("uint8"),
}
_PARAMETER = re.compile(
    r"(?P<const>const )?(?P<type>long long|unsigned char|\w+) ?(?P<pointer>\*)? ?"
    r"(?:__restrict__ )?(?P<name>[A-Za-z_]\w*)?"
)


class Parameter(NamedTuple):
    """Describe a parameter: `pointer` if an array, `const` if it is only read."""

    ctype: str
    pointer: bool
    const: bool
    name: str

    @property
    def dtype(self) -> numpy.dtype:
        """Return the dtype of the number, or of the array's elements."""
        return DTYPES[self.ctype]

    @property
    def declaration(self) -> str:
        """Return the type in C, such as "const float *"."""
        const = "const " if self.const else ""
        return f"{const}{self.ctype} {'*' if self.pointer else ''}"

    def __str__(self) -> str:
        return f"{self.declaration}{self.name}".strip()


def parse_signature(signature: str) -> list[Parameter]:
    """Return the parameters of "const float *x, float *y, int n", as in mx.rtc.

    Names may be left out. Raises :class:`KernelError` for a parameter that is not
    "(const) type (*) (name)", or whose type is not in `DTYPES`.
    """
    parameters = []
    for part in signature.split(","):
        text = " ".join(part.split())
        match = _PARAMETER.fullmatch(text)
        if not match or match["type"] not in DTYPES:
            raise KernelError(
                f"signature {signature!r}: {text!r}: write (const) type (*) (name), "
                f"with a type of {', '.join(DTYPES)}"
            )
        pointer = match["pointer"] is not None
        const = pointer and match["const"] is not None  # a number is a copy anyway
        parameters.append(Parameter(match["type"], pointer, const, match["name"] or ""))
    return parameters

"""The parameters of a kernel, read from a signature in C."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy

from d2lpar.errors import D2lparError


class KernelError(D2lparError, ValueError):
    """A kernel does not compile here, or arguments do not fit it."""


# The names of types in mx.rtc, and CUDA's own of 64 bits. Not __half: NVRTC has it from
# cuda_fp16.h only, and mx.rtc passes no path on which NVRTC would look for a header.
DTYPES: dict[str, numpy.dtype] = {
    "float": numpy.dtype("float32"),
    "double": numpy.dtype("float64"),
    "uint8_t": numpy.dtype("uint8"),
    "int": numpy.dtype("int32"),
    "int32_t": numpy.dtype("int32"),
    "int8_t": numpy.dtype("int8"),
    "char": numpy.dtype("int8"),
    "int64_t": numpy.dtype("int64"),
    "long long": numpy.dtype("int64"),
}
# NVRTC knows these from headers only.
_CUDA_NAMES = {
    "uint8_t": "unsigned char",
    "int8_t": "signed char",
    "int32_t": "int",
    "int64_t": "long long",
}
_PARAMETER = re.compile(
    r"(?P<const>const )?(?P<type>long long|\w+) ?(?P<pointer>\*)? ?(?:__restrict__ )?"
    r"(?P<name>[A-Za-z_]\w*)?"
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

    def __str__(self) -> str:
        return f"{self._type(self.ctype)}{self.name}".strip()

    @property
    def cuda_type(self) -> str:
        """Return the type in CUDA C without headers, such as "const float *"."""
        return self._type(_CUDA_NAMES.get(self.ctype, self.ctype))

    def _type(self, ctype: str) -> str:
        const = "const " if self.const else ""
        return f"{const}{ctype} {'*' if self.pointer else ''}"


def parse_signature(signature: str) -> list[Parameter]:
    """Return the parameters of "const float *x, float *y, int n", as in mx.rtc.

    Names may be left out. Raises :class:`KernelError` for a parameter that is not
    "(const) type (*) (name)", or whose type is not in `DTYPES`.

    >>> [str(p) for p in parse_signature("const float *x, long long n")]
    ['const float *x', 'long long n']
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

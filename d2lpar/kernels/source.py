"""CUDA C as text: the parameters of a kernel, and the source of elementwise kernels.

Loads no MXNet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from d2lpar.errors import D2lparError


class KernelError(D2lparError, ValueError):
    """A kernel does not compile here, or arguments do not fit it."""


# The names of types in mx.rtc, and CUDA's own of 64 bits. Not __half: NVRTC has it from
# cuda_fp16.h only, and mx.rtc passes no path on which NVRTC would look for a header.
DTYPES = {
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
    """A parameter of a kernel: `pointer` for an array, `const` if it is only read.

    `name` is empty where the signature has none.
    """

    ctype: str
    pointer: bool
    const: bool
    name: str

    @property
    def dtype(self) -> numpy.dtype:
        """The type of the number, or of the elements of the array."""
        return DTYPES[self.ctype]

    def __str__(self) -> str:
        words = ("const " * self.const, self.ctype, " *" if self.pointer else " ")
        return ("".join(words) + self.name).strip()


def parse_signature(signature: str) -> list[Parameter]:
    """Parameters of "const float *x, float *y, int n", as in PyCUDA and mx.rtc.

    Names may be left out, as in mx.rtc. Raises :class:`KernelError` for a parameter
    that is not "(const) type (*) (name)", or whose type is not in `DTYPES`.

    >>> [str(p) for p in parse_signature("const float *x, long long n")]
    ['const float *x', 'long long n']
    """
    if not isinstance(signature, str):
        raise TypeError(f"signature {signature!r}: write a text, such as 'float *x'")
    parameters = []
    for part in signature.split(","):
        text = " ".join(part.split())
        match = _PARAMETER.fullmatch(text)
        if not match or match["type"] == "const":
            raise KernelError(
                f"signature {signature!r}: {text!r} is not of the form (const) type (*)"
                " (name)"
            )
        if match["type"] not in DTYPES:
            raise KernelError(
                f"signature {signature!r}: the type {match['type']} is none of "
                f"{', '.join(f'{name} ({dtype})' for name, dtype in DTYPES.items())}"
            )
        ctype, pointer, const, name = match.group("type", "pointer", "const", "name")
        parameters.append(Parameter(ctype, bool(pointer), bool(const), name or ""))
    return parameters


# One thread per element. PyCUDA's threads stride over the array instead, with the same
# result, but a C++ compiler can vectorise this loop over threadIdx.x.
_ELEMENTWISE = """\
extern "C" __global__ void {name}({arguments}, long long n)
{{
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {{
    {operation};
  }}
}}
"""


def elementwise_source(
    parameters: Sequence[Parameter], operation: str, name: str
) -> str:
    """CUDA C of a kernel that does `operation` for every index i below n.

    `n`, the number of elements, follows the parameters. Raises :class:`KernelError` for
    a name that is not a C identifier, for parameters that have no name or are called i
    or n, and if none of them is an array.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise KernelError(f"kernel {name!r}: a name is letters, digits and _")
    for parameter in parameters:
        if parameter.name in ("", "i", "n"):
            raise KernelError(
                f"kernel {name}: {str(parameter)!r} needs a name of its own (i is the "
                "index, n the number of elements)"
            )
    if not any(p.pointer for p in parameters):
        raise KernelError(f"kernel {name}: none of its arguments is an array (type *)")
    arguments = ", ".join(
        str(p._replace(ctype=_CUDA_NAMES.get(p.ctype, p.ctype))) for p in parameters
    )
    operation = operation.strip().rstrip(";")
    return _ELEMENTWISE.format(name=name, arguments=arguments, operation=operation)


# The kernel of d2lpar.kernels.kernel.fused_sgd, for {0} in float and double.
SGD_ARGUMENTS = "{0} *p, const {0} *grad, {0} step"
SGD_OPERATION = "p[i] -= step * grad[i]"

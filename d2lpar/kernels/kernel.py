"""Kernels in CUDA C, launched on arrays of GPUs or of CPU contexts.

>>> from d2lpar._mxnet import mx, np
>>> plus_one = ElementwiseKernel("const int *x, int *y", "y[i] = x[i] + 1", "plus_one")
>>> x = np.arange(5, dtype="int32", ctx=mx.cpu(0))
>>> y = np.zeros(5, dtype="int32", ctx=mx.cpu(0))
>>> plus_one(x, y)
>>> print(y)
[1 2 3 4 5]

GPUs compile by ``mx.rtc``, CPU contexts by :mod:`d2lpar.kernels.on_cpu`. A launch works
in place, asynchronously like MXNet's own operations; autograd does not record it.
Sources: the conventions of PyCUDA's ``ElementwiseKernel`` and MXNet's ``mx.rtc``.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Sequence
from typing import Any

import numpy

from d2lpar._mxnet import mx, np
from d2lpar.errors import first_line
from d2lpar.kernels import on_cpu
from d2lpar.kernels.signature import KernelError, Parameter, parse_signature
from d2lpar.parallel import distinct
from d2lpar.step_checks import check_rate

BLOCK_SIZE = 256  # threads of a block of an ElementwiseKernel
# The compiler of the GPU fuses a * b + c into one rounding; NumPy and a CPU do not.
GPU_OPTIONS = ("--fmad=false",)

# One thread per element. PyCUDA's threads stride over the array instead, with the same
# result, but a C++ compiler can vectorise this loop over threadIdx.x.
_ELEMENTWISE = """\
__global__ void {name}({arguments}, long long n)
{{
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {{
    {operation};
  }}
}}
"""


class CudaModule:
    """Hold kernels in CUDA C source, as ``mx.rtc.CudaModule``.

    ``extern "C"`` is not needed. A kernel is compiled when it is first launched. A
    source with shared memory, atomic operations or operations of a warp is for GPUs.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def get_kernel(self, name: str, signature: str) -> CudaKernel:
        """Return the kernel `name`, of arguments ``const float *x, float *y, int n``.

        `*` marks an array, `const` one that is only read. Types are ``float``,
        ``double``, ``int``, ``long long`` and ``unsigned char``. Raises
        :class:`KernelError` otherwise.
        """
        return CudaKernel(self.source, name, signature)


class CudaKernel:
    """Launch a kernel; made by :meth:`CudaModule.get_kernel`."""

    def __init__(self, source: str, name: str, signature: str) -> None:
        self.source, self.name = source, name
        self.parameters = parse_signature(signature)
        self._compiled: dict[str, mx.rtc.CudaKernel | on_cpu.CpuKernel] = {}

    def launch(
        self,
        args: Sequence,
        ctx: mx.Context,
        grid_dims: tuple[int, int, int],
        block_dims: tuple[int, int, int],
    ) -> None:
        """Run the kernel on `ctx` for ``grid_dims`` blocks of ``block_dims`` threads.

        `args` are dense MXNet arrays on `ctx` for `*`, else numbers. The kernel must
        stop threads beyond the data. Raises :class:`KernelError`, before anything runs,
        for arguments that do not fit the signature, a written array given twice, dims
        that are not three numbers >= 1, and failed compilation.
        """
        args = _checked(self.name, self.parameters, args, ctx)
        for dims in (grid_dims, block_dims):
            if len(dims) != 3 or min(dims) < 1:
                raise KernelError(
                    f"kernel {self.name}: dims {dims}: write three numbers, at least 1"
                )
        self.compiled(ctx).launch(args, ctx, grid_dims, block_dims)

    def compiled(self, ctx: mx.Context) -> mx.rtc.CudaKernel | on_cpu.CpuKernel:
        """Return the kernel for a kind of device, whose ``launch`` checks nothing."""
        kind = ctx.device_type
        if kind not in self._compiled and kind == "gpu":
            self._compiled[kind] = self._compiled_by_rtc()
        elif kind not in self._compiled:
            self._compiled[kind] = on_cpu.load(self.source, self.name, self.parameters)
        return self._compiled[kind]

    def _compiled_by_rtc(self) -> mx.rtc.CudaKernel:
        signature = ", ".join(map(str, self.parameters))
        for ctype, name in (("long long", "int64_t"), ("unsigned char", "uint8_t")):
            signature = signature.replace(ctype, name)  # mx.rtc's names
        try:
            module = mx.rtc.CudaModule(self.source, GPU_OPTIONS, (self.name,))
            return module.get_kernel(self.name, signature)
        except mx.base.MXNetError as error:
            lines = str(error).splitlines()
            shown = next((line for line in lines if "error" in line), first_line(error))
            raise KernelError(f"kernel {self.name} does not compile: {shown}") from None


class ElementwiseKernel:
    """Apply an operation to every element, as PyCUDA's ``ElementwiseKernel``.

    `arguments` are as in C, ``"float a, const float *x, float *y"``, or a
    :class:`KernelError`; `operation`, ``"y[i] = a * x[i]"``, knows the index `i` and
    the length `n`. `source` is the generated CUDA C.
    """

    def __init__(self, arguments: str, operation: str, name: str = "kernel") -> None:
        self.parameters = parse_signature(arguments)
        self.source = _ELEMENTWISE.format(
            name=name, arguments=arguments, operation=operation.strip().rstrip(";")
        )
        self._kernel = CudaKernel(self.source, name, f"{arguments}, long long n")

    def __call__(self, *args) -> None:
        """Run on the context of the arrays; raise KernelError unless of one size."""
        name = self._kernel.name
        places = (arg.ctx for arg in args if isinstance(arg, mx.nd.NDArray))
        ctx = next(places, mx.cpu())
        checked = _checked(name, self.parameters, args, ctx)
        arrays = [arg for p, arg in zip(self.parameters, args) if p.pointer]
        n = arrays[0].size
        if any(array.size != n for array in arrays):
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise KernelError(f"kernel {name}: arrays of different sizes: {shapes}")
        if n > 0:
            dims = (-(-n // BLOCK_SIZE), 1, 1), (BLOCK_SIZE, 1, 1)
            self._kernel.compiled(ctx).launch([*checked, numpy.int64(n)], ctx, *dims)


_SGD = ElementwiseKernel(
    "float *p, const float *grad, float step", "p[i] -= step * grad[i]", "sgd"
)


def fused_sgd(params: Sequence[np.ndarray], lr: float, batch_size: int) -> None:
    """Update `params` as :func:`d2lpar.parallel.sgd`, in one pass over memory.

    They have gradients. The results are those of ``sgd`` to the bit. Raises
    :class:`KernelError` unless all are float32.
    """
    check_rate(lr)
    for p in distinct(params):
        _SGD(p, p.grad, lr / batch_size)


def _checked(
    name: str, parameters: Sequence[Parameter], args: Sequence, ctx: mx.Context
) -> list:
    """Return the arguments, numbers as NumPy's; KernelError if one does not fit."""
    if len(args) != len(parameters):
        raise KernelError(
            f"kernel {name} takes {len(parameters)} arguments "
            f"({', '.join(map(str, parameters))}), not {len(args)}"
        )
    for p, arg in zip(parameters, args):
        if problem := _problem(arg, p, ctx):
            raise KernelError(f"kernel {name}, argument {p}: {problem}")
    arrays = [(p, on_cpu.storage(arg)) for p, arg in zip(parameters, args) if p.pointer]
    # An operation that has an array twice and writes it deadlocks the engine.
    for (p, one), (q, other) in itertools.combinations(arrays, 2):
        if one == other and not (p.const and q.const):
            raise KernelError(
                f"kernel {name}: {str(p)!r} and {str(q)!r} share memory, and one is "
                "written: copy it, or write the kernel with one argument"
            )
    return [arg if p.pointer else p.dtype.type(arg) for p, arg in zip(parameters, args)]


def _problem(arg: Any, parameter: Parameter, ctx: mx.Context) -> str:
    """Return why an argument does not fit its parameter; "" if it does."""
    dtype = parameter.dtype
    if parameter.pointer:
        if not isinstance(arg, mx.nd.NDArray) or arg.stype != "default":
            return f"expected a dense MXNet array, got {type(arg).__name__}"
        if arg.dtype != dtype:
            return f"the array is {numpy.dtype(arg.dtype)}, not {dtype}"
        return "" if arg.ctx == ctx else f"the array is on {arg.ctx}, not on {ctx}"
    if not isinstance(arg, numbers.Real):
        return f"expected a number, got {type(arg).__name__}"
    if dtype.kind in "iu":  # NumPy would round or wrap it
        limits = numpy.iinfo(dtype)
        if not limits.min <= float(arg) <= limits.max or arg % 1:
            return f"expected a number that {dtype} holds, got {arg!r}"
    return ""

"""Kernels in CUDA C, launched on arrays of GPUs or of CPU contexts.

>>> from d2lpar._mxnet import mx, np
>>> plus_one = ElementwiseKernel("const int *x, int *y", "y[i] = x[i] + 1", "plus_one")
>>> x = np.arange(5, dtype="int32", ctx=mx.cpu(0))
>>> y = np.zeros(5, dtype="int32", ctx=mx.cpu(0))
>>> plus_one(x, y)
>>> print(y)
[1 2 3 4 5]

On ``mx.gpu(i)`` a kernel is compiled by ``mx.rtc`` (NVRTC), on ``mx.cpu(i)`` by the
system's C++ compiler (:mod:`d2lpar.kernels.on_cpu`). Either way it works on MXNet
arrays in place, without a copy, and a launch is an operation like MXNet's own: Python
does not wait for it, later operations do. autograd does not record it.

Sources: PyCUDA's ``ElementwiseKernel`` and MXNet's ``mx.rtc``, whose conventions these
follow; the kernels of the GPUSOROBAN posts are in ``chapters/kernels.py``.
"""

from __future__ import annotations

import ctypes
import numbers
from collections.abc import Sequence

import numpy

from d2lpar._mxnet import mx, np
from d2lpar.kernels import on_cpu
from d2lpar.kernels.source import (
    DTYPES,
    SGD_ARGUMENTS,
    SGD_OPERATION,
    KernelError,
    elementwise_source,
    parse_signature,
)

BLOCK_SIZE = 256  # threads of a block of an ElementwiseKernel
MAX_BLOCK_DIMS, MAX_BLOCK_THREADS = (1024, 1024, 64), 1024  # CUDA's limits
MAX_GRID_DIMS = (2**31 - 1, 65535, 65535)
# The compiler of the GPU fuses a * b + c into one rounding; NumPy and a CPU do not.
GPU_OPTIONS = ("--fmad=false",)


class CudaModule:
    """Kernels in CUDA C source, as ``mx.rtc.CudaModule`` and PyCUDA's ``SourceModule``.

    Names need no ``extern "C"``; that of a template is like "axpy<float>". A kernel is
    compiled when it is first launched, once for each kind of device.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def get_kernel(self, name: str, signature: str) -> CudaKernel:
        """The kernel `name`, whose arguments are "const float *x, float *y, int n".

        `*` marks an array, `const` one that is only read, so that other operations can
        read it meanwhile. Types are ``float``, ``double``, ``__half`` (GPU only),
        ``uint8_t``, ``int8_t``, ``char``, ``int``, ``int32_t``, ``int64_t`` and ``long
        long``. Raises :class:`KernelError` for any other signature.
        """
        return CudaKernel(self.source, name, signature)


class CudaKernel:
    """A kernel that can be launched; made by :meth:`CudaModule.get_kernel`."""

    def __init__(self, source: str, name: str, signature: str) -> None:
        self.source, self.name = source, name
        self.parameters = parse_signature(signature)
        self._on_cpu = self._on_gpu = None

    def launch(
        self,
        args: Sequence,
        ctx: mx.Context,
        grid_dims: tuple[int, int, int],
        block_dims: tuple[int, int, int],
        shared_mem: int = 0,
    ) -> None:
        """Run the kernel on `ctx` for ``grid_dims`` blocks of ``block_dims`` threads.

        `args` are MXNet arrays on `ctx` (``mx.np`` or ``mx.nd``, dense, which are
        always contiguous) where the signature has `*`, and numbers otherwise. As in
        CUDA, the kernel itself must stop threads beyond the data. `shared_mem`, in
        bytes, is for GPUs.

        Raises :class:`KernelError`, before anything runs, for a wrong number of
        arguments, an array of another dtype or context, a NumPy or sparse array, a
        number that its type cannot hold, an array that is written and given twice,
        dims that CUDA does not allow, or a kernel that does not compile.
        """
        args = _checked(args, self.parameters, ctx, self.name)
        self._check_dims(grid_dims, block_dims)
        self.launch_checked(args, ctx, grid_dims, block_dims, shared_mem)

    def launch_checked(
        self, args: list, ctx: mx.Context, grid_dims, block_dims, shared_mem: int = 0
    ) -> None:
        """:meth:`launch` with arguments and dims that fit."""
        self._check_sharing(args)
        if ctx.device_type == "gpu":
            self._for_gpu().launch(args, ctx, grid_dims, block_dims, shared_mem)
            return
        if shared_mem:
            raise KernelError(
                f"kernel {self.name}: {shared_mem} bytes of shared memory, which only "
                "a GPU has"
            )
        if self._on_cpu is None:
            self._on_cpu = on_cpu.load(self.source, self.name, self.parameters)
        self._on_cpu.launch(args, ctx, grid_dims, block_dims)

    def _for_gpu(self):
        if not mx.runtime.Features().is_enabled("CUDA"):
            raise KernelError(
                f"kernel {self.name}: the installed MXNet has no CUDA; d2lpar doctor "
                "names the remedy"
            )
        if self._on_gpu is None:
            signature = ", ".join(map(str, self.parameters))
            signature = signature.replace("long long", "int64_t")
            try:
                module = mx.rtc.CudaModule(self.source, GPU_OPTIONS, (self.name,))
                self._on_gpu = module.get_kernel(self.name, signature)
            except mx.base.MXNetError as error:
                lines = str(error).strip().splitlines()
                shown = next((line for line in lines if "error" in line), lines[0])
                raise KernelError(
                    f"kernel {self.name} does not compile: {shown}"
                ) from None
        return self._on_gpu

    def _check_dims(self, grid_dims: Sequence[int], block_dims: Sequence[int]) -> None:
        for what, dims, most in (
            ("grid_dims", grid_dims, MAX_GRID_DIMS),
            ("block_dims", block_dims, MAX_BLOCK_DIMS),
        ):
            if len(dims) != 3 or not all(
                isinstance(d, numbers.Integral) and 1 <= d <= m
                for d, m in zip(dims, most)
            ):
                raise KernelError(
                    f"kernel {self.name}: {what} {tuple(dims)}: write three whole "
                    f"numbers from 1 to {most}"
                )
        threads = block_dims[0] * block_dims[1] * block_dims[2]
        if threads > MAX_BLOCK_THREADS:
            raise KernelError(
                f"kernel {self.name}: block_dims {tuple(block_dims)} are {threads} "
                f"threads; a block has {MAX_BLOCK_THREADS} at most"
            )

    def _check_sharing(self, args: list) -> None:
        """An operation that has an array twice and writes it deadlocks the engine."""
        arrays = [
            (storage(arg), parameter)
            for arg, parameter in zip(args, self.parameters)
            if parameter.pointer
        ]
        for k, (one, p) in enumerate(arrays):
            for other, q in arrays[:k]:
                if one == other and not (p.const and q.const):
                    raise KernelError(
                        f"kernel {self.name}: {str(q)!r} and {str(p)!r} are one array, "
                        "or two parts of one, and not both const: copy one of them, or "
                        "write the kernel with one argument"
                    )


class ElementwiseKernel:
    """An operation on every element, as PyCUDA's ``ElementwiseKernel``.

    `arguments` are declared as in C, ``"float a, const float *x, float *y"``; in
    `operation`, ``"y[i] = a * x[i]"``, `i` is the index and `n` the number of elements.
    `source` is the generated CUDA C. Raises :class:`KernelError` for arguments that
    cannot be declared so.
    """

    def __init__(self, arguments: str, operation: str, name: str = "kernel") -> None:
        self.parameters = parse_signature(arguments)
        self.source = elementwise_source(self.parameters, operation, name)
        signature = ", ".join(map(str, self.parameters)) + ", long long n"
        self._kernel = CudaKernel(self.source, name, signature)

    def __call__(self, *args) -> None:
        """Run on the context of the arrays, which must be of one size.

        Raises what :meth:`CudaKernel.launch` does, and :class:`KernelError` for arrays
        of different sizes.
        """
        name = self._kernel.name
        arrays = [arg for arg in args if isinstance(arg, mx.nd.NDArray)]
        ctx = arrays[0].ctx if arrays else mx.cpu()
        args = _checked(args, self.parameters, ctx, name)
        n = arrays[0].size
        if any(array.size != n for array in arrays):
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise KernelError(f"kernel {name}: arrays of different sizes: {shapes}")
        if n > 0:
            grid_dims = (-(-n // BLOCK_SIZE), 1, 1)
            args.append(numpy.int64(n))
            self._kernel.launch_checked(args, ctx, grid_dims, (BLOCK_SIZE, 1, 1))


_SGD = {
    numpy.dtype(DTYPES[ctype]): ElementwiseKernel(
        SGD_ARGUMENTS.format(ctype), SGD_OPERATION, "sgd"
    )
    for ctype in ("float", "double")
}


def fused_sgd(params: Sequence[np.ndarray], lr: float, batch_size: int) -> None:
    """:func:`d2lpar.parallel.sgd` in one pass over memory, in place.

    ``p -= lr / batch_size * p.grad`` is two operations, with an array in between that
    is written and read again; here it is one kernel. `params` are float32 or float64,
    each with its gradient. In float32 the result is that of ``sgd``, to the bit. In
    float64 it is NumPy's; that of ``sgd`` can differ in the last digit, because MXNet
    hands a number to its operators as text and misreads the last bit. Raises
    :class:`KernelError` for any other dtype.
    """
    for p in params:
        kernel = _SGD.get(numpy.dtype(p.dtype))
        if kernel is None:
            raise KernelError(
                f"fused_sgd: a parameter is {numpy.dtype(p.dtype)}; use float32 or "
                "float64"
            )
        kernel(p, p.grad, lr / batch_size)


def storage(array: mx.nd.NDArray) -> int:
    """A number that all views of one array have in common, and no other array.

    The engine goes by it too: the first word of MXNet's NDArray is a pointer to what
    the views of an array share (include/mxnet/ndarray.h of MXNet 1.9.1).
    """
    return ctypes.cast(array.handle, ctypes.POINTER(ctypes.c_size_t))[0]


def _checked(args: Sequence, parameters, ctx: mx.Context, name: str) -> list:
    """The arguments, numbers converted; :class:`KernelError` if one does not fit."""
    if len(args) != len(parameters):
        raise KernelError(
            f"kernel {name} takes {len(parameters)} arguments "
            f"({', '.join(map(str, parameters))}), not {len(args)}"
        )
    checked = []
    for k, (parameter, arg) in enumerate(zip(parameters, args), 1):
        if parameter.pointer:
            problem = _problem_of_array(arg, parameter.dtype, ctx)
        else:
            problem = _problem_of_number(arg, parameter.dtype)
        if problem:
            raise KernelError(f"kernel {name}, argument {k} ({parameter}): {problem}")
        checked.append(arg if parameter.pointer else parameter.dtype.type(arg))
    return checked


def _problem_of_array(arg, dtype: numpy.dtype, ctx: mx.Context) -> str | None:
    if not isinstance(arg, mx.nd.NDArray):
        return f"an MXNet array on {ctx} is needed, not {type(arg).__name__}"
    if arg.stype != "default":
        return f"the array is sparse ({arg.stype}), not contiguous"
    if arg.dtype != dtype:
        return f"the array is {numpy.dtype(arg.dtype)}, not {dtype}"
    if arg.ctx != ctx:
        return f"the array is on {arg.ctx}, the launch on {ctx}"
    return None


def _problem_of_number(arg, dtype: numpy.dtype) -> str | None:
    """Integers must be whole and in range, floats in range, infinite or NaN."""
    if dtype.kind == "f":
        fits = isinstance(arg, numbers.Real)
        fits = fits and not float(numpy.finfo(dtype).max) < abs(arg) < numpy.inf
    else:
        limits = numpy.iinfo(dtype)
        fits = isinstance(arg, numbers.Integral) and limits.min <= arg <= limits.max
    if fits:
        return None
    what = arg if isinstance(arg, numbers.Number) else type(arg).__name__
    return f"{what} is not a number that {dtype} holds"

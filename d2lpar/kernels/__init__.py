"""Custom kernels in CUDA C, for GPUs and, from the same source, for CPU contexts.

Its modules `source` and `cpp` load no MXNet, so neither does this one.
"""

from d2lpar.kernels.source import KernelError

__all__ = ["CudaKernel", "CudaModule", "ElementwiseKernel", "KernelError", "fused_sgd"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'd2lpar.kernels' has no attribute {name!r}")
    from d2lpar.kernels import kernel

    return vars(kernel)[name]

"""TODO room."""

from d2lpar.kernels.kernel import CudaKernel, CudaModule, ElementwiseKernel, fused_sgd
from d2lpar.kernels.source import KernelError

__all__ = ["CudaKernel", "CudaModule", "ElementwiseKernel", "KernelError", "fused_sgd"]

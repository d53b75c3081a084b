"""Custom kernels in CUDA C, for GPUs and, from the same source, for CPU contexts."""

from d2lpar.kernels.kernel import CudaKernel, CudaModule, ElementwiseKernel, fused_sgd
from d2lpar.kernels.signature import KernelError

__all__ = ["CudaKernel", "CudaModule", "ElementwiseKernel", "KernelError", "fused_sgd"]

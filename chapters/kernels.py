# %% [markdown]
# # Custom kernels
#
# Seed: GPUSOROBAN on PyCUDA, in Japanese (004), and PyCUDA notes, in Korean (000)
#
# A kernel is what each of a GPU's threads does, in CUDA C. Here the same source also
# runs on CPU contexts, compiled by the system's C++ compiler (or by that of `pip
# install 'd2lpar[kernels]'`); the arguments are MXNet arrays, where they are:
#
#     python chapters/kernels.py --devices auto
#     d2lpar run kernels --preset book      (the seed's 50,000,000 numbers)

# %%
import math

from d2lpar import chapter, devices, get_params, init_lenet
from d2lpar._mxnet import np
from d2lpar.kernels import CudaModule, ElementwiseKernel, fused_sgd
from d2lpar.kernels.kernel import KernelError
from d2lpar.parallel import sgd, train_batch
from d2lpar.records import summary
from d2lpar.studies import kernel_times

device, other = devices.parse("cpu:2")  # with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **One operation on every element.** The seed calls `plus_one` with its arguments
# swapped: y becomes the x of the kernel, and is only read. So y stays zero, which is
# what the seed printed; and what it did not print, x is overwritten with 0 + 1.

# %%
plus_one = ElementwiseKernel("int *x, int *y", "y[i] = x[i] + 1", "plus_one")
for swapped in (True, False):
    x = np.arange(10, dtype="int32", ctx=device)
    y = np.zeros(10, dtype="int32", ctx=device)
    plus_one(*((y, x) if swapped else (x, y)))
    print(f"swapped={swapped}: x = {x}, y = {y}")
print(plus_one.source)

# %% [markdown]
# **A grid of blocks of threads**, the seed's kernel to the letter. Its arrays are
# 2 x 5, its one block has 16 x 16 threads: 246 are out of range, and `if` stops them.

# %%
module = CudaModule("""
__global__ void add_two_array_2d(int nx, int ny, float *res, float *arr1, float *arr2){
  int x = threadIdx.x + blockDim.x * blockIdx.x;
  int y = threadIdx.y + blockDim.y * blockIdx.y;
  int ij = nx * y + x;
  if (x < nx && y < ny){
      res[ij] = arr1[ij] + arr2[ij];
  }
}
""")
signature = "int nx, int ny, float *res, float *arr1, float *arr2"
add_two_array = module.get_kernel("add_two_array_2d", signature)
for ny, nx in ((2, 5), (100, 70)):
    arr1, arr2 = (np.random.uniform(size=(ny, nx), ctx=device) for _ in range(2))
    res = np.zeros((ny, nx), ctx=device)
    grid, block = (math.ceil(nx / 16), math.ceil(ny / 16), 1), (16, 16, 1)
    add_two_array.launch([nx, ny, res, arr1, arr2], device, grid, block)
    right = (res.asnumpy() == arr1.asnumpy() + arr2.asnumpy()).all()
    print(f"{ny} x {nx}, {grid} blocks: as NumPy: {right}")

# %% [markdown]
# **What would corrupt memory on a device** is an error before anything runs.

# %%
for wrong in (np.zeros(10, ctx=device), y[:9], y.copyto(other), y.asnumpy(), x):
    try:
        plus_one(x, wrong)
    except KernelError as error:
        print(error)

# %% [markdown]
# **A fused update.** SGD in MXNet is two operations: the second reads from memory
# what the first wrote there. As one kernel, `"p[i] -= step * grad[i]"`, it passes over
# memory once, and `train_batch` takes it in place of `sgd`; the result is the same.

# %%
images, labels, ends = np.random.uniform(size=(8, 1, 28, 28)), np.arange(8), []
for update in (sgd, fused_sgd):
    replicas = [get_params(init_lenet(), d) for d in (device, other)]
    train_batch(images, labels, replicas, [device, other], lr=0.2, update=update)
    ends.append(replicas[0])
print("to the bit:", all((p == q).all() for p, q in zip(*ends)))

# %% [markdown]
# **How fast?** The limit is memory: a loop in C, on as many threads. Milliseconds.

# %%
PRESETS = {"quick": 5_000_000, "book": 50_000_000, "dry-run": 1_000}


def compare(chosen: list, preset: str, dry_run: bool = False, **flags) -> None:
    n = PRESETS["dry-run" if dry_run else preset]
    for (work, way), seconds in kernel_times.times(chosen, n).items():
        milliseconds = summary.summarize([1e3 * s for s in seconds])
        print(f"{work} of {n:,} on {len(chosen)} device(s), {way}: {milliseconds} ms")


if __name__ == "__main__":
    chapter.show("kernels", compare)

# %% [markdown]
# # Custom kernels
#
# Source: the GPUSOROBAN posts, on PyCUDA; the least-squares notes, on PyCUDA
#
# A kernel is a function in CUDA C that each of a GPU's threads runs. Here the same
# source also runs on CPU contexts, compiled by the system's C++ compiler (or by that of
# `pip install 'd2lpar[kernels]'`). Its arguments are MXNet arrays, where they are:
#
#     python chapters/kernels.py --devices auto
#     d2lpar run kernels --preset book      (50,000,000 numbers, as in the notes)

# %%
import math

from d2lpar import chapter, devices, get_params, init_lenet, np, sgd, train_batch
from d2lpar.kernels import CudaModule, ElementwiseKernel, fused_sgd
from d2lpar.kernels.kernel import KernelError
from d2lpar.records import summary
from d2lpar.studies import kernel_times

device, other = devices.parse("cpu:2")  # with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **One operation on every element.** GPUSOROBAN's post calls `plus_one` with swapped
# arguments: y becomes the kernel's x and is only read. So y stays zero, which is what
# the post prints, and x is overwritten with 0 + 1, which it does not print.

# %%
plus_one = ElementwiseKernel("int *x, int *y", "y[i] = x[i] + 1", "plus_one")
for swapped in (True, False):
    x = np.arange(10, dtype="int32", ctx=device)
    y = np.zeros(10, dtype="int32", ctx=device)
    plus_one(*((y, x) if swapped else (x, y)))
    print(f"swapped={swapped}: x = {x}, y = {y}")
print(plus_one.source)

# %% [markdown]
# **A grid of blocks of threads**, the post's kernel to the letter: arrays of 2 x 5, one
# block of 16 x 16 threads. The `if` stops the 246 threads that are out of range.

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
# **A call that would corrupt device memory** raises an error before anything runs.

# %%
for wrong in (np.zeros(10, ctx=device), y[:9], y.copyto(other), y.asnumpy(), x):
    try:
        plus_one(x, wrong)
    except KernelError as error:
        print(error)

# %% [markdown]
# **A fused update.** SGD in MXNet passes over memory twice, as one kernel only once:
# `"p[i] -= step * grad[i]"`. `train_batch` accepts it in place of `sgd`.

# %%
images, labels, ends = np.random.uniform(size=(8, 1, 28, 28)), np.arange(8), []
for update in (sgd, fused_sgd):
    replicas = [get_params(init_lenet(), d) for d in (device, other)]
    train_batch(images, labels, replicas, [device, other], lr=0.2, update=update)
    ends.append(replicas[0])
print("to the bit:", all((p == q).all() for p, q in zip(*ends)))

# %% [markdown]
# **How fast is it?** The limit is memory: compare with a loop in C on as many threads.

# %%
PRESETS = {"quick": 5_000_000, "book": 50_000_000, "dry-run": 1_000}


def compare(chosen: list, preset: str, dry_run: bool = False, **flags) -> None:
    n = PRESETS["dry-run" if dry_run else preset]
    for (work, way), seconds in kernel_times.times(chosen, n).items():
        milliseconds = summary.summarize([1e3 * s for s in seconds])
        print(f"{work} of {n:,} on {len(chosen)} device(s), {way}: {milliseconds} ms")


if __name__ == "__main__":
    chapter.show("kernels", compare)

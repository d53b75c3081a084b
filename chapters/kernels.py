# %% [markdown]
# # Extra: custom kernels
#
# In the lessons MXNet's operators did the arithmetic. On a GPU they run as *kernels*,
# functions that each of its threads runs on its own element. Here we write our own in
# CUDA C, and use one as the update of a training.
#
# ![Each device has a queue of work](../docs/drawings/queues-of-devices.svg)
#
# A program of a published blog post [1] adds 1 to ten numbers on a GPU, raises no
# error, and prints **ten zeros**. What went wrong?
#
# You need no GPU: the same source also runs on CPU contexts, compiled by a C++ compiler
# of the system. Run this extra as a notebook, or as `python chapters/kernels.py`.

# %%
import math
from textwrap import fill

import numpy

from d2lpar import chapter, devices, get_params, init_lenet, np, sgd, train_batch
from d2lpar.kernels import CudaModule, ElementwiseKernel, KernelError, fused_sgd

device, other = devices.parse("cpu:2")  # with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## One operation on every element
#
# The post's first kernel adds 1 to each number. As in PyCUDA, `ElementwiseKernel` takes
# the arguments as C declares them, and one line of C with the index `i`.
#
# *Predict before you run*: the post declares `plus_one(x, y)` and then calls
# `plus_one_kernel(y_gpu, x_gpu)`. What is the sum of `x_gpu`, which it does not print?

# %%
chapter.predict("sum of x_gpu", None)  # write your number for None
plus_one = ElementwiseKernel("int *x, int *y", "y[i] = x[i] + 1", "plus_one")
x = np.arange(10, dtype="int32", ctx=device)
y = np.zeros(10, dtype="int32", ctx=device)
plus_one(y, x)  # as in the post
print(f"as in the post: x = {x}, y = {y}")
chapter.answer("sum of x_gpu", int(x.sum()))

x = np.arange(10, dtype="int32", ctx=device)
plus_one(x, y)
print(f"as it was meant: x = {x}, y = {y}")
assert (y.asnumpy() == numpy.arange(10) + 1).all()

# %% [markdown]
# With the arguments swapped, the kernel treats y as its input and x as its output. So y
# stays zero, and x is overwritten with ones. A kernel receives addresses by position,
# and no names. With `"const int *x, int *y"` a reader sees which array is only read,
# and the compiler refuses a kernel that writes to it. The swapped call would still run.
#
# `ElementwiseKernel` has generated this kernel from a single line:

# %%
print(plus_one.source)

# %% [markdown]
# ## A grid of blocks of threads
#
# The post's second kernel adds two arrays of 2 x 5. We reproduce it verbatim. A GPU
# starts a *grid* of *blocks* of *threads*. Each thread knows its place and computes
# which element it is responsible for:
#
#     x = threadIdx.x + blockDim.x * blockIdx.x        column
#     y = threadIdx.y + blockDim.y * blockIdx.y        row
#     ij = nx * y + x                                  where it lies in memory
#
# One block of 16 x 16 threads covers the array:
#
#     threadIdx.x   0  1  2  3  4 | 5 ... 15
#     threadIdx.y 0 *  *  *  *  * | .      .     * 10 threads add two numbers,
#                 1 *  *  *  *  * | .      .     . 246 stop at the `if`
#                 2 .  .  .  .  . | .      .
#                ..
#                15 .  .  .  .  . | .      .

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

# %% [markdown]
# The post's second array has a fixed random seed. We can therefore compare our result
# with the printed one.

# %%
num_x, num_y = 5, 2
arr1 = numpy.arange(num_x * num_y, dtype=numpy.float32).reshape(num_y, num_x)
arr2 = (10 * numpy.random.RandomState(123).rand(num_y, num_x)).astype(numpy.float32)
published = """
 6.9646916  3.8613935  4.2685146  8.513147  11.19469
 9.231065  15.807642  13.848297  12.809319  12.921175
"""

arr1_gpu, arr2_gpu = (np.array(a, dtype="float32", ctx=device) for a in (arr1, arr2))
res_gpu = np.zeros((num_y, num_x), ctx=device)
threads_per_block = (16, 16, 1)
block_x = math.ceil(num_x / threads_per_block[0])
block_y = math.ceil(num_y / threads_per_block[1])
blocks_per_grid = (block_x, block_y, 1)
arguments = [num_x, num_y, res_gpu, arr1_gpu, arr2_gpu]
add_two_array.launch(arguments, device, blocks_per_grid, threads_per_block)
print(res_gpu.asnumpy())
assert (res_gpu.asnumpy() == arr1 + arr2).all()
printed = numpy.array(published.split(), numpy.float32).reshape(num_y, num_x)
print("as the post printed:", (res_gpu.asnumpy() == printed).all())

# %% [markdown]
# ## More than one block
#
# *Predict before you run*: blocks of 16 x 16 threads cover an array of 100 x 70. How
# many threads have nothing to do?

# %%
chapter.predict("idle threads", None)
ny, nx = 100, 70
arr1, arr2 = (np.random.uniform(size=(ny, nx), ctx=device) for _ in range(2))
res = np.zeros((ny, nx), ctx=device)
grid, block = (math.ceil(nx / 16), math.ceil(ny / 16), 1), (16, 16, 1)
add_two_array.launch([nx, ny, res, arr1, arr2], device, grid, block)
idle = math.prod(grid) * math.prod(block) - nx * ny
print(f"{ny} x {nx}: {grid[0]} x {grid[1]} blocks, {idle} threads have nothing to do")
print("as NumPy:", (res.asnumpy() == arr1.asnumpy() + arr2.asnumpy()).all())
chapter.answer("idle threads", idle)

# %% [markdown]
# The threads beyond the edge stop at the `if`.
#
# ## Checked calls: errors instead of corrupted memory
#
# CUDA does not check the arrays of a call. With a wrong type a kernel misreads the
# numbers, and with a wrong length it reads and writes beyond the array. The package
# checks each call before anything runs.

# %%
for wrong in (np.zeros(10, ctx=device), y[:9], y.copyto(other), y.asnumpy(), x):
    try:
        plus_one(x, wrong)
    except KernelError as error:
        print(fill(str(error), 88))

# %% [markdown]
# ## A fused update
#
# MXNet's `p -= lr / n * grad` consists of two operations. The first reads the gradient
# and writes the product to memory. The second reads the product and p, and writes p.
# Together they move five arrays. If we join both operations in one kernel, which is
# called *fusing* them, the product never reaches memory, and three arrays move. We
# write this kernel and use it instead of `sgd` in the training of Chapter 1:

# %%
step_of_sgd = ElementwiseKernel(
    "float *p, const float *grad, float step", "p[i] -= step * grad[i]", "step_of_sgd"
)


def my_sgd(params, lr, batch_size):
    for p in params:
        step_of_sgd(p, p.grad, lr / batch_size)


images, labels, ends = np.random.uniform(size=(8, 1, 28, 28)), np.arange(8), []
for update in (sgd, my_sgd, fused_sgd):  # MXNet's, yours, the package's
    replicas = [get_params(init_lenet(), d) for d in (device, other)]
    train_batch(images, labels, replicas, [device, other], lr=0.2, update=update)
    ends.append(replicas[0])
for name, end in (("my_sgd", ends[1]), ("d2lpar's fused_sgd", ends[2])):
    off = max(abs(p - q).max().item() for p, q in zip(ends[0], end))
    print(f"{name} differs from MXNet's sgd by at most {off}")
    assert off < 1e-6

# %% [markdown]
# Is it faster? Our [records](../figures/kernels.md) of cores and of an H100 compare
# this kernel with MXNet's operators, on cores also with a loop in C.
#
# ## A sum in two steps
#
# A sum is not an operation on elements: all threads would write to the same number and
# overwrite each other's additions. A simple solution has two steps. Each thread first
# sums its own part, and then one thread sums the parts. The device finishes the first
# launch before it starts the second, so all parts are complete.

# %%
sum_parts = CudaModule("""
__global__ void sum_parts(int n, const float *x, float *part){
  int t = threadIdx.x + blockDim.x * blockIdx.x;
  int num_threads = blockDim.x * gridDim.x;
  float sum = 0;
  for (int i = t; i < n; i += num_threads) sum += x[i];
  part[t] = sum;
}
""").get_kernel("sum_parts", "int n, const float *x, float *part")
n = 100_000
x = np.random.uniform(size=n, ctx=device)
part, total = np.zeros(4 * 64, ctx=device), np.zeros(1, ctx=device)
sum_parts.launch([n, x, part], device, (4, 1, 1), (64, 1, 1))  # 256 parts
sum_parts.launch([4 * 64, part, total], device, (1, 1, 1), (1, 1, 1))
exact = x.asnumpy().sum(dtype="float64")
print(f"{total.item():.3f}, NumPy in float64: {exact:.3f}")
assert abs(total.item() - exact) < 1e-5 * exact
chapter.score()

# %% [markdown]
# ## Summary
#
# > **Takeaway.** A grid needs `ceil(n / threads per block)` blocks along each axis.
# > Fusing two operations saves a launch, the bytes of the product, and new memory.
#
# ## Exercises
#
# 1. *On paper.* How many blocks of 256 threads does y = 2 x need for 50,000,000
#    numbers, and how many threads are idle? *(`50e6 / 256 = 195,312.5`: 195,313 blocks.
#    One half of the last block, 128 threads, is idle.)*
# 2. Momentum in one kernel: write `"v[i] = mu * v[i] + grad[i]; p[i] -= step * v[i]"`,
#    and compare it with NumPy in float32. *(On a CPU context the results are equal to
#    the bit, because the package asks the compiler not to fuse a product and a sum.)*
# 3. Columns first: in `add_two_array_2d`, write `int ij = ny * x + y`, and then
#    `ny * y + x`. *(With the first the sum is still right: each element has exactly one
#    thread, though a different one. With the second, three of the ten elements of 2 x 5
#    stay zero, because `2 * y + x` takes only the values 0 to 6.)*
# 4. *Open.* From how many numbers on is `fused_sgd` faster than `sgd` on your device?
#    An answer is the smallest size that `chapter.verdict` calls faster after four
#    turns, and the times of the size below it.
#
# ## Sources
#
# - [1] GPUSOROBAN, posts on PyCUDA (in Japanese),
#   <https://soroban.highreso.jp/blog/blog-2326/>. The task of doubling 50,000,000
#   numbers is from <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in
#   Korean).

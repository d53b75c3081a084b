# %% [markdown]
# # Custom kernels
#
# Source: the GPUSOROBAN posts, on PyCUDA; the least-squares notes, on PyCUDA,
# <https://soroban.highreso.jp/blog/blog-2326/> (in Japanese),
# <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in Korean)
#
# A kernel is a function in CUDA C that each of a GPU's threads runs on its own element.
# Every operation in the other chapters runs as such kernels on a GPU. In this chapter
# you write your own. The same source also runs on CPU contexts, compiled by the
# system's C++ compiler (or by that of `pip install 'd2lpar[kernels]'`), so no GPU is
# needed to learn it. Run this chapter as a notebook, or as a program:
#
#     python chapters/kernels.py --devices auto
#     d2lpar run kernels --preset book      (50,000,000 numbers, as in the notes)
#
# **What you will learn.**
#
# - how a kernel finds its element: blocks, threads and the `if` that stops the rest;
# - why a kernel called with swapped arguments prints zeros and raises no error;
# - that simple kernels are limited by memory, and where fusing two of them gains;
# - to use a kernel of your own as the update of a data-parallel training.

# %%
import math

import numpy
from matplotlib.figure import Figure

from d2lpar import chapter, devices, get_params, init_lenet, np, sgd, train_batch
from d2lpar.kernels import CudaModule, ElementwiseKernel, KernelError, fused_sgd

device, other = devices.parse("cpu:2")  # with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## One operation on every element
#
# The post's first kernel adds 1 to each number. As in PyCUDA, `ElementwiseKernel` takes
# the arguments as C declares them and one line of C, in which `i` is the index.
#
# *Predict before you run*: The post declares `plus_one(x, y)` and then calls
# `plus_one_kernel(y_gpu, x_gpu)`. It prints `y_gpu`: ten zeros. Why? And what is the
# sum of `x_gpu`, which it does not print?

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
# **What you see.** With the arguments swapped, the kernel reads your y as its x, so y
# stays zero, and overwrites your x with 0 + 1. A kernel receives addresses by position;
# it never sees variable names. `"const int *x, int *y"` would have told the reader
# which array is only read, and the compiler would refuse a kernel that writes to it.
# The swapped call would still run.
#
# This is the kernel that was made of the one line:

# %%
print(plus_one.source)

# %% [markdown]
# ## A grid of blocks of threads
#
# The post's second kernel adds two arrays of 2 x 5, and is here to the letter. A GPU
# starts a *grid* of *blocks* of *threads*. Each thread knows its place and computes
# from it the element that is its own:
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
# The post's two arrays: 0 to 9, and ten times what NumPy draws from the random seed
# 123. So the result can be compared with the printed one, digit for digit.

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
# *Predict before you run*: How many blocks of 16 x 16 cover 100 x 70? How many threads
# have nothing to do?

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
# **What you see.** Five by seven blocks cover the array, and the threads beyond its
# edge stop at the `if`.
#
# To see which thread computes which element, let each thread write down its block
# instead of a sum. In CUDA C a kernel has no return value: it writes where its
# arguments point.

# %%
who = CudaModule("""
__global__ void who(int nx, int ny, int *block, int *thread){
  int x = threadIdx.x + blockDim.x * blockIdx.x;
  int y = threadIdx.y + blockDim.y * blockIdx.y;
  if (x < nx && y < ny){
      block[nx * y + x] = gridDim.x * blockIdx.y + blockIdx.x;
      thread[nx * y + x] = blockDim.x * threadIdx.y + threadIdx.x;
  }
}
""").get_kernel("who", "int nx, int ny, int *block, int *thread")
blocks, threads = (np.zeros((4, 6), dtype="int32", ctx=device) for _ in range(2))
who.launch([6, 4, blocks, threads], device, (2, 2, 1), (4, 2, 1))
print("block of each element, for blocks of 4 x 2 on an array of 6 x 4:")
print(blocks.asnumpy())
print("thread within its block:")
print(threads.asnumpy())

figure = Figure(figsize=(5, 2.6), layout="constrained")
axes = figure.subplots()
grid = numpy.full((4, 8), numpy.nan)  # 2 x 2 blocks of 4 x 2 threads
grid[:, :6] = blocks.asnumpy()
axes.pcolormesh(grid, cmap="Set2", vmin=0, vmax=7, edgecolor="white")
axes.set_facecolor("lightgrey")
for row in range(4):
    for column in range(8):
        thread = 4 * (row % 2) + column % 4
        axes.text(column + 0.5, row + 0.5, thread, ha="center", va="center")
axes.invert_yaxis()
axes.set(xticks=[], yticks=[])
axes.set_title("Colours: blocks. Numbers: threads. Grey: idle threads.", fontsize=10)
chapter.show(figure, "grid-of-blocks")

# %% [markdown]
# ## What would corrupt memory raises an error
#
# In CUDA a wrong length or type is no error: the kernel reads and writes beyond the
# array. Here a call is checked before anything runs.

# %%
for wrong in (np.zeros(10, ctx=device), y[:9], y.copyto(other), y.asnumpy(), x):
    try:
        plus_one(x, wrong)
    except KernelError as error:
        print(error)

# %% [markdown]
# ## A fused update
#
# MXNet's `p -= lr / n * grad` is two operations: one writes the product to memory, the
# next reads it again. A single kernel needs only one pass over memory. Write it and use
# it instead of `sgd` in chapter 1's training:

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
# ## How fast is it?
#
# *Predict before you run*: y = 2 x reads 4 bytes, writes 4 bytes and multiplies once.
# Is the limit the multiplication or the memory? Which gains more over MXNet's
# operators, y = 2 x or the update?
#
# Kernel and operators compute the same number of values on each device; NumPy computes
# those of one device, with one thread. [The notes](https://github.com/Daegeun02/GPGPU)
# print 34 ms for 50,000,000 numbers by NumPy, and 0.64 to 0.90 ms by PyCUDA, where the
# clock is stopped before the GPU has finished (chapter `timing`).

# %%
chapter.score()
if __name__ == "__main__":
    runs = chapter.measure("kernels")

# %% [markdown]
# **What you see.** On CPU contexts the update gains more. The update differs by far
# more than the passes over memory can explain, which are three for the kernel and five
# for MXNet's two operators. The rest is *new memory*: MXNet puts the product
# `lr / n * grad` into an array that the kernel of the operating system has to provide
# page by page (rule 5 of chapter 4). A fused kernel needs no such array.
#
# On one core of an AMD EPYC, with 50,000,000 numbers, the update takes the kernel 18.0
# ms and MXNet's two operators 190 ms (its quartiles, 149 and 213 ms, lie far apart).
# y = 2 x takes 17.0 ms by the kernel and 50.3 ms by MXNet. A loop in C that does
# nothing else takes 16.9 ms: the kernel is limited by the memory, not by the
# multiplication ([table](../figures/README.md), by `benchmarks/kernels.py`).
#
# On an H200 there is nothing to gain: MXNet keeps freed memory there, so it needs no
# new pages, and its own operators are faster than these kernels, which give each thread
# one element. With 50,000,000 numbers y = 2 x takes 0.277 ms by the kernel and 0.23 ms
# by MXNet, the update 0.438 ms and 0.374 ms
# ([table](../figures/h200/benchmarks/kernels.txt)).
#
# <details><summary>What the cells above printed on an H200, where it differs</summary>
#
#     kernel plus_one, argument int *y: the array is on cpu(0), not on gpu(0)
#     my_sgd differs from MXNet's sgd by at most 7.275957614183426e-12
#     d2lpar's fused_sgd differs from MXNet's sgd by at most 7.275957614183426e-12
#     x2 of 5,000,000 on 1 device(s), kernel: 0.12 (0.11-0.29, n=7) ms
#     x2 of 5,000,000 on 1 device(s), MXNet: 0.12 (0.09-0.19, n=7) ms
#     update of 5,000,000 on 1 device(s), kernel: 0.36 (0.36-0.39, n=7) ms
#     update of 5,000,000 on 1 device(s), MXNet: 0.15 (0.14-0.19, n=7) ms
#
# The updates are not MXNet's to the bit there: the gradients of two runs differ in
# their last bits, or the compiler rounds a product and a difference once instead of
# twice. We have not found out which.
#
# </details>
#
# ## Summary
#
# > **Takeaway.** Blocks = ceil(n / threads per block) along each axis; 100 x 70 in
# > blocks of 16 x 16 are `7 * 5` blocks and `35 * 256 - 7,000 = 1,960` idle threads.
# > What limits the kernel is memory: a fused update reads and writes 3 numbers, two
# > operators 5.
#
# - A kernel is the body of a loop; the grid is the loop. A thread computes its index
#   from its block and its place in it, and an `if` stops those beyond the data.
# - Arguments are addresses and numbers, in order. Neither names nor lengths travel.
# - Operations on elements are limited by memory. Fusing two saves passes, and on CPUs
#   new memory; whether that is faster has to be measured.
# - A kernel of your own works like one of MXNet's operators: it returns at once, runs
#   in order, and can be the update of a training.
#
# ## Exercises
#
# 1. *On paper.* How many blocks of 256 threads does y = 2 x need for 50,000,000
#    numbers, and how many threads are idle? *(`50e6 / 256 = 195,312.5`: 195,313 blocks,
#    and half a block, 128 threads, is idle.)*
# 2. *On paper.* A fused update reads p and the gradient and writes p. What is its least
#    time for 129,068 parameters at 4.8 TB/s? *(`3 * 4 * 129,068 / 4.8e12 = 0.32 us`,
#    less than any launch takes: for LeNet only the number of launches counts.)*
# 3. **Another `if`.** Write `ij < nx * ny` in its place and add 2 x 5. *(The same sums:
#    threads with x >= nx now compute elements of the next row, which another thread
#    computes too, with the same result. It is wasted work here, and a race as soon as
#    an element is read and written.)*
# 4. **Columns first.** Write `int ij = ny * x + y`. *(The sum is
#    still right: each element has one thread, only another one. Write `ny * y + x`
#    instead, and three of the ten elements of 2 x 5 stay zero.)*
# 5. **Momentum in one kernel.** `"v[i] = mu * v[i] + grad[i]; p[i] -= step * v[i]"`.
#    *(NumPy's float32 result, to the bit, on a CPU context.)*
# 6. **A sum is not an operation on elements.** Launch `if (i < n) total[0] += x[i];` as
#    a `CudaModule` kernel. *(The right sum on one CPU thread, where the
#    loop runs in order. On a GPU expect less (not tried here): threads overwrite each
#    other's additions. `ElementwiseKernel` refuses, since its arrays must be of one
#    size.)*

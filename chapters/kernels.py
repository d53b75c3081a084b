# %% [markdown]
# # Custom kernels
#
# A program adds 1 to ten numbers on a GPU, raises no error, and prints **ten zeros**.
# What went wrong?
#
# ![Each device has a queue of work](../docs/drawings/queues-of-devices.svg)
#
# **In one sentence.** A kernel computes one element per thread, and one kernel for a
# whole update moves fewer bytes than several operators.
#
# The program is from a published blog post [1], and the answer is in the first cell. A
# *kernel* is a function that each of a GPU's threads runs on its own element. On a GPU
# the arithmetic of the other chapters runs as kernels, too. In this chapter we write
# our own in CUDA C, see how a kernel finds its element, and find out what limits its
# speed. You need no GPU: the same source also runs on CPU contexts, compiled by a C++
# compiler of the system (or of `pip install -e '.[kernels]'`).
#
# Run this chapter as a notebook, or as `python chapters/kernels.py`.

# %%
import math
import time
from statistics import median
from textwrap import fill

import numpy
from matplotlib.figure import Figure

from d2lpar import chapter, devices, get_params, init_lenet, np, npx, sgd, train_batch
from d2lpar.kernels import CudaModule, ElementwiseKernel, KernelError, fused_sgd
from d2lpar.records.comparison import arm_times

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
# stays zero, and x is overwritten with 0 + 1. A kernel receives addresses by position,
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
# The post's arrays are the numbers 0 to 9, and ten times the numbers that NumPy draws
# from the random seed 123. We can therefore compare our result with the printed one,
# digit for digit.

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
# Five by seven blocks cover the array, and the threads beyond its edge stop at the
# `if`.
#
# To see which thread computes which element, we store the indices of block and thread
# in the output instead of a sum. In CUDA C a kernel has no return value: it writes
# where its arguments point.

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
        text = threads[row, column].item() if column < 6 else ""
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center")
axes.invert_yaxis()
axes.set(xticks=[], yticks=[])
axes.set_title("Colours: blocks. Numbers: threads. Grey: idle threads.", fontsize=10)
chapter.show(figure, "grid-of-blocks")

# %% [markdown]
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
# called *fusing* them, the product never reaches memory, and only three arrays move. We
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
# ## How fast is it?
#
# A kernel with little arithmetic needs at least the time in which memory moves its
# bytes. However, each *launch* of a kernel also has a fixed cost, here for Python's
# call and for waiting for the device. Our model is therefore `time = a + b * bytes`. We
# fit both numbers for y = 2 x, from one small and one large array, and predict a third
# size.
#
# *Predict before you run*: what percentage of the time for 100,000 numbers is the fixed
# cost of the launch?

# %%
double = ElementwiseKernel("const float *x, float *y", "y[i] = 2 * x[i]", "twice")


def milliseconds(n, kernel=double, arrays=2, repeats=15):
    x_and_y = np.ones(n, ctx=device), np.zeros(n, ctx=device)
    found = []
    for _ in range(repeats):
        npx.waitall()
        start = time.perf_counter()
        kernel(*x_and_y[:arrays])
        npx.waitall()
        found.append(1e3 * (time.perf_counter() - start))
    return median(found)


chapter.predict("% of 100,000 numbers' time that is the launch", None)
small, middle, large = 1_000, 100_000, 10_000_000
found = {n: milliseconds(n) for n in (small, middle, large)}
b = (found[large] - found[small]) / (8 * (large - small))  # ms per byte
a = found[small] - b * 8 * small
print(f"launch {1e3 * a:.0f} us, bandwidth {1e-6 / b:.1f} GB/s")
print(f"{middle:,} numbers: model {a + b * 8 * middle:.3f} ms, ", end="")
print(f"measured {found[middle]:.3f} ms")
share = 100 * a / found[middle]
chapter.answer("% of 100,000 numbers' time that is the launch", share)
print("what costs most there:", "the launch" if share > 50 else "the bytes")

# %% [markdown]
# Where the launch costs most, a fused kernel saves more by its fewer launches than by
# its fewer bytes. With a hundred times the numbers the bytes take a hundred times as
# long, and the launch stays the same. Arrays that fit into a cache are moved faster
# than the single bandwidth of the model. The difference between the model and the
# measurement is therefore a part of the result.
#
# But which bytes? A core usually reads a cache line before it writes to it, even if
# nothing of the line is needed (*write-allocate*). Then y = 2 x moves three arrays
# instead of two, and doubling x in place moves two. If the bytes were the whole time,
# in place would take `2 / 3 = 0.67` of the time. Without write-allocate both move two
# arrays and take the same time. We accept an explanation if all rounds lie within 0.1
# of its ratio.

# %%
in_place = ElementwiseKernel("float *x", "x[i] = 2 * x[i]", "in_place")
ratios = [
    milliseconds(large, in_place, arrays=1, repeats=5) / milliseconds(large, repeats=5)
    for _ in range(5)
]
print("in place / y = 2 x:", *(f"{ratio:.2f}" for ratio in ratios))
explanations = {"write-allocate": 2 / 3, "no write-allocate": 1}
accepted = [
    name
    for name, expected in explanations.items()
    if all(abs(ratio - expected) < 0.1 for ratio in ratios)
]
print("accepted:", *(accepted or ["neither"]))

# %% [markdown]
# Where neither is accepted, the bytes do not explain the times of these kernels, and we
# must not use write-allocate to explain other times of the same machine.
#
# One machine's numbers say little about other machines. Here are records of one core of
# an Intel Xeon and of an H100, with arrays of 50,000,000 numbers, 200 MB, which are
# larger than the usual caches. All rows process the same amount of data, on the core
# with one thread. A plain loop in C shows what this thread can reach, and NumPy beside
# the H100 runs on its host. The bytes are counted for the kernel: y = 2 x reads one
# array and writes one array. The update reads two arrays and writes one. The last line
# counts the five arrays of MXNet's update.
#
# *Predict before you run*: on the recorded core, how many times as long as the kernel
# do MXNet's two operators take for the update?

# %%
chapter.predict("MXNet's update / the kernel's, on a core", None)
arrays_moved = {"y = 2 x": 2, "p -= step * grad": 3}
recorded = {}
for folder, where in (("", "1 context, 1 thread"), ("gpus/", "1 GPU")):
    run = chapter.record(f"{folder}benchmarks/kernels.jsonl")
    print(f"{where}:")
    for arm in arm_times(run):
        name, _, on = arm.name.partition(", ")
        if on == where and arm.seconds:
            seconds = recorded[arm.work, name, where] = median(arm.seconds)
            rate = arrays_moved[arm.work] * 4 * 50e6 / seconds / 1e9
            _, spread, _ = arm.summary.cells(1e3)
            print(f"  {arm.work:17} {name:10} {1e3 * seconds:8.3f} ms", end="")
            print(f" ({spread}) {rate:8.0f} GB/s")
update = "p -= step * grad"
core, gpu = "1 context, 1 thread", "1 GPU"
ratio = recorded[update, "MXNet", core] / recorded[update, "kernel", core]
equal = recorded["y = 2 x", "kernel", core] / recorded[update, "kernel", core]
print(f"on the core y = 2 x takes {equal:.2f} times as long as the update, by kernels")
five_arrays = 5 * 4 * 50e6 / recorded[update, "MXNet", gpu] / 1e9
print(f"MXNet's update on the GPU, with five arrays: {five_arrays:.0f} GB/s")
sizes = (4 * 50e6 * arrays for arrays in arrays_moved.values())
(bytes_2, time_2), (bytes_3, time_3) = (
    (size, recorded[work, "kernel", gpu]) for size, work in zip(sizes, arrays_moved)
)
b = (time_3 - time_2) / (bytes_3 - bytes_2)
a = time_2 - b * bytes_2
print(f"both kernels on the GPU: launch {1e6 * a:.0f} us, {1e-9 / b:,.0f} GB/s")
chapter.answer("MXNet's update / the kernel's, on a core", ratio)
chapter.score()

# %% [markdown]
# On the core the kernel takes at most a fifth longer than the loop in C. The gain over
# MXNet is larger than the ratio of the arrays moved, `5 / 3`. Exercise 3 tests a
# candidate for the rest: MXNet puts the product `lr / n * grad` into *new memory*
# (rule 5 of Chapter 4).
#
# With write-allocate y = 2 x moves three arrays instead of two. The update also moves
# three arrays, because it reads p anyway before it writes it. The printed ratio of the
# two kernels, 1 if only arrays count, agrees with this. The experiment in place,
# however, is the direct test, so trust it more.
#
# On the H100 the ranges of the kernels and of MXNet's operators overlap, although MXNet
# moves five arrays for the update. The printed rates of the kernels are far below the
# 3,350 GB/s of the card's memory [2]. MXNet's update, with its five arrays counted,
# moves bytes faster than our kernel, so the memory does not limit our kernels there.
# MXNet reuses freed memory of a GPU from a pool, so allocation does not explain the
# difference either.
#
# What does limit them, the launch or the rate at which a kernel requests its bytes? The
# record has two sizes, 400 MB and 600 MB, and the model fits both numbers. The fitted
# launch is not above a tenth of the time; a negative launch means that the update has a
# higher rate than y = 2 x. So the rate is the limit, with the reservation that these
# are two different kernels. Our kernels give each thread one element only. Exercise 6
# shows whether this sets the rate.
#
# (On an H200 Chapter 4 doubles the same numbers by MXNet in
# [0.393 ms](../figures/h200/timing/book-results.txt "x2 MXNet in place 1 device | ms").
# That is another card and another protocol: `x *= 2` in place, without the untimed call
# that precedes each sample here.)
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

# %% [markdown]
# Neighbouring threads read neighbouring elements here (`i = t`, then steps of
# `num_threads`), which a GPU combines into wide accesses. Library reductions also
# exchange parts through *shared memory*, a small fast memory of each block.
#
# ## Summary
#
# > **Takeaway.** A grid needs `ceil(n / threads per block)` blocks along each axis. An
# > element-wise kernel takes about `a + b * bytes`, where `a` is the cost of a launch
# > and, for arrays that fit into no cache, `1 / b` is at most the bandwidth of the
# > memory. Fusing saves launches, bytes and new memory.
#
# A kernel is the body of a loop, and the grid is the loop. A thread computes its index
# from its block and its place in the block, and an `if` stops threads beyond the data.
# The kernel receives neither names nor lengths. Like a built-in operator it is
# asynchronous, executes in order, and can serve as the optimizer step.
#
# ## Exercises
#
# 1. *On paper.* How many blocks of 256 threads does y = 2 x need for 50,000,000
#    numbers, and how many threads are idle? *(`50e6 / 256 = 195,312.5`: 195,313 blocks.
#    One half of the last block, 128 threads, is idle.)*
# 2. *On paper.* A fused update reads p and the gradient and writes p. What is its least
#    time for 129,068 parameters at 4.8 TB/s? *(`3 * 4 * 129,068 / 4.8e12 = 0.32 us`.
#    Compare it with the launch that the model has printed: for LeNet the number of
#    launches counts.)*
# 3. New memory: time `p -= step * grad` and, in alternation,
#    `np.multiply(grad, step, out=product)` followed by `p -= product`, for 10,000,000
#    numbers. *(Both move five arrays. The second version saves the cost of the new
#    array. The time that remains above `5 / 3` of the fused kernel has another cause.)*
# 4. Columns first: in the same kernel, write `int ij = ny * x + y`. Then write
#    `ny * y + x`. *(With the first the sum is still right: each element has exactly one
#    thread, though a different one. With the second, three of the ten elements of 2 x 5
#    stay zero, because `2 * y + x` takes only the values 0 to 6.)*
# 5. Momentum in one kernel: write `"v[i] = mu * v[i] + grad[i]; p[i] -= step * v[i]"`,
#    and compare it with NumPy in float32. *(On a CPU context the results are equal to
#    the bit, because the package asks the compiler not to fuse a product and a sum.)*
# 6. Let each thread of y = 2 x process four elements, with the loop of `sum_parts`, and
#    fit `a` and `b` to both kernels. *(On a CPU context a thread is a turn of a loop,
#    so `b` should not change much. On a GPU, if four elements lower `b`, one element
#    per thread was the limit.)*
#
# **Puzzles.** `python -m d2lpar.puzzles` has one about a grid: which thread computes
# what.
#
# ## Sources
#
# - [1] GPUSOROBAN, posts on PyCUDA (in Japanese),
#   <https://soroban.highreso.jp/blog/blog-2326/>. The task of doubling 50,000,000
#   numbers is from <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in
#   Korean).
# - [2] NVIDIA, "H100 Tensor Core GPU", <https://www.nvidia.com/en-us/data-center/h100/>

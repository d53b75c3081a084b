# %% [markdown]
# # Timing devices honestly
#
# Source: the least-squares notes, the GPU wiki, the CryptoPunks notebook,
# the GPUSOROBAN posts,
# <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in Korean),
# <https://github.com/likejazz/likejazz.github.io> (`_wiki/GPU-Data-Science.md`, in
# Korean),
# <https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb>,
# <https://soroban.highreso.jp/blog/blog-2326/> (in Japanese)
#
# Where a chapter says *predict*, write your guess into the call of `chapter.predict`
# before you run the cell: `chapter.answer` says how far it was off.
#
# **What you will learn.** How to time work that runs asynchronously, after the Python
# call has returned. Five rules, and the ten lines of code that follow them. How to
# compare two devices, and a device with NumPy. What an all-reduce costs. How to check a
# published time with arithmetic.
#
# Four sources time a CPU against a GPU; two of them stop the clock before the GPU has
# finished. Here is the same work on any devices, timed both ways, with the results
# checked. Run this chapter cell by cell as a notebook, or as a program:
#
#     python chapters/timing.py --devices auto --num-devices 1,2
#     d2lpar run timing --preset book      (the published sizes: minutes per product)

# %%
import resource
import time
from statistics import quantiles

import numpy

from d2lpar import allreduce, chapter, devices, np, npx, timing

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
host = numpy.random.default_rng(0).random((1000, 1000), dtype="float32")

# %% [markdown]
# ## Rule 1: wait
#
# A call of MXNet, or of any GPU library, writes an order into a queue and returns.
# Threads that belong to the device take the orders from the queue and work. Python
# waits only where it needs a number: to print it, to convert it (`asnumpy`, `float`),
# or when it is told to (`y.wait_to_read()`, `npx.waitall()`; in PyTorch
# `torch.cuda.synchronize()`).
#
# ![A call returns before its work is done](../docs/drawings/asynchronous-call.svg)
#
# *Predict before you run*: the tangent of a million numbers takes some milliseconds.
# What does the first clock say, and which line takes the time?

# %%
chapter.predict("ms until the call returns", None)  # write your number for None
x = np.array(host, ctx=two[0])
npx.waitall()  # the copy is part of no measurement
for attempt in ("first", "second", "third"):
    start = time.perf_counter()
    y = np.tan(x)
    returned = time.perf_counter() - start
    npx.waitall()
    finished = time.perf_counter() - start
    print(f"{attempt}: returned {1e3 * returned:.3f}, finished {1e3 * finished:.3f} ms")
chapter.answer("ms until the call returns", 1e3 * returned)

# %% [markdown]
# **What you see.** The first reading, the *naive* one, only measures how long Python
# takes to enqueue the operation, so it hardly depends on the size of the work. Because
# calls return early, one Python thread can keep several devices busy: while one device
# computes, Python hands out the work of the next.
#
# ## Rules 2, 3 and 4: warm up, repeat, check
#
# - **Warm up.** The first call may be slower: threads are started, memory is reserved,
#   kernels are loaded or even compiled. Leave the first calls out.
# - **Repeat.** Other programs run on the machine. Report the median, which one bad
#   moment does not change, how far the middle half spreads (the quartiles), and how
#   often you measured, n.
# - **Check the result** of every repetition. Wrong results are often fast.
#
# All four, in a function:


# %%
def measure(fn, device, expected, warmup=2, repeats=7):
    """The milliseconds of fn(device), as median and quartiles."""
    milliseconds = []
    for _ in range(warmup + repeats):
        npx.waitall()
        start = time.perf_counter()
        result = fn(device)
        npx.waitall()
        milliseconds.append(1e3 * (time.perf_counter() - start))
        assert numpy.allclose(result.asnumpy(), expected, rtol=1e-5)
    low, median, high = quantiles(milliseconds[warmup:], n=4)
    first = f"first call {milliseconds[0]:.2f} ms"
    return f"{median:.2f} ms (quartiles {low:.2f}-{high:.2f}, n = {repeats}), {first}"


right = numpy.tan(host)
print("tan:    ", measure(lambda device: np.tan(x), two[0], right))
print("product:", measure(lambda device: np.dot(x, x), two[0], host @ host))

# %% [markdown]
# The package's `timing.measure` is this for several devices at once. It calls the
# function for every device before it waits for all of them, so that they compute at the
# same time, keeps both clocks, and joins the devices' results to compare them with the
# right one. `timing.measure_host` is the same for NumPy.
#
# *Predict before you run*: each of two devices takes half of the rows. Will two take
# half of the time of one?


# %%
def tan(chosen: list) -> timing.Timing:
    rows = numpy.array_split(host, len(chosen))
    x = {d: np.array(part, ctx=d) for d, part in zip(chosen, rows)}
    return timing.measure(lambda d: np.tan(x[d]), chosen, expected=right, name="tan")


chapter.predict("two devices' time / one's", None)
one, both = tan(two[:1]), tan(two)
numpys = timing.measure_host(lambda: numpy.tan(host), threads=1, name="NumPy's tan")
print(one, both, numpys, f"two / one: {timing.ratio(both, one):.2f}", sep="\n")
chapter.answer("two devices' time / one's", timing.ratio(both, one))

# %% [markdown]
# **What you see.** Two contexts take about half the time of one if a core is idle for
# each of them, and more otherwise. But look at NumPy's line before you are content: on
# a processor with wide vector registers NumPy computes many tangents with one
# instruction, and may be faster on one core than MXNet on two. A second device does not
# make up for slow code on the first: compare with the best that one device can do.
#
# Timing a wrong result is meaningless, and so is a ratio between two different
# computations. The package raises an error in both cases:

# %%
part = timing.measure_host(lambda: numpy.tan(host[:500]), threads=1, name="half of it")
for wrong in (
    lambda: timing.measure_host(lambda: host, 1, expected=right, name="no tan"),
    lambda: timing.ratio(part, one),
):
    try:
        wrong()
    except timing.TimingError as error:
        print(error)

# %% [markdown]
# ## Rule 5: new memory costs time
#
# - **Mind the memory.** A large result in a new array needs memory that the process
#   does not have yet. The operating system provides it page by page, of 4 KiB each, and
#   only when a page is first written: a *page fault*. The clock counts that, too.
#
# MXNet takes new memory on CPU contexts for every result of more than 32 MB, and often
# for smaller ones, and gives it back afterwards. GPUs are different: there MXNet keeps
# freed memory for the next result. The kernel of the operating system counts page
# faults for each process.
#
# *Predict before you run*: z = 2 * x for 10,000,000 numbers, in a new array and in one
# that exists already. Both multiply as often. By how much do they differ?

# %%
chapter.predict("times as long in a new array", None)
x = np.ones(10_000_000, ctx=two[0])
z, medians = np.zeros_like(x), []
npx.waitall()
forms = {
    "in a new array": lambda: 2 * x,
    "in an old one ": lambda: np.multiply(x, 2, out=z),
}
for name, double in forms.items():
    double().wait_to_read()  # a warm-up
    milliseconds, faults = [], resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(7):
        start = time.perf_counter()
        double()
        npx.waitall()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    low, median, high = quantiles(milliseconds, n=4)
    print(
        f"{name}: {median:.2f} ms ({low:.2f}-{high:.2f}), {faults // 7:,} page faults"
    )
    medians.append(median)
chapter.answer("times as long in a new array", medians[0] / medians[1])

# %% [markdown]
# **What you see.** `10,000,000 * 4 bytes / 4 KiB = 9,766` pages, one fault for each,
# and the new array takes several times as long. The rule explains numbers in other
# chapters: why NumPy's sum of two arrays is so much faster than MXNet's (chapter 3),
# what static memory saves (chapter 5), and why a fused kernel gains more than its
# passes over memory (`kernels`). Two contexts with half the work each may even be more
# than twice as fast, where smaller arrays need no new pages.
#
# ## What an all-reduce costs
#
# The CryptoPunks notebook's "calculus of parallelization": a second device saves work
# but costs copies, and in training an all-reduce (the sum of both devices' arrays,
# chapter 1). A copy takes a fixed time, and a time per byte.
#
# *Predict before you run*: LeNet's gradients are half a megabyte, 130,000 numbers. Is
# an all-reduce of that size nearer to that of 1,000 numbers or to that of 10,000,000?


# %%
def all_reduce(n: int) -> timing.Timing:
    ones = [np.ones(n, ctx=device) for device in two]
    data = [array.copy() for array in ones]

    def reset():  # before each repetition, outside the clock
        for array, one in zip(data, ones):
            one.copyto(array)

    def reduce(device):  # called once per device, but one call sums for both
        if device == two[0]:
            allreduce(data)
        return data[two.index(device)]

    sums = numpy.full(len(two) * n, float(len(two)))  # all devices' results
    name = f"all-reduce of {n:,}"
    return timing.measure(reduce, two, before=reset, expected=sums, name=name)


chapter.predict("LeNet's all-reduce is nearer to", None)  # "small" or "large"
small, lenets, large = map(all_reduce, (1_000, 130_000, 10_000_000))
print(small, lenets, large, sep="\n")
nearer = lenets.median / small.median < large.median / lenets.median
chapter.answer("LeNet's all-reduce is nearer to", "small" if nearer else "large")

# %% [markdown]
# **What you see.** LeNet's all-reduce is close to the small one: its fixed time counts,
# not its bytes. Whether a second device is worth it depends on what it saves in the
# same training, which chapter 6 measures.
#
# ## Four published times, checked with arithmetic
#
# Before you believe a published time, compute a lower bound: bytes / memory bandwidth
# and operations / peak FLOP rate. No correct measurement can be below the larger of the
# two.

# %%
GB = 1e9
T4_BANDWIDTH = 320 * GB  # per second

x2_bytes = 50_000_000 * 4 * 2  # each number is read and written
print(f"x2, NumPy: 33.6 ms are {x2_bytes / 33.6e-3 / GB:.0f} GB/s")
at_least = 1e3 * x2_bytes / T4_BANDWIDTH
print(f"x2, T4: at least {at_least:.2f} ms, published 0.64 to 0.90 ms")

# sin, **2, cos and **2 read and write 400 MB each, / reads two arrays and writes one,
# and sum reads one.
trig_bytes = 10_000**2 * 4 * (4 * 2 + 3 + 1)
print(f"trig, T4: {1e3 * trig_bytes / T4_BANDWIDTH:.0f} ms, published 18.9 ms")

operations = 2 * 15_360**3  # a product: 15,360 multiplications and additions per number
print(f"product, host: 296.9 s are {operations / 296.9 / 1e9:.0f} GFLOP/s")
print(f"product, GPU: 0.457 s are {operations / 0.457 / 1e12:.1f} TFLOP/s")

# %% [markdown]
# - **[The least-squares notes](https://github.com/Daegeun02/GPGPU)**, 50,000,000 floats
#   x 2: NumPy's time is plausible. The T4's is not: 0.64 to 0.90 ms time only the
#   launch. Rule 1.
# - **[The CryptoPunks
#   notebook](https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb)**,
#   "28.6 to 68.8 %" less for a sum of 4 MB, compares a CPU's sum with a launch. Rule 1
#   again; and no warm-up.
# - **[The GPU wiki](https://github.com/likejazz/likejazz.github.io)**, the sum of
#   sin^2/cos^2 over 10,000 x 10,000: 4.12 s in float64 on one core, 738 ms in float32
#   on all, 18.9 ms on a T4. IPython's `%timeit` does not wait either, but its 1,000
#   loops fill the queue until it blocks, so the mean is right: 12 passes over 400 MB
#   need 15 ms. (One kernel would need one pass: chapter 13.) Yet "40 times faster"
#   compares the T4 with 738 ms, and 4.12 s is another type on another number of cores.
#   The times of different work have no ratio.
# - **[GPUSOROBAN](https://soroban.highreso.jp/blog/blog-2326/)**, the product of two
#   15,360 x 15,360: 297 s are few cores or a slow library. 0.46 s is 15.9 TFLOP/s,
#   synchronised with `torch.cuda.synchronize()`, and its first call, 0.55 s, shows the
#   warm-up. The clock is right. Whether the number is plausible cannot be checked: the
#   post does not name its GPU, and 15.9 TFLOP/s is more than the 15.7 of a V100, the
#   fastest card in chapter 2's sources.
#
# ## All of them, on your devices
#
# The last cell runs the four in NumPy, PyTorch (if it is installed) and MXNet, in
# several forms:
#
# | form | what it is |
# |---|---|
# | as written | the source's own expression |
# | in place | the same, but the results go to arrays that exist (rule 5) |
# | one kernel | the whole expression as one compiled loop (chapter `kernels`) |
# | product with ones | the sum of rows as a matrix product, which uses all cores |
# | dense layer | the product as `npx.fully_connected`, by oneDNN on a CPU |
#
# It prints both clocks, times copies and all-reduces of many sizes, and draws a
# *roofline*, which shows how near each operation comes to what the memory and the cores
# have shown to allow: the fastest copy and the fastest product of this run.
#
# *Predict before you run*: for how many of the four is MXNet's fastest form faster than
# NumPy's fastest, with one CPU context?

# %%
chapter.score()
if __name__ == "__main__":
    runs = chapter.measure("timing")

# %% [markdown]
# **What you see.** In the table, each library's fastest form: compare the rows of one
# work and one device, and call only those faster whose quartiles lie apart. The form
# often matters more than the library, and for `x2` and `trig` one kernel avoids all
# intermediate arrays. In the roofline, operations on elements lie on the sloping part,
# which memory limits; only the product gets near to what the cores can do. A second
# context adds no memory bandwidth.
#
# <details><summary>The same on an H200, and PyTorch on its host</summary>
#
# | [record](../figures/h200/timing/book-results.txt) | MXNet | PyTorch | on the host |
# |---|---|---|---|
# | 50,000,000 x 2, in place | 0.393 ms | 0.155 ms | 6.51 ms |
# | sum of 100,000 x 10, as written | 0.109 ms | 0.0379 ms | 0.0244 ms |
# | sin^2/cos^2 of 10,000 x 10,000, as written | 2.34 ms | 1.16 ms | 57.6 ms |
# | product of two 15,360 x 15,360 | 136 ms | 136 ms | 3.74 s |
#
# For an array of 4 MB the GPU is slower than its host. Both libraries hand the product
# to cuBLAS. MXNet's own operations on elements take at least twice as long; as one
# kernel that does all of sin^2/cos^2 they take 0.441 ms
# ([same record](../figures/h200/timing/book-results.txt)).
#
# </details>
#
# ## Summary
#
# > **Takeaway.** Time = waitall, clock, work, waitall, clock; no correct time is below
# > bytes / bandwidth. On an H200 the sum of 100,000 x 10 takes [0.109
# > ms](../figures/h200/timing/book-results.txt); `4e6 / 4.8e12 = 0.8 us` are its bytes
# > over the memory's bandwidth, so memory is not its limit.
#
# - Wait before both readings of the clock; warm up; repeat and give the median, its
#   spread and n; check the result while you time it; mind new memory.
# - A clock that does not wait measures Python, on CPU contexts too.
# - No time is below bytes / bandwidth or operations / peak.
# - A ratio needs equal work on both sides: same numbers, same type, same result.
#
# ## Exercises
#
# 1. Call `np.tan(x)` 10, 100 and 300 times in a row, read the clock without waiting and
#    after it, and divide by the number of calls. *(Without waiting it is Python's time
#    for any number of calls: MXNet's queue takes them all. After waiting it is the
#    device's, and more calls make it more exact.)*
# 2. Which work is worth a second device? Time `x + 1`, `np.tan(x)` and the product of
#    two 1,000 x 1,000 matrices on one device and, split by rows, on two; then the same
#    with 1,000 numbers, and with 30 x 30. *(With 1,000 numbers `x + 1` and tan take
#    twice as long on two: two launches instead of one. With 1,000,000 tan and the
#    product gain most; `x + 1` hardly: it is limited by the memory, which CPU contexts
#    share.)*
# 3. Let `measure` return the mean instead of the median, and start another program
#    while it runs. *(The mean moves with each interruption; the median hardly does.)*
# 4. *On paper.* A program queues 1,000 operations of 2 ms each. Python needs 0.05 ms
#    for each call. What does a clock say that does not wait, and one that waits?
#    *(`1,000 * 0.05 = 50 ms` and 2 s. The first one is `2 / 0.05 = 40` times too
#    fast.)*
# 5. *On paper.* Someone reports 30 TFLOP/s for a float32 product on a T4. What do you
#    ask? *(The peak is 8.1. Whether they waited, whether the result was checked, and
#    whether it was float32 at all: with tensor cores float16 reaches 65.)*

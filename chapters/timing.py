# %% [markdown]
# # Timing devices honestly
#
# How long does a device take? Four published sources time a processor against a GPU,
# and two of them print how long Python took to hand over the work, instead of how long
# the GPU took to do it.
#
# ![A call returns before its work is done](../docs/drawings/asynchronous-call.svg)
#
# One of the four doubles 50,000,000 numbers on a T4 GPU in **0.64 ms** [1]. We will see
# that no T4 can do this, and that a line of arithmetic is enough to find out. In this
# chapter you learn five rules for timing work that runs asynchronously, and a function
# of twelve lines that follows them. We then compare two devices with one, and a device
# with NumPy.
#
# Run this chapter as a notebook, or as `python chapters/timing.py --num-devices 1,2`.

# %%
import resource
import time
from statistics import quantiles

import numpy

from d2lpar import allreduce, chapter, devices, np, npx, timing
from d2lpar.records.kinds import TimingRecord

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
host = numpy.random.default_rng(0).random((1000, 1000), dtype="float32")

# %% [markdown]
# ## Rule 1: wait
#
# A call of MXNet, or of PyTorch on a GPU, merely appends the operation to the device's
# queue and returns. Background threads execute the queue. Python blocks only when it
# needs a value: to print it, to convert it (`asnumpy`, `float`), or when it is told to
# wait (`y.wait_to_read()`, `npx.waitall()`; in PyTorch `torch.cuda.synchronize()`).
#
# *Predict before you run*: we compute the tangent of a million numbers. How many
# milliseconds pass until the call returns?

# %%
chapter.predict("ms until the call returns", None)  # write your number for None
x = np.array(host, ctx=two[0])
npx.waitall()  # the copy has finished before we start the clock
for attempt in ("first", "second", "third"):
    start = time.perf_counter()
    y = np.tan(x)
    returned = time.perf_counter() - start
    npx.waitall()
    finished = time.perf_counter() - start
    print(f"{attempt}: returned {1e3 * returned:.3f}, finished {1e3 * finished:.3f} ms")
chapter.answer("ms until the call returns", 1e3 * returned)

# %% [markdown]
# The first number of each line, the *naive* time, only measures how long Python takes
# to enqueue the operation. It depends on the number of calls, and not on the size of
# the arrays, which exercise 1 checks. If one of the three is much longer than the
# others, Python's thread probably had to wait for a core. Because calls return early,
# one Python thread can keep several devices busy: while one device computes, Python
# enqueues the work of the next.
#
# ## Rules 2, 3 and 4: warm up, repeat, check
#
# - **Warm up.** The first call may be slower, because threads are started, memory is
#   reserved, and kernels are loaded or even compiled. Leave the first calls out.
# - **Repeat.** Other programs run on the machine. Report the median, which is robust to
#   outliers, together with the quartiles and the number of repetitions, n.
# - **Check the result** of every repetition. Wrong results are often fast.
#
# The following function obeys all four rules:


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
# The package provides a version of this function for several devices. `timing.measure`
# first starts the work on every device and only then waits for all of them, so that
# they run concurrently. It keeps both clocks, and checks the joined results of all
# devices. `timing.measure_host` does the same for NumPy.
#
# *Predict before you run*: each of two devices takes one half of the rows. Which share
# of one device's time do two devices need?


# %%
def tan(chosen: list) -> timing.Timing:
    rows = numpy.array_split(host, len(chosen))
    x = {d: np.array(part, ctx=d) for d, part in zip(chosen, rows)}
    return timing.measure(lambda d: np.tan(x[d]), chosen, expected=right, name="tan")


chapter.predict("two devices' time / one's", None)
ratios = []
for _ in range(3):  # the two take turns
    one, both = tan(two[:1]), tan(two)
    ratios.append(timing.ratio(both, one))
    print(f"two / one: {ratios[-1]:.2f}")
numpys = timing.measure_host(lambda: numpy.tan(host), threads=1, name="NumPy's tan")
print(one, both, numpys, sep="\n")
chapter.answer("two devices' time / one's", numpy.median(ratios))

# %% [markdown]
# If a core is idle for each context, the ratio is near one half. If it is near 1, the
# contexts share a core, or another program uses one. If it lies in between, one
# explanation is that they share something else, such as the clock rate of the
# processor, which can fall when more cores work.
#
# If the three rounds disagree, do not speak of one ratio, but run the cell again. One
# explanation is that the operating system chooses the cores of both threads, and may
# choose the same one for a while. Look at the naive clock of the two devices as well:
# if it is much longer than that of one device, Python's own thread may have waited for
# a core that the devices occupied.
#
# Before celebrating, compare with NumPy. On a processor with wide vector registers
# NumPy can compute many tangents with one instruction, and it may be faster on one core
# than MXNet on two. Parallelism is no substitute for efficient code. Always compare
# several devices with the best single-device implementation.
#
# Timing a wrong result is meaningless, and so is a ratio of two different computations.
# The package raises an error in both cases:

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
# A large result in a new array needs memory that the process does not have yet. The
# operating system provides it in pages, usually of 4 KiB each, when a page is first
# written. This event is called a *page fault*, and the clock counts it, too.
#
# On CPU contexts MXNet requests new memory for every result of more than 32 MB, and
# often for smaller ones, and returns it afterwards. On GPUs MXNet keeps freed memory
# for the next result. The kernel of the operating system counts the page faults of each
# process.
#
# *Predict before you run*: we compute z = 2 * x for 10,000,000 numbers, in a new array
# and in an existing one. Both versions perform the same multiplications. How many times
# as long does the version with a new array take?

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
# The array has `10,000,000 * 4 bytes / 4 KiB = 9,766` pages, so expect about as many
# page faults for each new array, and none for the old one. If your system provides
# larger pages, there are fewer. We will meet this cost in other chapters: as the share
# of a new array in Chapter 3, as something that static memory saves in Chapter 5, and
# as one explanation of what a fused kernel gains in Chapter 13.
#
# ## What an all-reduce costs
#
# A second device saves work but costs copies. In training it costs an all-reduce, the
# sum of both devices' arrays (Chapter 1). As a model, a copy takes a fixed time and a
# time per byte. We measure three sizes: the smallest shows the fixed time, and the
# largest the time per byte.
#
# *Predict before you run*: LeNet's gradients are half a megabyte, 130,000 numbers. How
# many per cent of the time of their all-reduce are due to their bytes, rather than to
# the fixed time?


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


chapter.predict("% of LeNet's all-reduce that is bytes", None)
small, lenets, large = map(all_reduce, (1_000, 130_000, 10_000_000))
print(small, lenets, large, sep="\n")
per_number = (large.median - small.median) / (10_000_000 - 1_000)
model = small.median + per_number * (130_000 - 1_000)
print(f"model for 130,000 numbers: {1e3 * model:.2f} ms")
share = 1 - small.median / lenets.median
chapter.answer("% of LeNet's all-reduce that is bytes", round(100 * share))

# %% [markdown]
# The printed share tells you what to do. If it is small, fewer and larger sums help; if
# it is large, fewer bytes help. Chapter 7 does both. The model need not agree with the
# measurement. If it predicts more time than 130,000 numbers really took, a number costs
# less in a small array than in a large one. One explanation is that the small arrays
# stay in a cache; another is that the all-reduce copies large arrays to new memory
# (rule 5). If the model predicts less, a number costs more in the small array. In both
# cases a straight line through two sizes says little about a third, and we must measure
# the size that we need.
#
# Whether a second device is worth an all-reduce depends on what it saves in the same
# training, which Chapter 6 measures.
#
# ## Two of the published operations
#
# Before we judge the published times we repeat two of the operations, in smaller sizes.
# One source [2] computes the sum of sin^2/cos^2 over 10,000 x 10,000 numbers. Another
# one [3] multiplies two matrices of 15,360 x 15,360 numbers, which are `2 * 15,360**3 =
# 7.2e12` operations. (Set `rows = 10_000` and `size = 15_360` for the published sizes.
# A product may then take minutes on a processor, and the cell computes 13 of them.
# Rounding errors grow with the length of the sums, so write `rtol=1e-4` in `measure`.)

# %%
rows, size = 500, 768
rng = numpy.random.default_rng(0)
x_host = rng.random((rows, rows), dtype="float32")
a_host, b_host = rng.random((2, size, size), dtype="float32")
x, a, b = (np.array(array, ctx=two[0]) for array in (x_host, a_host, b_host))

trig = (numpy.sin(x_host) ** 2 / numpy.cos(x_host) ** 2).sum()
print(f"sin^2/cos^2 of {rows:,} x {rows:,}:")
print(" ", measure(lambda d: (np.sin(x) ** 2 / np.cos(x) ** 2).sum(), two[0], trig))
print(f"product of two {size:,} x {size:,}:")
print(" ", measure(lambda d: np.dot(a, b), two[0], a_host @ b_host))
for _ in range(3):
    npx.waitall()
    start = time.perf_counter()
    np.dot(a, b).wait_to_read()
    rate = 2 * size**3 / (time.perf_counter() - start)
    print(f"  {rate / 1e9:.0f} GFLOP/s")

# %% [markdown]
# ## Four published times, checked with arithmetic
#
# The last lines of the cell above are the rate of your device in three products.
# Exercise 2 of Chapter 2 computes the peak of a host; divide the rate by the peak of
# one core. If the share is small, the routine limits the rate, and not the processor.
# The next cell computes the same rate for the published products.
#
# Before you believe a published time, compute two lower bounds: the bytes divided by
# the memory bandwidth, and the operations divided by the peak rate. If the data do not
# fit into a cache, no correct time is below the larger of the two.

# %%
GB = 1e9
T4_BANDWIDTH = 320 * GB  # per second

x2_bytes = 50_000_000 * 4 * 2  # each number is read and written once
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
# - The **least-squares notes** [1] double 50,000,000 floats. NumPy's time is plausible.
#   The T4's is not: the clock was read when the call had returned, so 0.64 to 0.90 ms
#   are the time of the *launch*, that is, the time until the call returns. The notes
#   break rule 1.
# - The **data science course** [4] reports "28.6 to 68.8 %" less for a sum of 4 MB. It
#   compares the sum on a CPU with a launch on a GPU, without a warm-up. It breaks rules
#   1 and 2.
# - The **GPU wiki** [2] sums sin^2/cos^2 in 4.12 s in float64 on one core, 738 ms in
#   float32 on all cores, and 18.9 ms on a T4. IPython's `%timeit` does not wait either,
#   but its 1,000 loops fill the queue until it blocks, so the mean can be right: 12
#   passes over 400 MB need 15 ms. However, "40 times faster" compares the T4 with 738
#   ms, and 4.12 s belongs to another type on another number of cores. Times of
#   different work have no ratio.
# - **GPUSOROBAN** [3] multiplies two matrices of 15,360 x 15,360. 297 s corresponds to
#   24 GFLOP/s, which suggests few cores or an unoptimised library. 0.46 s is 15.9
#   TFLOP/s, measured with `torch.cuda.synchronize()`. The clock is right. Whether the
#   number is plausible cannot be checked, because the post does not name its GPU.
#
# ## All of them, on your devices
#
# The next cell runs the four in NumPy, PyTorch (if it is installed) and MXNet, in
# several forms:
#
# | form | what it is |
# |---|---|
# | as written | the source's own expression |
# | in place | the same, but the results go to arrays that exist (rule 5) |
# | one kernel | the whole expression as one compiled loop (Chapter 13) |
# | product with ones | the sum of rows as a matrix product, which uses all cores |
# | dense layer | the product as `npx.fully_connected`, by the library oneDNN on a CPU |
#
# It also times copies and all-reduces of many sizes, and draws a *roofline* plot: the
# throughput of each operation against two limits measured in the same run, MXNet's
# fastest copy and its fastest matrix product on one device. (A faster routine of
# another library may therefore lie above these lines. For a record of an H200 the
# picture also has the limits of the data sheet, as computed in Chapter 2.) The sloping
# line is the copy bandwidth times the operations per byte. An operation that does
# little arithmetic per byte and moves its data as fast as this copy lies on the line,
# *if its data are not in a cache*. Arrays of some megabytes may lie in the cache, whose
# bandwidth is higher, and their points may lie above the line. The share of the flat
# line that a program reaches is the efficiency of its arithmetic.
#
# *Predict before you run*: the run sorts each library's forms of the four operations.
# On one context, for how many of the four is MXNet's fastest form faster than NumPy's?

# %%
chapter.predict("operations in which MXNet's fastest form wins", None)
if __name__ == "__main__":
    runs = chapter.measure("timing")
    fastest = {}
    for line in runs[0].lines_of(TimingRecord):
        key = line.operation, line.library
        seconds = numpy.median(line.seconds)
        fastest[key] = min(seconds, fastest.get(key, seconds))
    wins = [
        fastest[name, "MXNet"] < fastest[name, "NumPy"]
        for name in ("x2", "sum", "trig", "product")
    ]
    chapter.answer("operations in which MXNet's fastest form wins", sum(wins))
chapter.score()

# %% [markdown]
# Which operations could one predict? The safest is sin^2/cos^2, because one kernel
# needs a single pass over the numbers, whereas NumPy needs one for each of six
# operations. To double numbers, all libraries must move the same bytes. For the sum and
# the product the time depends on how well a library's routine suits the processor,
# which only a measurement shows.
#
# Compare only rows with the same workload and device, and treat a difference as real
# only if the quartile ranges do not overlap. Then compare the forms of one library: the
# form can matter more than the library. A row whose quartiles are far apart is
# unstable, and rule 3 says what to do: measure again on an idle machine, and believe
# neither number until they agree. The title of the picture names MXNet's slowest row:
# if that row is marked unstable, do not quote it. With two contexts, look at the
# copies: their bandwidth grows only if one context alone could not use all of the
# memory's bandwidth.
#
# For comparison, here are the fastest forms on one H200 and on its host, from a record.

# %%
fastest = {}
for line in chapter.record("h200/timing/book-gpu1.jsonl").lines_of(TimingRecord):
    if line.operation in ("x2", "sum", "trig", "product"):
        where = "H200" if "H200" in line.devices[0] else "host"
        key = line.operation, f"{line.library} on {where}"
        milliseconds = 1e3 * numpy.median(line.seconds)
        fastest[key] = min(milliseconds, fastest.get(key, milliseconds))
for (operation, who), milliseconds in fastest.items():
    print(f"{operation:8} {who:16} {milliseconds:10.3f} ms")
on_host, on_gpu = fastest["sum", "PyTorch on host"], fastest["sum", "PyTorch on H200"]
print(
    f"the sum of 4 MB: the host takes {on_host / on_gpu:.2f} times as long in PyTorch"
)
assert (
    on_host < on_gpu < fastest["sum", "MXNet on H200"] < fastest["sum", "NumPy on host"]
)
products = [fastest["product", f"{who} on H200"] for who in ("PyTorch", "MXNet")]
assert max(products) / min(products) < 1.01

# %% [markdown]
# For the small sum the GPU does not pay, compared with the 16 cores of its host under
# PyTorch, while NumPy on that host takes longer than both libraries on the GPU. For the
# product the GPU pays, and there the two libraries take the same time within one per
# cent. One explanation is that both call a routine of cuBLAS, NVIDIA's library for
# matrix products.
#
# Why does a small sum take so long on the GPU? A part of its time is the launch, until
# the call returns. The same record tells how large this part is.

# %%
for line in chapter.record("h200/timing/book-gpu1.jsonl").lines_of(TimingRecord):
    if (line.operation, line.form) == ("sum", "as written") and "H200" in line.devices[
        0
    ]:
        part = numpy.median(line.naive_seconds) / numpy.median(line.seconds)
        print(f"{line.library}: the launch is {part:.0%} of the time of the sum")
        assert (part > 0.5) == (line.library == "PyTorch")

# %% [markdown]
# In PyTorch most of the time is the launch. In MXNet it is less than half, so something
# else costs time as well: its sum takes longer on the device, or it waits longer.
#
# ## How much of the peak does training use?
#
# The *model FLOP utilisation* (MFU) is the arithmetic of a model per second divided by
# the peak of the device. It counts the operations that the model needs, not those that
# a program happens to do. LeNet's two convolutions and two dense layers need `2 * (9 *
# 20 * 26**2 + 500 * 50 * 9**2 + 800 * 128 + 128 * 10) = 4.5e6` operations per image for
# the forward pass. The backward pass needs about twice as many, which gives 13.5e6.

# %%
run = chapter.record("h200/multiple_gpus_concise/book-gpu1.jsonl")
images_per_second = 60_000 / numpy.median([epoch.seconds for epoch in run.epochs[1:]])
mfu = 13.5e6 * images_per_second / 67e12  # the float32 peak of an H200
print(f"LeNet on an H200, batch 256: {images_per_second:,.0f} images/s, MFU {mfu:.1%}")
version, commit = run.header.versions["d2lpar"], run.header.git_commit[:7]
print(f"(measured with d2lpar {version}, commit {commit}; without TF32)")
assert not run.header.gpu_build["tf32"]
assert mfu < 0.1

# %% [markdown]
# For comparison, the largest Llama 3 was trained at an MFU of 0.38 to 0.43 on thousands
# of GPUs [5]. LeNet with 256 images is far below that: at the card's peak its
# arithmetic would fill less than a tenth of the time, as the cell asserts. A second
# card halves the arithmetic per card. What fills the rest of the step may shrink as
# well, such as the time for reading and writing memory, or it may not, such as Python's
# time. A low MFU is therefore a warning not to expect half the time from a second card,
# but it does not show the reason. Chapter 6 looks for it.
#
# ## Summary
#
# > **Takeaway.** Time = wait, clock, work, wait, clock. A time is at least
# > `operations / peak`, and at least `bytes / bandwidth` for data that are not in a
# > cache.
#
# Wait before both readings of the clock. Warm up; repeat, and report the median, its
# spread and n; check the result while you time it; mind new memory. A clock that does
# not wait measures Python, on CPU contexts as well. A ratio needs equal work on both
# sides: the same numbers, the same type, the same result.
#
# ## Exercises
#
# 1. Make 10, 100 and 300 calls of `np.tan(x)` in a row, read the clock without waiting
#    and after waiting, and divide by the number of calls. Repeat this with 10 x 10
#    numbers. *(Without waiting it is Python's time per call, for both sizes. After
#    waiting it is at least the larger of Python's and the device's. For 10 x 10 numbers
#    this can be Python's, and then both clocks nearly agree.)*
# 2. Which work is worth a second device? Time `x + 1`, `np.tan(x)` and the product of
#    two 1,000 x 1,000 matrices on one device and, split by rows, on two; then the same
#    with 30 x 30 numbers. *(With 30 x 30 numbers the launches decide, and two devices
#    need two. With 1,000 x 1,000 compare the ratios: tan and the product compute much
#    per number, so they can gain if each context has its own core. `x + 1` is limited
#    by the memory, which CPU contexts share, so it can gain less. If all ratios are
#    near 1, the contexts share a core.)*
# 3. *On paper.* A core copies large arrays at 20 GB/s. It sums 1,000,000 float32
#    numbers, again and again, in 0.1 ms each time. Is the clock wrong? How can you find
#    out? *(`4e6 / 0.1e-3 = 40e9`, twice the bandwidth of the copy. The clock can be
#    right if the 4 MB lie in a cache. Sum a hundred times as many numbers: 400 MB are
#    more than the cache of nearly any processor holds, so a time far below `400e6 /
#    20e9 = 20 ms` would be suspect.)*
# 4. *On paper.* A program queues 1,000 operations of 2 ms each. Python needs 0.05 ms
#    for each call. What does a clock say that does not wait, and one that waits?
#    *(`1,000 * 0.05 = 50 ms` and `1,000 * 2 = 2,000 ms`. The first one is
#    `2 / 0.05 = 40` times too fast.)*
# 5. *On paper.* Someone reports 30 TFLOP/s for a float32 product on a T4. What do you
#    ask? *(Its float32 peak is 8.1 TFLOPS [6]. Ask whether they waited, whether the
#    result was checked, and whether it was float32: tensor cores reach 65 in float16.)*
# 6. *On paper.* A model of 7 billion parameters needs about 6 operations per parameter
#    and token in training. One H200 trains 10,000 tokens per second in bf16. What is
#    the MFU, with a peak of 990 TFLOPS? *(`6 * 7e9 * 1e4 = 4.2e14` operations per
#    second, `4.2e14 / 990e12 = 0.42`.)*
#
# **Puzzles.** `python -m d2lpar.puzzles` has a bug to repair: a clock that stops too
# early.
#
# ## Sources
#
# - [1] Least-squares notes on GPU computing (in Korean), `2022_05_03.ipynb` of
#   <https://github.com/Daegeun02/GPGPU>
# - [2] "GPU Data Science", a wiki (in Korean), `_wiki/GPU-Data-Science.md` of
#   <https://github.com/likejazz/likejazz.github.io>
# - [3] GPUSOROBAN, a blog (in Japanese), <https://soroban.highreso.jp/blog/blog-2326/>
# - [4] *Data Science for Biostatisticians*,
#   <https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb>
# - [5] Llama Team, "The Llama 3 Herd of Models", <https://arxiv.org/abs/2407.21783>
# - [6] NVIDIA, "T4 Tensor Core GPU",
#   <https://www.nvidia.com/en-us/data-center/tesla-t4/>

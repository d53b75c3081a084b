# %% [markdown]
# # Timing devices honestly
#
# How long does a device take?
#
# ![Time until calls have returned, a tick, and until their work has finished, a dot: on
# cores and on an H200](../figures/timing/clocks.png)
#
# **In one sentence.** A clock that does not wait reads at least twice too little in
# each row of this picture, and says how long *Python* took to hand over the work.
#
# Four published sources time a processor against a GPU, and two of them made this
# mistake. One doubles 50,000,000 numbers on a T4 GPU in **0.64 ms** [1]. No T4 can do
# this, and a line of arithmetic is enough to find out. In this chapter you learn five
# rules for timing work that runs asynchronously, and a function of twelve lines that
# follows the first four.
#
# Run this chapter as a notebook, or as `python chapters/timing.py --num-devices 1,2`.

# %%
import resource
import time
from statistics import median, quantiles
from textwrap import fill

import numpy

from d2lpar import allreduce, chapter, devices, np, npx, timing
from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import StepRecord, TimingRecord

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
host = numpy.random.default_rng(0).random((1000, 1000), dtype="float32")

# %% [markdown]
# ## Rule 1: wait
#
# ![A call returns before its work is done](../docs/drawings/asynchronous-call.svg)
#
# A call of MXNet, or of PyTorch on a GPU, merely appends the operation to the device's
# queue and returns. Background threads execute the queue. Python blocks only when it
# needs a value: to print it, to convert it (`asnumpy`, `float`), or when it is told to
# wait (`y.wait_to_read()`, `npx.waitall()`; in PyTorch `torch.cuda.synchronize()`).
#
# *Predict before you run*: a program queues 1,000 operations. Python needs 0.05 ms for
# each call, and the device 2 ms for each operation. How many milliseconds does a clock
# read that does not wait?

# %%
chapter.predict("ms by a clock that does not wait", None)  # your number for None
chapter.answer("ms by a clock that does not wait", 1_000 * 0.05)

x = np.array(host, ctx=two[0])
npx.waitall()  # the copy has finished before we start the clock
naive, waited = [], []
for _ in range(10):
    start = time.perf_counter()
    y = np.tan(x)
    naive.append(1e3 * (time.perf_counter() - start))
    npx.waitall()
    waited.append(1e3 * (time.perf_counter() - start))
print("tan of a million numbers, medians of 10:", end=" ")
print(f"returned {median(naive):.3f}, finished {median(waited):.3f} ms")

# %% [markdown]
# The *naive* clock of the example reads 50 ms and not 2,000, because it only measures
# how long Python takes to enqueue the operations. This time depends on the number of
# calls, and not on the size of the arrays (exercise 1). Because calls return early, one
# Python thread can keep several devices busy: while one device computes, Python
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
# The following function obeys four of the five rules; the fifth is about the operation
# that you pass to it.


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
    low, middle, high = quantiles(milliseconds[warmup:], n=4)
    first = f"first call {milliseconds[0]:.2f} ms"
    return f"{middle:.2f} ms (quartiles {low:.2f}-{high:.2f}, n = {repeats}), {first}"


right = numpy.tan(host)
print("tan:    ", measure(lambda device: np.tan(x), two[0], right))
print("product:", measure(lambda device: np.dot(x, x), two[0], host @ host))

# %% [markdown]
# The package provides a version of this function for several devices. `timing.measure`
# first starts the work on every device and only then waits for all of them, so that
# they run concurrently. It keeps both clocks, and checks the joined results of all
# devices. `timing.measure_host` does the same for NumPy.
#
# Are two devices faster, if each takes one half of the rows? One device and two take
# turns, because the speed of a machine drifts, and the rule of Chapter 1 judges them.


# %%
def tan(chosen: list) -> timing.Timing:
    rows = numpy.array_split(host, len(chosen))
    x = {d: np.array(part, ctx=d) for d, part in zip(chosen, rows)}
    return timing.measure(lambda d: np.tan(x[d]), chosen, expected=right, name="tan")


def verdict(one, other):
    """What two lists of times say: their medians' ratio, if their quartiles differ."""
    (low, middle, high), (low_of_other, of_other, high_of_other) = (
        quantiles(seconds, n=4) for seconds in (one, other)
    )
    if low_of_other <= high and low <= high_of_other:
        return "no difference: the quartiles overlap"
    return f"{of_other / middle:.2f} times as long"


times = {1: [], 2: []}
for _ in range(5):
    for n in times:
        latest = tan(two[:n])
        times[n] += latest.seconds
numpys = timing.measure_host(lambda: numpy.tan(host), threads=1, name="NumPy's tan")
print(f"one context: {1e3 * median(times[1]):.2f} ms")
print("two contexts, one thread each:", verdict(times[1], times[2]))
print("NumPy, one thread:", verdict(times[1], numpys.seconds))

# %% [markdown]
# If each context has a core to itself, expect about one half. But compare with NumPy,
# too: on a processor with wide vector registers it computes many tangents with one
# instruction, and may be faster on one core than MXNet on two. Always compare several
# devices with the best single-device implementation.
#
# Timing a wrong result is meaningless, and so is a ratio of two different computations.
# The package raises an error in both cases:

# %%
part = timing.measure_host(lambda: numpy.tan(host[:500]), threads=1, name="half of it")
for wrong in (
    lambda: timing.measure_host(lambda: host, 1, expected=right, name="no tan"),
    lambda: timing.ratio(part, numpys),
):
    try:
        wrong()
    except timing.TimingError as error:
        print(fill(str(error), 88))

# %% [markdown]
# ## Rule 5: new memory costs time
#
# A large result in a new array needs memory that the process does not have yet. The
# operating system provides it in pages, usually of 4 KiB each, when a page is first
# written. This event is called a *page fault*, and the clock counts it, too. On CPU
# contexts MXNet requests new memory for every result of more than 32 MB, and often for
# smaller ones, and returns it afterwards. On GPUs it keeps freed memory for the next
# result.
#
# *Predict before you run*: we compute z = 2 * x for 10,000,000 numbers of 4 bytes, in a
# new array and in an existing one. How many pages of 4 KiB does a new array need?

# %%
chapter.predict("pages of a new array", None)
chapter.answer("pages of a new array", numpy.ceil(10_000_000 * 4 / 4096))
x = np.ones(10_000_000, ctx=two[0])
z = np.zeros_like(x)
npx.waitall()
forms = {
    "in an old array": lambda: np.multiply(x, 2, out=z),
    "in a new array": lambda: 2 * x,
}
seconds, faults = {name: [] for name in forms}, dict.fromkeys(forms, 0)
for repetition in range(8):  # in turn; the first warms up
    for name, double in forms.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        double()
        npx.waitall()
        if repetition:
            seconds[name].append(time.perf_counter() - start)
            faults[name] += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for name in forms:
    print(f"{name}: {1e3 * median(seconds[name]):.2f} ms, n = 7,", end=" ")
    print(f"{faults[name] // 7:,} page faults")
print("in a new array:", verdict(*seconds.values()))

# %% [markdown]
# The two versions perform the same multiplications. If the second line has about as
# many page faults as there are pages, the difference is what new memory costs; with
# larger pages there are fewer faults. Static memory (Chapter 5) and fused kernels
# (Chapter 13) need fewer new arrays.
#
# ## What an all-reduce costs
#
# A second device saves work but costs an all-reduce, the sum of both devices' arrays
# (Chapter 1). As a model, a copy takes a fixed time and a time per byte. LeNet's
# gradients are half a megabyte, 130,000 numbers. A much smaller array shows how much of
# their all-reduce is the fixed time.


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


small, lenets = map(all_reduce, (1_000, 130_000))
print(fill(str(small), 88), fill(str(lenets), 88), sep="\n")
share = 1 - small.median / lenets.median
print(f"{share:.0%} of LeNet's all-reduce are its bytes:", end=" ")
if share < 1 / 3:
    print("fewer and larger sums would help")
elif share > 2 / 3:
    print("fewer bytes would help")
else:
    print("fewer sums and fewer bytes would help alike")

# %% [markdown]
# Chapter 7 does both. Whether a second device is worth an all-reduce depends on what it
# saves in the same training, which Chapter 6 measures.
#
# ## Four published times, checked with arithmetic
#
# Before you believe a published time, compute two lower bounds: the bytes divided by
# the memory bandwidth, and the operations divided by the peak rate. If the data do not
# fit into a cache, no correct time is below the larger of the two.
#
# *Predict before you run*: a product of two matrices of 15,360 x 15,360 was timed as
# 0.457 s on a GPU [3]. How many TFLOP/s is that?

# %%
T4_BANDWIDTH = 320e9  # bytes per second
x2_bytes = 50_000_000 * 4 * 2  # each number is read and written once
print(f"x2, T4: at least {1e3 * x2_bytes / T4_BANDWIDTH:.2f} ms")
# sin, **2, cos and **2 read and write 400 MB each, / reads two arrays and writes one,
# and sum reads one.
trig_bytes = 10_000**2 * 4 * (4 * 2 + 3 + 1)
print(f"trig, T4: at least {1e3 * trig_bytes / T4_BANDWIDTH:.0f} ms")
chapter.predict("TFLOP/s of the product", None)
operations = 2 * 15_360**3  # a product: 15,360 multiplications and additions per number
print(f"product, CPU: {operations / 296.9 / 1e9:.0f} GFLOP/s")
chapter.answer("TFLOP/s of the product", round(operations / 0.457 / 1e12, 1))

# %% [markdown]
# | source and operation | published | our verdict |
# |---|---|---|
# | least-squares notes [1], x2 | T4 0.64 to 0.90 ms | below the bound: rule 1 |
# | GPU wiki [2], sum of sin^2/cos^2 | T4 18.9 ms, CPU 738 ms | possible |
# | GPUSOROBAN [3], product | GPU 0.457 s, CPU 297 s | the clock waited |
# | a course [4], sum of 100,000 x 10 | GPU 28.6 to 68.8 % less | rules 1 and 2 |
#
# The wiki's `%timeit` does not wait either, but its 1,000 loops fill the queue until it
# blocks, so its mean can be right. GPUSOROBAN does not name its GPU, so nobody can
# compare 15.9 TFLOP/s with a peak.
#
# The next cell times the four operations in NumPy and MXNet, and in PyTorch if it is
# installed, in several *forms*: as the source wrote them, in place, as one compiled
# kernel, and others (the [appendix](../docs/appendix.md#what-the-processor-allows)
# explains them, and a *roofline* plot). In the tables one context has all cores, and
# two contexts share them.

# %%
if __name__ == "__main__":
    runs = chapter.measure("timing")

# %% [markdown]
# Here are the fastest forms in two records of the published sizes, by the same rule of
# quartiles. The first record is of one context with all cores.

# %%
for name in ("timing/book-cpu1.jsonl", "h200/timing/book-gpu1.jsonl"):
    record, fastest = chapter.record(name), {}
    for line in record.lines_of(TimingRecord):
        on_host = line.devices[0].startswith("host")
        if line.library == "MXNet" and line.form in ("as written", "dense layer"):
            assert median(line.seconds) > 2 * median(line.naive_seconds)
        key = line.operation, line.library, on_host
        fastest[key] = min(fastest.get(key, line.seconds), line.seconds, key=median)
    version, commit = record.header.versions["d2lpar"], record.header.git_commit[:7]
    print(f"MXNet on {record.header.devices[0]}, d2lpar {version}, commit {commit}")
    for operation in ("x2", "sum", "trig", "product"):
        ours = summarize(fastest[operation, "MXNet", False])
        theirs = summarize(fastest[operation, "NumPy", True])
        said = "no difference"
        if not ours.overlaps(theirs):
            said = "faster" if ours.is_below(theirs) else "slower"
        print(f"  {operation:8} {1e3 * ours.median:10.3f} ms, NumPy ", end="")
        print(f"{1e3 * theirs.median:10.3f} ms: {said}")
chapter.score()

# %% [markdown]
# For sin^2/cos^2 one kernel needs a single pass over the numbers, whereas NumPy needs
# one for each of six operations. For the other three only a measurement shows how well
# a library's routine suits the processor.
#
# ## How much of the peak does training use?
#
# The *model FLOP utilisation* (MFU) is the arithmetic of a model per second divided by
# the peak of the device. LeNet's two convolutions and two dense layers need `2 * (9 *
# 20 * 26**2 + 500 * 50 * 9**2 + 800 * 128 + 128 * 10) = 4.5e6` operations per image for
# the forward pass. The backward pass needs about twice as many, which gives 13.5e6. We
# read two records of LeNet in Gluon on an H200, whose float32 peak is 67 TFLOPS: its
# steps without and with a *CUDA graph*, which lets Python launch a whole pass by one
# call.

# %%
study = chapter.record("h200/scaling/book-1thread-concise-gpu2.jsonl")
(step,) = (
    median(line.seconds)
    for line in study.lines_of(StepRecord)
    if (line.num_devices, line.global_batch_size) == (1, 256)
)
training = chapter.record("h200/multiple_gpus_concise/book-gpu1.jsonl")
epoch = median(epoch.seconds for epoch in training.epochs[1:])
assert [r.header.gpu_build["cuda_graphs"] for r in (study, training)] == [False, True]
for record, images_per_second in ((study, 256 / step), (training, 60_000 / epoch)):
    graph = "with" if record.header.gpu_build["cuda_graphs"] else "without"
    mfu = 13.5e6 * images_per_second / 67e12
    print(f"{graph} a CUDA graph: {images_per_second:,.0f} images/s, MFU ", end="")
    print(f"{mfu:.1%}, commit {record.header.git_commit[:7]}")
    assert not record.header.gpu_build["tf32"] and mfu < 0.1

# %% [markdown]
# In both forms LeNet with 256 images uses less than a tenth of the peak, as the cell
# asserts; the largest Llama 3 was trained at an MFU of 0.38 to 0.43 on thousands of
# GPUs [5]. A low MFU does not show its reason. The two records differ in the graph, and
# in how biases are computed; in both most of the peak is unused. [A table of Chapter
# 6](scaling.py) has both forms on one and two H200s.
#
# ## Summary
#
# > **Takeaway.** Time = wait, clock, work, wait, clock. A time is at least
# > `operations / peak`, and at least `bytes / bandwidth` for data that are not in a
# > cache.
#
# Wait before both readings of the clock. Warm up; repeat, and report the median, its
# spread and n; check the result while you time it; mind new memory. A ratio needs equal
# work on both sides: the same numbers, the same type, the same result.
#
# ## Exercises
#
# 1. Make 10, 100 and 300 calls of `np.tan(x)` in a row, read the clock without waiting
#    and after waiting, and divide by the number of calls. Repeat this with 10 x 10
#    numbers. *(Without waiting it is Python's time per call, for both sizes. After
#    waiting it is at least the larger of Python's and the device's. For 10 x 10 numbers
#    this can be Python's, and then both clocks nearly agree.)*
# 2. *On paper.* A core copies large arrays at 20 GB/s. It sums 1,000,000 float32
#    numbers, again and again, in 0.1 ms each time. Is the clock wrong? How can you find
#    out? *(`4e6 / 0.1e-3 = 40e9`, twice the bandwidth of the copy. The clock can be
#    right if the 4 MB lie in a cache. Sum a hundred times as many numbers: 400 MB are
#    more than the cache of nearly any processor holds, so a time far below `400e6 /
#    20e9 = 20 ms` would be suspect.)*
# 3. *On paper.* Someone reports 30 TFLOP/s for a float32 product on a T4. What do you
#    ask? *(Its float32 peak is 8.1 TFLOPS [6]. Ask whether they waited, whether the
#    result was checked, and whether it was float32: tensor cores reach 65 in float16.)*
# 4. *On paper.* A model of 7 billion parameters needs about 6 operations per parameter
#    and token in training. One H200 trains 10,000 tokens per second in bf16. What is
#    the MFU, with a peak of 990 TFLOPS? *(`6 * 7e9 * 1e4 = 4.2e14` operations per
#    second, `4.2e14 / 990e12 = 0.42`.)*
# 5. Repeat the course's measurement [4]: sum 100,000 x 10 numbers in NumPy and on a
#    device, and print `100 * (1 - device / NumPy)`, without and with waiting. *(Without
#    waiting it is the share that a launch saves, whatever the device. A value of -900
#    means that the device takes `1 + 900 / 100 = 10` times as long.)*
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

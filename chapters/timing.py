# %% [markdown]
# # Timing devices honestly
#
# How long does a device take, and is another one faster?
#
# ![Time until calls have returned, a tick, and until their work has finished, a dot: on
# cores and on an H200](../figures/timing/clocks.png)
#
# **In one sentence.** In each row of this picture a clock that does not wait shows less
# than half of the real time, because it measures how long Python needs to hand over the
# work.
#
# A published set of lecture notes [1] doubles 50,000,000 numbers on a T4 GPU in **0.90
# ms**. No T4 can do this, as a line of arithmetic shows. We learn five rules for
# timing, and one rule for saying that something is faster.
#
# Run this chapter as a notebook, or as `python chapters/timing.py --num-devices 1,2`.

# %%
import resource
import time
from statistics import median
from textwrap import fill

import numpy

from d2lpar import chapter, devices, np, npx
from d2lpar.records.kinds import TimingRecord

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
host = numpy.random.default_rng(0).random((1000, 1000), dtype="float32")

# %% [markdown]
# ## Rule 1: wait
#
# ![A call returns before its work is done](../docs/drawings/asynchronous-call.svg)
#
# A call of MXNet, or of PyTorch on a GPU, appends the operation to the device's queue
# and returns. Python waits only when it needs a value (`print(y)`, `y.asnumpy()`), or
# when we tell it to wait (`y.wait_to_read()`, `npx.waitall()`; in PyTorch
# `torch.cuda.synchronize()`).
#
# *Predict before you run*: a program queues 1,000 operations. Python needs 0.05 ms for
# each call, and the device 2 ms for each operation. How many milliseconds does a clock
# show that does not wait?

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
# The *naive* clock of the example shows 50 ms instead of 2,000 ms, because it measures
# how long Python needs to enqueue the operations. This time depends on the number of
# calls, and not on the size of the arrays (exercise 1).
#
# ## Rules 2, 3 and 4: warm up, repeat, check
#
# - **Warm up.** The first call may be slower, because threads are started and kernels
#   are loaded or compiled. Leave it out.
# - **Repeat.** Report the median, which is robust to outliers, with the range and the
#   number n of repetitions.
# - **Check the result** of every repetition. Wrong results are often fast.
#
# The function `measure` follows rules 1 to 4. (For several devices the package has
# `timing.measure`.)


# %%
def measure(fn, device, expected, warmup=2, repeats=7):
    """The milliseconds of fn(device): median, range and number."""
    milliseconds = []
    for _ in range(warmup + repeats):
        npx.waitall()
        start = time.perf_counter()
        result = fn(device)
        npx.waitall()
        milliseconds.append(1e3 * (time.perf_counter() - start))
        assert numpy.allclose(result.asnumpy(), expected, rtol=1e-5)
    first, kept = milliseconds[0], sorted(milliseconds[warmup:])
    spread = f"{kept[0]:.2f} to {kept[-1]:.2f}, n = {repeats}"
    return f"{median(kept):.2f} ms ({spread}); first call {first:.2f} ms"


right = numpy.tan(host)
print("tan:    ", measure(lambda device: np.tan(x), two[0], right))
print("product:", measure(lambda device: np.dot(x, x), two[0], host @ host))

# %% [markdown]
# ## Is it faster?
#
# Program B has a smaller median than program A. Is it faster, or was A disturbed? We
# need a rule that rarely tells equal programs apart.
#
# **Take turns.** The speed of a machine drifts. We therefore time A, B, A, B, and so
# on.
#
# **Compare turns.** In each turn we divide the time of A by the time of B. Whatever
# slows both sides of a turn alike cancels. The rule is about these ratios, and it needs
# at least **four turns**:
#
# - B is *faster* or *slower* if the 95 % *interval* of the mean log ratio excludes 1.
#   It is Student's t interval [2], which contains the true ratio in 95 % of cases.
# - Both are *the same within 15 %* if the 90 % interval lies between 1/1.15 and 1.15.
# - Otherwise the times do not tell it, and more turns may.
#
# We take logarithms because a factor of 2 and a factor of 1/2 are equally far from 1.
# The order alternates, A B and B A, so that the second place favours neither.
# [The rule, simulated](../docs/timing-rule.md) says how often it errs.
#
# **Repeat the process.** Times of one process share, for example, its memory layout.
# Therefore `d2lpar run --repeats 4` starts a process of each for every turn.
#
# `chapter.verdict` follows this rule. Are two devices faster if each computes half of
# the rows? Is NumPy faster?


# %%
def tan_on(chosen):
    """Milliseconds of a tangent whose rows are split over the devices."""
    parts = numpy.array_split(host, len(chosen))
    parts = [np.array(part, ctx=device) for part, device in zip(parts, chosen)]
    npx.waitall()
    start = time.perf_counter()
    results = [np.tan(part) for part in parts]
    npx.waitall()
    milliseconds = 1e3 * (time.perf_counter() - start)
    assert numpy.allclose(numpy.concatenate(results), right, rtol=1e-5)
    return milliseconds


def tan_of_numpy():
    """Milliseconds of a tangent in NumPy."""
    start = time.perf_counter()
    numpy.tan(host)
    return 1e3 * (time.perf_counter() - start)


one, both, numpys = [], [], []
for turn in range(9):
    sides = [(one, tan_on, two[:1]), (both, tan_on, two), (numpys, tan_of_numpy)]
    for times, program, *chosen in sides if turn % 2 == 0 else reversed(sides):
        times.append(program(*chosen))
for name, times in (("tan on two contexts", both), ("NumPy's tan", numpys)):
    names = "tan on one context", name
    print(fill(chapter.verdict(one[1:], times[1:], names, "ms"), 88))

# %% [markdown]
# If each context has a core to itself, two contexts should be about twice as fast. If
# the processor has wide vector registers, NumPy computes many tangents with one
# instruction. Always compare several devices with the best program for one device.
#
# ## A program compared with itself
#
# How good is a rule? It should not tell a program apart from *itself*, and it should
# tell it apart from a program with twice the work.


# %%
def twice(chosen):
    """Milliseconds of two tangents, one after the other."""
    return tan_on(chosen) + tan_on(chosen)


a, a2, double_work = [], [], []
for turn in range(8):
    sides = [(a, tan_on), (a2, tan_on), (double_work, twice)]
    for times, program in sides if turn % 2 == 0 else reversed(sides):
        times.append(program(two[:1]))
for name, times in (("A again", a2), ("twice the work", double_work)):
    print(fill(chapter.verdict(a, times, ("A", name), "ms"), 88))

# %% [markdown]
# If we compare a program with itself, a difference that a rule finds is a *false
# alarm*. Our rule raises one in 5 % of cases. A popular rule of thumb says that two
# programs differ if their *quartiles*, between which the middle half of the times lies,
# do not overlap. Of two samples of three times it tells about `6 / 20 = 30 %` apart: of
# 20 orders of three A's and three B's it tells four always, such as A A A B B B and A A
# B A B B, and four more in about half of the cases.
#
# "Not told" does not mean "equal". If we claim that something costs nothing, we need
# the second answer, the same within 15 %.
#
# ## Rule 5: new memory costs time
#
# A large result in a new array needs memory that the process does not have yet. The
# operating system provides it in *pages*, usually of 4 KiB, when they are first
# written. Such a first access is a *page fault*, and the clock includes its time. On
# CPU contexts MXNet requests new memory for every result of more than 32 MB. On GPUs it
# keeps freed memory for the next result.
#
# *Predict before you run*: we compute z = 2 * x for 10,240,000 numbers of 4 bytes, in a
# new array and in an existing one. How many pages of 4 KiB does a new array need?

# %%
chapter.predict("pages of a new array", None)
chapter.answer("pages of a new array", 10_240_000 * 4 // 4096)
x = np.ones(10_240_000, ctx=two[0])
z = np.zeros_like(x)


def double(out):
    """Milliseconds and page faults of 2 * x, in an array or in a new one."""
    npx.waitall()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    np.multiply(x, 2, out=out)
    npx.waitall()
    milliseconds = 1e3 * (time.perf_counter() - start)
    return milliseconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


samples = [double(out) for turn in range(8) for out in ((z, None), (None, z))[turn % 2]]
old = samples[::4] + samples[3::4]
new = samples[1::4] + samples[2::4]
old, new = (list(zip(*same)) for same in (old[1:], new[1:]))
for name, (milliseconds, faults) in (("existing", old), ("new", new)):
    print(f"in the {name} array: {median(milliseconds):.2f} ms,", end=" ")
    print(f"{median(faults):,.0f} page faults")
names = "2 * x in the existing array", "2 * x in a new array"
print(fill(chapter.verdict(old[0], new[0], names, "ms"), 88))

# %% [markdown]
# Both versions perform the same multiplications. If the second one has about as many
# page faults as a new array has pages, the difference is the cost of new memory. Static
# memory (Chapter 5) and fused kernels (Chapter 13) need fewer new arrays.
#
# ## Four published times, checked with arithmetic
#
# Before you believe a published time, compute two lower bounds: the bytes divided by
# the memory bandwidth, and the operations divided by the peak rate. No correct time is
# below them, unless the data fit into a cache.
#
# *Predict before you run*: a product of two matrices of 15,360 x 15,360 was timed as
# 0.457 s on a GPU [4]. How many TFLOP/s is that?

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
chapter.answer("TFLOP/s of the product", operations / 0.457 / 1e12)

# %% [markdown]
# | source and operation | published | our verdict |
# |---|---|---|
# | least-squares notes [1], x2 | T4 0.64 and 0.90 ms | below the bound: rule 1 |
# | GPU wiki [3], sum of sin^2/cos^2 | T4 18.9 ms, CPU 738 ms | possible |
# | GPUSOROBAN [4], product | GPU 0.457 s, CPU 297 s | the clock waited |
# | a course [5], sum of 100,000 x 10 | GPU 28.6 to 68.8 % less | rules 1 and 2 |
#
# The wiki's clock does not wait either. However, its 1,000 calls fill the queue until
# Python has to wait, so its mean can be right. GPUSOROBAN does not name its GPU, so we
# cannot compare 15.9 TFLOP/s with a peak.
#
# The next cell times the four operations in several *forms*
# ([appendix](../docs/appendix.md#what-the-processor-allows)), for example as one
# compiled kernel. Rows of one context use all cores. In rows of two contexts each uses
# half of them.

# %%
if __name__ == "__main__":
    runs = chapter.measure("timing")

# %% [markdown]
# Here are the published sizes, from records of cores and of an H200 with its host, each
# library in its fastest form.

# %%
operations = ("x2", "sum", "trig", "product")
for name in ("timing/book-cpu1.jsonl", "gpus/timing/book-gpu1.jsonl"):
    fastest = {}
    for line in chapter.record(name).lines_of(TimingRecord):
        row = fastest.setdefault(f"{line.library}, {line.devices[0]}", {})
        earlier = row.get(line.operation, float("inf"))
        row[line.operation] = min(earlier, 1e3 * median(line.seconds))
    print(f"{'ms':40}" + "".join(f"{operation:>11}" for operation in operations))
    for place, row in fastest.items():
        print(f"{place:40}" + "".join(f"{row[name]:11,.3f}" for name in operations))
chapter.score()

# %% [markdown]
# Compare a device with the *fastest* row of its host. (NumPy's element-wise operations
# use only one of the threads.) For the sum of a million numbers PyTorch on the host is
# faster than the H200. On the H200 PyTorch doubles numbers faster than MXNet. For
# sin^2/cos^2 MXNet's fastest form is one kernel, which reads the numbers once.
#
# ## Summary
#
# > **Takeaway.** Time = wait, clock, work, wait, clock. A time is at least
# > `operations / peak`, and at least `bytes / bandwidth` for data that are not in a
# > cache. "Faster" needs four turns, and an interval of their ratios that excludes 1.
#
# ## Exercises
#
# 1. Make 10, 100 and 300 calls of `np.tan(x)` in a row, read the clock without waiting
#    and after waiting, and divide by the number of calls. Repeat this with 10 x 10
#    numbers. *(Without waiting it is Python's time per call, for both sizes. After
#    waiting it is at least the larger of Python's time and the device's time.)*
# 2. *On paper.* A core copies large arrays at 20 GB/s. It sums 1,000,000 float32
#    numbers, again and again, in 0.1 ms each time. Is the clock wrong? How can you find
#    out? *(`4e6 / 0.1e-3 = 40e9`, twice the bandwidth of the copy. The clock can be
#    right if the 4 MB lie in a cache. Sum 100,000,000 numbers, which fit into no cache.
#    A time far below `400e6 / 20e9 = 20 ms` would be suspect.)*
# 3. *On paper.* Someone reports 30 TFLOP/s for a float32 product on a T4. What do you
#    ask? *(Its float32 peak is 8.1 TFLOPS [6]. Ask whether they waited, whether the
#    result was checked, and whether it was float32: tensor cores reach 65 in float16.)*
# 4. How many turns does it take to find a true factor of 1.2? Draw n times A from a
#    log-normal distribution with a standard deviation of 10 %, and n times B that are
#    1.2 times as long. Count how often `compare(of_turns(A), of_turns(B)).is_told`,
#    with both functions from `d2lpar.records.rule`. *(In about 40 % of cases with n =
#    4, and in more than 80 % from n = 8 on.)*
# 5. *On paper.* A program is compared with itself, and you stop as soon as the rule
#    says "faster". Is the share of false alarms 5 %? *(It is larger, because each look
#    is another chance: fix n beforehand.)*
#
# ## Sources
#
# - [1] Least-squares notes on GPU computing (in Korean), `2022_05_03.ipynb` of
#   <https://github.com/Daegeun02/GPGPU>
# - [2] Student, "The Probable Error of a Mean", *Biometrika* 6, 1908
# - [3] "GPU Data Science", a wiki (in Korean), `_wiki/GPU-Data-Science.md` of
#   <https://github.com/likejazz/likejazz.github.io>
# - [4] GPUSOROBAN, a blog (in Japanese), <https://soroban.highreso.jp/blog/blog-2326/>
# - [5] *Data Science for Biostatisticians*,
#   <https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb>
# - [6] NVIDIA, "T4 Tensor Core GPU",
#   <https://www.nvidia.com/en-us/data-center/tesla-t4/>

# %% [markdown]
# # Timing, and one rule
#
# In Chapter 2 we waited for the devices before we read the clock. Here we look at what
# a clock shows that does not wait. Then we agree on one rule for when a program is
# *faster*, and when two programs are equally fast.
#
# ![Time until calls have returned, a tick, and until their work has finished, a dot: on
# cores and on an H200](../figures/timing/clocks.png)
#
# A published set of lecture notes [1] doubles 50,000,000 numbers on a T4 GPU in **0.90
# ms**. No T4 can do this (Chapter 2).
#
# Run this chapter as a notebook, or as `python chapters/timing.py --num-devices 1,2`.

# %%
import time
from textwrap import fill

import numpy

from d2lpar import chapter, devices, np, npx

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
for _ in range(3):
    start = time.perf_counter()
    y = np.tan(x)
    returned = 1e3 * (time.perf_counter() - start)
    npx.waitall()
    finished = 1e3 * (time.perf_counter() - start)
    print(f"tan of a million numbers: {returned:.3f} ms, then {finished:.3f} ms")

# %% [markdown]
# The clock of the example measures how long Python needs to enqueue the operations. The
# same difference stands between the two times of each printed line.
#
# ## Rules 2, 3 and 4: warm up, repeat, check
#
# - **Warm up.** The first call may be slower, because threads are started and kernels
#   are loaded or compiled. Leave it out.
# - **Repeat.** Report the median, which ignores outliers, with the range and the number
#   n of repetitions.
# - **Check the result** of every repetition. Wrong results are often fast.
#
# In the cells below each timing function waits, and checks its result.
#
# ## Is it faster?
#
# Program B has a smaller median than program A. Is it faster, or was A disturbed? We
# need a rule that rarely finds a difference between equal programs.
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
# - Otherwise we need more turns. A table marks this case with `?`.
#
# We take logarithms because "twice" and "half" are equally far from "equal". The order
# alternates, A B and B A, so that the second place has no advantage.
# [Simulations](../docs/usage.md#when-something-is-faster) say how often it errs.
#
# **Repeat the process.** Times of one process share, for example, its memory layout.
# Therefore `d2lpar run --repeats 4` starts a new process of each for every turn.
#
# `chapter.verdict` follows this rule. Are two devices faster if each computes half of
# the rows? Is NumPy faster?


# %%
right = numpy.tan(host)


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
# If each context has a core to itself, two contexts can be up to twice as fast. Where
# the processor has wide vector registers, NumPy computes many tangents with one
# instruction. Always compare several devices with the best program for one device.
#
# ## A program compared with itself
#
# How good is the rule? It should find no difference between a program and *itself*, and
# it should find one to a program with twice the work.


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
# A difference between a program and itself is a *false alarm*. By its definition our
# rule raises one in 20 such comparisons, so the first line may show one. To claim that
# something costs nothing, we need the answer "the same within 15 %".
#
# ## Four published times
#
# Before you believe a published time, compute two lower bounds: the bytes divided by
# the memory bandwidth, and the operations divided by the peak rate.
#
# | source | operation | published | our verdict |
# |---|---|---|---|
# | notes [1] | x 2, 50,000,000 | T4 0.64, 0.90 ms | below the bound |
# | wiki [3] | sin^2/cos^2, 10,000^2 | T4 18.9 ms, CPU 738 ms | possible |
# | GPUSOROBAN [4] | product, 15,360^2 | GPU 0.457 s, CPU 297 s | possible |
# | a course [5] | sum, 100,000 x 10 | GPU 28.6 to 68.8 % less | did not wait |
#
# *Predict before you run*: the product of two matrices of 15,360 x 15,360 took 0.457 s.
# How many TFLOP/s is that?

# %%
chapter.predict("TFLOP/s of the product", None)
operations = 2 * 15_360**3  # 15,360 multiplications and additions per number
chapter.answer("TFLOP/s of the product", operations / 0.457 / 1e12)

# %% [markdown]
# The numbers of operations and seconds alone give this rate. It is possible if the
# GPU's peak is higher. The next cell times the four operations on your machine, each in
# several *forms*, for example as one compiled kernel, and draws what the processor
# allows. Compare a device with the fastest row of its host.

# %%
if __name__ == "__main__":
    runs = chapter.measure("timing")

chapter.score()

# %% [markdown]
# ## Summary
#
# > **Takeaway.** Time = wait, clock, work, wait, clock. A time is at least
# > `operations / peak`, and at least `bytes / bandwidth` for data that are not in a
# > cache. "Faster" needs four turns, and an interval of their ratios that excludes 1.
#
# ## Exercises
#
# 1. Make 10, 100 and 300 calls of `np.tan(x)` in a row, read the clock without waiting
#    and after waiting, and divide by the number of calls. *(Without waiting it is
#    Python's time per call. After waiting it is at least the larger of Python's time
#    and the device's time.)*
# 2. *On paper.* A core copies large arrays at 20 GB/s. It sums 1,000,000 float32
#    numbers, again and again, in 0.1 ms each time. Is the clock wrong? *(That is
#    `4e6 / 0.1e-3 = 40e9`, twice the bandwidth of the copy. The clock can be right if
#    the 4 MB lie in a cache. Sum 100,000,000 numbers, which fit into no cache. A time
#    far below `400e6 / 20e9 = 20 ms` would be suspect.)*
# 3. How many turns does it take to find a true factor of 1.2? Draw n times A from a
#    log-normal distribution with a standard deviation of 10 %, and n times B that are
#    1.2 times as long. Count how often `compare(of_turns(A), of_turns(B)).is_told`,
#    with both functions from `d2lpar.records.rule`. *(In about 40 % of cases with n =
#    4, and in more than 80 % from n = 8 on.)*
# 4. *Open.* You stop measuring as soon as the rule tells a difference. What is wrong?
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

# %% [markdown]
# # Arrays on a device
#
# Source: the least-squares notes, "Using PyCUDA's gpuarray class";
# the CryptoPunks notebook, "Parallelism and GPU computing",
# <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in Korean),
# <https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb>
#
# **What you will learn.** How numbers get to a device and back. Which arithmetic a
# device does on all numbers at once, and in which type. What doubling 50,000,000
# numbers costs, and where that time goes. When the trip to the device is worth it.
#
# Run this chapter cell by cell as a notebook, or as a program:
#
#     python chapters/arrays.py --devices auto
#     d2lpar run arrays --preset book          (50,000,000 numbers, as in the notes)
#
# The notes use PyCUDA's `gpuarray` on a GPU. Here the same is done with MXNet's arrays,
# on a GPU if MXNet can use one, else on a CPU context:

# %%
import cProfile
import io
import pstats
import time

import numpy
from matplotlib.figure import Figure

from d2lpar import chapter, devices, np

device = devices.parse("auto")[0]
print("the device of this chapter:", devices.label(device))

# %% [markdown]
# ## There and back
#
# A GPU has memory of its own ("device memory"). In C you would reserve room in it
# (`cudaMalloc`), copy the numbers there (`cudaMemcpyHostToDevice`), compute, copy the
# result back (`cudaMemcpyDeviceToHost`) and give the room back (`cudaFree`). An array
# library hides all but the two copies:
#
# | | to the device | back to the host |
# |---|---|---|
# | PyCUDA | `gpuarray.to_gpu(x)` | `x_device.get()` |
# | MXNet | `np.array(x, ctx=device)` | `x_device.asnumpy()` |
# | PyTorch | `torch.from_numpy(x).to(device)` | `x_device.cpu().numpy()` |
#
# In this chapter `numpy` is NumPy, on the host, and `np` is MXNet's, on a device.
#
# ![Two memories and the link between them](../docs/drawings/host-and-device.svg)
#
# *Predict before you run*: the last lines change the host's array after the copy.
# Does the device see it?

# %%
chapter.predict("the device sees the change", None)  # "yes" or "no", for None
host_data = numpy.array([1, 2, 3, 4, 5], dtype=numpy.float32)
device_data = np.array(host_data, ctx=device)  # a copy to the device
device_data_x2 = 2 * device_data  # computed on the device
host_data_x2 = device_data_x2.asnumpy()  # a copy back
print(host_data_x2)

for array in (host_data, device_data, device_data_x2, host_data_x2):
    where = array.ctx if hasattr(array, "ctx") else "host"
    print(f"{type(array).__module__}.{type(array).__name__} {array.dtype} on {where}")

host_data[0] = 100
print("on the device:", device_data)
seen = device_data[0].item() == 100
chapter.answer("the device sees the change", "yes" if seen else "no")

# %% [markdown]
# **What you see.** The device's array still begins with 1: these are two separate
# arrays. Data moves only when you copy it explicitly, which is a good thing: the copy
# is the expensive part, as we measure below.
#
# Two arrays should be on one device to be added. MXNet refuses to mix a GPU with the
# host, but it does not check two GPUs, or two CPU contexts: one then reads the other's
# memory, slowly and without a warning. Copy one of them first, `a.copyto(b.ctx) + b`,
# as the all-reduce of chapter 1 does.
#
# ## Element by element
#
# `+`, `**`, `/`, `-` act on each element by itself: `z[i] = x[i] + y[i]`. No element
# needs another one's result, so all may be computed at the same time, one thread for
# each. Such work is called *element-wise* (the notes: pointwise) and is what a GPU is
# best at.
#
# *Predict before you run*: how many of these six lines differ between host and device?

# %%
chapter.predict("lines that differ", None)
x_host = numpy.array([1, 2, 3], dtype=numpy.float32)
y_host = numpy.array([1, 1, 1], dtype=numpy.float32)
z_host = numpy.array([2, 2, 2], dtype=numpy.float32)
x_device = np.array(x_host, ctx=device)
y_device = np.array(y_host, ctx=device)
z_device = np.array(z_host, ctx=device)

on_both = {
    "x + y": (x_host + y_host, x_device + y_device),
    "x ** z": (x_host**z_host, x_device**z_device),
    "x / x": (x_host / x_host, x_device / x_device),
    "z - x": (z_host - x_host, z_device - x_device),
    "z / 2": (z_host / 2, z_device / 2),
    "x - 1": (x_host - 1, x_device - 1),
}
for name, (on_host, on_device) in on_both.items():
    print(f"{name:7} host {on_host}  device {on_device}")
    assert on_device.dtype == on_host.dtype
differ = [(a != b.asnumpy()).any() for a, b in on_both.values()]
chapter.answer("lines that differ", sum(differ))

# %% [markdown]
# **What you see.** All six lines agree. Both sides follow the same standard for float32
# (IEEE 754), so the sum, difference, product and quotient of two numbers are the same
# to the last bit. Functions such as `sin`, general powers, and sums of *many* numbers
# may differ in the last digits.
#
# ## The type of the numbers
#
# The notes say to set the type of each array, for two reasons. A type that is too large
# takes memory and time: float64 needs twice the bytes of float32, and many GPUs compute
# it 32 times more slowly. And code in C is compiled for one type (chapter 13). A third
# reason is what happens if you leave it unset.
#
# *Predict before you run*: what is 1 times 1.5 if the 1 is a whole number in an array?

# %%
chapter.predict("MXNet's 1 * 1.5 in int32", None)
for values in ([1.0, 2.0], numpy.array([1.0, 2.0]), numpy.array([1, 2])):
    kind = f"{type(values).__name__} of {type(values[0]).__name__}"
    print(f"{kind:18} becomes {np.array(values, ctx=device).dtype}")

whole = np.array([1, 2], dtype="int32", ctx=device)
print("MXNet: (1, 2) * 1.5 =", whole * 1.5, " NumPy:", whole.asnumpy() * 1.5)
chapter.answer("MXNet's 1 * 1.5 in int32", (whole * 1.5)[0].item())

largest = numpy.float32(2**24)
print(f"float32: {largest:.0f} + 1 = {largest + numpy.float32(1):.0f}")

# %% [markdown]
# **What you see.** MXNet converts a list to float32, the type networks use, but keeps
# the dtype of a NumPy array, which is float64 by default. And it computes int32 times
# 1.5 in int32: 1.5 becomes 1, without a warning. So write `dtype="float32"` wherever
# data comes in. A float32 has 24 bits for its digits, about 7 decimal ones: 16,777,217
# is the first whole number that it cannot hold.
#
# ## Twice 50,000,000 numbers
#
# [The notes](https://github.com/Daegeun02/GPGPU) time `2 * x` on both sides and print
# 0.034 s for NumPy and 0.0009 s for a T4, about 40 times less. Here is their program
# with more clocks. The device's work is timed twice: as published, when the call has
# returned, and when the numbers are there. Both copies are timed, too. (The cells use
# fewer numbers, to be quick; `--preset book` takes all 50,000,000.)
#
# *Predict before you run*: one clock is read before `device_data_2x.wait_to_read()`,
# one after it. Which of the two times is to be compared with NumPy's? By how much do
# they differ?


# %%
def x2(device, n):
    """Double n numbers on the host and on a device; print and return the seconds."""
    rng, seconds = numpy.random.default_rng(0), {}
    host_data = rng.random(n, dtype="float32")
    for _ in range(3):  # the first rounds warm up: the last one's times count
        start = time.perf_counter()
        host_data_2x = host_data * numpy.float32(2)
        seconds["NumPy, on the host"] = time.perf_counter() - start

        start = time.perf_counter()
        device_data = np.array(host_data, ctx=device)
        device_data.wait_to_read()
        seconds["copy to the device"] = time.perf_counter() - start

        start = time.perf_counter()
        device_data_2x = device_data * 2
        seconds["on the device, not waited for"] = time.perf_counter() - start
        device_data_2x.wait_to_read()
        seconds["on the device, finished"] = time.perf_counter() - start

        start = time.perf_counter()
        from_device = device_data_2x.asnumpy()
        seconds["copy back"] = time.perf_counter() - start

        assert (from_device == host_data_2x).all()
    for name, value in seconds.items():
        print(f"{1e3 * value:10.3f} ms  {name}")
    return seconds


chapter.predict("times as long when you wait", None)
n = 5_000_000
seconds = x2(device, n)
finished = seconds["on the device, finished"]
issued = seconds["on the device, not waited for"]
chapter.answer("times as long when you wait", finished / issued)

# %% [markdown]
# **What you see.** The clock that does not wait is the notes' clock. It says how long
# Python takes to *ask* for the work: about the same for 5 numbers and for 50,000,000.
# The time to compare with NumPy's is the other one. A T4 reads and writes its memory at
# 320 GB/s ([NVIDIA](https://www.nvidia.com/en-us/data-center/tesla-t4/)), so
# 50,000,000 numbers need at least `2 * 4 * 50e6 / 320e9 = 1.25 ms`. In the 0.64 to 0.90
# ms that the notes print it cannot have doubled them. Chapter 4 is about clocks.
#
# On a CPU context the device is the same processor that NumPy uses, with one thread in
# this process, so it cannot gain. It may lose, and the next cell shows a reason: it
# doubles the numbers once in a new array, as `device_data * 2` does, and once in an
# array that exists.

# %%
many = 10_000_000
device_data = np.ones(many, ctx=device)
old = np.zeros_like(device_data)
host_data, host_old = numpy.ones(many, "float32"), numpy.zeros(many, "float32")
forms = {
    "MXNet, new array": lambda: (device_data * 2).wait_to_read(),
    "MXNet, in place": lambda: np.multiply(device_data, 2, out=old).wait_to_read(),
    "NumPy, new array": lambda: host_data * numpy.float32(2),
    "NumPy, in place": lambda: numpy.multiply(host_data, 2, out=host_old),
}
samples = {}
for name, double in forms.items():
    samples[name] = []
    for _ in range(10):
        start = time.perf_counter()
        double()
        samples[name].append(1e3 * (time.perf_counter() - start))
figure = Figure(figsize=(6, 2.4), layout="constrained")
axes = figure.subplots()
for row, (name, milliseconds) in enumerate(samples.items()):
    axes.plot(milliseconds[2:], [row] * 8, "o", alpha=0.5)
    print(f"{name}: median {numpy.median(milliseconds[2:]):.2f} ms")
axes.set_yticks(range(4), samples)
axes.set(xlabel=f"ms to double {many:,} numbers", xscale="log")
axes.invert_yaxis()
chapter.show(figure, "in-place")

# %% [markdown]
# **What you see.** On a CPU context a large new array costs several times as much as
# the multiplication. MXNet asks the operating system for fresh memory for it and gives
# it back afterwards, and the system provides the memory in pages of 4 KiB, one by one
# (rule 5 of chapter 4). NumPy asks for pages of 2 MiB, where Linux allows it, so its
# new array costs less. In place only the loops differ, and NumPy's is the faster one.
#
# On a GPU the work itself gets far shorter and the two copies stay: they go over a link
# (PCIe) that is many times as slow as the GPU's memory. One multiplication is not worth
# the trip. A network is: its parameters and its images go there once and are used
# thousands of times.
#
# ## Where the time goes: a profile
#
# The notes end with `%prun -s cumulative`, IPython's command for Python's profiler,
# which lists how often each function was called and for how long. `cProfile` is the
# same profiler, for programs and notebooks alike. Each row is a function: `tottime` is
# the time in its own lines, `cumtime` with all that it calls.
#
# *Predict before you run*: which of three calls takes longest, `__mul__` (the product),
# `wait_to_read` or `asnumpy`?


# %%
def profile(function, *arguments, rows=12):
    """What `%prun -s cumulative -l 12 function(...)` prints."""
    profiler = cProfile.Profile()
    profiler.runcall(function, *arguments)
    text = io.StringIO()
    statistics = pstats.Stats(profiler, stream=text).strip_dirs()
    statistics.sort_stats("cumulative").print_stats(rows)
    print(text.getvalue().strip())
    return {row[2]: times[3] for row, times in statistics.stats.items()}


chapter.predict("longest of the three calls", None)
seconds_of = profile(x2, device, n)
calls = ("__mul__", "wait_to_read", "asnumpy")
chapter.answer("longest of the three calls", max(calls, key=lambda c: seconds_of[c]))

# %% [markdown]
# **What you see.** The multiplication, `__mul__`, hardly counts: it returns at once,
# and a profiler of Python sees only Python. The time stands where Python *waits*:
# `wait_to_read`, `asnumpy` (which waits, and copies), and `array` with
# `_sync_copyfrom`, which copies to the device. If you did not know that MXNet is
# asynchronous, you would blame `wait_to_read` for time that the multiplication took.
# (`d2lpar run ... --profile` also writes MXNet's own trace, which shows the operators.)
#
# ## A reduction, in percent
#
# [The CryptoPunks
# notebook](https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb) sums
# 100,000 x 10 numbers ten times and prints by how many percent the GPU shortens it:
# 28.6 to 68.8. Its clock does not wait, either. Here are both clocks.
#
# *Predict before you run*: can a reduction of the time be negative, if you wait?

# %%
chapter.predict("% reduction, waited for", None)
rng = numpy.random.default_rng(0)
print("the % reduction in runtime, without and with waiting for the result")
reductions = []
for _ in range(10):
    test_matrix = rng.standard_normal((100_000, 10), dtype="float32")
    test_matrix_device = np.array(test_matrix, ctx=device)
    test_matrix_device.wait_to_read()

    start = time.perf_counter()
    total = test_matrix.sum()
    a = time.perf_counter() - start

    start = time.perf_counter()
    total_device = test_matrix_device.sum()
    issued = time.perf_counter() - start
    total_device.wait_to_read()
    b = time.perf_counter() - start

    print(f"{100 * (1 - issued / a):8.1f} {100 * (1 - b / a):10.1f}")
    reductions.append(100 * (1 - b / a))
    assert abs(float(total_device) - total) < 0.1
chapter.answer("% reduction, waited for", round(numpy.median(reductions)))
chapter.score()

# %% [markdown]
# **What you see.** The left column is what the notebook measures: only the time to
# enqueue the sum. The right column waits for the result. Both can be negative. On a CPU
# context the right one is: MXNet's sum adds one number after the other, NumPy's many at
# a time. On an H200 MXNet's sum of these 4 MB takes 0.109 ms and PyTorch's 0.0379 ms;
# on its host NumPy's takes 0.446 ms, PyTorch's 0.0244 ms
# ([record](../figures/h200/timing/book-results.txt)). So even there the GPU gains
# nothing: most of its time is the launch.
#
# The notebook calls the decision "a calculus of parallelization": it pays if what is
# saved is more than what the transfer costs. With the times of `x2` above:

# %%
saved = seconds["NumPy, on the host"] - seconds["on the device, finished"]
trip = seconds["copy to the device"] + seconds["copy back"]
print(f"an operation saves {1e3 * saved:.1f} ms, the trip costs {1e3 * trip:.1f} ms")
if saved > 0:
    print(f"worth it from {trip / saved:.0f} operations on, on the same numbers")
else:
    print("not worth it, however many operations: this device is not faster here")

# %% [markdown]
# ## On the devices of a run
#
# The last cell doubles numbers on each device that the flags name, anew as above and
# in place (exercise 6), with 50,000,000 numbers under `--preset book`. It prints both
# clocks: that of the finished work, and the naive one, which does not wait.

# %%
if __name__ == "__main__":
    runs = chapter.measure("arrays")

# %% [markdown]
# **What you see.** The naive clock says about the same for every form. Whether "in
# place" is faster than "as written" depends on the size: arrays of some megabytes may
# come from memory that the process has kept, larger ones from the system.
#
# ## Summary
#
# > **Takeaway.** An operation on elements takes at least bytes / bandwidth: 50,000,000
# > numbers times 2 need `2 * 4 * 50e6 / 320e9 = 1.25 ms` on a T4, and [on an
# > H200](../figures/h200/timing/book-results.txt) MXNet took 0.393 ms, 1,017 GB/s,
# > PyTorch 0.155 ms, 2,585 GB/s.
#
# - `np.array(x, ctx=device)` copies to a device, `.asnumpy()` copies back. In between,
#   results stay on the device.
# - Element-wise work is independent for each element; so all of it can be done at once.
# - Set the dtype explicitly. MXNet keeps a NumPy array's dtype, and integer arithmetic
#   stays integer.
# - A call returns before the work is done. A clock and a profiler must know that.
# - The trip costs more than a simple operation. Bring data once, and leave it there.
#
# ## Exercises
#
# 1. Call `x2(device, n)` with n of 1,000, 100,000 and 10,000,000. Which of the five
#    times grow with n? *(All but the one that is not waited for, which stays well below
#    a millisecond on an idle machine. For 1,000 numbers asking takes nearly as long as
#    the work, and NumPy is ten times as fast: it computes at once, without a queue.)*
# 2. Leave out `dtype="float32"` in `rng.random(n, dtype="float32")` and run `x2` again.
#    *(The array is float64, twice as large; the times about double. The result is still
#    right: `np.array` kept the type.)*
# 3. *On paper.* An operation takes 8 ms on the host and 0.5 ms on the device, and each
#    of the two copies 5 ms. From how many operations in a row is the device worth it?
#    *(`10 / (8 - 0.5) = 1.3`: from two operations on.)*
# 4. *On paper.* A network's 129,068 parameters cross a link of `16 GB/s`, and each
#    transfer costs 10 us besides. How long do they take as one array, and how long as
#    eight? *(`129068 * 4 / 16e9 = 32 us`. So `32 + 10` us, and `32 + 80`: small arrays
#    are sent together.)*
# 5. Print the first five numbers of `device_data * 2` right after the multiplication,
#    and read the clock before and after the `print`. *(The `print` takes the time of
#    the multiplication: it needs the numbers, so it waits.)*
# 6. Time `y = 2 * x + 1` on 5,000,000 numbers, and then `np.multiply(x, 2, out=y)` and
#    `y += 1`. *(The second takes a fraction of the time: `2 * x + 1` takes new memory
#    for two arrays, the second form for none.)*

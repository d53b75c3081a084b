# %% [markdown]
# # Arrays on a device
#
# When is it worth sending numbers to a device?
#
# ![Two memories and the link between them](../docs/drawings/host-and-device.svg)
#
# A published set of lecture notes [1] doubles 50,000,000 numbers on a processor and on
# a T4 GPU, and prints 33.6 ms for the processor and **0.90 ms** for the GPU. This looks
# like a speedup of 37. In this chapter we repeat the experiment and find two things
# that these numbers leave out: the clock stopped before the GPU had finished, and the
# numbers had to travel. On the way you will learn how numbers get to a device and back,
# and which arithmetic a device does on all numbers at once, and in which type.
#
# Run this chapter as a notebook, or as `python chapters/arrays.py`. We use MXNet arrays
# throughout, on a GPU if one is available and otherwise on a CPU context.

# %%
import cProfile
import io
import pstats
import time

import numpy
from matplotlib.figure import Figure

from d2lpar import chapter, devices, np
from d2lpar.records.kinds import TimingRecord

device = devices.parse("auto")[0]
print("the device of this chapter:", devices.label(device))

# %% [markdown]
# ## There and back
#
# A GPU has its own memory. In CUDA C you allocate device memory (`cudaMalloc`), copy
# the input to the device, run a kernel, copy the result back, and free the memory. An
# array library automates everything except the two copies:
#
# | | to the device | back to the host |
# |---|---|---|
# | PyCUDA | `gpuarray.to_gpu(x)` | `x_device.get()` |
# | MXNet | `np.array(x, ctx=device)` | `x_device.asnumpy()` |
# | PyTorch | `torch.from_numpy(x).to(device)` | `x_device.cpu().numpy()` |
#
# In this chapter `numpy` is NumPy, on the host, and `np` is MXNet's, on a device.
#
# *Predict before you run*: the last lines of the cell change the host's array after the
# copy. Does the device see the change? Answer "yes" or "no".

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
# The device's array still begins with 1, because the two are separate arrays. Data
# moves only when you copy it explicitly. This is convenient, since the copy can be the
# expensive part, as we will see below.
#
# Both operands of an addition should live on the same device. MXNet raises an error if
# one is on a GPU and the other on the host, but it does not check whether they are on
# two different GPUs or CPU contexts. Two CPU contexts share one memory, so there it
# only matters which queue does the work. Two GPUs do not. Copy one operand first,
# `a.copyto(b.ctx) + b`, as the all-reduce of Chapter 1 does.
#
# ## Element by element
#
# `+`, `**`, `/` and `-` act on each element by itself: `z[i] = x[i] + y[i]`. No element
# needs the result of another one, so all of them can be computed at the same time, one
# thread for each. Such operations are called *element-wise*, and GPUs are good at them.
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
# Five of the six lines must agree. Both sides follow the same standard for float32
# (IEEE 754), so the sum, difference, product and quotient of two numbers are the same
# to the last bit. Functions such as `sin`, general powers, and sums of *many* numbers
# may differ in the last digits. Powers as simple as those of `x ** z` agree as well if
# your answer is 0.
#
# ## The same numbers in another shape
#
# An array with several dimensions gives the same numbers on a device as in NumPy.
# `reshape` changes the shape, a *slice* selects a part, and `ravel` (in MXNet a
# function, not a method) lays the numbers out in one row again. But does a slice copy
# its numbers, or is it a *view* of the same memory? This matters for the all-reduce,
# which writes into parts of arrays (Chapter 7).
#
# *Predict before you run*: we change one element of a slice with `part[0, 0] = 100`.
# Does the array change that it was cut from? Answer "yes" or "no".

# %%
chapter.predict("a slice of rows shares its memory", None)
host = numpy.arange(24, dtype=numpy.float32)
grid_host, grid = host.reshape(4, 6), np.array(host, ctx=device).reshape(4, 6)
for name, on_host, on_device in (
    ("rows 1 and 2", grid_host[1:3], grid[1:3]),
    ("every second column", grid_host[:, ::2], grid[:, ::2]),
    ("transposed, ravelled", grid_host.T.ravel(), np.ravel(grid.T)),
    ("sums of the columns", grid_host.sum(axis=0), grid.sum(axis=0)),
):
    print(f"{name:21} {on_device.shape} on {on_device.ctx}")
    assert (on_device.asnumpy() == on_host).all()
flat = grid.reshape(24)
part = grid[1:3]
part[0, 0] = 100
print("after the change: grid[1, 0] is", grid[1, 0].item(), end=", ")
print("and flat[6], of a reshape before it,", flat[6].item())
shared = grid[1, 0].item() == 100
chapter.answer("a slice of rows shares its memory", "yes" if shared else "no")

# %% [markdown]
# All four results equal NumPy's. The numbers of a slice of whole rows lie side by side
# in memory, so MXNet returns a view of them, as NumPy does. In contrast to NumPy, a
# slice with gaps is a copy in MXNet, and so is the result of `reshape`: `flat` still
# has its old number. If your code must work with both, do not write into a slice or a
# reshaped array that you have given a name; write `grid[1, 0] = 100` instead.
#
# ## The type of the numbers
#
# Always specify the dtype of an array. A type that is wider than necessary wastes
# memory and time: float64 needs twice the bytes of float32, and on many GPUs its
# arithmetic is much slower. Kernels in C are compiled for one type (Chapter 13). A
# third reason is what happens if you do not specify it.
#
# *Predict before you run*: what does MXNet return for
# `np.array([1], dtype="int32") * 1.5`?

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
# MXNet converts a list to float32, the usual type of networks, but keeps the dtype of a
# NumPy array, which NumPy chooses as float64 for real numbers and int64 for whole
# numbers. It also computes int32 times 1.5 in int32: 1.5 becomes 1, without a warning.
# So write `dtype="float32"` wherever data enters your program. A float32 has 24 bits
# for its digits, which is about 7 decimal digits. The first whole number that it cannot
# represent is 16,777,217.
#
# ## Twice 50,000,000 numbers
#
# The notes [1] time `2 * x` on both sides, and only until the call returns. We repeat
# this experiment but read the clock twice: when the call returns, as in the notes, and
# again when the result is available. We also time both copies. (The cells use fewer
# numbers, to be quick; `chapter.measure("arrays", preset="book")` in the last cell
# takes all 50,000,000.)
#
# *Predict before you run*: by what factor does the time on the device grow if the clock
# waits for the result?


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
# Without waiting we only measure how long Python takes to *enqueue* the operation, that
# is, to append it to the device's queue. No number is computed for this, so the size of
# the array does not matter. If your factor is small, Python's thread may have had to
# wait for a core that others used. The time to compare with NumPy's is the other one.
# Chapter 4 is about clocks.
#
# The published time can be checked with arithmetic. A T4 reads and writes its memory at
# 320 GB/s [2], so doubling the numbers takes at least `2 * 4 * 50e6 / 320e9 = 1.25 ms`.
# The 0.64 to 0.90 ms that the notes print [1] are too short for the work.
#
# Now compare the time of the finished work with NumPy's. A CPU context runs on the same
# processor as NumPy, so we cannot expect a speedup. It may even be slower, and the next
# cell tests one possible reason. It doubles the numbers once in a new array, as
# `device_data * 2` does, and once with `out=`, which writes the result to an array that
# exists.

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
new, in_place = (
    numpy.median(samples[f"MXNet, {how}"][2:]) for how in ("new array", "in place")
)
print(f"of MXNet's time with a new array {1 - in_place / new:.0%} is the new array's")
axes.set_yticks(range(4), samples)
axes.set(xlabel=f"ms to double {many:,} numbers", xlim=(0, None))
axes.invert_yaxis()
chapter.show(figure, "in-place")

# %% [markdown]
# The last line shows how much a new array costs. On a CPU context it can be more than
# the multiplication itself: for an array of this size MXNet asks the operating system
# for memory and gives it back afterwards, and the system provides it in pages of 4 KiB,
# one by one (rule 5 of Chapter 4). NumPy asks for pages of 2 MiB, where Linux allows
# it. On a GPU MXNet keeps freed memory for the next result. Wherever memory is kept,
# expect a share near zero, and a negative one if the two medians differ by chance.
#
# On a GPU the work itself gets much shorter, but the two copies remain. They cross a
# link (PCIe) that is slower than the GPU's memory. Let us compare what an operation
# saves with what the trip costs, using the times of `x2` above.

# %%
saved = seconds["NumPy, on the host"] - seconds["on the device, finished"]
trip = seconds["copy to the device"] + seconds["copy back"]
print(f"an operation saves {1e3 * saved:.1f} ms, the trip costs {1e3 * trip:.1f} ms")
if saved > 0:
    print(f"worth it from {trip // saved + 1:.0f} operations on, on the same numbers")
else:
    print("not worth it, however many operations: this device is not faster here")

# %% [markdown]
# If an operation saves nothing, no number of operations pays for the trip. If it saves
# something, the numbers should stay on the device for as many operations as the cell
# prints. Training a network does this: the parameters travel once and take part in
# every step, and a batch of images travels once and passes through all layers.
#
# What would a GPU print here? We read a record of one H200 and its host. Its copies
# have other sizes, so we scale the time of the largest one to the 200 MB of 50,000,000
# numbers.

# %%
run, double, trips = chapter.record("h200/timing/book-gpu1.jsonl"), {}, {}
for line in run.lines_of(TimingRecord):
    finished, naive = (
        1e3 * numpy.median(s) for s in (line.seconds, line.naive_seconds)
    )
    if line.operation == "x2" and line.form == "as written":
        double[line.library, line.devices[0]] = finished
        print(f"{line.library:8} on {line.devices[0]:20}", end="")
        print(f"{finished:8.3f} ms, not waited for {naive:.3f} ms")
    elif line.operation in ("host to device", "device to host"):  # the last is largest
        trips[line.operation] = finished * 50_000_000 * 4 / line.num_bytes
trip = sum(trips.values())
for library in ("NumPy", "PyTorch"):
    on_host = double[library, "host (16 threads)"]
    saved = on_host - double["MXNet", "gpu(0) NVIDIA H200"]
    print(f"{library}: an operation saves {saved:.1f} ms, the trip costs {trip:.1f} ms")
    assert 0 < saved < trip

# %% [markdown]
# Even an H200 does not pay for a single multiplication: the last two lines compare it
# with NumPy, which doubles on one core, and with PyTorch on 16 cores, and in both the
# trip costs more than the operation saves. If you divide the cost of the trip by what
# an operation saves, and round up, you get the number of operations from which the trip
# pays. In comparison with PyTorch more operations are needed, because each of them
# saves less.
#
# ## Copies that do not wait
#
# The copies of this record come from ordinary memory, one after the other. Two
# properties make a copy to a GPU faster. First, the GPU can only fetch data by itself
# from *pinned* memory, which the operating system promises not to move. A copy from
# ordinary memory first goes through a pinned buffer. Second, a copy from pinned memory
# can be *asynchronous*: it runs while the GPU computes on the previous batch. In
# PyTorch these are `DataLoader(..., pin_memory=True)` and `x.to(device,
# non_blocking=True)`. MXNet has the context `mx.cpu_pinned()` for arrays in pinned
# memory. It queues a copy from one MXNet array to another like any other operation,
# whereas `np.array` waits until it has copied a NumPy array. Exercise 6 computes what
# overlapping saves.
#
# ## Where the time goes: a profile
#
# The notes end with `%prun -s cumulative`, IPython's command for Python's profiler,
# which lists how often each function was called and for how long. `cProfile` is the
# same profiler for programs and notebooks. Each row is a function: `tottime` is the
# time spent in its own lines, and `cumtime` includes the functions that it calls.
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
# `__mul__` returns as soon as the multiplication is queued, and a profiler of Python
# sees only Python. The profiler therefore attributes the time to the calls that
# *block*: `wait_to_read`, `asnumpy`, which waits and copies, and `array` with
# `_sync_copyfrom`, which copies to the device. Without knowing that MXNet is
# asynchronous you would blame `wait_to_read` for the time of the multiplication. If
# `__mul__` has a large share nevertheless, Python's thread probably had to wait for a
# core that the device's thread used.
# (MXNet's own profiler, `mx.profiler`, shows the operators: chapter 6 uses it.)
#
# ## A reduction, in per cent
#
# A course on data science [3] sums 100,000 x 10 numbers ten times and prints by how
# many per cent the GPU shortens the time: 28.6 to 68.8. Its clock does not wait,
# either. We read both clocks of the same sum.
#
# *Predict before you run*: by how many per cent does this device shorten the sum, if
# the clock waits? A negative number means that the device takes longer: at -100 it
# takes twice as long.

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
# The left column is what the course measures: only the time to enqueue the sum. The
# right column waits for the result. A value of -900, for example, means that the device
# takes `1 + 900 / 100 = 10` times as long as NumPy. A device pays only if the right
# column is positive, and then only if the matrix is there already. If both columns of a
# row are almost equal, the call returned when the sum was nearly finished; one
# explanation is that Python's thread waited for a core meanwhile. On a CPU context
# both sums run on the same processor, so a large difference is due to the two
# libraries, and not to the device; Chapter 4 compares their sums in several forms.
#
# ## On the devices of a run
#
# The last cell repeats the doubling on every device that the flags select, once with a
# new result array and once in place. It prints both clocks.

# %%
if __name__ == "__main__":
    runs = chapter.measure("arrays")

# %% [markdown]
# The two clocks differ only in rows of MXNet that do not wait: `x2`, and copies from
# device to device. NumPy's calls, `np.array` of an array of the host and `asnumpy`
# return when they have finished, so there both clocks agree. Next, compare "as written"
# with "in place". These two forms differ only in the new array, so any clear difference
# between their times is its cost.
#
# ## Summary
#
# > **Takeaway.** k operations on n numbers are worth a trip to a device if
# > `k * (host - device) > copy there + copy back`. An element-wise operation takes at
# > least `bytes / bandwidth`, if the numbers are not in a cache.
#
# `np.array(x, ctx=device)` copies to a device, and `.asnumpy()` copies back; in
# between, results stay on the device. Element-wise work is independent for each
# element. Specify the dtype. A call returns before the work is done, and a clock or a
# profiler must take this into account. Bring data to a device once and leave it there.
#
# ## Exercises
#
# 1. Call `x2(device, n)` with n of 1,000, 100,000 and 10,000,000. Which of the five
#    times grow with n? *(All but the one that is not waited for, which is the time to
#    enqueue one operation. For 1,000 numbers the other times are fixed costs, too:
#    compare them with those for 100,000.)*
# 2. Omit `dtype="float32"` in `rng.random(n, dtype="float32")` and run `x2` again.
#    *(The array is float64 and has twice the bytes, so expect about twice the times.
#    The result is still right, because `np.array` keeps the type.)*
# 3. *On paper.* An operation takes 8 ms on the host and 0.5 ms on the device, and each
#    of the two copies 5 ms. From how many operations in a row is the device worth it?
#    *(`10 / (8 - 0.5) = 1.3`: from two operations on.)*
# 4. *On paper.* A network's 129,068 parameters cross a link of `16 GB/s`, and each
#    transfer costs 10 us besides. How long do they take as one array, and how long as
#    eight? *(`129068 * 4 / 16e9 = 32 us`. So `32 + 10` us, and `32 + 80`: small arrays
#    are sent together.)*
# 5. Time `y = 2 * x + 1` on 5,000,000 numbers, and then `np.multiply(x, 2, out=y)`
#    followed by `y += 1`. Repeat it with 10,000,000 numbers. *(The first form needs two
#    new arrays, the second none. If MXNet has memory of this size from earlier results,
#    the two forms take about the same time; if it must ask the system for pages, the
#    second form is faster. Compare with the page faults of Chapter 4.)*
# 6. *On paper.* A step takes 3 ms on a GPU, and copying its batch takes 1 ms. How long
#    do 1,000 steps take if each copy is waited for, and if the copies overlap with the
#    steps? *(`1,000 * (3 + 1) = 4,000 ms`, and `1 + 1,000 * 3 = 3,001 ms`: only the
#    first copy is not hidden.)*
#
# ## Sources
#
# - [1] Least-squares notes on GPU computing, "Using PyCUDA's gpuarray class" (in
#   Korean), `2022_05_03.ipynb` of <https://github.com/Daegeun02/GPGPU>
# - [2] NVIDIA, "T4 Tensor Core GPU",
#   <https://www.nvidia.com/en-us/data-center/tesla-t4/>
# - [3] *Data Science for Biostatisticians*, "Parallelism and GPU computing",
#   <https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb>

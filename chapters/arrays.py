# %% [markdown]
# # Arrays on a device
#
# When is it worth sending numbers to a device?
#
# ![Two memories and the link between them](../docs/drawings/host-and-device.svg)
#
# **In one sentence.** If k operations save more than the two copies cost: even for an
# H200 GPU a single multiplication of numbers on the host is not worth the trip, as a
# record below shows.
#
# A published set of lecture notes [1] doubles 50,000,000 numbers on a processor and on
# a T4 GPU, and prints 33.6 ms for the processor and **0.90 ms** for the GPU. This looks
# like a speedup of 37. We repeat the experiment and find two things that these numbers
# leave out: the clock stopped before the GPU had finished, and the numbers had to
# travel.
#
# Run this chapter as a notebook, or as `python chapters/arrays.py`. We use MXNet arrays
# throughout, on a GPU if one is available and otherwise on a CPU context.

# %%
import time
from statistics import median, quantiles

import numpy

from d2lpar import chapter, devices, np
from d2lpar.records.kinds import TimingRecord

device = devices.parse("auto")[0]
print("the device of this chapter:", devices.label(device))

# %% [markdown]
# ## There and back
#
# In CUDA C you allocate memory on the GPU, copy the input to it, run a kernel, copy the
# result back, and free the memory. An array library leaves you the two copies:
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
# The device's array still begins with 1: data moves only when you copy it explicitly.
#
# Both operands of an addition should live on the same device. MXNet raises an error if
# one is on a GPU and the other on the host, but it does not check whether they are on
# two different GPUs or CPU contexts. Copy one operand first, `a.copyto(b.ctx) + b`, as
# the all-reduce of Chapter 1 does.
#
# ## Element by element
#
# `+`, `**`, `/` and `-` act on each element by itself: `z[i] = x[i] + y[i]`. No element
# needs the result of another one, so all of them can be computed at the same time, one
# thread for each. Such operations are called *element-wise*, and GPUs are good at them.
# Host and device follow the same standard for float32 (IEEE 754). Therefore a sum, a
# difference, a product and a quotient of two numbers agree to the last bit, as the cell
# asserts. Functions such as `sin`, powers, and sums of *many* numbers may differ in the
# last digits.

# %%
x_host = numpy.array([1, 2, 3], dtype=numpy.float32)
y_host = numpy.array([1, 1, 1], dtype=numpy.float32)
z_host = numpy.array([2, 2, 2], dtype=numpy.float32)
x, y, z = (np.array(array, ctx=device) for array in (x_host, y_host, z_host))
on_both = {
    "x + y": (x_host + y_host, x + y),
    "x ** z": (x_host**z_host, x**z),
    "x / x": (x_host / x_host, x / x),
    "z - x": (z_host - x_host, z - x),
}
for name, (on_host, on_device) in on_both.items():
    print(f"{name:7} host {on_host}  device {on_device}")
    assert name == "x ** z" or (on_device.asnumpy() == on_host).all()

# %% [markdown]
# Always specify the dtype of an array. The
# [appendix](../docs/appendix.md#views-and-types-of-arrays) shows what happens
# otherwise, and which slices share their memory.
#
# ## Twice 50,000,000 numbers
#
# The notes [1] time `2 * x` on both sides, and only until the call returns. We read the
# clock twice: when the call returns, as in the notes, and again when the result is
# available. We also time both copies. One sample is an accident, so we take seven and
# report the *median* and the *quartiles*, between which the middle half of the samples
# lies. (The cells use fewer numbers, to be quick.)


# %%
def x2(device, n, repeats=7):
    """Double n numbers on the host and on a device; milliseconds of each part."""
    host_data = numpy.random.default_rng(0).random(n, dtype="float32")
    samples = {}

    def note(name, start):
        samples.setdefault(name, []).append(1e3 * (time.perf_counter() - start))

    for _ in range(repeats + 2):  # the first two warm up
        start = time.perf_counter()
        host_data_2x = host_data * numpy.float32(2)
        note("NumPy, on the host", start)

        start = time.perf_counter()
        device_data = np.array(host_data, ctx=device)
        device_data.wait_to_read()
        note("copy to the device", start)

        start = time.perf_counter()
        device_data_2x = device_data * 2
        note("on the device, not waited for", start)
        device_data_2x.wait_to_read()
        note("on the device, finished", start)

        start = time.perf_counter()
        from_device = device_data_2x.asnumpy()
        note("copy back", start)
        assert (from_device == host_data_2x).all()
    return {name: of_name[2:] for name, of_name in samples.items()}


def show(samples):
    for name, milliseconds in samples.items():
        low, middle, high = quantiles(milliseconds, n=4)
        print(f"{middle:10.3f} ms ({low:.3f}-{high:.3f})  {name}")


# %%
samples = x2(device, 5_000_000)
show(samples)
early, finished = (
    median(samples[f"on the device, {how}"]) for how in ("not waited for", "finished")
)
print(f"the call returns after {early / finished:.1%} of the time")

# %% [markdown]
# Without waiting we only measure how long Python takes to *enqueue* the operation, that
# is, to append it to the device's queue. No number is computed for this, so the size of
# the array does not matter (exercise 1). On a processor whose cores are all busy the
# call can nevertheless return late, because Python's own thread has to wait for a core.
# The time to compare with NumPy's is the one of the finished work. On a processor it
# can be several times NumPy's. Chapter 4 is about clocks.
#
# The published time can be checked with arithmetic. A T4 reads and writes its memory at
# 320 GB/s [2], and each number of 4 bytes is read once and written once.
#
# *Predict before you run*: how many milliseconds does a T4 need at least to double
# 50,000,000 numbers?

# %%
chapter.predict("ms that a T4 needs at least", None)
chapter.answer("ms that a T4 needs at least", 1e3 * 2 * 4 * 50e6 / 320e9)

# %% [markdown]
# The 0.64 to 0.90 ms that the notes print [1] are too short for the work.
#
# ## Is it worth the trip?
#
# On a GPU the work itself gets much shorter, but the two copies remain. They cross a
# link, which for a T4 is PCIe at 16 GB/s or less [2], a twentieth of the bandwidth of
# its memory. Let us compare what an operation saves with what the trip costs.


# %%
def worth(on_host, on_device, trip):
    """From how many operations on the trip pays, in words."""
    (low, middle, _), (_, of_device, high) = (
        quantiles(samples, n=4) for samples in (on_host, on_device)
    )
    if low <= high:
        return "no clear saving: no number of operations pays for the trip"
    saved = middle - of_device
    operations = int(trip // saved) + 1
    return (
        f"an operation saves {saved:.2f} ms, the trip costs {trip:.2f} ms:\n"
        f"  worth it from {operations} operation(s) on"
    )


trip = median(samples["copy to the device"]) + median(samples["copy back"])
on_host, on_device = samples["NumPy, on the host"], samples["on the device, finished"]
print("here:", worth(on_host, on_device, trip))

# %% [markdown]
# A CPU context runs on the same processor as NumPy, so there we do not expect a saving.
# What would a GPU print? We read a record of one H200 and its host. Its copies have
# other sizes, so we scale the time of the largest one to the 200 MB of 50,000,000
# numbers.
#
# *Predict before you run*: from how many operations on, on the same numbers, is an H200
# worth the trip, compared with NumPy on one core?

# %%
chapter.predict("operations for an H200", None)
record, doubled, trips = chapter.record("h200/timing/book-gpu1.jsonl"), {}, {}
for line in record.lines_of(TimingRecord):
    milliseconds = [1e3 * s for s in line.seconds]
    if line.operation == "x2" and line.form == "as written":
        doubled[line.library, line.devices[0]] = milliseconds
    elif line.operation in ("host to device", "device to host"):  # the last is largest
        trips[line.operation] = median(milliseconds) * 50_000_000 * 4 / line.num_bytes
trip = sum(trips.values())
version, commit = record.header.versions["d2lpar"], record.header.git_commit[:7]
print(f"record of d2lpar {version}, commit {commit}")
on_gpu = doubled["MXNet", "gpu(0) NVIDIA H200"]
for library, threads in (("NumPy", "1 thread"), ("PyTorch", "16 threads")):
    on_host = doubled[library, "host (16 threads)"]
    print(f"{library}, {threads}: {worth(on_host, on_gpu, trip)}")
    assert 0 < median(on_host) - median(on_gpu) < trip
saved = median(doubled["NumPy", "host (16 threads)"]) - median(on_gpu)
chapter.answer("operations for an H200", int(trip // saved) + 1)
chapter.score()

# %% [markdown]
# Even an H200 does not pay for a single multiplication, as the assertion confirms: the
# trip costs more than one operation saves. Against PyTorch on 16 cores more operations
# are needed, because each of them saves less. Therefore the numbers should stay on the
# device. Training a network does this with its parameters, and with each batch through
# all layers.
#
# ## Copies that do not wait
#
# The copies of this record come from ordinary memory, one after the other. Two
# properties make a copy to a GPU faster. First, the GPU can only fetch data by itself
# from *pinned* memory, which the operating system promises not to move; a copy from
# ordinary memory first goes through a pinned buffer. Second, a copy from pinned memory
# can be *asynchronous*: it runs while the GPU computes on the previous batch. In
# PyTorch these are `DataLoader(..., pin_memory=True)` and `x.to(device,
# non_blocking=True)`. MXNet has the context `mx.cpu_pinned()`. It queues a copy from
# one MXNet array to another like any other operation, whereas `np.array` waits until it
# has copied a NumPy array. Exercise 5 computes what overlapping saves.
#
# ## Summary
#
# > **Takeaway.** k operations on n numbers are worth a trip to a device if
# > `k * (host - device) > copy there + copy back`. An element-wise operation takes at
# > least `bytes / bandwidth`, if the numbers are not in a cache.
#
# A call returns before the work is done, and a clock must take this into account.
# Bring data to a device once and leave it there.
#
# ## Exercises
#
# 1. Call `x2(device, n)` with n of 1,000, 100,000 and 10,000,000. Which of the five
#    times grow with n? *(All but the one that is not waited for, which is the time to
#    enqueue one operation. For 1,000 numbers the other times are fixed costs, too.)*
# 2. Profile Python, as the notes do with IPython's `%prun -s cumulative`: run
#    `cProfile.runctx("x2(device, n)", globals(), {"n": 5_000_000}, sort="cumulative")`.
#    Which calls take long, and why not `__mul__`, the product? *(`wait_to_read`,
#    `asnumpy` and the copy of `np.array`, because they block. `__mul__` returns as soon
#    as the product is queued, and a profiler of Python sees only Python. MXNet's own
#    profiler shows the operators, see Chapter 6.)*
# 3. *On paper.* An operation takes 8 ms on the host and 0.5 ms on the device, and each
#    of the two copies 5 ms. From how many operations in a row is the device worth it?
#    *(`10 / (8 - 0.5) = 1.3`: from two operations on.)*
# 4. *On paper.* A network's 129,068 parameters cross a link of `16 GB/s`, and each
#    transfer costs 10 us besides. How long do they take as one array, and how long as
#    eight? *(`129068 * 4 / 16e9 = 32 us`. So `32 + 10` us, and `32 + 80`: small arrays
#    are sent together.)*
# 5. *On paper.* A step takes 3 ms on a GPU, and copying its batch takes 1 ms. How long
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

# %% [markdown]
# # Arrays on a device
#
# When is it worth sending numbers to a device?
#
# ![Two memories and the link between them](../docs/drawings/host-and-device.svg)
#
# **In one sentence.** Send numbers to a device only if the operations there save more
# time than the two copies cost. A single multiplication does not, not even on an H200
# GPU.
#
# A published set of lecture notes [1] doubles 50,000,000 numbers on a processor and on
# a T4 GPU, and prints 33.6 ms for the processor and **0.90 ms** for the GPU. This looks
# like a speedup of 37. However, the clock stopped before the GPU had finished, and both
# copies are missing.
#
# Run this chapter as a notebook, or as `python chapters/arrays.py`. We use MXNet arrays
# on a GPU if one is available, and otherwise on a CPU context.

# %%
import time
from statistics import median

import numpy

from d2lpar import chapter, devices, np

device = devices.parse("auto")[0]
print("the device of this chapter:", devices.label(device))

# %% [markdown]
# ## There and back
#
# With an array library, a computation on a GPU needs only two extra calls, a copy to
# the device and a copy back:
#
# | | to the device | back to the host |
# |---|---|---|
# | PyCUDA | `gpuarray.to_gpu(x)` | `x_device.get()` |
# | MXNet | `np.array(x, ctx=device)` | `x_device.asnumpy()` |
# | PyTorch | `torch.from_numpy(x).to(device)` | `x_device.cpu().numpy()` |
#
# In this chapter `numpy` is NumPy on the host, and `np` is MXNet's NumPy on a device.
#
# *Predict before you run*: after the copy to the device, the last lines of the cell
# change the host's array. Does the device's array change, too? Answer "yes" or "no".

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
# The device's array still begins with 1, because data move only when we copy them.
#
# Both operands of an addition must be on the same device. MXNet raises an error if one
# operand is on a GPU and the other on the host. However, it does not notice operands on
# two different GPUs or CPU contexts. Copy one operand first, `a.copyto(b.ctx) + b`, as
# in the all-reduce of Chapter 1. (The
# [appendix](../docs/appendix.md#views-and-types-of-arrays) explains dtypes and views.)
#
# ## The time of a trip
#
# `2 * x` is an *element-wise* operation. Each element is computed independently, so a
# GPU can compute all of them at the same time. But how much of the trip is arithmetic?
# We time the copy to the device, the operation, the copy back, and the same operation
# in NumPy. We wait before we read the clock, because an MXNet call returns before its
# work has finished (Chapter 4). The cell doubles fewer numbers than the notes, and
# prints medians.


# %%
def trip(device, n, repeats=7):
    """Double n numbers on the host and on a device: the milliseconds of each part."""
    host_data = numpy.random.default_rng(0).random(n, dtype="float32")
    rows = []
    for _ in range(repeats + 2):
        times = [time.perf_counter()]
        host_data_x2 = host_data * numpy.float32(2)
        times.append(time.perf_counter())
        device_data = np.array(host_data, ctx=device)
        device_data.wait_to_read()
        times.append(time.perf_counter())
        device_data_x2 = device_data * 2
        device_data_x2.wait_to_read()
        times.append(time.perf_counter())
        from_device = device_data_x2.asnumpy()
        times.append(time.perf_counter())
        assert (from_device == host_data_x2).all()
        rows.append(1e3 * numpy.diff(times))
    return [median(part) for part in zip(*rows[2:])]  # the first two warm up


parts = "NumPy, on the host", "copy to the device", "on the device", "copy back"
milliseconds = trip(device, 5_000_000)
for part, of_part in zip(parts, milliseconds):
    print(f"{of_part:8.2f} ms  {part}")

# %% [markdown]
# A CPU context runs on the same processor as NumPy, so we expect no saving from it.
#
# ## A bound
#
# The published 0.90 ms can be checked with arithmetic. A T4 reads and writes its memory
# at 320 GB/s [2]. Each number has 4 bytes, is read once, and is written once. No
# correct time is below `bytes / bandwidth`, unless the numbers are in a cache.
#
# *Predict before you run*: how many milliseconds does a T4 need at least to double
# 50,000,000 numbers?

# %%
chapter.predict("ms that a T4 needs at least", None)
chapter.answer("ms that a T4 needs at least", 1e3 * 2 * 4 * 50e6 / 320e9)

# %% [markdown]
# The notes print 0.90 ms, and 0.64 ms in another cell. Both are below 1.25 ms, so their
# clock did not wait.
#
# ## Is it worth the trip?
#
# On a GPU the operation itself is much shorter, but the two copies remain. They cross a
# link, which for a T4 is PCIe. Its 16 GB/s [2] are a twentieth of the bandwidth of the
# T4's memory. Suppose that we compute k operations in a row on the same numbers. The
# trip pays if
#
#     k * (host - device) > copy there + copy back
#
# Here are the times of an H200 and its host. Each operation doubles 50,000,000 numbers
# (200 MB):
#
# | | |
# |---|---|
# | NumPy, on the host | [37.2 ms] |
# | PyTorch, on 16 threads of the host | [7.57 ms] |
# | MXNet, on the H200 | [0.423 ms] |
# | copy to the device, 268 MB | [38.6 ms] |
# | copy back, 268 MB | [26.7 ms] |
#
# *Predict before you run*: from how many operations on does the trip to this H200 pay,
# compared with NumPy? The copies of 200 MB take `200 / 268` of the times above.

# %%
chapter.predict("operations for an H200", None)
copies = (38.6 + 26.7) * 200 / 268
for library, on_host in (("NumPy", 37.2), ("PyTorch", 7.57)):
    saved = on_host - 0.423
    print(
        f"{library}: an operation saves {saved:.1f} ms, the trip costs {copies:.1f} ms"
    )
chapter.answer("operations for an H200", int(copies // (37.2 - 0.423)) + 1)
chapter.score()

# %% [markdown]
# The trip costs more than one multiplication saves, and less than two save. Compared
# with PyTorch on 16 threads, an operation saves less. The trip then pays from
# `48.7 / 7.1 = 6.8`, that is, from 7 operations on. Therefore bring data to a device
# once, and leave it there. In training the parameters stay on the device, and each
# batch stays there through all layers.
#
# ## Copies that do not wait
#
# A GPU can fetch data by itself only from *pinned* memory, which the operating system
# does not move. A copy from ordinary memory first goes through a pinned buffer. A copy
# from pinned memory can also be *asynchronous*: it runs while the GPU computes on the
# previous batch (exercise 5). In PyTorch we write `DataLoader(..., pin_memory=True)`
# and `x.to(device, non_blocking=True)`. In MXNet arrays on the context
# `mx.cpu_pinned()` are pinned. MXNet queues a copy between two of its arrays like any
# other operation. In contrast, `np.array` waits until it has copied a NumPy array.
#
# ## Summary
#
# > **Takeaway.** A trip to a device pays for k operations if
# > `k * (host - device) > copy there + copy back`. An element-wise operation takes at
# > least `bytes / bandwidth`, unless the numbers are in a cache.
#
# ## Exercises
#
# 1. Call `trip(device, n)` with n of 1,000, 100,000 and 10,000,000. Which of the four
#    times grow with n? *(All of them for large n. For 1,000 numbers each time is mostly
#    a fixed cost, such as the time of a call.)*
# 2. Profile Python, as the notes do with IPython's `%prun -s cumulative`: run
#    `cProfile.runctx("trip(device, n)", globals(), {"n": 5_000_000},
#    sort="cumulative")`. Which calls take long? Why is `__mul__`, the product, not
#    among them? *(`wait_to_read`, `asnumpy` and the copy in `np.array`, because they
#    wait. `__mul__` returns as soon as the product is queued. MXNet's own profiler
#    shows the operators, see Chapter 6.)*
# 3. *On paper.* An operation takes 8 ms on the host and 0.5 ms on the device, and each
#    of the two copies 5 ms. From how many operations in a row on does the trip pay?
#    *(`10 / (8 - 0.5) = 1.3`, so from two operations on.)*
# 4. *On paper.* A network's 129,068 parameters cross a link of 16 GB/s, and each
#    transfer has a fixed cost of 10 us. How long do they take as one array, and how
#    long as eight arrays? *(The bytes need `129068 * 4 / 16e9 = 32 us`. One array takes
#    `32 + 10 = 42 us`, and eight arrays take `32 + 80 = 112 us`. Small arrays are
#    therefore sent together.)*
# 5. *On paper.* A step takes 3 ms on a GPU, and copying its batch takes 1 ms. How long
#    do 1,000 steps take if each step waits for its copy? How long do they take if
#    copies and steps overlap? *(`1,000 * (3 + 1) = 4,000 ms`, and
#    `1 + 1,000 * 3 = 3,001 ms`, because only the first copy is not hidden.)*
#
# ## Sources
#
# - [1] Least-squares notes on GPU computing, "Using PyCUDA's gpuarray class" (in
#   Korean), `2022_05_03.ipynb` of <https://github.com/Daegeun02/GPGPU>
# - [2] NVIDIA, "T4 Tensor Core GPU",
#   <https://www.nvidia.com/en-us/data-center/tesla-t4/>
#
# [37.2 ms]: ../figures/h200/timing/book-results.txt
#   "x2 50,000,000 NumPy as written | ms"
# [7.57 ms]: ../figures/h200/timing/book-results.txt
#   "x2 50,000,000 PyTorch as written host | ms"
# [0.423 ms]: ../figures/h200/timing/book-results.txt
#   "x2 50,000,000 MXNet as written 1 | ms"
# [38.6 ms]: ../figures/h200/timing/book-results.txt
#   "host to device 67,108,864 MXNet np.array 1 | ms"
# [26.7 ms]: ../figures/h200/timing/book-results.txt
#   "device to host 67,108,864 MXNet asnumpy 1 | ms"

# %% [markdown]
# # Devices, copies and queues
#
# In Chapter 1 we sent shards to devices and summed gradients over them. Here we look at
# what a device is, and at the price of sending numbers to it. Then we can say when a
# trip to a device pays.
#
# ![Each device has a queue of work](../docs/drawings/queues-of-devices.svg)
#
# A published set of lecture notes [1] doubles 50,000,000 numbers on a processor and on
# a T4 GPU. It prints 33.6 ms for the processor and **0.90 ms** for the GPU. We will see
# why the second number cannot be right, and which part of the work it leaves out.
#
# Run this chapter as a notebook, or as `python chapters/devices.py`.

# %%
import time
from statistics import median

import numpy
from matplotlib.figure import Figure

from d2lpar import chapter, devices, mx, np, npx
from d2lpar.machine.cards import as_text
from d2lpar.records.kinds import TimingRecord

print(as_text())

# %% [markdown]
# The cell prints a summary of the processor and of every GPU. A GPU has its own memory,
# to which data must be copied first. A *link* connects it to the host and to other
# GPUs. In data-parallel training the gradients cross a link in every step.
#
# ## A queue of work
#
# MXNet calls a device a *context*. `mx.gpu(0)`, `mx.gpu(1)`, ... are GPUs, and
# `mx.cpu(0)`, `mx.cpu(1)`, ... are on the host. Each context is a queue. Python appends
# operations to the queue and goes on, and background threads execute them. Two devices
# compute at the same time, because their queues are independent. Let us append products
# of matrices to the queues of one and of two contexts, and see when Python goes on and
# when the work has finished.


# %%
def queue_products(chosen, repeats=20):
    """Milliseconds until the products are queued, and until they are computed."""
    arrays = [np.ones((500, 500), ctx=device) for device in chosen]
    npx.waitall()
    start = time.perf_counter()
    for _ in range(repeats):
        for array in arrays:
            npx.fully_connected(array, array, no_bias=True, num_hidden=500)
    queued = time.perf_counter() - start
    npx.waitall()
    return 1e3 * queued, 1e3 * (time.perf_counter() - start)


two = devices.parse("cpu:2")
queue_products(two)  # a warm-up
for chosen in (two[:1], two):
    queued, computed = queue_products(chosen)
    print(
        f"{len(chosen)} context(s): queued in {queued:.1f} ms, done in {computed:.1f}"
    )

# %% [markdown]
# Python returns long before the products exist. If two contexts need about as long as
# one for twice the work, each of them had a core to itself. If they need twice as long,
# they shared one, as all CPU contexts share the cores and the memory of the host.
#
# ## Names
#
# `mx.gpu(7)` is only a name. MXNet raises an error when an array is created there.
# `devices.parse("gpu:8")` checks that the GPUs exist, and `devices.parse("auto")`
# selects every GPU that MXNet can use, or else one CPU context per core. d2l's
# `try_gpu(7)` returns the CPU without a warning, so that a timing of "two GPUs" can
# measure one device.
#
# The numbers of GPUs are relative. The environment variable `CUDA_VISIBLE_DEVICES`
# lists the GPUs that a process may use, and the process numbers these from 0. With
# `CUDA_VISIBLE_DEVICES=2,3` the GPU that `nvidia-smi` calls 2 is `mx.gpu(0)`.
#
# A context is a queue, so there can be more contexts than cores. Use them to test a
# program, not to time it:

# %%
print("a name:", mx.gpu(7), "and", len(devices.parse("cpu:64")), "contexts")
print("auto:", ", ".join(map(devices.label, devices.parse("auto"))))

# %% [markdown]
# ## There and back
#
# A computation on a GPU needs two extra calls, a copy to the device and a copy back:
#
# | | to the device | back to the host |
# |---|---|---|
# | PyCUDA | `gpuarray.to_gpu(x)` | `x_device.get()` |
# | MXNet | `np.array(x, ctx=device)` | `x_device.asnumpy()` |
# | PyTorch | `torch.from_numpy(x).to(device)` | `x_device.cpu().numpy()` |
#
# In this chapter `numpy` is NumPy on the host, and `np` is MXNet's NumPy on a device.

# %%
device = devices.parse("auto")[0]
host_data = numpy.array([1, 2, 3, 4, 5], dtype="float32")
device_data = np.array(host_data, ctx=device)  # a copy to the device
device_data_x2 = 2 * device_data  # computed on the device
x = device_data
print(*(result.asnumpy() for result in (x + x, x**2, 1 / x, x - x)), sep="\n")
host_data[0] = 100
print("on", device_data.ctx, device_data, device_data_x2.asnumpy())  # a copy back

# %% [markdown]
# The device's array still begins with 1, because data move only when we copy them. Both
# operands of an addition must be on the same device. Copy one of them first,
# `a.copyto(b.ctx) + b`, as in the all-reduce of Chapter 1.
#
# ## The time of a trip
#
# How much of a trip is arithmetic? We time the copy to the device, the operation, the
# copy back, and the same operation in NumPy. We wait before we read the clock, because
# the call only queues the work.


# %%
def trip(device, n=5_000_000, repeats=7):
    """Double n numbers on the host and on a device: the milliseconds of each part."""
    x, rows = numpy.random.default_rng(0).random(n, dtype="float32"), []
    for _ in range(repeats):
        times = [time.perf_counter()]
        x_x2 = x * numpy.float32(2)
        times.append(time.perf_counter())
        on_device = np.array(x, ctx=device)
        on_device.wait_to_read()
        times.append(time.perf_counter())
        on_device_x2 = on_device * 2
        on_device_x2.wait_to_read()
        times.append(time.perf_counter())
        assert (on_device_x2.asnumpy() == x_x2).all()
        times.append(time.perf_counter())
        rows.append(1e3 * numpy.diff(times))
    return [median(part) for part in zip(*rows[2:])]  # the first two warm up


parts = "NumPy, on the host", "copy to the device", "on the device", "copy back"
milliseconds = trip(device)
figure = Figure(figsize=(6, 1.8), layout="constrained")
axes = figure.subplots()
axes.bar_label(axes.barh(parts, milliseconds), fmt="%.1f ms", padding=3)
axes.invert_yaxis()
axes.margins(x=0.2)
chapter.show(figure, "a-trip")

# %% [markdown]
# A CPU context runs on the same processor as NumPy, so we expect no saving from it.
#
# ## A bound
#
# The published time can be checked with arithmetic. A T4 reads and writes its memory at
# 320 GB/s [2]. Each number has 4 bytes, is read once, and is written once. No correct
# time is below `bytes / bandwidth`, unless the numbers are in a cache.
#
# *Predict before you run*: how many milliseconds does a T4 need at least to double
# 50,000,000 numbers? Replace `None` by your number.

# %%
chapter.predict("ms that a T4 needs at least", None)
chapter.answer("ms that a T4 needs at least", 1e3 * 2 * 4 * 50e6 / 320e9)

# %% [markdown]
# Each number moves 8 bytes: `8 * 50e6 / 320e9` seconds. The published time is shorter,
# so its clock stopped before the GPU had finished. It also leaves out both copies.
#
# ## Is it worth the trip?
#
# Suppose that we compute k operations in a row on the same numbers. The trip pays if
#
#     k * (host - device) > copy there + copy back
#
# The next cell reads our record of an H200 and its host. We compare the device with the
# *fastest* library on the host, because a slow one would make any device look good.
#
# *Predict before you run*: how many doublings in a row are the fewest for which the
# trip to this H200 pays?

# %%
chapter.predict("operations for an H200", None)
ms = {}
for x in chapter.record("gpus/timing/book-gpu1.jsonl").lines_of(TimingRecord):
    if x.operation in ("x2", "host to device", "device to host"):
        scale = 200e6 / x.num_bytes if "device" in x.operation else 1  # of 200 MB
        key = x.operation, x.library, x.form, x.devices[0][:4]
        ms[key] = 1e3 * median(x.seconds) * scale
copies = ms["host to device", "MXNet", "np.array", "gpu("]
copies += ms["device to host", "MXNet", "asnumpy", "gpu("]
on_gpu = ms["x2", "MXNet", "as written", "gpu("]
for library in ("NumPy", "PyTorch"):
    saved = ms["x2", library, "as written", "host"] - on_gpu
    print(f"{library}: an operation saves {saved:.1f} ms, the trip costs {copies:.1f}")
chapter.answer("operations for an H200", int(copies // saved) + 1)
chapter.score()

# %% [markdown]
# The trip costs as much as several operations save. Therefore bring data to a device
# once, and leave it there. In training the parameters
# stay on the device, and each batch stays there through all layers. While the GPU
# computes, the next batch can be copied from *pinned* memory, which the operating
# system does not move. (In PyTorch: `DataLoader(..., pin_memory=True)` and
# `x.to(device, non_blocking=True)`.)
#
# While a training runs, `htop` shows how busy each core is, and `nvidia-smi` how busy
# each GPU is ([more](../docs/second-gpu.md#look-while-it-runs)).
#
# ## Summary
#
# > **Takeaway.** A device is a queue of work. A trip to it pays for k operations if
# > `k * (host - device) > copy there + copy back`. An element-wise operation takes at
# > least `bytes / bandwidth`, unless the numbers are in a cache.
#
# ## Exercises
#
# 1. Call `trip(device, n)` with n of 1,000, 100,000 and 10,000,000. Which of the four
#    times grow with n? *(All of them for large n. For 1,000 numbers each time is mostly
#    a fixed cost, such as the time of a call.)*
# 2. Profile Python, as the notes do: `cProfile.run("trip(device)", sort="cumulative")`.
#    Why is `__mul__`, the product, not among the calls that take long? *(It returns as
#    soon as the product is queued. `wait_to_read` and `asnumpy` wait.)*
# 3. *On paper.* A network's 129,068 parameters cross a link of 16 GB/s, and each
#    transfer has a fixed cost of 10 us. How long do they take as one array, and how
#    long as eight arrays? *(`129068 * 4 / 16e9 = 32 us` for the bytes. One array takes
#    42 us, and eight arrays take 112 us. Small arrays are therefore sent together.)*
# 4. *On paper.* A step takes 3 ms on a GPU, and copying its batch takes 1 ms. How long
#    do 1,000 steps take if each step waits for its copy, and if copies and steps
#    overlap? *(4,000 ms, and `1 + 1,000 * 3 = 3,001 ms`.)*
# 5. *Open.* Which of your own programs copies more than it computes?
#
# ## Sources
#
# - [1] Least-squares notes on GPU computing, "Using PyCUDA's gpuarray class" (in
#   Korean), `2022_05_03.ipynb` of <https://github.com/Daegeun02/GPGPU>
# - [2] NVIDIA, "T4 Tensor Core GPU",
#   <https://www.nvidia.com/en-us/data-center/tesla-t4/>

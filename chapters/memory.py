# %% [markdown]
# # Running out of memory
#
# Source: the GPU wiki, "memory",
# <https://github.com/likejazz/likejazz.github.io>, in Korean
# (`_wiki/GPU-Data-Science.md`)
#
# How much memory a training needs, what happens if there is less, and what is released
# afterwards. [The wiki](https://github.com/likejazz/likejazz.github.io) fills the 14.7
# GB of a Tesla T4, gets an error that does not mention memory (`cuMemcpyHtoD results in
# CUDA_ERROR_INVALID_VALUE`), and notes that leaving Python returns all of it. Run this
# chapter as a notebook, or as a program:
#
#     python chapters/memory.py --devices auto
#     d2lpar run memory --preset book
#     d2lpar run gan --preset book --dry-run        (prints an estimate)
#
# **What you will learn.**
#
# - to count what a training keeps, from the shapes of its layers, before it runs;
# - to measure what a process really takes, and to compare the two;
# - what a second device, or micro-batches, change;
# - what still holds memory after an error, and what returns it;
# - to notice when a "GPU" time is a CPU's.

# %%
import importlib.util
import json
import math
import os
import warnings
from functools import partial

import psutil
from loky import ProcessPoolExecutor
from matplotlib.figure import Figure

from d2lpar import chapter, devices, get_params, init_lenet, np, npx
from d2lpar.machine.builds import cuda_devices
from d2lpar.memory import estimate
from d2lpar.memory.estimate import gan_layers, lenet_layers
from d2lpar.text import byte_size

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## Count before the run
#
# Backpropagation needs the output of every layer again, for every image of the batch.
# One image through LeNet, layer by layer, tells how many numbers that is.
#
# *Predict before you run*: LeNet has 129,068 parameters, half a megabyte in float32.
# Which will take more memory for a batch of 256 images, the parameters or the outputs?
# By what factor?

# %%
W1, b1, W2, b2, W3, b3, W4, b4 = get_params(init_lenet(), two[0])
layers = {
    "images": lambda h: h,
    "convolution 1": lambda h: npx.convolution(h, W1, b1, kernel=(3, 3), num_filter=20),
    "relu 1": npx.relu,
    "pooling 1": lambda h: npx.pooling(h, (2, 2), pool_type="avg", stride=(2, 2)),
    "convolution 2": lambda h: npx.convolution(h, W2, b2, kernel=(5, 5), num_filter=50),
    "relu 2": npx.relu,
    "pooling 2": lambda h: npx.pooling(h, (2, 2), pool_type="avg", stride=(2, 2)),
    "dense 1": lambda h: np.dot(h.reshape((len(h), -1)), W3) + b3,
    "relu 3": npx.relu,
    "dense 2": lambda h: np.dot(h, W4) + b4,
}
h, numbers = np.zeros((1, 1, 28, 28)), {}
for name, layer in layers.items():
    h = layer(h)
    numbers[name] = math.prod(h.shape[1:])
    print(f"{name:14} {str(h.shape[1:]):13} {numbers[name]:6,} numbers")
parameters = sum(p.size for p in (W1, b1, W2, b2, W3, b3, W4, b4))
print(f"{sum(numbers.values()):,} numbers per image, {parameters:,} parameters")
kept = 4 * 256 * sum(numbers.values())
print(f"a batch of 256: {byte_size(kept)}; the parameters: {byte_size(4 * parameters)}")
print(f"the outputs take {kept / (4 * parameters):.0f} times as much")

# %% [markdown]
# **What you see.** The outputs of a batch of 256 take 80 times as much memory as the
# parameters. They grow with the batch, and each device keeps those of its shard.
#
# ![What one device keeps, and each of two](../docs/drawings/memory-of-a-device.svg)
#
# The package counts the same, and the rest: gradients, the data set, Python itself.

# %%
need = estimate.estimate(lenet_layers, {"global_batch_size": 256}, 1)
(counted,) = (i.size for i in need.items if i.name == "outputs kept for backward")
print(f"d2lpar: {byte_size(counted)}, here: {byte_size(kept)}")
assert counted == kept
print(estimate.report(lenet_layers, {"global_batch_size": 256}, two))

# %% [markdown]
# ## Measure
#
# To check the count, train one step on 1,000 and on 3,000 images, each in a fresh
# process, and compare the peak resident memory (`VmHWM`).
#
# *Predict before you run*: an image takes 4 bytes for each number kept, and what the
# backward pass adds. Is that more or less than twice the count?


# %%
def peak(batch_size: int) -> int:
    """Bytes at most resident in a process that trains one step."""
    from d2lpar import datasets, lenet
    from d2lpar.machine.host import process_status

    data = datasets.fashion_sample(n_train=batch_size, n_test=200)
    epochs = {"num_epochs": 1, "global_batch_size": batch_size, "devices": "cpu:1"}
    for _ in lenet.train(data=data, **epochs):
        break
    return process_status("VmHWM")


# One temporary buffer instead of 256, and large arrays returned at once: see below.
environment = {"MXNET_CPU_TEMP_COPY": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
peaks = {}
for size in (1_000, 3_000):
    with ProcessPoolExecutor(1, env=environment) as fresh_process:
        peaks[size] = fresh_process.submit(peak, size).result()
    print(f"batches of {size:,}: at most {byte_size(peaks[size])} resident")
measured = (peaks[3_000] - peaks[1_000]) / 2_000
by_estimate = [
    estimate.estimate(lenet_layers, {"global_batch_size": n}, 1).total
    for n in (1_000, 3_000)
]
print(f"per image: measured {measured / 1000:,.0f} kB", end=", ")
print(f"kept {kept / 256 / 1000:,.0f} kB", end=", ")
print(f"estimated {(by_estimate[1] - by_estimate[0]) / 2e6:,.0f} kB")

# %% [markdown]
# **What you see.** An image takes more than the outputs that are kept, and less than
# twice as much: at the peak of the backward pass the gradients of the two largest
# outputs (13,520 numbers each) are also alive. The estimate adds both in full, because
# it is meant to err on the high side.

# %%
figure = Figure(figsize=(6, 1.9), layout="constrained")
axes = figure.subplots()
names = ("counted: outputs kept", "measured", "estimated, with gradients")
values = (kept / 256, measured, (by_estimate[1] - by_estimate[0]) / 2_000)
axes.barh(names, [v / 1000 for v in values], color=["0.7", "#0072B2", "0.7"])
axes.invert_yaxis()
axes.set_xlabel("kB per image")
chapter.show(figure, "memory-per-image")

# %% [markdown]
# ## More than fits
#
# The GAN's full batch of 10,000 faces needs gigabytes, unless a device takes a part at
# a time (`--micro-batch-size`): the gradients of the parts sum to the gradient of the
# whole batch, so micro-batches cost only time. On CPUs MXNet's `MXNET_CPU_TEMP_COPY`
# temporary buffers, which the estimate does not count, come on top: each keeps the
# largest size ever requested, so a process grows until all of them have reached it.
# This is why chapter `gan` runs with 16 of them, and not with 256.

# %%
for micro_batch_size in (None, 500):
    settings = {"global_batch_size": 10_000, "micro_batch_size": micro_batch_size}
    need = estimate.estimate(gan_layers, settings, num_devices=2)
    print(f"by {micro_batch_size}: {byte_size(need.total)} in all")
print(need)

# %% [markdown]
# ## At the limit
#
# To simulate a small device, we let a process allocate only 300 MiB more. Batches of
# 2,000 images fail with a one-line message that says what would surely fit; the
# estimate is high on purpose.
#
# *Predict before you run*: After a failure, will a batch of 500 train in the same
# process? What could still hold the failed batch's arrays?


# %%
def train_within(limit: int, batch_sizes: tuple) -> list[str]:
    from d2lpar import datasets, devices, lenet
    from d2lpar.machine.host import process_status
    from d2lpar.memory import out_of_memory
    from d2lpar.memory.estimate import lenet_layers
    from d2lpar.text import byte_size

    sizes, one, lines = {"n_train": 2_000, "n_test": 200}, devices.parse("cpu:1"), []
    data = datasets.fashion_sample(**sizes)
    run = partial(lenet.train, devices=one, data=data, num_epochs=1)
    list(run(global_batch_size=2_000))  # the temporary buffers take their size now
    out_of_memory.release(one)
    with out_of_memory.limited(limit):
        for size in batch_sizes:
            settings = {"global_batch_size": size}
            try:
                (epoch,) = run(**settings)
                line = f"trained, loss {epoch.train_loss:.3f}"
            except Exception as error:
                line = out_of_memory.explain(error, lenet_layers, settings, one, sizes)
                if line is None:
                    raise
            out_of_memory.release(one)
            resident = byte_size(process_status("VmRSS"))
            lines.append(f"{size}: {line}\n  resident afterwards: {resident}")
    return lines


with ProcessPoolExecutor(1, env=environment) as executor:
    task = partial(train_within, 300 * 2**20, (2_000, 500, 2_000, 500))
    print("\n".join(executor.submit(task).result()))

# %% [markdown]
# **What you see.** Batches of 500 train after the failure of 2,000. Three things hold
# memory after a failure: the *error*, whose traceback keeps the failed frames and their
# arrays alive; *pending work*, which fails in turn; and *pools* of freed memory that
# MXNet and the C library keep for later. `out_of_memory.release` clears all three. In
# short it does this:
#
#     traceback.clear_frames(error.__traceback__)   # the failed arrays
#     npx.waitall()                                 # pending work
#     gc.collect()
#     mx.gpu(0).empty_cache()                       # a GPU's pool
#
# In a notebook it is mostly the error: `sys.last_traceback` keeps the failed arrays
# until the next error, and `Out[...]` keeps what was shown until `%reset`.
#
# A third way to need less memory, beside more devices and micro-batches, is *gradient
# checkpointing*: keep only some layers' outputs and compute the others again in the
# backward pass. It costs time instead of memory, and MXNet does not do it unless asked.
#
# ## Leaving returns everything
#
# The wiki's remedy always works: when a process ends, the system gets back all of its
# memory, whatever it leaked. So `d2lpar run` measures each device count in a process of
# its own.


# %%
def hold(size: int) -> tuple[int, int]:
    from d2lpar import np
    from d2lpar.machine.host import process_status

    array = np.ones(size // 4)
    array.wait_to_read()
    globals()["leaked"] = array  # nobody will ever release this
    return os.getpid(), process_status("VmRSS")


executor = ProcessPoolExecutor(1)
pid, resident = executor.submit(hold, 200 * 2**20).result()
print(f"the process: {byte_size(resident)} resident, which it never gives back")
executor.shutdown()
ended = "still there" if psutil.pid_exists(pid) else "gone, and its memory with it"
print("after shutdown:", ended)

# %% [markdown]
# **On a GPU** memory is separate and smaller, and nothing is swapped. MXNet keeps freed
# memory in a pool until `mx.gpu(0).empty_cache()`. CUDA's context and cuDNN's
# workspaces come on top of the estimate.
#
# When the data does not fit into a T4 the wiki turns to Dask, and reports that memory
# grows there, too: chapter `least_squares_large` measures why it may.
#
# ## XGBoost, the wiki's example of a full GPU
#
# The wiki shows a GPU at work while XGBoost trains with `gpu_hist`: histograms of all
# features, built on the GPU. Since XGBoost 2.0 that is written `tree_method="hist",
# device="cuda"`; XGBoost 3 rejects the old name.
#
# *Predict before you run*: On a machine without a GPU, what does `device="cuda"` do?


# %%
def boost(device: str) -> dict:
    """Train 20 trees on 20,000 x 30 numbers; in a process of its own."""
    import time

    import numpy
    import xgboost

    from d2lpar.machine.host import process_status

    rng = numpy.random.default_rng(0)
    X = rng.random((20_000, 30), dtype="float32")
    y = X[:, :5].sum(axis=1) > 2.5
    settings = {"tree_method": "hist", "device": device, "objective": "binary:logistic"}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        data = xgboost.QuantileDMatrix(X, y)
        xgboost.train(settings, data, 1)  # a GPU's context takes its time once
        begin = time.perf_counter()
        model = xgboost.train(settings, data, 20)
        seconds = time.perf_counter() - begin
    used = json.loads(model.save_config())["learner"]["generic_param"]["device"]
    accuracy = ((model.predict(data) > 0.5) == y).mean()
    peak = process_status("VmHWM")
    return dict(
        device=used, seconds=seconds, accuracy=accuracy, peak=peak,
        warned=[str(w.message).splitlines()[0].split(": ")[-1] for w in warned[:1]],
    )  # fmt: skip


if importlib.util.find_spec("xgboost"):
    for device in ("cpu", "cuda"):
        with ProcessPoolExecutor(1) as executor:
            done = executor.submit(boost, device).result()
        print(
            f"asked for {device}: ran on {done['device']}, {done['seconds']:.2f} s",
            end="",
        )
        print(f", accuracy {done['accuracy']:.4f}, {byte_size(done['peak'])} at most")
        for message in done["warned"]:
            print(f"  it warned: {message}")
    print("NVIDIA GPUs here:", [d.name for d in cuda_devices()] or "none")
else:
    print("skipped: XGBoost is not installed (pip install xgboost)")

# %% [markdown]
# **What you see.** Without a GPU (or with a build that has no CUDA, `xgboost-cpu`)
# XGBoost warns and computes on the CPU, so that both rows are a CPU's: as with
# `d2l.try_gpu`, a "GPU time" is none. Ask the model where it was trained, as above,
# before you compare.
#
# ## The devices of a run
#
# How much memory is free on those that the flags name; `d2lpar devices --watch` shows
# it while something runs.


# %%
if __name__ == "__main__":
    runs = chapter.measure("memory")

# %% [markdown]
# ## Summary
#
# - Training keeps the outputs of all layers of all images of its shard; parameters are
#   small beside them. The count needs shapes only.
# - Twice the devices halve what each keeps; micro-batches do it on one device.
# - After a failure release the error, the pending work and the pools, or leave the
#   process.
# - Ask where something ran before you believe its time.
#
# ## Exercises
#
# 1. **Twice the batch, twice the devices.** Print the estimates of batches of 256 and
#    512 on one device and on two (`need.on(k)`). *(What is kept
#    doubles with the batch, and two devices halve it. But they do not halve the first
#    device's total, because it also holds the data set.)*
# 2. **BatchNorm over all devices.** Estimate the GAN's 10,000 faces on two devices with
#    `"sync_batch_norm": True`. *(It grows by about a third: the
#    centred input of BatchNorm and its square are kept, too.)*
# 3. **Micro-batches.** What fits into 1 GiB? *(About 500 faces at a time. Parts of
#    100 need less, but not a fifth: the data set and the judged faces stay.)*
# 4. **Keep the errors.** In `train_within` append each error to a list, and leave out
#    `explain` and `release`. *(The batches of 500 still train
#    here, because the failing allocation came early. What is resident grows with each
#    error kept.)*
# 5. **Ask for a GPU that is not there.** Compare three answers:
#    `devices.parse("gpu:1")`, `d2lpar.try_gpu(0)` and XGBoost's `device="cuda"`. *(An
#    error that names what exists, a CPU context in silence, and a warning. Only the
#    first one stops a wrong measurement.)*

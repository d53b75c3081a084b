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
# - what still holds memory after an error, and what returns it.

# %%
import math
import os
from functools import partial

import psutil
from loky import ProcessPoolExecutor
from matplotlib.figure import Figure

from d2lpar import chapter, devices, get_params, init_lenet, np, npx
from d2lpar.memory import estimate

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
MIB = 2**20  # bytes

# %% [markdown]
# ## Count before the run
#
# Backpropagation needs the output of every layer again, for every image of the batch.
# One image through LeNet, layer by layer, tells how many numbers that is.
#
# *Predict before you run*: LeNet has 129,068 parameters, half a megabyte in float32.
# By what factor do the outputs of all layers take more memory than the parameters, for
# a batch of 256 images?

# %%
chapter.predict("times as much for the outputs", None)  # write your number for None
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
h, numbers = np.zeros((1, 1, 28, 28), ctx=two[0]), {}
for name, layer in layers.items():
    h = layer(h)
    numbers[name] = math.prod(h.shape[1:])
    print(f"{name:14} {str(h.shape[1:]):13} {numbers[name]:6,} numbers")
parameters = sum(p.size for p in (W1, b1, W2, b2, W3, b3, W4, b4))
print(f"{sum(numbers.values()):,} numbers per image, {parameters:,} parameters")
kept = 4 * 256 * sum(numbers.values())
print(f"a batch of 256: {kept / MIB:.1f} MiB", end="; ")
print(f"the parameters: {4 * parameters / MIB:.1f} MiB")
chapter.answer("times as much for the outputs", kept / (4 * parameters))

# %% [markdown]
# **What you see.** The outputs of a batch of 256 take 80 times as much memory as the
# parameters. They grow with the batch, and each device keeps those of its shard.
#
# ![What one device keeps, and each of two](../docs/drawings/memory-of-a-device.svg)
#
# The package counts the same, and the rest: gradients, the data set, Python itself.

# %%
need = estimate.estimate(estimate.lenet_layers, {"global_batch_size": 256}, 1)
(counted,) = (i.size for i in need.items if i.name == "outputs kept for backward")
print(f"d2lpar: {counted:,} bytes, here: {kept:,}")
assert counted == kept
print(estimate.report(estimate.lenet_layers, {"global_batch_size": 256}, two))

# %% [markdown]
# ## Measure
#
# To check the count, train one step on 1,000 and on 3,000 images, each in a fresh
# process, and compare the peak resident memory (`VmHWM`).
#
# *Predict before you run*: an image takes 4 bytes for each number kept, and what the
# backward pass adds. How many times the count is that?


# %%
def peak(batch_size: int) -> int:
    """Bytes at most resident in a process that trains one step."""
    import resource

    from d2lpar import datasets, lenet

    data = datasets.fashion_sample(n_train=batch_size, n_test=200)
    epochs = {"num_epochs": 1, "global_batch_size": batch_size, "devices": "cpu:1"}
    for _ in lenet.train(data=data, **epochs):
        break
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


chapter.predict("times the count", None)
# One temporary buffer instead of 256, and large arrays returned at once: see below.
environment = {"MXNET_CPU_TEMP_COPY": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
peaks = {}
for size in (1_000, 3_000):
    with ProcessPoolExecutor(1, env=environment) as fresh_process:
        peaks[size] = fresh_process.submit(peak, size).result()
    print(f"batches of {size:,}: at most {peaks[size] / MIB:.0f} MiB resident")
measured = (peaks[3_000] - peaks[1_000]) / 2_000
by_estimate = [
    estimate.estimate(estimate.lenet_layers, {"global_batch_size": n}, 1).total
    for n in (1_000, 3_000)
]
print(f"per image: measured {measured / 1000:,.0f} kB", end=", ")
print(f"kept {kept / 256 / 1000:,.0f} kB", end=", ")
print(f"estimated {(by_estimate[1] - by_estimate[0]) / 2e6:,.0f} kB")
chapter.answer("times the count", measured / (kept / 256))

# %% [markdown]
# **What you see.** An image takes more than the outputs that are kept, and less than
# twice as much: at the peak of the backward pass the gradients of the two largest
# outputs (13,520 numbers each) are also alive. The estimate adds both in full, because
# it is meant to err on the high side. [Other batches, two contexts, and an
# H200](../figures/benchmarks/memory.png).

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
    need = estimate.estimate(estimate.gan_layers, settings, num_devices=2)
    print(f"by {micro_batch_size}: {need.total / 2**30:.2f} GiB in all")
print(need)

# %% [markdown]
# ## At the limit
#
# To simulate a small device, we let a process allocate only 300 MiB more. Batches of
# 2,000 images fail with a one-line message that says what would surely fit; the
# estimate is high on purpose.
#
# *Predict before you run*: after a failure, will a batch of 500 train in the same
# process? What could still hold the failed batch's arrays?


# %%
def train_within(limit: int, batch_sizes: tuple) -> list[str]:
    from d2lpar import datasets, devices, lenet
    from d2lpar.memory import estimate, out_of_memory

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
                line = out_of_memory.explain(
                    error, estimate.lenet_layers, settings, one, sizes
                )
                if line is None:
                    raise
            out_of_memory.release(one)
            resident = psutil.Process().memory_info().rss / 2**20
            lines.append(f"{size}: {line}\n  resident afterwards: {resident:.0f} MiB")
    return lines


chapter.predict("500 trains after the failure", None)  # "yes" or "no"
with ProcessPoolExecutor(1, env=environment) as executor:
    task = partial(train_within, 300 * 2**20, (2_000, 500, 2_000, 500))
    lines = executor.submit(task).result()
print("\n".join(lines))
trained = "trained" in lines[1]
chapter.answer("500 trains after the failure", "yes" if trained else "no")
chapter.score()

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

    array = np.ones(size // 4)
    array.wait_to_read()
    globals()["leaked"] = array  # nobody will ever release this
    return os.getpid(), psutil.Process().memory_info().rss


executor = ProcessPoolExecutor(1)
pid, resident = executor.submit(hold, 200 * 2**20).result()
print(f"the process: {resident / MIB:.0f} MiB resident, which it never gives back")
executor.shutdown()
ended = "still there" if psutil.pid_exists(pid) else "gone, and its memory with it"
print("after shutdown:", ended)

# %% [markdown]
# **On a GPU** memory is separate and smaller, and nothing is swapped. MXNet keeps freed
# memory in a pool until `mx.gpu(0).empty_cache()`. CUDA's context and cuDNN's
# workspaces come on top: what [one H200](../figures/benchmarks/memory.png) took beyond
# the arrays is in the estimate for GPUs.
#
# <details><summary>The estimate of a batch of 256 with
# <code>kind="gpu"</code></summary>
#
#     memory for a batch of 256 on 1 GPU:
#     Python and MXNet             220 MiB  process
#     data set                    52.3 MiB  process
#     CUDA context                 880 MiB  each GPU
#     data set, its copy          52.3 MiB  first device
#     batch                        1.5 MiB  first device
#     parameters                 504.2 KiB  each device
#     gradients                  504.2 KiB  each device
#     outputs kept for backward   39.4 MiB  each device
#     gradients of outputs        26.4 MiB  each device
#     evaluation                 103.1 MiB  each device
#     workspaces, pool            55.2 MiB  each device
#     all together                 1.4 GiB
#
# </details>
#
# When the data does not fit into a T4 the wiki turns to Dask, and reports that memory
# grows there, too: chapter `least_squares_large` measures why it may. Its example of a
# full GPU is a training by XGBoost: [the sources](../docs/sources.md) say where that
# is.
#
# ## The devices of a run
#
# How much memory is free on those that the flags name; `d2lpar devices --watch` shows
# it while something runs.


# %%
if __name__ == "__main__":
    runs = chapter.measure("memory")

# %% [markdown]
# **What you see.** Two CPU contexts show the same free memory twice: they share the
# host's. Each GPU has its own.
#
# ## Summary
#
# > **Takeaway.** Bytes kept = 4 x batch / devices x numbers per image: for LeNet and
# > 256 images on one device `4 * 256 * 40,370 = 41.3e6`, 80 times the parameters
# > (counted above).
#
# - Training keeps the outputs of all layers of all images of its shard; parameters are
#   small beside them. The count needs shapes only.
# - Twice the devices halve what each keeps; micro-batches do it on one device.
# - After a failure release the error, the pending work and the pools, or leave the
#   process.
#
# ## Exercises
#
# 1. *On paper.* A device has 1 GiB free. How many images of LeNet's outputs fit?
#    *(`2**30 / (4 * 40,370) = 6,649`, without gradients. As measured above an image
#    takes up to twice as much in the backward pass, so expect half.)*
# 2. *On paper.* Adam keeps two numbers for each of LeNet's 129,068 parameters. From
#    which batch on do the outputs take more than parameters, gradients and Adam
#    together? *(`4 * 129,068 / 40,370 = 12.8`: from 13 images on.)*
# 3. **Twice the batch, twice the devices.** Print the estimates of batches of 256 and
#    512 on one device and on two (`need.on(k)`). *(What is kept
#    doubles with the batch, and two devices halve it. But they do not halve the first
#    device's total, because it also holds the data set.)*
# 4. **BatchNorm over all devices.** Estimate the GAN's 10,000 faces on two devices with
#    `"sync_batch_norm": True`. *(It grows by about a third: the
#    centred input of BatchNorm and its square are kept, too.)*
# 5. **Micro-batches.** What fits into 1 GiB? *(About 500 faces at a time. Parts of
#    100 need less, but not a fifth: the data set and the judged faces stay.)*
# 6. **Keep the errors.** In `train_within` append each error to a list, and leave out
#    `explain` and `release`. *(The batches of 500 still train
#    here, because the failing allocation came early. What is resident grows with each
#    error kept.)*

# %% [markdown]
# # Running out of memory
#
# How much memory does a training need, and what happens if there is less? The author of
# a published wiki page on GPUs [1] filled the **14.7 GB** of a Tesla T4. The error did
# not mention memory: `cuMemcpyHtoD results in CUDA_ERROR_INVALID_VALUE`. Leaving Python
# returned all of the memory.
#
# ![The memory of LeNet with 256 images, on one device and on each of
# two](../docs/drawings/memory-of-a-device.svg)
#
# **In one sentence.** Counted by their shapes, the outputs of layers and their
# gradients take most of the memory of LeNet's training, and they grow with the batch.
#
# The drawing is to scale and counts the arrays by their shapes. In this chapter we
# count the outputs before a training runs, compare the count with measurements, and
# discuss three ways to need less. Finally we let a training fail and look at what
# remains.
#
# Run this chapter as a notebook, or `python chapters/memory.py --devices auto`.

# %%
import json
import math
import os
import subprocess
import sys
from statistics import median
from textwrap import fill

import numpy
from matplotlib.figure import Figure

from d2lpar import autograd, chapter, devices, get_params, init_lenet, np, npx
from d2lpar.memory import estimate
from d2lpar.records.comparison import arm_times

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
MIB = 2**20  # bytes

# %% [markdown]
# ## Count before the run
#
# Backpropagation uses the results of the forward pass. The gradient of a convolution's
# weights depends on the input of the convolution, and the gradient of a ReLU on where
# its output is positive. A simple rule is therefore that a training keeps the output of
# each layer, for every image of the batch, until the backward pass has used it. We pass
# one image through LeNet to count these numbers, and test the rule afterwards.
#
# *Predict before you run*: LeNet has 129,068 parameters, half a megabyte in float32.
# For a batch of 256 images, how many times the memory of the parameters do the outputs
# of all layers need?

# %%
chapter.predict("times as much for the outputs", None)  # write your number for None
W1, b1, W2, b2, W3, b3, W4, b4 = params = get_params(init_lenet(0.1), two[0])
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
per_image, parameters = sum(numbers.values()), sum(p.size for p in params)
print(f"{per_image:,} numbers per image, {parameters:,} parameters")
kept = 4 * 256 * per_image
assert (per_image, parameters) == (40_370, 129_068)
chapter.answer("times as much for the outputs", kept / (4 * parameters))

figure = Figure(figsize=(6, 2.6), layout="constrained")
axes = figure.subplots()
axes.barh(list(numbers), [4 * 256 * n / MIB for n in numbers.values()], color="0.6")
axes.barh(["parameters"], [4 * parameters / MIB], color="#0072B2")
axes.invert_yaxis()
axes.set_xlabel("MiB for 256 images")
chapter.show(figure, "memory-by-layer")

# %% [markdown]
# The factor is `256 * 40,370 / 129,068`. The first convolution and its ReLU account for
# two thirds of the outputs. The outputs grow with the batch, but the parameters do not.
#
# The package counts by the same rule; `d2lpar run NAME --dry-run` prints the estimate.
# It adds Python and its libraries, the data set, and the gradients of the parameters.
# It also adds the gradients of the two largest outputs, which the backward pass needs
# at the same time. The evaluation takes the test images in larger batches and needs
# three of the largest outputs. Finally, Python prepares up to 16 batches, and all
# test images, before the devices have computed the first of them.

# %%
need = estimate.lenet_need(global_batch_size=256, num_devices=1)
print(need)
(counted,) = (i.size for i in need.items if i.name == "outputs kept for backward")
assert counted == kept

# %% [markdown]
# ## Measure
#
# Does the rule hold? After the forward pass the outputs are kept, and their gradients
# do not exist yet. *Resident memory* is the memory that a process occupies at the
# moment. We read it before and after a fresh process has passed 3,000 images through
# LeNet. In this process MXNet has one temporary buffer instead of 256, and the C
# library returns arrays of 1 MB or more to the system as soon as they are freed. The
# resident memory is then the memory of the arrays.
#
# *Predict before you run*: which share of the counted outputs is still in memory after
# the forward pass? Which gradients need the output of a convolution?

# %%
chapter.predict("% of the counted outputs", None)


def in_a_process(program, *job):
    """Return the lines that a program prints for a job in a fresh process, as JSON."""
    settings = {"MXNET_CPU_TEMP_COPY": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", program, json.dumps(job)]
    environment = {**os.environ, **settings}
    printed = subprocess.check_output(command, env=environment, text=True)
    return [json.loads(line) for line in printed.splitlines()]


KEPT = """
import json, sys
from d2lpar import autograd, devices, get_params, init_lenet, lenet, np, npx
from d2lpar.machine.host import process_status

(batch,), (cpu,) = json.loads(sys.argv[1]), devices.parse("cpu:1")
X, params = np.zeros((batch, 1, 28, 28)), get_params(init_lenet(0.1), cpu)
lenet.lenet(X, params)  # keeps nothing, but fills MXNet's temporary buffer
npx.waitall()
before = process_status("VmRSS")
with autograd.record():
    scores = lenet.lenet(X, params)
scores.wait_to_read()
print(process_status("VmRSS") - before)
"""
(kept_now,) = in_a_process(KEPT, 3_000)
left = kept_now / 4 / 3_000
counted = per_image - numbers["images"]  # the images were there before
print(f"{left:,.0f} of {counted:,} numbers per image are in memory")
freed = numbers["convolution 1"] + numbers["convolution 2"]
expected = {"MXNet keeps both": counted, "MXNet frees both": counted - freed}
print(*(what for what, n in expected.items() if abs(left / n - 1) < 0.1) or ["neither"])
chapter.answer("% of the counted outputs", 100 * left / counted)

# %% [markdown]
# The rule counts more than the gradients need. The gradient of a ReLU can be computed
# from its output, which is positive where its input is. The gradient of a convolution
# needs the input and the weights, but not the output. A framework can therefore free
# the outputs of both convolutions as soon as the ReLU has used them. (The same holds
# for the 138 outputs of the dense layers, which we neglect.) Then
# `39,586 - 13,520 - 4,050 = 22,016` numbers are left, a share of
# `22,016 / 39,586 = 56 %`.
#
# The cell accepts a case if the measurement is within a tenth of it. "Neither" has two
# possible causes: MXNet frees only one of both outputs, or the process holds additional
# arrays, for example copies in a different layout.
#
# The backward pass needs more memory. We train one step with 1,000 and one with 3,000
# images, each in a fresh process, and read the peak of the resident memory. The
# difference of the peaks is due to 2,000 images.
#
# How many times the 4 bytes per counted number does an image need at the peak?

# %%
PEAK = """
import json, sys
from d2lpar import fashion_sample, lenet
from d2lpar.machine.host import process_status

(batch,) = json.loads(sys.argv[1])
data = fashion_sample(n_train=batch, n_test=200)
list(lenet.train(devices="cpu:1", data=data, num_epochs=1, global_batch_size=batch))
print(process_status("VmHWM"))
"""
(small,), (large,) = in_a_process(PEAK, 1_000), in_a_process(PEAK, 3_000)
measured = (large - small) / 2_000
largest = 2 * max(numbers.values())
print(f"per image: {4 * per_image / 1000:.0f} kB of outputs", end=", ")
print(f"with two gradients {4 * (per_image + largest) / 1000:.0f} kB", end=", ")
print(f"measured {measured / 1000:.0f} kB")
uncounted = measured / 4 - (left + numbers["images"] + largest)
print(f"beyond what is kept and two gradients: {uncounted:,.0f} numbers per image")
print(f"{measured / (4 * per_image):.2f} times the count")

# %% [markdown]
# With the two largest gradients, our rule suggests a factor of
# `(40,370 + 2 * 13,520) / 40,370 = 1.67`. Without the outputs that can be freed, only
# `784 + 22,016` numbers are kept, and the factor is
# `(22,800 + 2 * 13,520) / 40,370 = 1.23`. The line "beyond what is kept" counts what
# the peak holds beyond the measured outputs and the two gradients: arrays that are not
# in our list, such as the working memory of a convolution's algorithm. A factor near
# 1.67 is then a coincidence, because the rule counts some arrays that are freed and
# omits others.
#
# How far can one trust such an estimate? The project has measured whole trainings on
# CPU contexts ([record](../figures/benchmarks/memory.jsonl)) and on an H100
# ([record](../figures/gpus/benchmarks/memory.jsonl)). We divide each measured peak by
# its estimate.

# %%
ratios = {}
for folder, kind in (("benchmarks", "cpu"), ("gpus/benchmarks", "gpu")):
    record = chapter.record(f"{folder}/memory.jsonl")
    sizes = {"n_train": record.header.settings["n_train"], "n_test": 200}
    print(f"measured / estimated, on a {kind.upper()}")
    for arm in arm_times(record):
        n, batch = int(arm.name.split()[0]), arm.samples[0].batch_size
        peak = median(sample.peak_bytes for sample in arm.samples)
        need = estimate.lenet_need(batch, n, **sizes, kind=kind)
        ratios[arm.name, batch] = peak / max(need.by_memory)
        print(f"  {arm.name:10} batch {batch:5,}: {ratios[arm.name, batch]:.2f}")
print(f"{sum(r > 1 for r in ratios.values())} of {len(ratios)} are above 1")

# %% [markdown]
# On cores no training needed more than the estimate, and large batches on two contexts
# needed a third less. It counts outputs that need not be kept, and on GPUs it omits
# what an algorithm needs. The constants for GPUs were fitted to such measurements on an
# H200, so their agreement proves little about other networks.
#
# ## Three ways to need less
#
# The outputs are proportional to the images per device. More *devices* therefore reduce
# the memory of each device. *Micro-batches* reduce it, too: one device processes the
# batch in parts, one after the other, and adds up the gradients. Their sum is the
# gradient of the whole batch, unless a layer uses the whole batch. BatchNorm, for
# example, normalises each part by its own mean. The generator of Chapter 10 contains
# BatchNorm, so micro-batches would change its training.
#
# The third way is *gradient checkpointing*. We keep the outputs of a few layers only,
# and compute all other outputs again during the backward pass. To do so by hand, we run
# the first half of the network without recording, so that only its last output is kept.
# When the backward pass arrives there, we run the first half again, recorded this time,
# and continue with the gradient that has arrived.
#
# *Predict before you run*: we cut LeNet after the first pooling layer. By our rule,
# which share of the outputs must be kept at the same time?

# %%
chapter.predict("% of the outputs kept", None)
steps = list(layers.values())


def forward(h, part):
    for layer in part:
        h = layer(h)
    return h


X = np.random.uniform(size=(64, 1, 28, 28), ctx=two[0])
with autograd.record():
    whole = (forward(X, steps) ** 2).sum()
whole.backward()
expected = [p.grad.asnumpy() for p in params]

middle = forward(X, steps[:4])  # not recorded: only this output is kept
middle.attach_grad()
with autograd.record():
    l = (forward(middle, steps[4:]) ** 2).sum()
l.backward()
with autograd.record():
    again = forward(X, steps[:4])
again.backward(middle.grad)
for p, gradient in zip(params, expected):
    assert numpy.allclose(p.grad.asnumpy(), gradient, rtol=1e-3, atol=1e-4)

sizes = list(numbers.values())
at_once = max(sizes[0] + sum(sizes[3:]), sum(sizes[:4]))
print(f"{at_once:,} of {per_image:,} outputs per image are kept at the same time")
first, second = 20 * 26 * 26 * 9, 50 * 9 * 9 * 20 * 25
multiplications = first + second + 800 * 128 + 128 * 10
print(f"repeated: {100 * first / multiplications:.1f} % of the forward multiplications")
chapter.answer("% of the outputs kept", 100 * at_once / per_image)

# %% [markdown]
# The gradients agree with the gradients of the whole network. While the first half is
# repeated, `784 + 2 * 13,520 + 3,380` outputs are kept by our rule. (Meanwhile the
# output at the cut and its gradient wait, `2 * 3,380` numbers that we have not
# counted.) The two largest outputs of LeNet lie on the same side of the cut, so the
# saving is small. With n similar layers and a cut after every `sqrt(n)`-th, about
# `2 * sqrt(n)` outputs are kept instead of n, for at most one more forward pass [2].
# PyTorch offers this as `torch.utils.checkpoint`.
#
# ## At the limit
#
# What remains in memory after a failure? We let a process allocate at most `300 * MIB`
# more than it has. A training with batches of 2,000 images then fails. Afterwards the
# process trains with 500, and once more with 2,000.
#
# Three things could hold memory: the *error*, because its traceback refers to the
# failed frames and thus to their arrays; *pending work*, which fails in turn; and
# *pools* of freed memory. The function `release` below addresses them one by one. (On a
# GPU it would also call `mx.gpu(0).empty_cache()`, for MXNet's own pool.)
#
# We need three controls. The first has so high a limit that nothing fails. The second
# and the third have the limit of `300 * MIB` but do not call `release`. The second
# drops the errors. The third keeps them in a list, as a notebook keeps the last error
# in `sys.last_traceback`. This program carries out one variant:

# %%
AT_THE_LIMIT = """
import ctypes, gc, json, resource, sys, traceback
from d2lpar import devices, fashion_sample, lenet, mx, npx
from d2lpar.machine.host import process_status
from d2lpar.memory import estimate
from d2lpar.memory.out_of_memory import WORDS

limit, keeps_errors, releases = json.loads(sys.argv[1])
cpu, errors = devices.parse("cpu:1"), []

def wait_for_all():
    for _ in range(100):  # each wait reports one failed operation
        try:
            return npx.waitall()
        except mx.MXNetError:
            continue

def release(error=None):
    wait_for_all()  # pending work keeps arrays until its failure is reported
    while error is not None:
        traceback.clear_frames(error.__traceback__)  # the arrays of the failed frames
        error = error.__cause__ or error.__context__
    gc.collect()
    wait_for_all()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # the pool of the C library

sizes = {"n_train": 2_000, "n_test": 200}
data = fashion_sample(**sizes)

def train(batch):
    list(lenet.train(devices=cpu, data=data, num_epochs=1, global_batch_size=batch))

def note(batch, line=""):
    print(json.dumps([batch, line, process_status("VmRSS")]))

train(2_000)  # MXNet enlarges its temporary buffer now
release()
note(0)
most = process_status("VmData") + limit  # of private writable memory
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
for batch in (2_000, 500, 2_000):
    line = ""
    try:
        train(batch)
    except Exception as error:
        if not (isinstance(error, MemoryError) or WORDS.search(str(error))):
            raise
        if releases:
            release(error)
        free = estimate.free_memory(cpu)[0] + estimate.PROCESS  # which runs already
        fitting = estimate.largest_batch(cpu, [free], **sizes)
        line = f"out of memory; by our estimate a batch of {fitting} fits"
        if keeps_errors:
            errors.append(error)
    note(batch, line)
"""

# %% [markdown]
# *Predict before you run*: can the process still train with 500 images after 2,000 have
# failed, without `release` and with the error kept?

# %%
chapter.predict("500 trains with the error kept", None)  # "yes" or "no"
variants = {  # the limit, are errors kept, is release called
    "no failure": (4_000 * MIB, False, False),
    "errors dropped": (300 * MIB, False, False),
    "errors kept": (300 * MIB, True, False),
    "errors kept, release": (300 * MIB, True, True),
}
rows = {}
for name, job in variants.items():
    (_, _, before), *rows[name] = in_a_process(AT_THE_LIMIT, *job)
    print(f"{name}: MiB more than before the limit")
    for batch, line, resident in rows[name]:
        ended = "failed" if line else "trained"
        print(f"  {batch:5}: {ended:7} {(resident - before) / MIB:5.0f}")
_, line, _ = rows["errors kept, release"][0]
print(fill(line, 88))
_, line, _ = rows["errors kept"][1]
trained = not line
chapter.answer("500 trains with the error kept", "yes" if trained else "no")
chapter.score()


def more(name, than, run):
    """MiB that a variant holds beyond another one, after its first or third run."""
    return (rows[name][run][2] - rows[than][run][2]) / MIB


output = 4 * 2_000 * numbers["convolution 1"] / MIB
print(f"one output of convolution 1: {output:.0f} MiB")
for run, name in ((0, "first"), (2, "second")):
    returned = more("errors kept", "errors kept, release", run)
    left = more("errors kept, release", "no failure", run)
    print(f"{name} failure: release returned {returned:+.0f} MiB", end=", ")
    print(f"{left:+.0f} MiB beyond no failure", end=": ")
    print("memory is lost" if left > output / 2 else "no loss to see")
assert all(line for variant in list(variants)[1:] for _, line, _ in rows[variant][:1])

# %% [markdown]
# The answer shows whether `release` was necessary here. The message of the first
# failure advises a batch from our estimate, which also counts the outputs that MXNet
# frees. The advice is therefore cautious: a larger batch can train, as the rows for 500
# images show.
#
# What remains in memory? The memory that `release` returns was held by the error, whose
# traceback refers to the arrays made before the failing allocation. These may be few.
# To find memory that is lost, the last lines compare *errors kept, release* with *no
# failure*, in which the same batches trained. Each variant is a single process, so we
# ignore less than half of an output of the first convolution. A larger remainder is
# held neither by the errors, whose frames have been cleared, nor by pending work.
#
# So what is `release` for? It returns memory that a program keeps by accident. On a GPU
# it also empties MXNet's pool. However, CUDA keeps the error of the failed allocation
# and reports it for later kernels, so there only a new process helps.
#
# Even on a CPU one should not go on in the same process. When MXNet fails to enlarge
# one of its temporary buffers, it continues with the *address that it has just freed*
# (`GetSpace` in its `src/resource.cc`), and the results can be wrong without an error.
# Our experiment avoids this by a training with 2,000 images before the limit is set.
# Ending the process always works, because the operating system reclaims all of its
# memory, leaks included. This is one reason why `d2lpar run` measures each number of
# devices in a separate process.
#
# On a GPU the memory is separate and there is no swapping. The estimate for a GPU
# (`kind="gpu"`) also contains CUDA's context and the workspaces of cuDNN. Finally, we
# print how much memory is free on the devices of this machine. CPU contexts share the
# memory of the host, so they show the same number.

# %%
here = devices.parse("auto")
for device, free in zip(here, estimate.free_memory(here)):
    print(f"free on {device}: {free / 2**30:.1f} GiB")

# %% [markdown]
# ## Summary
#
# > **Takeaway.** If every output is kept, a device keeps
# > `4 * batch / devices * numbers per image` bytes. It keeps fewer bytes if outputs
# > that no gradient needs are freed. For LeNet and 256 images on one device this is
# > `4 * 256 * 40,370 = 41.3e6`, or `80 * 4 * 129,068`. The gradients of the largest
# > outputs are added at the peak.
#
# A training keeps those outputs of its layers that the gradients need, for each image
# of its shard. More devices, micro-batches and checkpointing reduce them. Micro-batches
# change the result if a layer uses the whole batch. After a failure, errors can hold
# memory that `release` returns, and other memory may remain. Ending the process returns
# all of it.
#
# ## Exercises
#
# 1. *On paper.* A device has 1 GiB free. For how many images do all outputs of LeNet
#    fit, and for how many if the two largest gradients are counted as well?
#    *(`2**30 / (4 * 40,370) = 6,649`, and `2**30 / (4 * 67,410) = 3,982`.)*
# 2. *On paper.* Adam keeps two numbers for each of LeNet's 129,068 parameters. From
#    which batch on do all outputs need more memory than parameters, gradients and
#    Adam's numbers together? *(`4 * 129,068 / 40,370 = 12.8`: from 13 images on.)*
# 3. **Twice the batch, twice the devices.** Print `need.by_device` of the estimates for
#    batches of 256 and 512 on one device and on two. *(The outputs double with the
#    batch and are halved by a second device. The first device's total is not halved,
#    because it also holds the data set.)*
# 4. **Another cut.** Cut LeNet after `"relu 1"` instead. How many outputs are kept at
#    the same time? *(`max(784 + 13,520 + 12,546, 784 + 2 * 13,520) = 27,824`, fewer
#    than with our cut. However, the output at the cut and its gradient have four times
#    as many numbers as with our cut, and we have not counted them.)*
# 5. **Micro-batches.** A device computes the gradients of its shard in parts, one after
#    the other, and adds them. Which items of the estimate would shrink for LeNet?
#    *(Only the outputs and their gradients. Python, the data set, the batch, the
#    parameters with their gradients, and the evaluation do not depend on the parts.)*
# 6. **A later failure.** Raise the limit in steps of `100 * MIB`. How do the rows of
#    "errors kept" change? *(The further a training gets before an allocation fails, the
#    more arrays its frames can hold. From some limit on 2,000 images train.)*
#
# ## Sources
#
# - [1] The GPU wiki, "memory", <https://github.com/likejazz/likejazz.github.io>, in
#   Korean (`_wiki/GPU-Data-Science.md`)
# - [2] Chen et al., "Training Deep Nets with Sublinear Memory Cost",
#   <https://arxiv.org/abs/1604.06174>

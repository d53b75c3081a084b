# %% [markdown]
# # What fills the memory
#
# In Chapter 1 every device got a replica of the whole network. Will it fit? Here we
# count what a training keeps in memory before it runs. Then we need less, in two ways:
# we compute outputs twice instead of keeping them, and we divide the parameters among
# the devices instead of copying them.
#
# ![The memory of LeNet with 256 images, on one device and on each of
# two](../docs/drawings/memory-of-a-device.svg)
#
# The author of a published wiki page on GPUs [1] filled the **14.7 GB** of a Tesla T4.
# The error did not mention memory: `cuMemcpyHtoD results in CUDA_ERROR_INVALID_VALUE`.
# Leaving Python returned all of the memory.
#
# Run this chapter as a notebook, or as `python chapters/memory.py`.

# %%
import subprocess
import sys
from collections import Counter
from functools import partial

import numpy

from d2lpar import autograd, chapter, devices, get_params, gluon, init_lenet, np, npx
from d2lpar import train_batch as data_parallel_step
from d2lpar.memory import estimate

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## Count before the run
#
# Backpropagation uses the results of the forward pass. The gradient of a convolution's
# weights depends on the input of the convolution, and the gradient of a ReLU on where
# its output is positive. As a simple rule we therefore count the output of each layer,
# for every image of the batch. Let us pass one image through LeNet, written as four
# layers. Each is a function of its input and of *one* flat array with weight and bias.
#
# *Predict before you run*: LeNet has 129,068 parameters. For a batch of 256 images, how
# many times the memory of the parameters do the outputs of all layers need?

# %%
chapter.predict("times as much for the outputs", None)  # write your number for None
SHAPES = ((20, 1, 3, 3), (50, 20, 5, 5), (800, 128), (128, 10))
kept = []  # numbers per image in each output


def keep(h):
    kept.append(h.size // len(h))
    return h


def layer(i, h, flat):
    """Apply layer i of LeNet to h; `flat` holds its weight and its bias."""
    shape = SHAPES[i]
    outputs = shape[0] if i < 2 else shape[1]
    W, b = flat[:-outputs].reshape(shape), flat[-outputs:]
    if i >= 2:
        h = keep(np.dot(h.reshape((len(h), -1)), W) + b)
        return keep(npx.relu(h)) if i == 2 else h
    h = npx.convolution(h, W, b, kernel=shape[2:], num_filter=outputs)
    h = keep(npx.relu(keep(h)))
    return keep(npx.pooling(h, (2, 2), pool_type="avg", stride=(2, 2)))


start = init_lenet(0.1)
flats = [numpy.append(*pair) for pair in zip(start[::2], start[1::2])]  # by layer
h = keep(np.zeros((1, 1, 28, 28)))
for i, flat in enumerate(flats):
    h = layer(i, h, np.array(flat))
per_image, parameters = sum(kept), sum(flat.size for flat in flats)
print(f"{per_image:,} numbers per image: {kept}")
chapter.answer("times as much for the outputs", 256 * per_image / parameters)

# %% [markdown]
# The first convolution and its ReLU account for two thirds of the outputs. The outputs
# grow with the batch, but the parameters do not. Twice the devices therefore halve the
# outputs of each device, and not its parameters.
#
# The package counts by the same rule, and adds Python, the data, the gradients, and
# what the evaluation needs. `d2lpar run NAME --dry-run` prints this estimate:

# %%
print(estimate.lenet_need(global_batch_size=256, num_devices=2))

# %% [markdown]
# The rule counts too much, because a convolution's gradient does not need its output. A
# framework may free it as soon as the ReLU has used it. Moreover, an algorithm may need
# working memory that the rule does not know. Keep a reserve.
#
# ## Compute twice instead of keeping
#
# In *gradient checkpointing* we keep the outputs of a few layers only, and compute all
# other outputs again during the backward pass. We do this for each of our layers. The
# forward pass is not recorded, and keeps only the input of each layer. The backward
# pass goes through the layers in reverse. It runs a layer again, recorded this time,
# and continues with the gradient that has arrived. This costs at most one more forward
# pass. (In PyTorch: `torch.utils.checkpoint`.)
#
# ## Divide instead of copying
#
# With Adam, a replica has four numbers per parameter: the parameter, its gradient, and
# the two running means m and v. All replicas hold the same ones. ZeRO [2] divides them
# among N devices, in three stages:
#
# | stage | parameters | gradients | m and v | numbers per device | sent, each device |
# |---|---|---|---|---|---|
# | 0, data parallelism | all | all | all | 4 P | 2 P |
# | 1 | all | all | part | 2 P + 2 P / N | 2 P |
# | 2 | all | part | part | P + 3 P / N | 2 P |
# | 3, *fully sharded* | part | part | part | 4 P / N | 3 P |
#
# (The numbers sent are times `(N - 1) / N`.) Recall that an all-reduce is a
# reduce-scatter and an all-gather (Chapter 6). Stage 1 updates in between: each device
# updates its part, and the all-gather sends parameters instead of sums. Therefore it
# sends no more. In stage 3 a device gathers the parameters of a layer just before it
# needs them, and forgets them afterwards. It needs them twice, in the forward and in
# the backward pass. PyTorch calls this `FullyShardedDataParallel` (FSDP).
#
# The next cell makes such a step, with checkpoints between the layers. `parts[k][i]` is
# device k's part of layer i, and `send` counts the bytes.

# %%
sent = Counter()  # bytes, by device
loss = gluon.loss.SoftmaxCrossEntropyLoss()


def send(array, device):
    sent[array.ctx] += 4 * array.size * (array.ctx != device)
    return array.as_in_ctx(device)


def gather(parts, i, device):
    """All parameters of layer i, on one device."""
    return np.concatenate([send(of_one[i], device) for of_one in parts])


def backward(function, h, gradient=None):
    """Record one layer again; return the gradient of its input."""
    h.attach_grad()
    with autograd.record():
        out = function(h)
    out.backward(gradient)
    return h.grad


def fully_sharded_step(X_shards, y_shards, parts, lr):
    inputs, n = [[X] for X in X_shards], sum(map(len, X_shards))
    for i in range(4):
        for hs in inputs:
            hs.append(layer(i, hs[-1], gather(parts, i, hs[-1].ctx)))
    pairs = zip(inputs, y_shards)
    gradients = [backward(lambda h, y=y: loss(h, y), hs.pop()) for hs, y in pairs]
    for i in reversed(range(4)):
        of_layer = []
        for k, hs in enumerate(inputs):
            flat = gather(parts, i, hs[-1].ctx)
            flat.attach_grad()
            again = partial(layer, i, flat=flat)
            gradients[k] = backward(again, hs.pop(), gradients[k])
            of_layer.append(np.split(flat.grad, len(parts)))
        for k, part in enumerate(parts):  # reduce-scatter, and the update of a part
            for pieces in of_layer:
                part[i] -= lr / n * send(pieces[k], part[i].ctx)


X = np.random.uniform(size=(64, 1, 28, 28))
y = np.array(np.arange(64) % 10, dtype="float32")
X_shards, y_shards = (gluon.utils.split_and_load(a, two) for a in (X, y))
parts = [
    [np.array(numpy.split(flat, 2)[k], ctx=device) for flat in flats]
    for k, device in enumerate(two)
]
replicas = [get_params(start, device) for device in two]
for _ in range(3):
    fully_sharded_step(X_shards, y_shards, parts, lr=0.05)
    data_parallel_step(X, y, replicas, two, lr=0.05)
all_reduce, bytes_sent = 2 * 4 * parameters, sum(sent.values()) / 3
ours = numpy.concatenate([gather(parts, i, two[0]).asnumpy() for i in range(4)])
expected = numpy.concatenate([p.asnumpy().ravel() for p in replicas[0]])
print(f"data parallelism differs by {abs(ours - expected).max():.1e} after 3 steps")
print(f"a device keeps {sum(p.size for p in parts[0]):,} of {parameters:,} parameters")

# %% [markdown]
# Up to rounding, this is the step of data parallelism.
#
# *Predict before you run*: how many times the bytes of an all-reduce of all gradients
# did this step send?

# %%
chapter.predict("times the bytes of an all-reduce", None)
chapter.answer("times the bytes of an all-reduce", bytes_sent / all_reduce)
chapter.score()

# %% [markdown]
# Two all-gathers and a reduce-scatter send one and a half times as much as an
# all-reduce, which is one of each. A layer's parameters can be gathered while the layer
# before it computes (Chapter 6).
#
# ## Out of memory
#
# What remains after a failure? The next cell starts a process that may use 2 GiB, and
# fills it with arrays. It prints how much memory it holds when it fails, and after it
# has dropped the arrays. Then it ends.

# %%
FILL = """
import resource, psutil
from d2lpar import np, npx

held = lambda: f"{psutil.Process().memory_info().rss / 2**20:.0f} MiB"
limit, arrays = psutil.Process().memory_info().vms + 2**31, []
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    while True:
        arrays.append(np.ones((2**25,)))
        npx.waitall()
except Exception as error:
    print(str(error).strip().splitlines()[-1][:60], "at", held())
arrays.clear()
print("arrays dropped:", held())
"""
done = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True)
print(done.stdout, "exit status", done.returncode)

# %% [markdown]
# On a CPU it is enough to drop the arrays, if the program still knows all of them. The
# wiki's author left Python. This always works, because the operating system reclaims
# all memory of a process. `d2lpar run` measures in processes of their own.
#
# ## Summary
#
# > **Takeaway.** If every output is kept, a device keeps
# > `4 * batch / devices * numbers per image` bytes of outputs, and with Adam `16 P`
# > bytes for P parameters. Checkpointing divides the first, and ZeRO's third stage
# > divides the second by the number of devices, for 1.5 times the bytes sent.
#
# ## Exercises
#
# 1. *On paper.* A device has 1 GiB free. For how many images do all outputs of LeNet
#    fit? *(`2**30 / (4 * 40,370) = 6,649`.)*
# 2. *On paper.* A model has 7 billion parameters. How many bytes per device do the four
#    rows of the table need on 8 devices, at 4 bytes per number? *(112, 63, 38.5 and 14
#    GB.)*
# 3. Where would gradient clipping by the norm of the whole gradient go in
#    `fully_sharded_step`? *(Each device knows only its part of the sums. First the
#    squared norms of the parts are summed over the devices, one number each. Then the
#    parts are updated, after the loop over the layers.)*
# 4. *Open.* Which of the three stages would you choose on a slow link?
#
# ## Sources
#
# - [1] The GPU wiki, "memory", <https://github.com/likejazz/likejazz.github.io>, in
#   Korean (`_wiki/GPU-Data-Science.md`)
# - [2] Rajbhandari et al., "ZeRO", <https://arxiv.org/abs/1910.02054>

# %% [markdown]
# # Talk less, later, or in pieces
#
# Data parallelism sends every gradient in every step (Chapter 6). How can devices spend
# less time on communication?
#
# ![Test accuracy by how often two devices average, without and with outer momentum,
# five seeds](../figures/benchmarks/local_sgd.png)
#
# **In one sentence.** Devices can send while they compute, send in a ring, divide the
# optimizer's memory for the same bytes, or average rarely, which is a different
# training.
#
# The authors of DiLoCo [1] trained language models with an average only every **500**
# steps. Part 1 of this chapter keeps every gradient, and hides or spreads the
# communication. Part 2 divides the optimizer's memory, and then sends less.
#
# Run this chapter as a notebook, or as `python chapters/communication.py`.

# %%
import time
from collections import Counter
from functools import partial
from statistics import median
from textwrap import fill

import numpy

from d2lpar import (
    allreduce,
    chapter,
    devices,
    evaluate_accuracy,
    fashion_sample,
    gluon,
    init_lenet,
    np,
    npx,
    split_batch,
    train_batch,
)
from d2lpar.buckets import Bucket
from d2lpar.records.comparison import ratio_interval
from d2lpar.records.kinds import ArmSample, group
from d2lpar.scaling.trace import trace_backward

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## Part 1. Overlap: communicate while computing
#
# The backward pass begins with the last layer. The devices could sum its gradient while
# they compute the other gradients. We call `trainer.step` after `backward`. However,
# MXNet starts an operation as soon as its inputs are ready [2]. Do sums therefore begin
# early? MXNet's profiler records when each operation begins and ends.
#
# One setting matters. To reduce overhead, MXNet submits up to 15 operators as a group.
# The results of a group become available when the whole group has finished.
# `backward_bulk_size` is the largest size of a group in the backward pass.
#
# *Predict before you run*: LeNet has eight arrays of parameters, and its backward pass
# fits into one group. How many of the eight sums begin before the backward pass ends?


# %%
def lenet_in_gluon():
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(20, kernel_size=3, activation="relu", in_channels=1),
        gluon.nn.AvgPool2D(pool_size=2, strides=2),
        gluon.nn.Conv2D(50, kernel_size=5, activation="relu", in_channels=20),
        gluon.nn.AvgPool2D(pool_size=2, strides=2),
        gluon.nn.Dense(128, activation="relu", in_units=800),
        gluon.nn.Dense(10, in_units=128),
    )
    return net


chapter.predict("early sums in groups of 15", None)  # write your number for None
nets = []
forms = {
    "in groups of 15": {"backward_bulk_size": 15},
    "with static memory": {"static_alloc": True, "static_shape": True},
    "one by one": {"backward_bulk_size": 1},
}
for how in forms.values():
    nets.append(lenet_in_gluon())
    nets[-1].initialize(ctx=two)
    nets[-1].hybridize(**how)
traced = dict(zip(forms, trace_backward(nets, two, batch_size=128)))
early = {}
for form, step in traced.items():
    early[form] = sum(begin < step.end for begin in step.sums)
    print(f"{form}: {early[form]} of {len(step.sums)} sums begin before", end=" ")
    print(f"the end of the backward pass,\n    which takes {step.end:.0f} ms,", end=" ")
    print("at", ", ".join(f"{begin:.1f}" for begin in step.sums), "ms")
chapter.answer("early sums in groups of 15", early["in groups of 15"])

# %% [markdown]
# LeNet's whole backward pass is one group. All its gradients become available at the
# same time, so no sum can begin early. If each operator is submitted alone, up to six
# of the eight sums can begin early. The gradients of the first convolution, its weight
# and its bias, are the last results of the backward pass. With static memory sums begin
# early, too.
#
# ## Buckets
#
# PyTorch's DistributedDataParallel (DDP) forms groups of gradients deliberately.
# Starting from the last layer, it collects gradients in *buckets* and starts an
# all-reduce as soon as a bucket is complete [3]. By default the first bucket has 1 MiB
# and the other buckets have 25 MiB. LeNet's gradients take 0.5 MB, so DDP puts them
# into a single bucket, and nothing overlaps.
#
# Small buckets start early. Large buckets save the fixed time of each sum. We time the
# sums of LeNet's gradients in buckets of 1, 2, 4 and 8 arrays. We also compute how long
# the last sum would end *after* the backward pass on a slow link, with 1 Gbit/s and 1
# ms per message. The sums before the end of the backward pass are hidden.


# %%
def milliseconds_of_sums(sizes):
    gradients = [[np.ones(size, ctx=device) for device in two] for size in sizes]
    npx.waitall()
    start = time.perf_counter()
    for data in gradients:
        allreduce(data)
    npx.waitall()
    return 1e3 * (time.perf_counter() - start)


def after_backward(step, counts, sizes, per_message=1.0, bytes_per_ms=125_000):
    """Milliseconds from the backward pass's end until the last bucket is summed.

    A bucket is complete when the last of its `counts` arrays is ready.
    """
    done = 0.0
    for count, size in zip(counts, sizes):
        ready = step.sums[count - 1]
        done = max(done, ready) + per_message + 4 * size / bytes_per_ms
    return done - step.end


arrays = [p.size for p in init_lenet()][::-1]  # the last layer's gradients come first
buckets = {n: [sum(arrays[i : i + n]) for i in range(0, 8, n)] for n in (1, 2, 4, 8)}
summed, late = {n: [] for n in buckets}, {}
for _ in range(15):  # in turn, because the speed of a machine drifts
    for n, sizes in buckets.items():
        summed[n].append(milliseconds_of_sums(sizes))
for n, sizes in buckets.items():
    counts = range(n, 9, n)  # a bucket is ready with its last array
    late[n] = after_backward(traced["one by one"], counts, sizes)
    print(f"{len(sizes)} bucket(s) of {n}: {median(summed[n]):.2f} ms", end="; ")
    print(f"on the slow link {late[n]:.1f} ms after the backward pass")
names = "eight buckets", "one bucket"
print(fill(chapter.verdict(summed[1], summed[8], names, "ms", in_turn=True), 88))
print(f"on the slow link buckets of {min(late, key=late.get)} finish first")

# %% [markdown]
# Every sum has a fixed cost. Without overlap we therefore expect a single large bucket
# to be the fastest. On the slow link the bytes matter. The dense layers have four
# fifths of them (`103,818 / 129,068 = 0.80`), and their gradients are ready first. With
# a bucket per layer these bytes can be sent during the backward pass of the
# convolutions, if it is long enough.
#
# ## Five collectives
#
# ![Five collectives, before and after](../docs/drawings/collectives.svg)
#
# Operations on the arrays of several devices are called *collectives*. We build the
# five collectives of the drawing for four devices. `send` copies an array, and records
# how many bytes each device has sent.
#
# The *broadcast* copies the array of device 0 to all devices. The *reduce* sums on
# device 0 only. Reduce followed by broadcast is d2l's all-reduce. We call it `central`.

# %%
four = devices.parse("cpu:4")
sent = Counter()  # bytes, by device


def send(array, device):
    sent[array.ctx] += 4 * array.size  # float32
    return array.copyto(device)


def broadcast(data):
    for array in data[1:]:
        array[:] = send(data[0], array.ctx)


def reduce(data):
    for array in data[1:]:
        data[0][:] += send(array, data[0].ctx)


def central(data):
    reduce(data)
    broadcast(data)


def arrays_on(devices):
    """Eight ones on the first device, eight twos on the second, and so on."""
    return [np.full(8, k + 1.0, ctx=device) for k, device in enumerate(devices)]


def show(what, data):
    print(f"after the {what}:")
    for array in data:
        print(array.asnumpy().astype(int))


data = arrays_on(four)
reduce(data)
show("reduce", data)
data = arrays_on(four)
central(data)
show("all-reduce", data)

# %% [markdown]
# After a *reduce-scatter* device k holds part k of the sum. After an *all-gather* every
# device holds the parts of all devices. Reduce-scatter followed by all-gather is an
# all-reduce in which all devices send the same number of bytes.


# %%
def parts(array, n):
    return [slice(k * len(array) // n, (k + 1) * len(array) // n) for k in range(n)]


def reduce_scatter(data):
    for k, part in enumerate(parts(data[0], len(data))):
        for other in data[:k] + data[k + 1 :]:
            data[k][part] += send(other[part], data[k].ctx)


def all_gather(data):
    for k, part in enumerate(parts(data[0], len(data))):
        for other in data[:k] + data[k + 1 :]:
            other[part] = send(data[k][part], other.ctx)


data = arrays_on(four)
reduce_scatter(data)
show("reduce-scatter", data)
all_gather(data)
show("all-gather", data)

# %% [markdown]
# In a *ring* each device sends to the next device only, so few links suffice. In turn 0
# device k sends part k. In each later turn it passes on the part that it has just
# received ([watch it](../docs/players.md)). In the first N - 1 turns partial sums
# travel around the ring. Afterwards each device holds the complete sum of one part. In
# the next N - 1 turns these finished parts travel around once more.
#
# *Predict before you run*: four devices hold 1,000 numbers each, which are 4,000 bytes.
# How many bytes does the busiest device send in the ring?


# %%
def ring(data):
    n = len(data)
    part = parts(data[0], n)
    for turn in range(2 * (n - 1)):
        which = [part[(k - turn) % n] for k in range(n)]  # what device k sends
        moving = [send(data[k][which[k]], data[(k + 1) % n].ctx) for k in range(n)]
        for k in range(n):
            to = data[(k + 1) % n]
            if turn < n - 1:
                to[which[k]] += moving[k]
            else:
                to[which[k]] = moving[k]


chapter.predict("bytes that the busiest sends in the ring", None)
for num_devices in (2, 4):
    start = [np.random.uniform(size=1000, ctx=device) for device in four[:num_devices]]
    total = sum(array.asnumpy() for array in start)
    for all_reduce in (central, ring):
        data = [array.copy() for array in start]
        sent.clear()
        all_reduce(data)
        for array in data:
            assert numpy.allclose(array.asnumpy(), total, rtol=1e-5)
        print(f"{num_devices} devices, {all_reduce.__name__:7}: ", end="")
        print(f"the busiest sends {max(sent.values()):6,} bytes, ", end="")
        print(f"all send {sum(sent.values()):6,}")
chapter.answer("bytes that the busiest sends in the ring", max(sent.values()))

# %% [markdown]
# Both ways send the same number of bytes in all. In the ring each device sends
# `2 (N - 1) / N` arrays, less than two for any number of devices. In `central` device 0
# sends `N - 1` arrays. However, a ring needs `2 (N - 1)` turns one after the other.
# Copies of small arrays take a fixed time, so for them an all-reduce with fewer turns
# is faster, for example a [tree](../docs/players.md).
#
# ## Part 2. ZeRO: each device updates its half
#
# Adam keeps two numbers per parameter, the running means m and v of the gradient and of
# its square. In data parallelism every device keeps all of them and computes the same
# update. The first stage of ZeRO [4] removes this redundancy:
#
# 1. **reduce-scatter**: device k receives the sum of part k of the gradients only.
# 2. It updates part k of the parameters, with m and v of this part.
# 3. **all-gather**: every device receives the updated parts of the other devices.
#
# A `Bucket` is a replica whose parameters and gradients are views of two flat arrays,
# `values` and `grads`. A part of all parameters is then a slice. The package's
# `train_batch` calls its argument `reduce` once the gradients of all shards are
# computed. We pass `plain` or `in_pieces`. Both also update, so our `update` does
# nothing.
#
# *Predict before you run*: LeNet has 129,068 parameters of 4 bytes. How many bytes do
# two devices together send per step in pieces? How many bytes do m and v then take on
# each device?

# %%
chapter.predict("bytes per step, in pieces", None)
chapter.predict("bytes of m and v, in pieces", None)
BATCH = 64


def adam(values, g, state, lr=1e-3):
    """A step of Adam on flat arrays, in place."""
    m, v = state["m"], state["v"]
    state["t"] += 1
    m[:] = 0.9 * m + 0.1 * g
    v[:] = 0.999 * v + 0.001 * g * g
    m_hat, v_hat = m / (1 - 0.9 ** state["t"]), v / (1 - 0.999 ** state["t"])
    values -= lr * m_hat / (np.sqrt(v_hat) + 1e-8)


def plain(replicas, states):
    grads = [replica.grads / BATCH for replica in replicas]
    grads[0] += send(grads[1], two[0])
    grads[1] = send(grads[0], two[1])
    for replica, g, state in zip(replicas, grads, states):
        adam(replica.values, g, state)


def in_pieces(replicas, states):
    half = replicas[0].values.size // 2
    pieces = slice(0, half), slice(half, None)
    for k, piece in enumerate(pieces):  # reduce-scatter, and the update of a part
        others = send(replicas[1 - k].grads[piece], two[k])
        g = (replicas[k].grads[piece] + others) / BATCH
        adam(replicas[k].values[piece], g, states[k])
    for k, piece in enumerate(pieces):  # all-gather
        replicas[1 - k].values[piece] = send(replicas[k].values[piece], two[1 - k])


X_train, y_train, X_test, y_test = fashion_sample()
X_train = np.array(X_train[:, None] / 255, dtype="float32")  # (n, 1, 28, 28)
results = {}
for step, parts in ((plain, 1), (in_pieces, 2)):
    replicas = [Bucket(init_lenet(scale=0.1), device) for device in two]
    size = replicas[0].values.size // parts
    states = [
        {"m": np.zeros(size, ctx=device), "v": np.zeros(size, ctx=device), "t": 0}
        for device in two
    ]
    sent.clear()
    for i in range(0, 10 * BATCH, BATCH):
        train_batch(
            X_train[i : i + BATCH],
            y_train[i : i + BATCH],
            replicas,
            two,
            lr=0,
            reduce=partial(step, states=states),
            update=lambda params, lr, n: None,
        )
    memory = 4 * (states[0]["m"].size + states[0]["v"].size)
    results[step] = sum(sent.values()) // 10, memory, replicas[1].values.asnumpy()
    print(f"{step.__name__:9}: {results[step][0]:,} bytes sent per step, ", end="")
    print(f"m and v take {memory:,} bytes on each device")

(_, _, p), (bytes_pieces, memory_pieces, q) = results.values()
print(f"after 10 steps the parameters differ by {abs(p - q).max():.1e}")
chapter.answer("bytes per step, in pieces", bytes_pieces)
chapter.answer("bytes of m and v, in pieces", memory_pieces)

# %% [markdown]
# ZeRO sends the same number of bytes, computes the same parameters up to rounding, and
# needs half of the optimizer's memory. Each device sends one half of the gradients and
# one half of the parameters. Both devices together therefore send
# `2 * 4 * 129,068 = 1,032,544` bytes. With N devices, m and v take 1/N of their memory
# on each device.
#
# PyTorch's `ZeroRedundancyOptimizer` divides m and v in the same way. With DDP it sends
# more, because DDP all-reduces the full gradients, and the optimizer then broadcasts
# the updated parameters [5]. The
# [appendix](../docs/appendix.md#a-map-of-the-other-parallelisms) describes ZeRO's
# further stages, and the parallelisms that split a model.
#
# ## Less: fewer bits
#
# A simple way to send less is to send each gradient in 16 bits. In PyTorch a
# *communication hook* replaces DDP's all-reduce of a bucket.
# `net.register_comm_hook(None, in_16_bits)` registers it:
#
# <!-- fold: teaching/frameworks/pytorch_hook.py in_16_bits -->
#
# The hook sends half of the bytes. It rounds the gradients before they are summed, so
# the losses change. Chapter 14 sends 2 bits per number.
#
# ## Less: average now and then
#
# In *local SGD* [6] each device takes H steps on its own shards. Then all replicas are
# replaced by their mean. With H = 1 and shards of equal size this is data parallelism,
# because the mean of two steps from the same parameters is a step along the mean
# gradient. The communication is divided by H. However, with H above 1 local SGD is a
# different algorithm.
#
# *DiLoCo* [1] treats the difference between the old and the averaged parameters as a
# gradient. It applies an *outer* optimizer to this gradient, SGD with Nesterov
# momentum. The momentum adds up the changes of many rounds, so the steps are longer in
# directions that persist. DiLoCo's inner optimizer is AdamW, and ours is plain SGD.


# %%
def average(replicas):
    """Replace all replicas by their mean; the bytes that this sends."""
    allreduce([replica.values for replica in replicas])
    for replica in replicas:
        replica.values /= len(replicas)
    return 2 * (len(replicas) - 1) * 4 * replicas[0].values.size


def local_step(X, y, replicas, lr):
    for X_k, y_k, replica, device in zip(*split_batch(X, y, two), replicas, two):
        train_batch(X_k, y_k, [replica], [device], lr)


def outer_step(replicas, start, velocity, lr=0.7, momentum=0.9):
    """DiLoCo's step from `start`, the parameters after the last average."""
    change = start - replicas[0].values
    velocity[:] = momentum * velocity + change
    start -= lr * (change + momentum * velocity)
    for replica in replicas:
        start.copyto(replica.values)


local, summed = ([Bucket(init_lenet(scale=0.1), d) for d in two] for _ in range(2))
for i in range(0, 10 * BATCH, BATCH):
    X, y = X_train[i : i + BATCH], y_train[i : i + BATCH]
    local_step(X, y, local, lr=0.1)
    average(local)
    train_batch(X, y, summed, two, lr=0.1)
difference = abs(local[1].values - summed[1].values).max().item()
print(f"H = 1 against data parallelism, after 10 steps: {difference:.1e}")

# %% [markdown]
# With H = 1 the difference is rounding. We train two epochs of 78 steps in three ways.


# %%
def train(steps_between, outer=False, num_epochs=2, lr=0.1):
    """Bytes sent, and test accuracy at the end."""
    replicas = [Bucket(init_lenet(scale=0.1), device) for device in two]
    start = replicas[0].values.copy()
    velocity = np.zeros_like(start)
    rng, steps, num_bytes = numpy.random.default_rng(0), 0, 0
    for _ in range(num_epochs):
        order = rng.permutation(len(X_train))
        for i in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[i : i + BATCH]
            local_step(X_train[batch], y_train[batch], replicas, lr)
            steps += 1
            if steps % steps_between == 0:
                num_bytes += average(replicas)
                if outer:
                    outer_step(replicas, start, velocity)
    if steps % steps_between:
        num_bytes += average(replicas)
    copies = [replica.copies() for replica in replicas]
    return num_bytes, evaluate_accuracy(X_test, y_test, copies, two)


for name, how in {
    "H = 1": (1, False),
    "H = 16": (16, False),
    "H = 16, outer momentum": (16, True),
}.items():
    num_bytes, acc = train(*how)
    print(f"{name:22} {num_bytes / 1e6:7.1f} MB sent, accuracy {acc:.3f}")
chapter.score()

# %% [markdown]
# One seed cannot rank the values of H. We therefore read a record of five seeds for
# each way, with three epochs of 200 steps. The last column divides the accuracy by the
# accuracy with an average in every step. It is a 95 % interval (Chapter 4).

# %%
lines = chapter.record("benchmarks/local_sgd.jsonl").lines_of(ArmSample)
ways = group([line for line in lines if line.epoch == 3], lambda line: line.arm)
accs = {way: [line.test_acc for line in ends] for way, ends in ways.items()}
for way, ends in ways.items():
    same = "every step, outer momentum" if "outer" in way else "every step"
    _, low, high = ratio_interval(accs[way], accs[same])
    print(f"{way:30} {median(accs[way]):.3f}", end=" ")
    print(f"({min(accs[way]):.3f}-{max(accs[way]):.3f})", end="  ")
    print(f"{ends[0].wire_bytes / 2**20:5.1f} MiB sent", end="  ")
    print(f"{low:.2f} to {high:.2f}" if way != same else "")

# %% [markdown]
# Without momentum all intervals contain 1, and a loss of more than 5 % lies outside all
# of them, although the bytes differ by a factor of `600 / 3 = 200`. The outer momentum
# also helps with an average in every step, so a fair comparison gives momentum to both
# sides. Then an average per epoch loses accuracy: its interval lies below 1. These
# results hold for LeNet only.
#
# ## Summary
#
# > **Takeaway.** With N devices and P parameters of 4 bytes, all devices together send
# > `2 (N - 1) * 4 P` bytes per step. Each device of a ring sends `2 (N - 1) / N * 4 P`.
# > An average every H steps divides both by H. ZeRO's first stage sends the same number
# > of bytes, and divides the optimizer's memory by N.
#
# A sum can start when its gradient is ready, unless the whole backward pass is one
# group. The accuracy of local SGD has to be measured over several seeds.
#
# ## Exercises
#
# 1. Add groups of 8, 4 and 2 operators to `forms`. In which of these forms do sums
#    begin early? *(Sums can begin early once the group with the gradients of the dense
#    layers no longer contains the second convolution.)*
# 2. *On paper.* Where would gradient clipping by the norm of the whole gradient go in
#    `in_pieces`? *(Each device knows only its part of the sum. First the squared norms
#    of the parts have to be summed over the devices, by one all-reduce of one number.)*
# 3. Call `train(10**9)`, which averages only at the end. Then let the two replicas
#    start from different parameters. *(From equal parameters the replicas can stay
#    close enough in two epochs for their mean to make sense. From different parameters
#    they become two networks whose units do not correspond to each other. Expect their
#    mean to be much worse than either network. Evaluate both before you average.)*
# 4. *On paper.* A layer with a weight of 4,096 x 4,096 is split over 8 devices by
#    tensor parallelism, and its output for 2,048 tokens is all-reduced in the forward
#    pass, in a ring with 2 bytes per number. How many bytes does a device send? How
#    many would it send in a step for the gradient of this weight in data parallelism?
#    For how many tokens are both numbers equal? *(`2 * 7/8 * 2,048 * 4,096 * 2 = 29.4`
#    MB for the output and `2 * 7/8 * 4,096 * 4,096 * 2 = 58.7` MB for the gradient.
#    Only the first number grows with the batch. Both are equal for 4,096 tokens.)*
#
# **Puzzles.** `python -m d2lpar.puzzles` lists puzzles about the ring, its two halves,
# recursive doubling, ZeRO, local SGD, FSDP, a pipeline and overlap.
#
# ## Sources
#
# - [1] Douillard et al., "DiLoCo", <https://arxiv.org/abs/2311.08105>
# - [2] MXNet, "Dependency Engine",
#   <https://mxnet.apache.org/versions/1.9.1/api/architecture/note_engine>
# - [3] Li et al., "PyTorch Distributed", <https://arxiv.org/abs/2006.15704>
# - [4] Rajbhandari et al., "ZeRO", <https://arxiv.org/abs/1910.02054>
# - [5] PyTorch, "Distributed Optimizers", on `ZeroRedundancyOptimizer`,
#   <https://docs.pytorch.org/docs/stable/distributed.optim.html>
# - [6] Stich, "Local SGD Converges Fast and Communicates Little",
#   <https://arxiv.org/abs/1805.09767>

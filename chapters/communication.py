# %% [markdown]
# # Overlap, buckets and a ring
#
# Chapter 5 counted what a second device costs: in every step all gradients are summed
# over the devices. How can we make this sum cheaper without changing the result? We can
# start it while the devices still compute, sum a few large arrays instead of many small
# ones, and share the additions among all devices.
#
# ![Five collectives, before and after](../docs/drawings/collectives.svg)
#
# PyTorch's DistributedDataParallel (DDP) collects gradients in *buckets* of **25 MB**
# and starts a sum as soon as a bucket is complete [1].
#
# Run this chapter as a notebook, or as `python chapters/communication.py`.

# %%
import json
import math
import tempfile
import time
from collections import Counter
from textwrap import fill

import numpy

from d2lpar import allreduce, autograd, chapter, devices, gluon, init_lenet, mx, np, npx
from d2lpar.lenet import concise

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## Overlap: communicate while computing
#
# The backward pass begins with the last layer. The devices could sum its gradient while
# they compute the other gradients. We call `trainer.step` after `backward`, but MXNet
# starts an operation as soon as its inputs are ready. Do sums therefore begin early?
# MXNet's profiler records when each operation begins and ends.
#
# One setting matters. To reduce overhead, MXNet submits up to 15 operators as a group,
# whose results become available together. `backward_bulk_size` is the largest size of a
# group in the backward pass.
#
# *Predict before you run*: LeNet has eight arrays of parameters, and its backward pass
# fits into one group. How many of the eight sums begin before the backward pass ends?


# %%
loss = gluon.loss.SoftmaxCrossEntropyLoss()
X = gluon.utils.split_and_load(np.random.uniform(size=(128, 1, 28, 28)), two)
y = gluon.utils.split_and_load(np.arange(128) % 10, two)


def step(net, trainer):
    with autograd.record():
        losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X, y)]
    autograd.backward(losses)
    trainer.step(128)
    npx.waitall()


chapter.predict("early sums in groups of 15", None)  # write your number for None
forms = {"groups of 15": 15, "one by one": 1}
begins, path = {}, tempfile.NamedTemporaryFile(suffix=".json")
mx.profiler.set_config(profile_all=True, filename=path.name)
for form, size in forms.items():
    net, trainer, _ = concise.build(init_lenet(), two, lr=0.01)  # as in Chapter 4
    net.hybridize(backward_bulk_size=size)
    step(net, trainer)  # a warm-up
    mx.profiler.set_state("run")
    begins[form] = 1e6 * time.time()
    step(net, trainer)
    mx.profiler.set_state("stop")
mx.profiler.dump()
events = [e for e in json.load(open(path.name))["traceEvents"] if e["ph"] in "BE"]
early = {}
for (form, begin), end in zip(begins.items(), [*begins.values(), math.inf][1:]):
    ts = [(e["ts"], e["name"], e["ph"]) for e in events if begin < e["ts"] < end]
    backward = [t for t, name, _ in ts if name.startswith(("_backward", "Imper"))]
    sums = sorted(t for t, name, ph in ts if (name, ph) == ("KVStoreReduce", "B"))
    early[form] = sum(t < max(backward) for t in sums)
    print(f"{form}: {early[form]} of {len(sums)} sums begin early, at")
    print("   ", *(f"{(t - min(backward)) / 1e3:.0f}" for t in sums), end=" ")
    print(f"of {(max(backward) - min(backward)) / 1e3:.0f} ms")
chapter.answer("early sums in groups of 15", early["groups of 15"])

# %% [markdown]
# LeNet's whole backward pass is one group. All its gradients become available at the
# same time, so no sum can begin early. If each operator is submitted alone, the sums of
# the last layers begin during the backward pass of the convolutions. The gradients of
# the first convolution are the last results, so their sums cannot be hidden.
#
# ## Buckets
#
# Small buckets start early. Large buckets save the fixed time of each sum. LeNet's
# gradients take 0.5 MB, so DDP puts them into a single bucket. Let us time the sums of
# LeNet's eight arrays, and of one array of the same size.


# %%
def milliseconds(all_reduce, sizes, chosen=two):
    """The time to sum arrays of these sizes over the devices."""
    gradients = [[np.ones(size, ctx=device) for device in chosen] for size in sizes]
    npx.waitall()
    start = time.perf_counter()
    for data in gradients:
        all_reduce(data)
    npx.waitall()
    return 1e3 * (time.perf_counter() - start)


sizes = [p.size for p in init_lenet()]
turns = [
    (milliseconds(allreduce, sizes), milliseconds(allreduce, [sum(sizes)]))
    for _ in range(12)
]
names = "eight arrays", "one array"
print(fill(chapter.verdict(*zip(*turns[2:]), names, "ms"), 88))

# %% [markdown]
# On a slow network the bytes matter more than the fixed time. The dense layers have
# four fifths of LeNet's gradients, and their gradients are ready first. With a bucket
# per layer these bytes can be sent while the convolutions still compute.
#
# ## A ring
#
# Operations on the arrays of several devices are called *collectives*. d2l's all-reduce
# is a *reduce* to device 0 followed by a *broadcast*, so device 0 sends and receives
# the arrays of all others. An all-reduce is also a *reduce-scatter*, after which device
# k holds part k of the sum, followed by an *all-gather* of the parts. In a *ring* each
# device sends to the next device only. In turn 0 device k sends part k, and in each
# later turn it passes on the part that it has just received. In the first N - 1 turns
# partial sums travel around the ring, and in the next N - 1 turns the finished parts.
#
# <div class="all-reduce-player"></div>
#
# *Predict before you run*: four devices hold 1,000 numbers each, which are 4,000 bytes.
# How many bytes does the busiest device send in the ring?

# %%
sent = Counter()  # bytes, by device


def send(array, device):
    sent[array.ctx] += 4 * array.size  # float32
    return array.copyto(device)


def central(data):
    for array in data[1:]:
        data[0][:] += send(array, data[0].ctx)
    for array in data[1:]:
        array[:] = send(data[0], array.ctx)


def ring(data):
    n, size = len(data), len(data[0])
    part = [slice(k * size // n, (k + 1) * size // n) for k in range(n)]
    for turn in range(2 * (n - 1)):
        which = [part[(k - turn) % n] for k in range(n)]  # what device k sends
        moving = [send(data[k][which[k]], data[(k + 1) % n].ctx) for k in range(n)]
        for k, to in enumerate(data[1:] + data[:1]):
            to[which[k]] = moving[k] + (to[which[k]] if turn < n - 1 else 0)


chapter.predict("bytes that the busiest sends in the ring", None)
for n in (2, 4):
    for all_reduce in (central, ring):
        data = [
            np.full(1000, k + 1.0, ctx=d)
            for k, d in enumerate(devices.parse(f"cpu:{n}"))
        ]
        sent.clear()
        all_reduce(data)
        assert all((array.asnumpy() == n * (n + 1) / 2).all() for array in data)
        print(f"{n} devices, {all_reduce.__name__:7}: the busiest sends", end=" ")
        print(f"{max(sent.values()):6,} of {sum(sent.values()):6,} bytes")
chapter.answer("bytes that the busiest sends in the ring", max(sent.values()))
chapter.score()

# %% [markdown]
# Both ways send the same number of bytes in all. In the ring each device sends
# `2 (N - 1) / N` arrays, less than two for any number of devices. With two devices this
# saves nothing. However, a ring needs `2 (N - 1)` turns one after the other, and each
# turn has a fixed time. We measure both with two devices, at several sizes.

# %%
for size in (1_000, 100_000, 5_000_000):
    turns = [
        (milliseconds(central, [size]), milliseconds(ring, [size])) for _ in range(8)
    ]
    said = chapter.verdict(*zip(*turns[2:]), ("central", "the ring"), "ms")
    gigabytes = 4 * size / 1e6 / numpy.median(turns, axis=0)
    print(f"{size:,} numbers: {gigabytes[0]:.2f} and {gigabytes[1]:.2f} GB/s")
    print(fill(said, 88, initial_indent="    ", subsequent_indent="    "))

# %% [markdown]
# A ring of two sends the same bytes in more turns, so we expect it to lose with small
# arrays and to draw level with large ones. It pays with many devices whose links work
# at the same time (Chapter 8 draws it with its milliseconds). A *tree*, which sums in
# pairs, needs about `2 log2 N` turns. NCCL chooses by the size of the array.
#
# ## Fewer bits
#
# We can also send each gradient in 16 bits. In PyTorch a *communication hook* replaces
# DDP's all-reduce of a bucket. It halves the bytes, and rounds the gradients before
# they are summed, so the training changes:
#
# <!-- fold: teaching/frameworks/pytorch_hook.py in_16_bits -->
#
# ## Summary
#
# > **Takeaway.** With N devices and P parameters of 4 bytes, all devices together send
# > `2 (N - 1) * 4 P` bytes per step. Through device 0 its link carries `2 (N - 1)`
# > arrays; in a ring each device sends `2 (N - 1) / N`. A sum can start when its bucket
# > is complete.
#
# ## Exercises
#
# 1. Add groups of 8, 4 and 2 operators to `forms`. In which of them do sums begin
#    early? *(As soon as the group with the gradients of the dense layers no longer
#    contains the second convolution.)*
# 2. **The same bits.** Floating-point addition depends on the order. Cut each batch
#    into eight chunks whatever the number of devices, and sum in a fixed tree:
#    `train_batch(X, y, replicas, shared, lr, net=lenet, reduce=allreduce_in_tree)` with
#    `shared = devices.for_chunks(two)` and a replica per entry of `shared`. Train ten
#    steps on one and on two contexts and compare the parameters. *(They are equal to
#    the last bit, because the same chunks are added in the same order.)*
# 3. *On paper.* A layer with a weight of 4,096 x 4,096 is split over 8 devices, and its
#    output for 2,048 tokens is all-reduced in a ring, with 2 bytes per number. How many
#    bytes does a device send? How many in data parallelism for the gradient of this
#    weight? *(`2 * 7/8 * 2,048 * 4,096 * 2 = 29.4` MB and
#    `2 * 7/8 * 4,096 * 4,096 * 2 = 58.7` MB. Only the first grows with the batch.)*
# 4. *Open.* How would you sum over 16 GPUs, eight in each of two machines?
#
# ## Sources
#
# - [1] Li et al., "PyTorch Distributed", <https://arxiv.org/abs/2006.15704>

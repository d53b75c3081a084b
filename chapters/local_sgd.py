# %% [markdown]
# # Extra: local SGD
#
# In Chapter 1 the devices summed gradients in every step. What if they train alone for
# some steps, and then average their parameters? They send less, but it is a different
# algorithm. Let us see what it costs.
#
# ![Test accuracy by how often two devices average, without and with outer momentum,
# five seeds](../figures/benchmarks/local_sgd.png)
#
# The authors of DiLoCo [1] trained language models with an average only every **500**
# steps.
#
# Run this extra as a notebook, or as `python chapters/local_sgd.py`.

# %%
from statistics import median

import numpy

from d2lpar import (
    allreduce,
    chapter,
    devices,
    evaluate_accuracy,
    fashion_sample,
    get_params,
    init_lenet,
    np,
    split_batch,
    train_batch,
)
from d2lpar.records.kinds import ArmSample, group

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
BATCH = 64
X_train, y_train, X_test, y_test = fashion_sample()
X_train = np.array(X_train[:, None] / 255, dtype="float32")  # (n, 1, 28, 28)

# %% [markdown]
# ## Average now and then
#
# In *local SGD* [2] each device takes H steps on its own shards. Then all replicas are
# replaced by their mean. With H = 1 and shards of equal size this is data parallelism,
# because the mean of two steps from the same parameters is a step along the mean
# gradient. The communication is divided by H.
#
# *DiLoCo* treats the difference between the old and the averaged parameters as a
# gradient. It applies an *outer* optimizer to it, SGD with Nesterov momentum. The
# momentum adds up the changes of many rounds. DiLoCo's inner optimizer is AdamW, and
# ours is plain SGD.


# %%
def average(replicas):
    """Replace all replicas by their mean; return the bytes that this sends."""
    for same in zip(*replicas):
        allreduce(list(same))
        for p in same:
            p /= len(replicas)
    return 2 * (len(replicas) - 1) * 4 * sum(p.size for p in replicas[0])


def outer_step(replicas, start, velocity, lr=0.7, momentum=0.9):
    """DiLoCo's step from `start`, the parameters after the last average."""
    for i, (p, v) in enumerate(zip(start, velocity)):
        change = p - replicas[0][i]
        v[:] = momentum * v + change
        p -= lr * (change + momentum * v)
        for replica in replicas:
            p.copyto(replica[i])


def train(steps_between, outer=False, num_epochs=2, lr=0.1):
    """Return the bytes sent, and the accuracy at the end."""
    replicas = [get_params(init_lenet(scale=0.1), device) for device in two]
    start = [p.copy() for p in replicas[0]]
    velocity, num_bytes, steps = [np.zeros_like(p) for p in start], 0, 0
    rng = numpy.random.default_rng(0)
    for _ in range(num_epochs):
        order = rng.permutation(len(X_train))
        for i in range(0, len(order) - BATCH + 1, BATCH):
            X, y = X_train[order[i : i + BATCH]], y_train[order[i : i + BATCH]]
            for X_k, y_k, replica, device in zip(
                *split_batch(X, y, two), replicas, two
            ):
                train_batch(X_k, y_k, [replica], [device], lr)
            steps += 1
            if steps % steps_between == 0:
                num_bytes += average(replicas)
                if outer:
                    outer_step(replicas, start, velocity)
    if steps % steps_between:
        num_bytes += average(replicas)
    return num_bytes, evaluate_accuracy(X_test, y_test, replicas, two)


ways = {
    "H = 1": (1, False),
    "H = 16": (16, False),
    "H = 16, outer momentum": (16, True),
}
for name, how in ways.items():
    num_bytes, acc = train(*how)
    print(f"{name:22} {num_bytes / 1e6:7.1f} MB sent, accuracy {acc:.3f}")

# %% [markdown]
# A ranking of the values of H needs several seeds. A record of version 0.3 has five,
# with three epochs of 200 steps.

# %%
lines = chapter.record("benchmarks/local_sgd.jsonl").lines_of(ArmSample)
found = group([line for line in lines if line.epoch == 3], lambda line: line.arm)
for way, ends in found.items():
    accs = [line.test_acc for line in ends]
    print(f"{way:30} {median(accs):.3f} ({min(accs):.3f}-{max(accs):.3f})", end="  ")
    print(f"{ends[0].wire_bytes / 2**20:5.1f} MiB sent")

# %% [markdown]
# Without momentum the ranges of all H overlap: here an average per epoch reaches the
# accuracy of an average per step. With frequent averages outer momentum
# raises the accuracy, even with one in every step. Therefore give it to both sides of a
# comparison.
#
# ## Summary
#
# > **Takeaway.** An average every H steps divides the bytes sent by H. It is a
# > different training, whose accuracy has to be measured over several seeds.
#
# ## Exercises
#
# 1. Call `train(10**9)`, which averages only at the end. *(From equal parameters the
#    replicas can stay close enough in two epochs for their mean to make sense. From
#    different parameters they become two networks whose units do not correspond to each
#    other.)*
# 2. *On paper.* Two devices average LeNet's 129,068 parameters every 16 steps. How many
#    bytes do they send per epoch of 78 steps? *(`78 // 16 = 4` averages of
#    `2 * 4 * 129,068` bytes: 4.1 MB.)*
# 3. *Open.* Up to which H does your training keep the accuracy of H = 1? Give `train` a
#    seed. An answer has the ranges of five seeds for 1, for this H, and for a larger H
#    whose range lies below both.
#
# ## Sources
#
# - [1] Douillard et al., "DiLoCo", <https://arxiv.org/abs/2311.08105>
# - [2] Stich, "Local SGD Converges Fast and Communicates Little",
#   <https://arxiv.org/abs/1805.09767>

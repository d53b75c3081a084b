# %% [markdown]
# # Multi-GPU training, concise: Gluon
#
# Source: the book, "Concise Implementation for Multiple GPUs",
# <https://d2l.ai/chapter_computational-performance/multiple-gpus-concise.html>
#
# **What you will learn.** Which parts of chapter 4 a framework does for you, line by
# line: a block keeps a replica per device, a `Trainer` does the all-reduce and the
# update, and `hybridize` compiles the network. What remains your job: splitting the
# batch, passing the batch size that normalises the gradients, and handling uneven
# batches.
#
# Run this chapter cell by cell as a notebook, or as a program:
#
#     python chapters/multiple_gpus_concise.py --devices auto --num-devices 1,2
#     d2lpar run multiple_gpus_concise --preset book
#
# | chapter 4, by hand | here, Gluon |
# |---|---|
# | `lenet(X, params)` | a `HybridSequential` block, called as `net(X)` |
# | `get_params` for each device | `net.initialize(ctx=devices)` |
# | `split_batch` | `gluon.utils.split_and_load` |
# | `allreduce` of each gradient | a *kvstore*, inside `trainer.step` |
# | `p -= lr / n * p.grad` | the optimizer, inside `trainer.step(n)` |
#
# ![One step on two devices](../docs/drawings/split-allreduce-update.svg)

# %%
import time

import d2lpar
from d2lpar import autograd, chapter, devices, gluon, init_lenet, np, npx

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## The network, as a block
#
# A block is a network together with its parameters. `HybridSequential` runs its layers
# one after the other. "Hybrid": it can run as Python, operator by operator, or be
# compiled to a graph that runs without Python.


# %%
def lenet():
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


net = lenet()
print(net)

# %% [markdown]
# (The book uses a small ResNet-18 here. This is chapter 4's LeNet, so that the two
# chapters can be compared, number by number.)
#
# ## A replica per device
#
# `initialize` takes a list of devices and makes a copy of every parameter on each.
#
# *Predict before you run*: you call `net(X)` with X on the second device. Which replica
# computes it? And if X is on a device that has none?

# %%
net.initialize(init=d2lpar.mx.init.Normal(sigma=0.01), ctx=two)
weight = net[0].weight
print("the first convolution's weight is on", weight.list_ctx())
print("its first row on each:", *[data[0, 0, 0] for data in weight.list_data()])

for device in two:
    y_hat = net(np.ones((3, 1, 28, 28), ctx=device))
    print("scores", y_hat.shape, "computed on", y_hat.ctx)
try:
    weight.data(d2lpar.mx.cpu(7))
except RuntimeError as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# Gluon picks the replica by the device of the data. All replicas start with the same
# numbers: Gluon draws them once and copies them.
#
# To compare with chapter 4 the network gets that chapter's parameters. A `Dense` layer
# keeps its weight as (outputs, inputs), the transpose of the book's.


# %%
def set_params(net, params):
    for target, value in zip(net.collect_params().values(), params):
        target.set_data(np.array(value.T if value.ndim == 2 else value))


params = init_lenet(scale=0.01, seed=0)
set_params(net, params)
b1 = net[0].bias
print("b1 weight:", b1.list_data()[0])
print("b1 grad:", b1.list_grad()[0])

# %% [markdown]
# ## The trainer: all-reduce and update in one call
#
# `Trainer` knows the parameters, the rule of the update and a *kvstore*, MXNet's name
# for the part that sums arrays of several devices. `trainer.step(n)` pushes the
# gradients of all devices into it, pulls the sums out again, divides by n and updates
# every replica. The kvstore `local` sums on the host, `device` on the GPUs.

# %%
loss = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(
    net.collect_params(),
    "sgd",
    {"learning_rate": 0.2},
    kvstore="device" if two[0].device_type == "gpu" else "local",
    update_on_kvstore=False,  # it sums; each device updates, as in chapter 4
)

# %% [markdown]
# ## One step
#
# *Predict before you run*: the batch has 64 images, 32 on each device. What must be
# handed to `trainer.step`, 32 or 64?


# %%
def train_batch(X, y, net, devices, trainer):
    X_shards = gluon.utils.split_and_load(X, devices)
    y_shards = gluon.utils.split_and_load(y, devices)
    with autograd.record():
        losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
    for l in losses:
        l.backward()
    trainer.step(batch_size=X.shape[0])
    return losses


def replicas(net):
    """The parameters on each device, as NumPy arrays in chapter 4's shapes."""
    arrays = [p.list_data() for p in net.collect_params().values()]
    hosts = [[a.asnumpy() for a in on_device] for on_device in zip(*arrays)]
    return [[a.T if a.ndim == 2 else a for a in replica] for replica in hosts]


X, y = np.random.uniform(size=(64, 1, 28, 28)), np.arange(64) % 10
losses = train_batch(X, y, net, two, trainer)
print("losses of the first images:", losses[0][:3])

first, second = replicas(net)
print("replicas agree:", all((p == q).all() for p, q in zip(first, second)))

by_hand = [d2lpar.get_params(params, device) for device in two]
d2lpar.train_batch(X, y, by_hand, two, lr=0.2)
difference = max(abs(p - q.asnumpy()).max() for p, q in zip(first, by_hand[0]))
print(f"Gluon against chapter 4, after a step: {difference:.1e}")
assert difference < 1e-6

# %% [markdown]
# 64, the whole batch: the gradients that the trainer divides are sums over both
# devices. The result is chapter 4's, up to rounding.
#
# ## Compiled
#
# So far Python called every operator of every layer, on every device. `hybridize`
# records them once, as a graph, and runs the graph from then on: one call instead of a
# dozen. With `static_alloc` and `static_shape` its memory is reserved once, too.
#
# *Predict before you run*: the forward pass of one image is little work for a device.
# By how much does its time fall? And that of 256 images?


# %%
def milliseconds(call, repeats=10):
    call()  # a warm-up: hybridize compiles at the first call
    npx.waitall()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    npx.waitall()
    return 1e3 * (time.perf_counter() - start) / repeats


for n in (1, 256):
    X = np.ones((n, 1, 28, 28), ctx=two[0])
    net.hybridize(False)
    plain = milliseconds(lambda: net(X))  # noqa: B023
    net.hybridize(static_alloc=True, static_shape=True)
    compiled = milliseconds(lambda: net(X))  # noqa: B023
    print(f"{n:3} image(s): {plain:.2f} ms as Python, {compiled:.2f} ms compiled")

# %% [markdown]
# For one image to a fraction; for 256 images by far less. What is saved is mostly
# Python's time, which is the same for each call. With large batches it hardly counts.
# It matters again with several devices, because a single Python thread issues the work
# for all of them.
#
# ## The training loop
#
# The same as in chapter 4, on the same images.

# %%
X_train, y_train, X_test, y_test = d2lpar.datasets.fashion_sample()
X_train = np.array(X_train[:, None] / 255, dtype="float32")  # (n, 1, 28, 28)
X_test = np.array(X_test[:, None] / 255, dtype="float32")
y_train = np.array(y_train, dtype="float32")


def train(num_devices, batch_size, lr, num_epochs=2):
    chosen = two[:num_devices]
    net = lenet()
    net.initialize(ctx=chosen)
    set_params(net, params)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": lr}, update_on_kvstore=False
    )
    for epoch in range(num_epochs):
        start = time.perf_counter()
        for i in range(0, len(X_train) - batch_size + 1, batch_size):
            X, y = X_train[i : i + batch_size], y_train[i : i + batch_size]
            train_batch(X, y, net, chosen, trainer)
        npx.waitall()
        seconds = time.perf_counter() - start
        y_hat = net(X_test.copyto(chosen[0])).argmax(axis=1)
        acc = (y_hat.asnumpy() == y_test).mean()
        print(f"{num_devices} device(s), epoch {epoch + 1}: {acc:.3f}, {seconds:.2f} s")


train(1, batch_size=16, lr=0.1)
train(2, batch_size=16, lr=0.1)

# %% [markdown]
# Compare the times with those of chapter 4, on the same machine: the compiled network
# needs less of Python.
#
# ## On Fashion-MNIST
#
# The package's training, `d2lpar.lenet_concise.train`, is this loop with shuffled
# batches, uneven shards and checkpoints. One thing differs: every device holds all
# images and takes the rows of its shard out of them within its graph (`ShardLosses`).
# The numbers are the same. On two H200s an epoch takes 0.31 s so, and 0.49 s if the
# first GPU cuts the batches ([how it was measured](../docs/speed.md)): many small
# operations cost Python more time than the GPUs. The presets are those of chapter 4, so
# that the two can be compared:
#
#     d2lpar compare figures/multiple_gpus/book-cpu2.jsonl \
#         figures/multiple_gpus_concise/book-cpu2.jsonl
#
# In a notebook the flags are arguments: `preset="book"`, `num_devices="1,2"`, `lr=0.1`.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus_concise")

# %% [markdown]
# Seconds per epoch of the `book` preset ([all figures](../figures/README.md)):
#
# | | chapter 4, one device | two | here, one device | two |
# |---|---|---|---|---|
# | contexts of one thread on an AMD EPYC | 22.0 | 13.2 | 20.8 | 13.6 |
# | H200s | 0.256 | 0.446 | 0.234 | 0.264 |
#
# The accuracies are chapter 4's, 0.825 on one context and 0.815 on two.
#
# ## Summary
#
# - `initialize(ctx=devices)` makes the replicas; the device of the data picks one.
# - `trainer.step(n)` is the all-reduce, the division by n, and the update.
# - n is the size of the whole batch. Nothing checks it.
# - `hybridize` takes Python out of the step.
#
# ## Exercises
#
# 1. Hand `X_shards[0].shape[0]` to `trainer.step` instead of the batch size. *(The step
#    is twice as large on two devices. No error, but the difference to chapter 4 is
#    0.002 instead of 0.)*
# 2. Train without `hybridize`. *(The accuracies are the same. On two devices an epoch
#    takes longer, since Python has twice as much to issue; on one it hardly does, since
#    Python issues ahead of the device.)*
# 3. Train with batches of 65; then with `even_split=False` in both calls of
#    `split_and_load`; then so with batches of one image. *(ValueError. Then 33 and 32
#    images, and the step is right, since it divides by 65. With one image the first
#    device gets an empty shard, and MXNet stops with `Check failed: delay_alloc`, which
#    does not name the cause. The package's `train_batch` leaves such a device out.)*
# 4. Leave out `set_params` in `train`, so that Gluon draws the weights, from a wider
#    distribution. *(The plateau at 0.10 is shorter: it comes from the book's small
#    weights.)*
# 5. Set `update_on_kvstore=True`: the kvstore keeps the parameters and updates them.
#    *(The same numbers. This is how a parameter server works, chapter 13.)*

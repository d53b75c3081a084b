# %% [markdown]
# # Multi-GPU training, concise: Gluon
#
# Source: the book, "Concise Implementation for Multiple GPUs",
# <https://d2l.ai/chapter_computational-performance/multiple-gpus-concise.html>
#
# **What you will learn.** Which parts of chapter 1 a framework does for you, line by
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
# | chapter 1, by hand | here, Gluon |
# |---|---|
# | `lenet(X, params)` | a `HybridSequential` block, called as `net(X)` |
# | `get_params` for each device | `net.initialize(ctx=devices)` |
# | `split_batch` | `gluon.utils.split_and_load` |
# | `allreduce` of each gradient | a *kvstore*, inside `trainer.step` |
# | `p -= lr / n * p.grad` | the optimizer, inside `trainer.step(n)` |
#
# ![One step on two devices](../docs/drawings/split-allreduce-update.svg)

# %%
import resource
import time
from statistics import median

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
# This is chapter 1's LeNet, so that the two chapters can be compared, number by number.
# The book's ResNet-18 follows below.
#
# ## A replica per device
#
# `initialize` takes a list of devices and makes a copy of every parameter on each.
#
# *Predict before you run*: you call `net(X)` with X on the second device. Which replica
# computes it, the first or the second? And if X is on a device that has none?

# %%
chapter.predict("replica that computes", None)  # write "first" or "second" for None
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
computed = "second" if y_hat.ctx == two[1] else "first"
chapter.answer("replica that computes", computed)

# %% [markdown]
# **What you see.** Gluon picks the replica by the device of the data, and raises an
# error for a device without one. All replicas start with the same numbers: Gluon draws
# them once and copies them.
#
# To compare with chapter 1 the network gets that chapter's parameters. A `Dense` layer
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
    update_on_kvstore=False,  # it sums; each device updates, as in chapter 1
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
    """The parameters on each device, as NumPy arrays in chapter 1's shapes."""
    arrays = [p.list_data() for p in net.collect_params().values()]
    hosts = [[a.asnumpy() for a in on_device] for on_device in zip(*arrays)]
    return [[a.T if a.ndim == 2 else a for a in replica] for replica in hosts]


chapter.predict("for trainer.step", None)  # 32 or 64
X, y = np.random.uniform(size=(64, 1, 28, 28)), np.arange(64) % 10
losses = train_batch(X, y, net, two, trainer)
print("losses of the first images:", losses[0][:3])

first, second = replicas(net)
print("replicas agree:", all((p == q).all() for p, q in zip(first, second)))

by_hand = [d2lpar.get_params(params, device) for device in two]
d2lpar.train_batch(X, y, by_hand, two, lr=0.2)
difference = max(abs(p - q.asnumpy()).max() for p, q in zip(first, by_hand[0]))
print(f"Gluon against chapter 1, after a step: {difference:.1e}")
assert difference < 1e-6
chapter.answer("for trainer.step", X.shape[0])

# %% [markdown]
# **What you see.** `trainer.step` gets 64, the size of the whole batch, because the
# gradients that it divides are sums over both devices. The result is chapter 1's, up to
# rounding.
#
# ## Compiled
#
# So far Python called every operator of every layer, on every device. `hybridize`
# records the operators once, as a graph, and runs the graph from then on: one call
# instead of a dozen. With `static_alloc` and `static_shape` the graph's memory is
# reserved once, too.
#
# *Predict before you run*: the forward pass of one image is little work for a device.
# How many times as fast is it as a graph with static memory? And that of 1,024 images?


# %%
def clock(net, X, repeats=11):
    """Milliseconds of a forward pass, and how many new pages of memory it takes."""
    net(X)  # a warm-up: hybridize compiles at the first call
    npx.waitall()
    times, pages = [], resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(repeats):
        start = time.perf_counter()
        net(X)
        npx.waitall()
        times.append(1e3 * (time.perf_counter() - start))
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
    print(f"{sorted(times)[repeats // 2]:8.2f} ms, {pages // repeats:6} pages")
    return sorted(times)[repeats // 2]


chapter.predict("times as fast for one image", None)
chapter.predict("times as fast for 1,024", None)
gains = []
for n in (1, 1024):
    X = np.ones((n, 1, 28, 28), ctx=two[0])
    net.hybridize(False)
    print(f"{n:4} image(s), as Python:         ", end="")
    as_python = clock(net, X)
    net.hybridize()
    print(f"{n:4} image(s), a graph:           ", end="")
    clock(net, X)
    net.hybridize(static_alloc=True, static_shape=True)
    print(f"{n:4} image(s), with static memory:", end="")
    gains.append(as_python / clock(net, X))
chapter.answer("times as fast for one image", gains[0])
chapter.answer("times as fast for 1,024", gains[1])

# %% [markdown]
# **What you see.** For one image most of the time is Python's, which the graph saves.
# For 1,024 images Python's time is hardly noticeable, and what saves time is the static
# memory: without it every layer's output is a new array, whose pages the system has to
# provide one by one (rule 5 of chapter 4). Python's time matters again with several
# devices, because a single Python thread issues the work for all of them.
#
# ## The training loop
#
# The same as in chapter 1, on the same images.

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
# **What you see.** With batches of 16 the second device gains little or nothing, as in
# chapter 1: LeNet is too small. The all-reduce and Python's time per step do not depend
# on the batch.
#
# ## A network with which two devices win
#
# The book trains a ResNet-18 here. Per image it multiplies 456 million times, about
# `456 / 2.25 = 200` times as often as LeNet, and Python issues 64 operators for it in
# place of 9. So a second device saves much more than it costs. The cell has the book's
# network; `channels=64` makes it as large as the book's, and the default is small
# enough for two cores of a laptop.


# %%
class Residual(gluon.nn.HybridBlock):
    def __init__(self, channels, strides=1):
        super().__init__()
        self.body = gluon.nn.HybridSequential()
        self.body.add(
            gluon.nn.Conv2D(channels, 3, strides, padding=1),
            gluon.nn.BatchNorm(),
            gluon.nn.Activation("relu"),
            gluon.nn.Conv2D(channels, 3, padding=1),
            gluon.nn.BatchNorm(),
        )
        self.shortcut = gluon.nn.HybridSequential()  # empty: the input itself
        if strides > 1:
            self.shortcut.add(gluon.nn.Conv2D(channels, 1, strides))

    def hybrid_forward(self, F, x):
        return F.npx.relu(self.body(x) + self.shortcut(x))


def resnet18(channels=16):
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(channels, 3, padding=1),
        gluon.nn.BatchNorm(),
        gluon.nn.Activation("relu"),
    )
    for stage in range(4):
        strides = 1 if stage == 0 else 2
        net.add(Residual(channels * 2**stage, strides), Residual(channels * 2**stage))
    net.add(gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(10))
    return net


# %% [markdown]
# The book trains it on one device with batches of 256 and a learning rate of 0.1, and
# on two with 512 and 0.2: each device's work per step stays the same, and so do the
# fixed costs. But then two things change at once. So the cell also trains with equal
# batches. All batches are an eighth of the book's, and there are few images.
#
# *Predict before you run*: how many times as fast is the slim ResNet-18 on two contexts
# as on one, with equal batches? With the book's? And LeNet?


# %%
def train_net(net, num_devices, batch_size, lr, images=384, num_epochs=3):
    """Images per second after the first epoch, and the mean loss of the last one."""
    chosen = two[:num_devices]
    d2lpar.mx.random.seed(0)  # the same start for one device and for two
    net.initialize(init=d2lpar.mx.init.Normal(sigma=0.01), ctx=chosen)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": lr}, update_on_kvstore=False
    )
    rates = []
    for _ in range(num_epochs):  # the first one warms up
        start, losses = time.perf_counter(), []
        for i in range(0, images, batch_size):
            X, y = X_train[i : i + batch_size], y_train[i : i + batch_size]
            losses += train_batch(X, y, net, chosen, trainer)
        npx.waitall()
        rates.append(images / (time.perf_counter() - start))
    return median(rates[1:]), sum(float(l.sum()) for l in losses) / images


# The book: train_net(resnet18(64), 1, 256, 0.1, images=60_000, num_epochs=10)
#      and: train_net(resnet18(64), 2, 512, 0.2, images=60_000, num_epochs=10)
chapter.predict("ResNet-18: times as fast on two", None)
chapter.predict("LeNet: times as fast on two", None)
settings = ((1, 32, 0.1), (2, 32, 0.1), (2, 64, 0.2))
ways = [(build, *how) for build in (lenet, resnet18) for how in settings]
rates, losses = {way: [] for way in ways}, {}
for _ in range(3):  # in turn, because a machine's speed drifts
    for build, *how in ways:
        rate, losses[(build, *how)] = train_net(build(), *how)
        rates[(build, *how)].append(rate)
for (build, *how), found in rates.items():
    print(
        f"{build.__name__:8} on {how[0]}, batch {how[1]}: {median(found):6,.0f} ",
        end="",
    )
    print(f"({min(found):,.0f}-{max(found):,.0f}) images/s, ", end="")
    print(f"loss {losses[(build, *how)]:.2f}")
for name, build in (("ResNet-18", resnet18), ("LeNet", lenet)):
    gain = median(rates[build, 2, 32, 0.1]) / median(rates[build, 1, 32, 0.1])
    chapter.answer(f"{name}: times as fast on two", gain)
chapter.score()

# %% [markdown]
# **What you see.** With equal batches ResNet-18 gains more from the second device
# than LeNet: its devices compute most of the time, and LeNet's wait for Python and for
# each other. The book's settings gain more, since each device has twice the
# work in a step and the same fixed costs. But they take half as many steps, and so the
# loss is higher after the same images. With equal batches, too, one device and two end
# at different losses: BatchNorm normalises each device's own shard (chapter 10).
#
# On one H200 the book's network, with all images, batches of 256 and a rate of 0.1,
# takes 4.60 s per epoch, 13,017 images/s, and after 10 epochs two seeds reach a test
# accuracy of 0.926 and 0.916 ([table](../figures/h200/benchmarks/resnet18.txt)). LeNet
# takes 0.234 s there ([record](../figures/README.md)). We have not measured ResNet-18
# on two GPUs: `python benchmarks/resnet18.py --devices gpu:2` does.
#
# The book's authors [printed](https://github.com/mli/d2l-1day-notebooks) 13.2 s per
# epoch on one V100 with a batch of 256, and 7.3 s on two with 512: a gain of 1.8 from
# the second GPU, with the hardware on which LeNet lost.
#
# ## On Fashion-MNIST
#
# The package's training, `d2lpar.lenet_concise.train`, is the loop from above with
# shuffled batches, uneven shards and checkpoints. One thing differs: every device holds
# all images and takes the rows of its shard out of them within its graph
# (`ShardLosses`), because issuing many small operations costs Python more time than
# executing them costs a GPU ([how much](../docs/speed.md)). The numbers are the same.
# The presets are those of chapter 1, so that the two can be compared:
#
#     d2lpar compare figures/multiple_gpus/book-1thread-cpu2.jsonl \\
#         figures/multiple_gpus_concise/book-1thread-cpu2.jsonl
#
# In a notebook the flags are arguments: `preset="book"`, `num_devices="1,2"`, `lr=0.1`.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus_concise")

# %% [markdown]
# **What you see.** The same accuracies as in chapter 1, because the numbers are the
# same. With all of Fashion-MNIST, batches of 256 and one thread per context, an epoch
# takes 24.5 s on one context of an AMD EPYC and 14.3 s on two; from scratch it takes
# 24.7 s and 13.7 s. On H200s Gluon needs less of Python's time: 0.234 s and 0.264 s,
# where the training from scratch takes 0.256 s and 0.446 s. A second H200 loses in both
# ([all tables](../figures/README.md)).
#
# ## Summary
#
# > **Takeaway.** Speed-up = time on one / time on two; it grows with the work per
# > operator. LeNet on H200s: `0.234 / 0.264 = 0.89`, a loss
# > ([record](../figures/README.md)), and above ResNet-18 gains on the same devices
# > where LeNet gains little.
#
# - `initialize(ctx=devices)` makes the replicas; the device of the data picks one.
# - `trainer.step(n)` is the all-reduce, the division by n, and the update.
# - n is the size of the whole batch. Nothing checks it.
# - `hybridize` takes Python out of the step, and static memory saves new arrays.
# - A second device pays off for a network that computes much per operator.
#
# ## Exercises
#
# 1. Hand `X_shards[0].shape[0]` to `trainer.step` instead of the batch size. *(The step
#    is twice as large on two devices. No error says so; only the difference to chapter
#    4 is no longer rounding.)*
# 2. *On paper.* ResNet-18 multiplies 456 million times for an image, LeNet 2.25
#    million, and Python issues 64 operators in place of 9. By what factor does the
#    batch shrink from which a second device pays? *(The work per image grows 200 times,
#    and what a second device costs about `64 / 9 = 7` times: so `200 / 7 = 28` times.)*
# 3. Train with batches of 65; then with `even_split=False` in both calls of
#    `split_and_load`; then so with batches of one image. *(ValueError. Then 33 and 32
#    images, and the step is right, since it divides by 65. With one image the first
#    device gets an empty shard, and MXNet stops with `Check failed: delay_alloc`, which
#    does not name the cause. The package's `train_batch` leaves such a device out.)*
# 4. *On paper.* `trainer.step(32)` on four devices of 16 images each, with a learning
#    rate of 0.1: with which rate does the training really run? *(`0.1 * 64 / 32 =
#    0.2`.)*
# 5. Set `update_on_kvstore=True`: the kvstore keeps the parameters and updates them.
#    *(The same numbers. This is how a parameter server works, chapter 14.)*

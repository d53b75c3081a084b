# %% [markdown]
# # Multi-GPU training, concise: Gluon
#
# In Chapter 1 we implemented data parallelism by hand. How much of it does a framework
# do for us, and which parts remain ours?
#
# ![One step on two devices](../docs/drawings/split-allreduce-update.svg)
#
# | Chapter 1, by hand | here, Gluon |
# |---|---|
# | `lenet(X, params)` | a `HybridSequential` block, called as `net(X)` |
# | `get_params` for each device | `net.initialize(ctx=devices)` |
# | `split_batch` | `gluon.utils.split_and_load` |
# | `allreduce` of each gradient | a *kvstore*, inside `trainer.step` |
# | `p -= lr / n * p.grad` | the optimizer, inside `trainer.step(n)` |
#
# *Dive into Deep Learning* (d2l) [1] trains a larger network here. Its authors printed
# 13.2 s per epoch on one V100 with batches of 256 images, and **7.3 s on two** with
# batches of 512 [2]. With LeNet, two V100s had been slower than one. Two things have
# changed at the same time, the network and the batch, and we will take them apart.
#
# Run this chapter as a notebook, or as `python chapters/multiple_gpus_concise.py`.

# %%
import resource
import time
from statistics import median

import d2lpar
from d2lpar import autograd, chapter, devices, gluon, init_lenet, np, npx
from d2lpar.records.kinds import ArmSample

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## The network, as a block
#
# A *block* is a network together with its parameters. `HybridSequential` runs its
# layers one after the other. It is called hybrid because it can run in two ways: as
# Python, operator by operator, or compiled to a graph that runs without Python.


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
# This is the LeNet of Chapter 1, so we can compare the two chapters number by number.
# d2l's ResNet-18 follows below.
#
# ## A replica per device
#
# `initialize` takes a list of devices and makes a copy of every parameter on each of
# them.
#
# *Predict before you run*: you call `net(X)` with X on the second device. Which replica
# is used to compute the result, the "first" or the "second"?

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
# Gluon picks the replica on the device of the data, and raises an error for a device
# without a replica. All replicas start with the same numbers, because Gluon draws them
# once and copies them.
#
# For the comparison we give the network the parameters of Chapter 1. A `Dense` layer
# stores its weight as (outputs, inputs), the transpose of the `W` there.


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
# A `Trainer` holds the parameters, the optimizer and a *kvstore* (key-value store), the
# MXNet component that sums arrays across devices. `trainer.step(n)` pushes the
# gradients of all devices into the kvstore, pulls their sums, divides by n and updates
# every replica.
#
# Two arguments matter. The trainer's default, `kvstore="device"`, sums on the devices
# themselves, while `kvstore="local"` sums on the host. We keep the default. With
# `update_on_kvstore=True` the kvstore itself keeps and updates the parameters (exercise
# 5). We set it to `False`, so that the kvstore only sums and each device updates its
# replica, as in Chapter 1.

# %%
loss = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(
    net.collect_params(), "sgd", {"learning_rate": 0.2}, update_on_kvstore=False
)

# %% [markdown]
# ## One step
#
# *Predict before you run*: the batch has 64 images, 32 on each device. Which number
# must we pass to `trainer.step`, 32 or 64?


# %%
def train_batch(X, y, net, devices, trainer):
    X_shards = gluon.utils.split_and_load(X, devices)
    y_shards = gluon.utils.split_and_load(y, devices)
    with autograd.record():
        losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
    for shard_loss in losses:
        shard_loss.backward()
    trainer.step(batch_size=X.shape[0])
    return losses


def replicas(net):
    """The parameters on each device, as NumPy arrays in Chapter 1's shapes."""
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
print(f"Gluon against Chapter 1, after a step: {difference:.1e}")
assert difference < 1e-6
chapter.answer("for trainer.step", X.shape[0])

# %% [markdown]
# We pass 64, the size of the *global* batch, because the gradients that the trainer
# divides are sums over both devices. The trainer has no way to check this number. With
# it, the result is that of Chapter 1 up to rounding, as the assertion confirms.
#
# In PyTorch, DistributedDataParallel (DDP) takes the place of the trainer's all-reduce.
# Each process wraps its replica, `net = DistributedDataParallel(net)`. DDP can start
# the sums during `backward` (Chapter 7), and it averages over the processes where Gluon
# sums over the devices:
#
# <!-- fold: teaching/frameworks/pytorch_ddp.py train_batch -->
#
# ## Compiled
#
# So far, Python has invoked every operator of every layer separately on each device.
# `hybridize` records the operators once, as a graph, and runs the whole graph from then
# on. With `static_alloc` and `static_shape` the memory of the graph is also reserved
# once, instead of at each call. So there are two possible gains, and we measure them
# one after the other. The number of new memory pages shows how much memory a call
# asks the operating system for (Chapter 4).
#
# *Predict before you run*: by what factor does compiling the network, with static
# memory, speed up the forward pass for one image? And for 1,024 images?


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
for n in (1, 1024):
    X = np.ones((n, 1, 28, 28), ctx=two[0])
    print(f"{n} image(s)")
    net.hybridize(False)
    print("  as Python:         ", end="")
    as_python = clock(net, X)
    net.hybridize()
    print("  a graph:           ", end="")
    as_graph = clock(net, X)
    net.hybridize(static_alloc=True, static_shape=True)
    print("  with static memory:", end="")
    static = clock(net, X)
    print(f"  the graph saves {as_python - as_graph:.2f} ms, ", end="")
    print(f"static memory a further {as_graph - static:.2f} ms")
    name = "one image" if n == 1 else "1,024"
    chapter.answer(f"times as fast for {name}", as_python / static)

# %% [markdown]
# For one image the device has little to compute, so the calls that the graph saves are
# a large share of the time. For 1,024 images they are a small share. If the graph saves
# time there as well, look at the pages: a graph can reuse the memory of a layer for the
# next one, whereas Python asks for a new array for each output. Static memory removes
# what is left of these requests.
#
# Python's overhead becomes important again with several devices, because one Python
# thread issues the work for all of them.
#
# ## The training loop
#
# The loop is that of Chapter 1, on the same images.

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
# Compare the times of the two devices with those of one. The all-reduce and Python's
# work do not depend on the batch, so with only 16 images in a batch the second device
# has little to save. A larger network should change this.
#
# ## A larger network
#
# d2l trains a ResNet-18 here. It needs 456 million multiplications per image, about
# `456 / 2.25 = 200` times as many as LeNet. It also has more operators, 64 instead of
# 9. However, a compiled network is *one* call for Python. What a second device costs is
# therefore mainly the step of the trainer: the all-reduce of ResNet's 11.18 million
# parameters (`11.18e6 / 129e3 = 87` times as many as LeNet's), which are 76 arrays
# instead of 8. The computation grows more than either of them. A second device should
# therefore pay with smaller batches.
#
# We define d2l's network below. By default we use a quarter of its channels, so that it
# runs on a laptop; `channels=64` makes it d2l's network, which d2l did not compile. The
# argument F of `hybrid_forward` stands for the module of operators: `mxnet` arrays
# while the network runs as Python, symbols while it is being compiled.


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
# d2l trains it on one device with batches of 256 and a learning rate of 0.1, and on two
# devices with 512 and 0.2. Each device then has the same work per step as before. This
# changes the batch size and the number of devices at the same time. To separate the two
# effects we also train with equal batch sizes. To save time we use few images and
# batches an eighth as large as d2l's.
#
# *Predict before you run*: how many times as fast are two contexts as one with equal
# batches, for the slim ResNet-18 and for LeNet?


# %%
def train_net(net, num_devices, batch_size, lr, images=384, num_epochs=3):
    """Images per second, the median of the epochs after the first."""
    chosen = two[:num_devices]
    d2lpar.mx.random.seed(0)  # the same start for one device and for two
    net.initialize(init=d2lpar.mx.init.Normal(sigma=0.01), ctx=chosen)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": lr}, update_on_kvstore=False
    )
    rates = []
    for _ in range(num_epochs):  # the first one warms up
        start = time.perf_counter()
        for i in range(0, images, batch_size):
            X, y = X_train[i : i + batch_size], y_train[i : i + batch_size]
            train_batch(X, y, net, chosen, trainer)
        npx.waitall()
        rates.append(images / (time.perf_counter() - start))
    return median(rates[1:])


# d2l: train_net(resnet18(64), 1, 256, 0.1, images=60_000, num_epochs=10)
# and: train_net(resnet18(64), 2, 512, 0.2, images=60_000, num_epochs=10)
chapter.predict("ResNet-18: times as fast on two", None)
chapter.predict("LeNet: times as fast on two", None)
settings = {"one device": (1, 32, 0.1), "two": (2, 32, 0.1), "d2l's two": (2, 64, 0.2)}
for name, build in (("ResNet-18", resnet18), ("LeNet", lenet)):
    rates = {setting: [] for setting in settings}
    for _ in range(3):  # in turn, because the speed of a machine drifts
        for setting, how in settings.items():
            rates[setting].append(train_net(build(), *how))
    for setting, found in rates.items():
        print(f"{name:9}, {setting:10}: {median(found):6,.0f} images/s ", end="")
        print(f"({min(found):,.0f}-{max(found):,.0f})")
    gain = median(rates["two"]) / median(rates["one device"])
    chapter.answer(f"{name}: times as fast on two", gain)

# %% [markdown]
# Compare rows only if their ranges do not overlap; if they do, run the cell again on an
# idle machine. If both contexts have a core each, we expect ResNet-18 to gain more than
# LeNet, because its devices spend a larger share of a step computing, whereas with
# LeNet they wait more for Python and for each other. If both factors are near 1, or
# below, one explanation is that the contexts share a core, or that another program uses
# one. If only LeNet's factor is below 1, then its all-reduce and Python cost more with
# 16 images per device than half of the computation saves.
#
# The third row of each network shows d2l's way. Each device has twice the work per step
# there, so fixed costs matter less, but the training takes half as many steps. This
# makes it a different training, whose speed should not be compared with that of one
# device.
#
# With BatchNorm there is a further difference. Each device normalises its own shard, so
# even with equal batches two devices do not compute what one computes (Chapter 10).
#
# How far does one GPU take us? We have trained d2l's ResNet-18 on one H200. On two it
# has not been measured yet; `python benchmarks/resnet18.py --devices gpu:2` does so.


# %%
def mfu(multiplications, seconds, n=1):
    """The share of n H200s' float32 peak; 6 operations per multiplication."""
    return 6 * multiplications * 60_000 / seconds / (n * 67e12)


run = chapter.record("h200/benchmarks/resnet18.jsonl")
seconds = [s.seconds for s in run.lines_of(ArmSample) if not s.warm_up]
print(f"ResNet-18 on one H200: {median(seconds):.2f} s per epoch, n = {len(seconds)}")
shares = [mfu(456e6, median(seconds))]
print(f"  MFU {shares[0]:.0%}, commit {run.header.git_commit[:7]}")
for n in (1, 2):
    run = chapter.record(f"h200/multiple_gpus_concise/book-gpu{n}.jsonl")
    lenets = median(epoch.seconds for epoch in run.epochs[1:])
    print(f"LeNet on {n} H200(s): {lenets:.3f} s per epoch")
    shares.append(mfu(2.25e6, lenets, n))
    print(f"  MFU {shares[-1]:.0%}, commit {run.header.git_commit[:7]}")
assert shares[0] > 5 * shares[1] > 5 * shares[2]

# %% [markdown]
# The MFU (Chapter 4) is the share of the GPU's peak that the training uses. With the
# same batch of 256 images it is much larger for ResNet-18 than for LeNet, as the
# assertion confirms. While an H200 trains LeNet, it is far below its peak, so a second
# one has little to save, and the MFU of two is lower still.
#
# ## On Fashion-MNIST
#
# The package's training, `d2lpar.lenet_concise.train`, is the loop from above with
# shuffled batches, uneven shards and checkpoints. Every device holds all images and
# takes the rows of its shard out of them within its graph, because issuing many small
# operations costs Python more time than executing them costs a GPU. On GPUs it also
# sums all gradients as one array. Neither changes the results by more than rounding.
# The presets are those of Chapter 1, so that the two can be compared:
#
#     d2lpar compare figures/multiple_gpus/book-1thread-cpu2.jsonl \
#         figures/multiple_gpus_concise/book-1thread-cpu2.jsonl
#
# In a notebook the flags are arguments: `preset="book"`, `num_devices="1,2"`, `lr=0.1`.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus_concise")

# %% [markdown]
# On CPU contexts the table divides the cores of the machine among the contexts, so a
# single context has several threads. Its speedup compares two ways to use the same
# cores, as in Chapter 1.
#
# Is Gluon faster than our functions from scratch? Here are the medians of both, from
# the records of d2l's recipe. In these each CPU context has one thread.

# %%
for place, name in (("", "book-1thread-cpu{}"), ("h200/", "book-gpu{}")):
    for n in (1, 2):
        found = []
        for way in ("multiple_gpus", "multiple_gpus_concise"):
            run = chapter.record(f"{place}{way}/{name.format(n)}.jsonl")
            found.append(median(epoch.seconds for epoch in run.epochs[1:]))
        print(f"{n} {run.header.device_kind}(s), commit", run.header.git_commit[:7])
        print(f"  from scratch {found[0]:.3g} s per epoch, ", end="")
        print(f"Gluon {found[1]:.3g} s, {found[1] / found[0]:.2f} times")
chapter.score()

# %% [markdown]
# A factor below 1 means that Gluon is faster. The records of the GPUs are from before
# 0.4, and each row is one training. One explanation of the difference between the GPUs
# and the CPU contexts is the length of a step. On GPUs a step is short, so the calls
# that a compiled network saves are a large part of it. On CPU contexts a step takes so
# long that they matter little, and the factors are close to 1.
#
# ## Summary
#
# > **Takeaway.** `trainer.step(n)` computes `p -= lr / n * (g_1 + ... + g_N)` with the
# > size n of the global batch. If nothing overlaps, two devices pay as soon as
# > `compute / 2 > python + all_reduce`. The more a network computes per parameter and
# > per call, the smaller the batch from which this holds.
#
# `initialize(ctx=devices)` makes the replicas, and the device of the data selects one.
# `trainer.step(n)` sums the gradients over the devices, divides by n and updates. Pass
# the size of the global batch; the trainer has no way to check it. `hybridize` replaces
# the calls of all operators by one call, and static memory saves new arrays.
#
# ## Exercises
#
# 1. Pass `X_shards[0].shape[0]` to `trainer.step` instead of the batch size. *(On two
#    devices the step is twice as large. There is no error message; only the difference
#    to Chapter 1 is no longer rounding.)*
# 2. *On paper.* Neglect Python. ResNet-18 needs 200 times the multiplications of LeNet
#    per image, and its all-reduce is 87 times as long, if it is proportional to the
#    number of parameters. By what factor does the batch shrink from which a second
#    device pays? *(Two devices pay if one half of the computation exceeds the
#    all-reduce, so the batch is proportional to all-reduce / computation per image: `87
#    / 200 = 0.435`. On paper the batch shrinks by `1 / 0.435 = 2.3`. If the fixed cost
#    of each sum dominates, the all-reduce grows by `76 / 8 = 9.5`, and the batch
#    shrinks by `200 / 9.5 = 21`.)*
# 3. Train with batches of 65; then with `even_split=False` in both calls of
#    `split_and_load`; then so with batches of one image. *(ValueError. Then 33 and 32
#    images, and the step is right, since it divides by 65. With one image the second
#    device gets an empty shard, and MXNet stops with `Check failed: delay_alloc`, which
#    does not name the cause. The package's `train_batch` skips such a device.)*
# 4. *On paper.* `trainer.step(32)` on four devices of 16 images each, with a learning
#    rate of 0.1: what is the effective learning rate? *(`0.1 * 64 / 32 =
#    0.2`.)*
# 5. Set `update_on_kvstore=True`: the kvstore keeps the parameters and updates them.
#    *(The numbers are the same. A parameter server works like this, see Chapter 14.)*
# 6. Remove all BatchNorm layers, those of `Residual` and the one of `resnet18`, and
#    compare the losses of one device and two after a few steps, with equal batches. Do
#    the same with BatchNorm. *(Without BatchNorm the losses differ by rounding, which
#    can grow with the steps. With BatchNorm they differ from the first step on, since
#    each device normalises its own shard.)*
#
# **Puzzles.** `python -m d2lpar.puzzles` lists puzzles about the divisor of a step and
# about uneven shards.
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Concise Implementation for Multiple
#   GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus-concise.html>
# - [2] Li, *Dive into Deep Learning in 1 Day*, notebooks,
#   <https://github.com/mli/d2l-1day-notebooks>

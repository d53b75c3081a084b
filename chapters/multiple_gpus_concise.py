# %% [markdown]
# # Multi-GPU training, concise: Gluon
#
# In *Dive into Deep Learning* (d2l) a second GPU made the training of LeNet slower
# (Chapter 1). In its next section [1] a second GPU makes the training of a larger
# network faster. Is the network the reason, or the larger batch?
#
# ![Time of an epoch of LeNet in Gluon beside PyTorch's loop, JAX and d2l's PyTorch tab,
# on two cores and on H100s, and by the form of a step](../figures/peers/lenet.png)
#
# **In one sentence.** The network is the reason: in our record, two H100 GPUs train
# ResNet-18 faster than one with the *same* batch of 256 images.
#
# The authors of d2l printed 13.2 s per epoch of ResNet-18 on one V100 with batches of
# 256 images, and **7.3 s on two** with batches of 512 [2]. Both the network and the
# batch differ from Chapter 1. We change one of them at a time. For this we use Gluon,
# MXNet's library of layers, which also takes over most of Chapter 1's work:
#
# | Chapter 1, by hand | here, Gluon |
# |---|---|
# | `lenet(X, params)` | a `HybridSequential` block, called as `net(X)` |
# | `get_params` for each device | `net.initialize(ctx=devices)` |
# | `split_batch` | `gluon.utils.split_and_load` |
# | `allreduce` of each gradient | a *kvstore*, inside `trainer.step` |
# | `p -= lr / n * p.grad` | the optimizer, inside `trainer.step(n)` |
#
# Run this chapter as a notebook, or as `python chapters/multiple_gpus_concise.py`.

# %%
import time
from statistics import median
from textwrap import fill, shorten

import d2lpar
from d2lpar import autograd, chapter, devices, gluon, init_lenet, np, npx

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
GPUS = "gpus"  # the folder of figures/ with the records of two GPUs

# %% [markdown]
# ## The network, as a block
#
# A *block* is a network together with its parameters. `HybridSequential` runs its
# layers one after the other. A *hybrid* block runs either as Python, operator by
# operator, or compiled to a graph. We begin with the LeNet of Chapter 1, so that we can
# compare the numbers.


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
for layer in net:
    print(shorten(str(layer), 88))

# %% [markdown]
# ## A replica per device
#
# `initialize` takes a list of devices and makes a copy of every parameter on each of
# them.
#
# *Predict before you run*: we call `net(X)` with X on the second device. Which replica
# computes the result, the "first" or the "second"?

# %%
chapter.predict("replica that computes", None)  # write "first" or "second" for None
net.initialize(init=d2lpar.mx.init.Normal(sigma=0.01), ctx=two)
weight = net[0].weight
print("the first convolution's weight is on", weight.list_ctx())
first_rows = [data[0, 0, 0] for data in weight.list_data()]
print("its first row on each:", *first_rows, sep="\n")

for device in two:
    y_hat = net(np.ones((3, 1, 28, 28), ctx=device))
    print("scores", y_hat.shape, "computed on", y_hat.ctx)
try:
    weight.data(d2lpar.mx.cpu(7))
except RuntimeError as error:
    print(fill(str(error).splitlines()[0], 88))
computed = "second" if y_hat.ctx == two[1] else "first"
chapter.answer("replica that computes", computed)

# %% [markdown]
# Gluon uses the replica that is on the same device as X. For a device without a replica
# it raises an error. All replicas start with the same numbers, because Gluon draws them
# once and copies them.
#
# For the comparison we give the network the parameters of Chapter 1. A `Dense` layer
# stores its weight as (outputs, inputs), the transpose of Chapter 1's W.


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
# every replica. We set `update_on_kvstore=False`, so that each device updates its
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
chapter.answer("for trainer.step", X.shape[0])

# %% [markdown]
# We pass 64, the size of the *global* batch, because the trainer divides sums over all
# devices. It cannot check this number. With 64 the parameters equal Chapter 1's up to
# rounding.
#
# In PyTorch, DistributedDataParallel (DDP) does the all-reduce. Each process wraps its
# replica, `net = DistributedDataParallel(net)`. DDP can start its sums during
# `backward` (Chapter 7). It averages over the processes, whereas Gluon sums over the
# devices.
#
# <!-- fold: teaching/frameworks/pytorch_ddp.py train_batch -->
#
# ## Compiled
#
# So far, Python has called every operator separately on each device. `hybridize`
# records the operators once, as a graph, and runs the whole graph from then on. With
# `static_alloc` and `static_shape` the graph also reserves its memory once, instead of
# at each call. We time the three forms in turn.


# %%
def clock(net, X):
    """Milliseconds of a forward pass."""
    net(X)  # a warm-up: hybridize compiles at the first call
    npx.waitall()
    start = time.perf_counter()
    net(X)
    npx.waitall()
    return 1e3 * (time.perf_counter() - start)


forms = {
    "as Python": {"active": False},
    "a graph": {},
    "with static memory": {"static_alloc": True, "static_shape": True},
}
for n in (1, 1024):
    X, found = np.ones((n, 1, 28, 28), ctx=two[0]), {form: [] for form in forms}
    for _ in range(8):  # in turn, because the speed of a machine drifts
        for form, how in forms.items():
            net.hybridize(**how)
            found[form].append(clock(net, X))
    print(f"{n} image(s):", end=" ")
    print(*(f"{form} {median(ms):.2f} ms" for form, ms in found.items()), sep=", ")
    python, *_, static = found.values()
    names = "Python", "static memory"
    print(fill(chapter.verdict(python, static, names, "ms", in_turn=True), 88))

# %% [markdown]
# The graph removes Python's calls, whose number does not depend on the batch. It should
# therefore gain most with a small batch. Static memory removes requests for memory,
# whose size grows with the batch.
#
# ## A larger network
#
# ResNet-18 needs 456 million multiplications per image in the forward pass, whereas
# LeNet needs 2.25 million. Python calls a compiled network only once, however many
# operators it has. A second device therefore mainly costs the all-reduce, which grows
# with the parameters.
#
# We define d2l's network below. By default we use a quarter of its channels, so that it
# runs on a laptop. With `channels=64` it is d2l's network. The argument F of
# `hybrid_forward` is the module of operators, for arrays in Python, or for symbols in a
# compiled graph.


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
# *Predict before you run*: ResNet-18 has 11.2 million parameters, and LeNet has 0.129
# million. How many times as many multiplications *per parameter* does ResNet-18 need?

# %%
chapter.predict("times LeNet's multiplications per parameter", None)
per_parameter = {}
for name, build, multiplications in (
    ("LeNet", lenet, 2.25e6),
    ("ResNet-18", lambda: resnet18(64), 456e6),
):
    net = build()
    net.initialize()
    net(np.ones((2, 1, 28, 28)))  # infers the shapes
    learned = [p for p in net.collect_params().values() if p.grad_req != "null"]
    size = sum(p.data().size for p in learned)
    per_parameter[name] = multiplications / size
    print(f"{name}: {size:,} parameters in {len(learned)} arrays,", end=" ")
    print(f"{per_parameter[name]:.1f} multiplications per parameter")
ratio = per_parameter["ResNet-18"] / per_parameter["LeNet"]
chapter.answer("times LeNet's multiplications per parameter", ratio)

# %% [markdown]
# ResNet-18 needs `456 / 2.25 = 203` times the multiplications, but has only
# `11.2 / 0.129 = 87` times the parameters. This is 2.3 times as many per parameter, so
# the computation grows more than the all-reduce. A second device should therefore pay
# with smaller batches.
#
# d2l trains on two devices with twice the batch and twice the learning rate. However,
# this is a different training, with half the number of steps. We compare equal batches,
# first on your machine.


# %%
def time_steps(net, num_devices, batch_size, steps=3):
    """Milliseconds of a step with a compiled network."""
    chosen = two[:num_devices]
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.01}, update_on_kvstore=False
    )
    X = np.random.uniform(size=(batch_size, 1, 28, 28))
    y = np.arange(batch_size) % 10
    train_batch(X, y, net, chosen, trainer)  # a warm-up
    npx.waitall()
    start = time.perf_counter()
    for _ in range(steps):
        train_batch(X, y, net, chosen, trainer)
    npx.waitall()
    return 1e3 * (time.perf_counter() - start) / steps


for batch_size in (8, 16):
    for name, build in (("LeNet", lenet), ("ResNet-18", resnet18)):
        nets = {n: build() for n in (1, 2)}
        for n, net in nets.items():
            net.initialize(init=d2lpar.mx.init.Normal(sigma=0.01), ctx=two[:n])
            net.hybridize(static_alloc=True, static_shape=True)
        times = {1: [], 2: []}
        for _ in range(5):  # in turn
            for n, net in nets.items():
                times[n].append(time_steps(net, n, batch_size))
        names = "on one device", "a step on two"
        said = chapter.verdict(times[1], times[2], names, "ms", in_turn=True)
        print(fill(f"batch {batch_size}, {name}: {said}", 88))

# %% [markdown]
# With a core for each context, the second context should pay for ResNet-18 with a
# smaller batch than for LeNet. A busy machine is too noisy to show it. (Exercise 2
# computes it.)
#
# ResNet-18 contains batch normalisation, and each device normalises its own shard.
# Therefore even with equal batches two devices do not compute the step of one device
# (Chapter 10).
#
# ## Network or batch?
#
# The table has the seconds of an epoch on one H100 and on two. The first row is LeNet
# in Gluon with batches of 256 images. The other rows are ResNet-18.
#
# *Predict before you run*: what makes the second GPU pay, the "network" or the "batch"?

# %%
chapter.predict("network or batch", None)  # write your word for None
found = chapter.table(
    f"{GPUS}/peers/custom-gpu2.jsonl",
    f"{GPUS}/benchmarks/resnet18.jsonl",
    only=["d2lpar concise", "batch"],
)
small, larger = found["batch 256, lr 0.1"], found["batch 512, lr 0.2"]
more = small[2].median / larger[2].median
print(f"on two GPUs, the larger batch makes an epoch {more:.1f} times as fast")
of_network = small[2].is_below(small[1])  # by the rule, with the same batch
chapter.answer("network or batch", "network" if of_network else "batch")

# %% [markdown]
# Only the network differs between the first two rows. With LeNet the rule tells no
# speedup, and with ResNet-18 the second GPU pays. In the last row each GPU has 256
# images, as in d2l's run. This larger batch shortens the epoch further, but by a
# smaller factor than the second GPU does. For LeNet, the batch alone makes a second GPU
# pay from 2,048 images on (Chapter 6).
#
# ## On Fashion-MNIST
#
# The package's training, `d2lpar.lenet_concise.train`, adds shuffled batches, uneven
# shards and checkpoints. On CPU contexts its trainer sums on the host
# (`kvstore="local"`). On GPUs it sums all gradients as one array and launches each pass
# as a CUDA graph. The results are equal up to rounding.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus_concise")

chapter.score()

# %% [markdown]
# Here, too, one context uses all cores, and two contexts share them.
#
# ## Summary
#
# > **Takeaway.** `trainer.step(n)` computes `p -= lr / n * (g_1 + ... + g_N)` with the
# > size n of the global batch. If nothing overlaps, two devices pay as soon as
# > `compute / 2 > python + all_reduce`, where `compute` is the time of the operators
# > without Python. A network that computes more per parameter and per call fulfils this
# > with a smaller batch.
#
# `initialize(ctx=devices)` makes the replicas, and the device of the data selects one.
# We still split the batch and pass the right n. `hybridize` replaces the calls of all
# operators by one call.
#
# ## Exercises
#
# 1. Pass `X_shards[0].shape[0]` to `trainer.step` instead of the batch size. *(On two
#    devices the step is twice as large. There is no error message, but the difference
#    to Chapter 1 exceeds rounding.)*
# 2. *On paper.* Neglect Python. ResNet-18 needs 200 times the multiplications of LeNet
#    per image, and its all-reduce is 87 times as long, if it is proportional to the
#    number of parameters. The break-even is the batch from which on a second device
#    pays. By what factor does it shrink? *(Two devices pay if one half of the
#    computation exceeds the all-reduce. The break-even is therefore proportional to the
#    all-reduce divided by the computation per image, so it shrinks by `200 / 87 = 2.3`.
#    If the fixed cost of each sum dominates, the all-reduce grows by `76 / 8 = 9.5`,
#    the ratio of the numbers of arrays. The break-even then shrinks by
#    `200 / 9.5 = 21`.)*
# 3. Train with batches of 65. Then pass `even_split=False` in both calls of
#    `split_and_load`, and finally train with batches of one image. *(First we get a
#    ValueError. Then the shards have 33 and 32 images, and the step is right, because
#    it divides by 65. With one image the second device gets an empty shard, and MXNet
#    stops with `Check failed: delay_alloc`, which does not name the cause. The
#    package's `train_batch` skips such a device.)*
# 4. *On paper.* Four devices have 16 images each, and we call `trainer.step(32)` with a
#    learning rate of 0.1. What is the effective learning rate?
#    *(`0.1 * 64 / 32 = 0.2`.)*
#
# **Puzzles.** `python -m d2lpar.puzzles` lists puzzles about the divisor of a step and
# about uneven shards.
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Concise Implementation for Multiple
#   GPUs", <https://d2l.ai/chapter_computational-performance/multiple-gpus-concise.html>
# - [2] Li, *Dive into Deep Learning in 1 Day*, notebooks,
#   <https://github.com/mli/d2l-1day-notebooks>

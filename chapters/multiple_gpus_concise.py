# %% [markdown]
# # Multi-GPU training, concise: Gluon
#
# In Chapter 1 we implemented data parallelism by hand. How much of it does a framework
# do for us, and which parts remain ours?
#
# ![Time of an epoch of LeNet in Gluon beside PyTorch's loop, DDP and d2l's PyTorch tab,
# on two cores and on H100s](../figures/peers/lenet.png)
#
# **In one sentence.** Gluon makes the replicas, sums and updates in `trainer.step(n)`,
# with the result of our own functions up to rounding; splitting the batch and the right
# n remain ours.
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
# batches of 512 [2]. With LeNet, two V100s had been slower than one. Two things changed
# at the same time, the network and the batch, and we will take them apart.
#
# Run this chapter as a notebook, or as `python chapters/multiple_gpus_concise.py`.

# %%
import resource
import time
from statistics import median, quantiles
from textwrap import fill, shorten

import d2lpar
from d2lpar import autograd, chapter, devices, gluon, init_lenet, np, npx
from d2lpar.records.kinds import ArmSample
from d2lpar.scaling.model import studies

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## The network, as a block
#
# A *block* is a network together with its parameters. `HybridSequential` runs its
# layers one after the other. It is called hybrid because it can run in two ways: as
# Python, operator by operator, or compiled to a graph that runs without Python. This is
# the LeNet of Chapter 1, so we can compare the two chapters number by number.


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
# *Predict before you run*: you call `net(X)` with X on the second device. Which replica
# is used to compute the result, the "first" or the "second"?

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
# The trainer's default, `kvstore="device"`, sums on the devices themselves, while
# `kvstore="local"` sums on the host. We set `update_on_kvstore=False`, so that the
# kvstore only sums and each device updates its replica, as in Chapter 1.

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
# sums over the devices. Chapter 6 runs it.
#
# <!-- fold: teaching/frameworks/pytorch_ddp.py train_batch -->
#
# ## Compiled
#
# So far, Python has invoked every operator of every layer separately on each device.
# `hybridize` records the operators once, as a graph, and runs the whole graph from then
# on. With `static_alloc` and `static_shape` the memory of the graph is also reserved
# once, instead of at each call. The number of new memory pages shows how much memory a
# call asks the operating system for (Chapter 4).


# %%
def clock(net, X, repeats=3):
    """Milliseconds of forward passes, and how many new pages of memory one takes."""
    net(X)  # a warm-up: hybridize compiles at the first call
    npx.waitall()
    times, pages = [], resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(repeats):
        start = time.perf_counter()
        net(X)
        npx.waitall()
        times.append(1e3 * (time.perf_counter() - start))
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
    return times, pages // repeats


def verdict(one, other):
    """What two lists of times say: their ratio, if their quartiles do not overlap."""
    (low, _, high), (low_of_other, _, high_of_other) = (
        quantiles(times, n=4) for times in (one, other)
    )
    if low_of_other <= high and low <= high_of_other:
        return "no difference: the quartiles overlap"
    return f"{median(one) / median(other):.2f} times as fast"


forms = {
    "as Python": {"active": False},
    "a graph": {},
    "with static memory": {"static_alloc": True, "static_shape": True},
}
for n in (1, 1024):
    X, found = np.ones((n, 1, 28, 28), ctx=two[0]), {form: ([], []) for form in forms}
    for _ in range(4):  # in turn, because the speed of a machine drifts
        for form, how in forms.items():
            net.hybridize(**how)
            times, pages = clock(net, X)
            found[form][0].extend(times)
            found[form][1].append(pages)
    for form, (times, pages) in found.items():
        print(f"{n:5} image(s), {form:18}: {median(times):8.2f} ms,", end="")
        print(f" {median(pages):8,.0f} pages")
    print("  with static memory against Python:", end=" ")
    print(verdict(found["as Python"][0], found["with static memory"][0]))

# %% [markdown]
# The graph removes Python's calls, whose number does not depend on the batch. Static
# memory removes requests for pages, which grow with the batch: compare the last column.
# Python's calls become important again with several devices, because one Python thread
# issues the work for all of them.
#
# ## A larger network
#
# d2l trains a ResNet-18 here, which needs 456 million multiplications per image for the
# forward pass; LeNet needs 2.25 million. It also has more operators, 64 instead of 9,
# but a compiled network is *one* call for Python. What a second device costs is
# therefore mainly the step of the trainer, whose all-reduce grows with the parameters.
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
# *Predict before you run*: how many times as many multiplications *per parameter* does
# d2l's ResNet-18 need as LeNet?

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
chapter.answer("times LeNet's multiplications per parameter", round(ratio, 1))

# %% [markdown]
# The computation grows more than the all-reduce, so a second device should pay with
# smaller batches. d2l trains on one device with batches of 256 and a learning rate of
# 0.1, and on two devices with 512 and 0.2, so that each device has the same work per
# step as before. However, half as many steps are a different training, whose speed
# should not be compared with that of one device. We compare equal batches, with a small
# one and a larger one.


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
    gains = []
    for name, build in (("LeNet", lenet), ("ResNet-18", resnet18)):
        nets = {n: build() for n in (1, 2)}
        for n, net in nets.items():
            net.initialize(init=d2lpar.mx.init.Normal(sigma=0.01), ctx=two[:n])
            net.hybridize(static_alloc=True, static_shape=True)
        times = {1: [], 2: []}
        for _ in range(5):  # in turn
            for n, net in nets.items():
                times[n].append(time_steps(net, n, batch_size))
        print(
            f"batch {batch_size:2}, {name:9}: one {median(times[1]):6.1f} ms,", end=""
        )
        said = verdict(times[1], times[2])
        print(f" two: {said}")
        if "times" in said and median(times[2]) < median(times[1]):
            gains.append(name)
    print(f"a second context pays for: {' and '.join(gains) or 'neither'}")

# %% [markdown]
# If each context has a core to itself, we expect a batch at which the second context
# pays for ResNet-18 only. If no row shows it, this run does not decide; exercise 2
# computes it.
#
# With BatchNorm there is a further difference. Each device normalises its own shard, so
# even with equal batches two devices do not compute what one computes (Chapter 10).
#
# Here is d2l's ResNet-18 on one H100 and on two, one training each, with the test
# accuracy after the last epoch.

# %%
run, times, accuracy = chapter.record("gpus/benchmarks/resnet18.jsonl"), {}, {}
for sample in run.lines_of(ArmSample):
    accuracy[sample.arm] = sample.test_acc
    if not sample.warm_up:
        times.setdefault(sample.arm, []).append(sample.seconds)
for arm, seconds in times.items():
    print(f"{arm}: {median(seconds):.2f} s per epoch, n = {len(seconds)}", end="")
    print(f", accuracy {accuracy[arm]:.3f}")
tf32 = {None: "not named", False: "off", True: "on"}[run.header.gpu_build.get("tf32")]
mfu = 6 * 456e6 * 60_000 / median(times["1 GPU, batch 256, lr 0.1"]) / 67e12
print(f"MFU on one {mfu:.0%}, TF32 {tf32}, commit {run.header.git_commit[:7]}")
assert mfu > 0.3 and tf32 != "on"

# %% [markdown]
# The MFU (Chapter 4), a share of the float32 peak, is several times that of LeNet,
# which stayed below a tenth. A record that does not name TF32 may have used it. With
# equal batches the second GPU shortens an epoch of
# ResNet-18; for LeNet with 256 images it does not (Chapter 6).
#
# ## On Fashion-MNIST
#
# The package's training, `d2lpar.lenet_concise.train`, takes this step with shuffled
# batches, uneven shards and checkpoints. Every device holds all images and takes the
# rows of its shard out of them within its graph. On CPU contexts its trainer sums on
# the host (`kvstore="local"`). On GPUs it sums all gradients as one array and launches
# each pass as a CUDA graph. None of this changes the results by more than rounding.
# With `--same-bits` (Chapter 1) each device passes through its shards of a batch one
# after the other, and any number of devices ends with the same parameters.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus_concise")

# %% [markdown]
# Here, too, one context has a thread on each core and two contexts share them.
#
# Is Gluon faster than our functions from scratch? We read the steps of two records on
# one core and on two.

# %%
found = {}
for way in ("scratch", "concise"):
    run = chapter.record(f"scaling/book-1thread-{way}-cpu2.jsonl")
    (found[way],) = studies([run])
    print(f"{way}: d2lpar {run.header.versions['d2lpar']}, ", end="")
    print(f"commit {run.header.git_commit[:7]}")
gains = {}
for batch in (32, 256, 1024, 2048, 8192):
    print(f"batch {batch:5}:", end="")
    for n in (1, 2):
        ours, gluons = (found[w].milliseconds(n, batch) for w in found)
        gains[n, batch] = ours.median / gluons.median
        apart = not ours.overlaps(gluons)
        said = f"{gains[n, batch]:.2f} times as fast" if apart else "no difference"
        print(f"  on {n}: Gluon {said}", end="")
    print()
assert all(gains[n, 8192] > 1.3 > gains[n, 256] for n in (1, 2))
chapter.score()

# %% [markdown]
# With 256 images the two differ little. With 8,192 Gluon is clearly faster on one and
# on two, as the assertion confirms, so calls are not all that it saves. [A table of
# Chapter 6](scaling.py) has both on GPUs.
#
# ## Summary
#
# > **Takeaway.** `trainer.step(n)` computes `p -= lr / n * (g_1 + ... + g_N)` with the
# > size n of the global batch. If nothing overlaps, two devices pay as soon as
# > `compute / 2 > python + all_reduce`, where `compute` is the time of the operators
# > alone, without Python's. The more a network computes per parameter and per call, the
# > smaller the batch from which this holds.
#
# `initialize(ctx=devices)` makes the replicas, and the device of the data selects one.
# Pass the size of the global batch to `trainer.step`; nothing checks it. `hybridize`
# replaces the calls of all operators by one call, and static memory saves new arrays.
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
# 3. Train with batches of 65. Then pass `even_split=False` in both calls of
#    `split_and_load`, and finally train with batches of one image. *(ValueError. Then
#    33 and 32 images, and the step is right, since it divides by 65. With one image the
#    second device gets an empty shard, and MXNet stops with `Check failed:
#    delay_alloc`, which does not name the cause. The package's `train_batch` skips such
#    a device.)*
# 4. *On paper.* `trainer.step(32)` on four devices of 16 images each, with a learning
#    rate of 0.1: what is the effective learning rate? *(`0.1 * 64 / 32 =
#    0.2`.)*
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

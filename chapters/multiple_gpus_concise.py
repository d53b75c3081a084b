# %% [markdown]
# # Multi-GPU training, concise: Gluon
#
# In Chapter 1 we copied parameters, split batches and summed gradients by hand. Gluon,
# MXNet's library of layers, takes over most of this work. Here we train the same
# network with it, and check that it makes the same step. Then we meet a layer with
# which k devices do *not* compute what one device computes.
#
# | Chapter 1, by hand | here, Gluon |
# |---|---|
# | `lenet(X, params)` | a `HybridSequential` block, called as `net(X)` |
# | `get_params` for each device | `net.initialize(ctx=devices)` |
# | `split_batch` | `gluon.utils.split_and_load` |
# | `allreduce` of each gradient | a *kvstore*, inside `trainer.step` |
# | `p -= lr / n * p.grad` | the optimizer, inside `trainer.step(n)` |
#
# ![One step on two devices](../docs/drawings/split-allreduce-update.svg)
#
# The authors of *Dive into Deep Learning* (d2l) [1] train a larger network here. An
# epoch of ResNet-18 took them 13.2 s on one V100 GPU, and **7.3 s** on two.
#
# Run this chapter as a notebook, or as `python chapters/multiple_gpus_concise.py`.

# %%
import numpy
from matplotlib.figure import Figure

import d2lpar
from d2lpar import allreduce, autograd, chapter, devices, gluon, init_lenet, np
from d2lpar.records.arms import arm_times

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## The network, as a block
#
# A *block* is a network together with its parameters. `HybridSequential` runs its
# layers one after the other. `initialize` takes a list of devices and makes a copy of
# every parameter on each of them. When we call `net(X)`, Gluon uses the replica that is
# on the device of X.


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
net.initialize(ctx=two)
for device in two:
    print("scores computed on", net(np.ones((3, 1, 28, 28), ctx=device)).ctx)

# %% [markdown]
# For the comparison we give every replica the same parameters as in Chapter 1. A
# `Dense` layer stores its weight as (outputs, inputs), the transpose of Chapter 1's W.

# %%
params = init_lenet(scale=0.1, seed=0)


def set_params(net):
    for target, value in zip(net.collect_params().values(), params):
        target.set_data(np.array(value.T if value.ndim == 2 else value))


# %% [markdown]
# ## One step
#
# A `Trainer` holds the parameters, the optimizer and a *kvstore* (key-value store), the
# MXNet component that sums arrays across devices. `trainer.step(n)` sums the gradients
# of all devices, divides by n, and updates every replica. With
# `update_on_kvstore=False` each device updates its own replica, as in Chapter 1.
#
# *Predict before you run*: the batch has 64 images, 32 on each device. Which number
# must we pass to `trainer.step`, 32 or 64? Replace `None` by your number.


# %%
loss = gluon.loss.SoftmaxCrossEntropyLoss()


def trainer_of(net, lr=0.05):
    rate = {"learning_rate": lr}
    return gluon.Trainer(net.collect_params(), "sgd", rate, update_on_kvstore=False)


def train_batch(X, y, net, devices, trainer):
    X_shards = gluon.utils.split_and_load(X, devices)
    y_shards = gluon.utils.split_and_load(y, devices)
    with autograd.record():
        losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
    for shard_loss in losses:
        shard_loss.backward()
    trainer.step(batch_size=X.shape[0])
    return losses


chapter.predict("for trainer.step", None)  # 32 or 64
X, y = np.random.uniform(size=(64, 1, 28, 28)), np.arange(64) % 10
set_params(net)
train_batch(X, y, net, two, trainer_of(net))
by_hand = [d2lpar.get_params(params, device) for device in two]
d2lpar.train_batch(X, y, by_hand, two, lr=0.05)
for k, replica in enumerate(by_hand):
    pairs = zip(net.collect_params().values(), replica)
    gaps = [
        abs(p.list_data()[k].asnumpy() - (q.T if q.ndim == 2 else q).asnumpy()).max()
        for p, q in pairs
    ]
    print(f"Gluon against Chapter 1 on {two[k]}: {max(gaps):.1e}")
chapter.answer("for trainer.step", X.shape[0])

# %% [markdown]
# We pass 64, the size of the *global* batch, because the trainer divides sums over all
# devices. It does not know n, so it cannot check this number. In PyTorch,
# DistributedDataParallel (DDP) does the all-reduce, one process per device. It averages
# over the processes, whereas Gluon sums over the devices.
#
# <!-- fold: teaching/frameworks/pytorch_ddp.py train_batch -->
#
# ## Compiled
#
# So far, Python has called every operator separately on each device. `hybridize`
# records the operators once, as a graph. From then on Python makes one call per device,
# and with static memory the graph reserves its memory once. Does the graph compute the
# same? We train in both forms and draw the accuracy.

# %%
X_train, y_train, X_test, y_test = d2lpar.datasets.fashion_sample()
X_train = np.array(X_train[:, None] / 255, dtype="float32")  # (n, 1, 28, 28)
X_test = np.array(X_test[:, None] / 255, dtype="float32", ctx=two[0])
y_train = np.array(y_train, dtype="float32")


def accuracies(net, num_epochs=4, batch_size=50):
    """Train; return the accuracy on the test images after each epoch."""
    net.initialize(ctx=two)
    set_params(net)
    trainer, found = trainer_of(net), []
    for _ in range(num_epochs):
        for i in range(0, len(X_train), batch_size):
            X, y = X_train[i : i + batch_size], y_train[i : i + batch_size]
            train_batch(X, y, net, two, trainer)
        found.append((net(X_test).argmax(axis=1).asnumpy() == y_test).mean())
    return found


compiled = lenet()
compiled.hybridize(static_alloc=True, static_shape=True)
figure = Figure(figsize=(5, 2.2), layout="constrained")
axes = figure.subplots()
for form, net, line in (("as Python", lenet(), "o-"), ("compiled", compiled, "x--")):
    axes.plot(accuracies(net), line, label=form)
axes.set(xlabel="epoch", ylabel="test accuracy", xticks=range(4))
axes.legend()
chapter.show(figure, "gluon-accuracy")

# %% [markdown]
# Both forms compute the same step, so the curves coincide up to rounding.
#
# ## BatchNorm over shards
#
# *Batch normalisation* subtracts the mean of a batch and divides by its standard
# deviation. A device sees only its shard, whose mean differs from the mean of the
# batch. Therefore a network with this layer, such as ResNet-18, computes something else
# on two devices than on one. To remove the difference, the devices sum the means and
# then the variances in the forward pass. This takes two more all-reduces.


# %%
def normalise(X_shards, synchronised):
    """Shards (n, channels) minus the mean, over the standard deviation."""
    n = [len(X) for X in X_shards]
    means = [X.sum(axis=0) for X in X_shards]
    if synchronised:
        allreduce(means)
        n = [sum(n)] * len(n)
    centred = [X - mean / m for X, mean, m in zip(X_shards, means, n)]
    variances = [(X**2).sum(axis=0) for X in centred]
    if synchronised:
        allreduce(variances)
    return [X / np.sqrt(v / m) for X, v, m in zip(centred, variances, n)]


X = np.random.normal(size=(64, 20))
(on_one,) = normalise([X], synchronised=False)
for synchronised in (False, True):
    shards = normalise(gluon.utils.split_and_load(X, two), synchronised)
    on_two = numpy.concatenate([shard.asnumpy() for shard in shards])
    gap = abs(on_two - on_one.asnumpy()).max()
    print(f"synchronised={synchronised}: two devices differ by {gap:.1e}")

# %% [markdown]
# By default each device uses the mean of its own shard, in Gluon as in DDP. Both
# libraries have a `SyncBatchNorm`, whose backward pass communicates as well.
#
# ## Network or batch?
#
# d2l's second GPU lengthened an epoch of LeNet and shortened one of ResNet-18. However,
# ResNet-18 had twice the batch on two GPUs. Was it the network or the batch? Our record
# has the seconds of an epoch of ResNet-18 in PyTorch and JAX on H200s, from four
# processes a row. Two GPUs have the same batch as one, and then twice the batch.

# %%
for arm in arm_times(chapter.record("gpus/resnet18_peers/resnet18.jsonl")):
    print(f"{arm.name}: {arm.summary.median:.2f} s")

# %% [markdown]
# With the *same* batch two GPUs are faster in both libraries, so the network is enough.
# ResNet-18 needs 203 times the multiplications of LeNet per image, and has 87 times the
# parameters. The computation grows more than the all-reduce.
#
# ## On Fashion-MNIST
#
# Finally, we train with the package. Both rows use the same cores, with one context or
# two. The learning rate is six times ours, so the accuracy jumps from epoch to epoch,
# and a difference by rounding can grow.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus_concise")

chapter.score()

# %% [markdown]
# ## Summary
#
# > **Takeaway.** `trainer.step(n)` computes `p -= lr / n * (g_1 + ... + g_N)` with the
# > size n of the global batch. N devices compute the step of one device if each layer
# > processes each image by itself. Batch normalisation does not, unless it is
# > synchronised.
#
# `initialize(ctx=devices)` makes the replicas, and the device of the data selects one.
# `hybridize` replaces the calls of all operators by one call.
#
# ## Exercises
#
# 1. Pass `X.shape[0] // 2` to `trainer.step`. *(The step is twice as large. There is no
#    error message, but the difference to Chapter 1 exceeds rounding.)*
# 2. Train with batches of 65, then with `even_split=False` in both calls of
#    `split_and_load`. *(First we get a ValueError. Then the shards have 33 and 32
#    images, and the step is right, because it divides by 65.)*
# 3. *On paper.* Four devices have 16 images each, and we call `trainer.step(32)` with a
#    learning rate of 0.1. What is the effective learning rate?
#    *(`0.1 * 64 / 32 = 0.2`.)*
# 4. *Open.* Where else in a network does an image see the rest of its batch?
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Concise Implementation for Multiple
#   GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus-concise.html>; the
#   times are of <https://github.com/mli/d2l-1day-notebooks>

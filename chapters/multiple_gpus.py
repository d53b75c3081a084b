# %% [markdown]
# # Multi-GPU training from scratch
#
# Source: the book, "Training on Multiple GPUs",
# <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
#
# **What you will learn.** How several devices train *one* network, in four short
# functions that you write yourself: `get_params`, `allreduce`, `split_batch` and
# `train_batch`. Why the result is the same as on one device. What an all-reduce is, and
# what goes wrong without it.
#
# Run this chapter cell by cell as a notebook, or as a program:
#
#     python chapters/multiple_gpus.py --devices auto --num-devices 1,2
#     d2lpar run multiple_gpus --preset book
#
# A *device* is a GPU or, without one, a CPU context: a queue of work with threads of
# its own (chapter 2). Everything below is the same for both.

# %%
import resource
import time
from collections import Counter

import numpy

import d2lpar
from d2lpar import autograd, chapter, devices, gluon, np, npx

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
print(two)

# %% [markdown]
# ## Splitting the problem
#
# A training can be split over devices in three ways:
#
# ![By layers, by channels, by data](../docs/drawings/ways-to-split.svg)
#
# | split | each device holds | what travels in each step |
# |---|---|---|
# | by layers | some of the layers | the outputs of a layer, and back their gradients |
# | by channels | some channels of every layer | the outputs of *every* layer, to all |
# | by data | the whole network, some of the images | the gradients, once |
#
# Splitting by layers or by channels lets a network be larger than one device's memory,
# but the devices wait for each other within a step, and the shares are hard to make
# equal. Splitting the data is simpler and works for every network that fits on one
# device. It is what this book does.
#
# ## The idea: the gradient of a sum is the sum of the gradients
#
# A network learns by *minibatch stochastic gradient descent*. Take a batch of images,
# compute the gradient of each image's loss with respect to the parameters, sum the
# gradients over the batch, and take a small step in the opposite direction:
#
#     p = p - lr / batch_size * (sum of the gradients of all images of the batch)
#
# A sum does not care who adds up which part of it. So two devices may each take half of
# the images, as long as their two sums are added before the step. That is all of *data
# parallelism*. Every device holds a full copy of the parameters, a *replica*, and a
# step has four parts:
#
# ![One step on two devices](../docs/drawings/split-allreduce-update.svg)
#
# 1. **Split**: each device gets its *shard* of the batch.
# 2. **Forward, backward**: each device computes the gradients of its own shard.
# 3. **All-reduce**: the gradients are summed over the devices; every device gets the
#    sum.
# 4. **Update**: every device takes the same step, so that the replicas stay equal.
#
# *Predict before you run*: a line y = w x is fitted to four points, x = 1, 2, 3, 4 and
# y = 3, 5, 7, 9, from w = 0.5. Which share of the gradient do the first two points
# have?

# %%
chapter.predict("% of the gradient", None)  # write your number for None
x, y, w = numpy.array([1.0, 2, 3, 4]), numpy.array([3.0, 5, 7, 9]), 0.5


def gradient(x, y):
    """By how much sum((w x - y)^2) grows with w."""
    return (2 * x * (w * x - y)).sum()


print(gradient(x, y), "=", gradient(x[:2], y[:2]), "+", gradient(x[2:], y[2:]))
assert gradient(x, y) == gradient(x[:2], y[:2]) + gradient(x[2:], y[2:])
chapter.answer("% of the gradient", 100 * gradient(x[:2], y[:2]) / gradient(x, y))

# %% [markdown]
# ## The network
#
# The book's LeNet: two convolutions, each followed by ReLU and average pooling, then
# two dense layers. It takes images (n, 1, 28, 28) and returns a score for each of 10
# classes. The parameters are an argument: the same function computes with any device's
# replica, on the device where the images and the parameters are.

# %%
rng = numpy.random.default_rng(0)


def weight(*shape):
    return np.array(rng.normal(scale=0.01, size=shape), dtype="float32")


W1, b1 = weight(20, 1, 3, 3), np.zeros(20)
W2, b2 = weight(50, 20, 5, 5), np.zeros(50)
W3, b3 = weight(800, 128), np.zeros(128)
W4, b4 = weight(128, 10), np.zeros(10)
params = [W1, b1, W2, b2, W3, b3, W4, b4]


def lenet(X, params):
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = npx.convolution(data=X, weight=W1, bias=b1, kernel=(3, 3), num_filter=20)
    h1 = npx.relu(h1)
    h1 = npx.pooling(data=h1, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = npx.convolution(data=h1, weight=W2, bias=b2, kernel=(5, 5), num_filter=50)
    h2 = npx.relu(h2)
    h2 = npx.pooling(data=h2, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = h2.reshape((h2.shape[0], -1))
    h3 = npx.relu(dense(h2, W3, b3))
    return dense(h3, W4, b4)


def dense(X, W, b):
    """The book's np.dot(X, W) + b, by the operator that is fast on CPUs, too."""
    return npx.fully_connected(X, W.T, b, num_hidden=W.shape[1])


loss = gluon.loss.SoftmaxCrossEntropyLoss()  # one value per image
print(f"{sum(p.size for p in params):,} parameters in {len(params)} arrays")
print("scores of 3 images:", lenet(np.ones((3, 1, 28, 28)), params).shape)

# %% [markdown]
# ## A replica per device
#
# `copyto` copies to a device, even if the array is there already: a replica that shared
# memory with another one would be changed with it. `attach_grad` makes room for a
# gradient, on the same device. The bias of the first convolution, `b1`, starts at zero,
# and so does its gradient. (If every device drew its own random parameters, they would
# differ: there would be two networks and no sense in adding up their gradients.)


# %%
def get_params(params, device):
    new_params = [p.copyto(device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


device_params = [get_params(params, device) for device in two]
for replica in device_params:
    print("b1 weight:", replica[1], "on", replica[1].ctx)
    print("b1 grad:", replica[1].grad, "on", replica[1].grad.ctx)

# %% [markdown]
# ## All-reduce
#
# In parallel computing, *reduce* means combining many values into one, here by summing;
# *all* means that every device receives the result. The book's version goes to device 0
# and back: device 0 fetches the array of each other device and adds it, then every
# other device gets a copy of the sum.
#
# *Predict before you run*: device 0 holds (1, 1), device 1 holds (2, 2). What does
# device 1 hold after an all-reduce, and after a second one?


# %%
def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        data[0].copyto(data[i])


chapter.predict("first number after two all-reduces", None)
data = [np.ones((1, 2), ctx=device) * (k + 1) for k, device in enumerate(two)]
print("before allreduce:\n", data[0], "\n", data[1])
allreduce(data)
print("after allreduce:\n", data[0], "\n", data[1])
assert all((array == 3).all() for array in data)
allreduce(data)
chapter.answer("first number after two all-reduces", data[1][0, 0].item())

# %% [markdown]
# **What you see.** Both devices hold (3, 3). After a second call they hold (6, 6),
# because it sums what is there.
#
# ## Collectives
#
# An all-reduce is one of five operations on arrays of several devices, which are called
# *collectives*:
#
# ![Five collectives, before and after](../docs/drawings/collectives.svg)
#
# Here they are on four devices. `send` copies an array, and counts the bytes by the
# device that sends them: they all pass this device's link. First a *broadcast*.

# %%
four = devices.parse("cpu:4")
sent = Counter()  # bytes, by device


def send(array, device):
    sent[array.ctx] += 4 * array.size  # float32
    return array.copyto(device)


def arrays(devices):
    """Eight ones on the first device, eight twos on the second, and so on."""
    return [np.full(8, k + 1.0, ctx=device) for k, device in enumerate(devices)]


def broadcast(data):
    for array in data[1:]:
        array[:] = send(data[0], array.ctx)


data = arrays(four)
broadcast(data)
assert all((array == 1).all() for array in data)

# %% [markdown]
# A *reduce*: the sum arrives on device 0 only. With a broadcast after it, it is the
# book's all-reduce.


# %%
def reduce(data):
    for array in data[1:]:
        data[0][:] += send(array, data[0].ctx)


def central(data):
    reduce(data)
    broadcast(data)


data = arrays(four)
reduce(data)
assert [int(array[0]) for array in data] == [1 + 2 + 3 + 4, 2, 3, 4]
data = arrays(four)
central(data)
assert all((array == 10).all() for array in data)

# %% [markdown]
# A *reduce-scatter*: device k gets part k of the sum.


# %%
def parts(array, n):
    return [slice(k * len(array) // n, (k + 1) * len(array) // n) for k in range(n)]


def reduce_scatter(data):
    for k, part in enumerate(parts(data[0], len(data))):
        for other in data[:k] + data[k + 1 :]:
            data[k][part] += send(other[part], data[k].ctx)


data = arrays(four)
reduce_scatter(data)
own = list(zip(data, parts(data[0], 4)))
assert all((array[part] == 10).all() for array, part in own)

# %% [markdown]
# An *all-gather*: every device gets the parts of all others. After a reduce-scatter
# this completes an all-reduce, in which no device does more than another.


# %%
def all_gather(data):
    for k, part in enumerate(parts(data[0], len(data))):
        for other in data[:k] + data[k + 1 :]:
            other[part] = send(data[k][part], other.ctx)


all_gather(data)
assert all((array == 10).all() for array in data)

# %% [markdown]
# In a *ring* each device sends only to the next one, so that few links suffice. First
# the parts go round and are added up, a reduce-scatter; then the sums go round, an
# all-gather.
#
# *Predict before you run*: four devices have 1,000 numbers each, 4,000 bytes. How many
# bytes does the busiest device send in the book's all-reduce, and how many in the ring?


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
# **What you see.** Both ways send the same number of bytes in all. In the ring each
# device sends `2 (N - 1) / N` arrays, less than two, however many devices there are; in
# the book's all-reduce device 0 sends N - 1. But the ring takes 2 (N - 1) turns one
# after the other, so with small arrays, whose copies take a fixed time, it is slower.
# Chapter 6 times both, and a tree. [Watch them round by
# round](../docs/all-reduce.md).
#
# ## Splitting a batch
#
# Features and labels are split in the same way, so that each image keeps its label.
# Gluon's `split_and_load` cuts along the first axis, in order, and copies each piece to
# its device.


# %%
def split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    return (
        gluon.utils.split_and_load(X, devices),
        gluon.utils.split_and_load(y, devices),
    )


X, y = np.arange(24).reshape((4, 6)), np.arange(4)
X_shards, y_shards = split_batch(X, y, two)
print("input =\n", X)
print("output =\n", X_shards[0], "\n", X_shards[1])
print("labels =", *y_shards, "on", *[shard.ctx for shard in y_shards])

# %% [markdown]
# Each device has two rows, with their labels. Five images cannot be halved, and
# `split_and_load` says so. The package's `split_batch` gives the first device one more.
# Then no image is lost, and since the step divides by the number of all images, each
# still counts the same.

# %%
X, y = np.arange(10).reshape((5, 2)), np.arange(5)
try:
    split_batch(X, y, two)
except ValueError as error:
    print("ours:", error)
print("the package's:", *[len(shard) for shard in d2lpar.split_batch(X, y, two)[0]])

# %% [markdown]
# ## One step on all devices
#
# Now the four parts of the list above, in order. Two things to look at:
#
# - Nothing here waits. A call of MXNet hands work to a device and returns at once
#   (chapter 4), so the forward pass of device 1 is queued while device 0 is still
#   computing. That is why both compute at the same time although Python is one thread.
# - The step divides by `X.shape[0]`, the size of the *whole* batch, because the
#   gradients are by now the sum over the whole batch.


# %%
def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():  # the loss of each shard, on its own device
        losses = [
            loss(lenet(X_shard, replica), y_shard)
            for X_shard, y_shard, replica in zip(X_shards, y_shards, device_params)
        ]
    for l in losses:  # its gradients, on the same device
        l.backward()
    for i in range(len(device_params[0])):  # of each parameter: sum them
        allreduce([replica[i].grad for replica in device_params])
    for replica in device_params:  # the same step on every device
        for p in replica:
            p -= lr / X.shape[0] * p.grad
    return losses


X, y = np.random.uniform(size=(4, 1, 28, 28)), np.array([0, 1, 2, 3])
losses = train_batch(X, y, device_params, two, lr=0.2)
print("loss of each image:", *losses)


def agree(device_params):
    """Whether all replicas hold the same numbers, to the last bit."""
    first, *others = [[p.asnumpy() for p in replica] for replica in device_params]
    return all((p == q).all() for other in others for p, q in zip(first, other))


print("replicas agree:", agree(device_params))

# %% [markdown]
# **What you see.** The loss is ln 10 = 2.30 for every image: the network does not know
# anything yet, and gives each of the ten classes the same chance. The replicas agree to
# the last bit: they started equal, and took the same step.
#
# ## Is it right?
#
# Two claims can be tested. One device with the whole batch must end up where two
# devices with half of it each do. And these functions must compute what the package's
# do.
#
# *Predict before you run*: will the two agree to the last bit, as the replicas do?

# %%
chapter.predict("one and two devices agree to the bit", None)  # "yes" or "no"
X, y = np.random.uniform(size=(64, 1, 28, 28)), np.arange(64) % 10


def one_step(step, devices):
    """The parameters after a step from the same start, as NumPy arrays."""
    device_params = [get_params(params, device) for device in devices]
    step(X, y, device_params, devices, lr=0.2)
    return [p.asnumpy() for p in device_params[0]]


def largest_difference(a, b):
    return max(abs(p - q).max() for p, q in zip(a, b))


on_one, on_two = one_step(train_batch, two[:1]), one_step(train_batch, two)
packages = one_step(d2lpar.train_batch, two)
print(f"one device against two: {largest_difference(on_one, on_two):.1e}")
print(f"ours against the package's: {largest_difference(on_two, packages):.1e}")
same = largest_difference(on_one, on_two) == 0
chapter.answer("one and two devices agree to the bit", "yes" if same else "no")
assert largest_difference(on_one, on_two) < 1e-6
assert largest_difference(on_two, packages) < 1e-6

# %% [markdown]
# **What you see.** One device and two do not agree to the last bit, because (a + b) +
# (c + d) is rounded in other places than a + b + c + d. Parameters of about 0.01 have
# float32 neighbours at a distance of 1e-9, so a difference below 1e-8 is rounding, not
# an error. In a long training at this learning rate it grows until the parameters have
# little in common; the errors of float64 grow as well, from a billionth of that
# ([picture](../figures/benchmarks/equivalence.png), and exercise 3).
#
# The package's functions, in `d2lpar/parallel.py`, are these with three additions:
# uneven and empty shards, messages for bad input, and any other network in place of
# LeNet.
#
# ## The training loop
#
# The images are the 5,000 of Fashion-MNIST that the package contains, so
# that these cells need no download and a few seconds. `npx.waitall()` waits for the
# devices before the clock is read.

# %%
X_train, y_train, X_test, y_test = d2lpar.datasets.fashion_sample()
X_train = np.array(X_train[:, None] / 255, dtype="float32")  # (n, 1, 28, 28)
X_test = np.array(X_test[:, None] / 255, dtype="float32")
y_train = np.array(y_train, dtype="float32")


def accuracy(replica):
    """The share of the test images that get their own class."""
    device = replica[0].ctx
    y_hat = lenet(X_test.copyto(device), replica).argmax(axis=1)
    return (y_hat.asnumpy() == y_test).mean()


def train(num_devices, batch_size, lr, num_epochs=2):
    chosen = two[:num_devices]
    device_params = [get_params(params, device) for device in chosen]
    for epoch in range(num_epochs):
        start = time.perf_counter()
        for i in range(0, len(X_train) - batch_size + 1, batch_size):
            X, y = X_train[i : i + batch_size], y_train[i : i + batch_size]
            train_batch(X, y, device_params, chosen, lr)
        npx.waitall()
        seconds = time.perf_counter() - start
        acc = accuracy(device_params[0])
        print(f"{num_devices} device(s), epoch {epoch + 1}: {acc:.3f}, {seconds:.2f} s")
    return device_params, seconds


# %% [markdown]
# *Predict before you run*: 5,000 images in batches of 16 make 312 steps per epoch. Will
# the accuracies be the same? How many times one device's seconds will two take?

# %%
chapter.predict("two devices' seconds / one's", None)
_, of_one = train(1, batch_size=16, lr=0.1)
device_params, of_two = train(2, batch_size=16, lr=0.1)
print("replicas agree:", agree(device_params))
chapter.answer("two devices' seconds / one's", of_two / of_one)
chapter.score()

# %% [markdown]
# **What you see.** The accuracies are nearly the same after each epoch: it is the same
# training, rounded differently. In the first epoch both stay at 0.10, a guess, because
# the initial weights are so small (standard deviation 0.01) that almost no signal
# reaches the output; only then does the loss start to fall.
#
# But two devices do not need anything like half the time; on a busy machine they are
# even **slower**. To see why, time a single step with a small and with a large batch.


# %%
def page_faults():
    """How many pages of new memory this process has used so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def time_steps(num_devices, batch_size, steps=4):
    """Milliseconds of a step, and its new pages of memory."""
    chosen = two[:num_devices]
    device_params = [get_params(params, device) for device in chosen]
    X, y = X_train[:batch_size], y_train[:batch_size]
    train_batch(X, y, device_params, chosen, lr=0.01)  # a warm-up
    npx.waitall()
    start, pages = time.perf_counter(), page_faults()
    for _ in range(steps):
        train_batch(X, y, device_params, chosen, lr=0.01)
    npx.waitall()
    milliseconds = 1e3 * (time.perf_counter() - start) / steps
    return milliseconds, (page_faults() - pages) // steps


for batch_size in (16, 512):
    for n in (1, 2):
        # The median of three, by time.
        milliseconds, pages = sorted(time_steps(n, batch_size) for _ in range(3))[1]
        print(
            f"batch {batch_size:3}, {n} device(s): {milliseconds:6.1f} ms per step, ",
            end="",
        )
        print(f"{pages:6,} new pages")

# %% [markdown]
# **What you see.** Two devices save half of the forward and backward pass. But a single
# Python thread has to issue the operators for both devices, and eight arrays must be
# summed and updated. This overhead is a few milliseconds per step, independent of the
# batch size. With 16 images it is more than what is saved; with 512 it hardly counts.
# (If two devices lose at 512 as well, something else keeps this machine's cores busy:
# look with `d2lpar devices --watch`.)
#
# What is compared here? A context of this chapter has one thread, so one device is one
# core, and two devices are two cores. One context with *two* threads would use both
# cores, too, without any all-reduce; but then there is only one device, and nothing to
# learn about several. With large batches two contexts may even be a little more than
# twice as fast. The new pages show whether memory has a part in it (rule 5 of chapter
# 3).
#
# A slower pair of devices is what [the
# book](https://d2l.ai/chapter_computational-performance/multiple-gpus.html) found, too:
# one V100 took 1.8 s per epoch, two took 2.5 s. The 0.7 s more are 3 ms for each of the
# 235 steps, while half a batch, 128 images, is less than a millisecond of work for such
# a GPU. Chapter 6 finds the batch size from which two are faster.
#
# ## On Fashion-MNIST
#
# The package's training, `d2lpar.lenet.train`, is the loop above with shuffled batches,
# and with all parameters of a replica in one array, so that a step needs one all-reduce
# instead of eight. `book` is the book's recipe on all 60,000 images. `quick` shows the
# same in a minute, with less data, and with smaller batches so that a short run still
# takes enough steps to leave the plateau at 0.10. Each device count is measured in a
# process of its own; the first epoch warms up and does not count in the times. One
# context gets as many threads as there are cores, and two share them out: so the same
# cores are compared. With `threads=1` a device is a core, as in the cells above.
#
# In a notebook the flags are arguments: `preset="book"`, `num_devices="1,2"`, `lr=0.1`.
# The curves grow while it trains, the figures follow, and `runs` are the records, one
# for each device count: `[epoch.test_acc for epoch in runs[0].epochs]`.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus")

# %% [markdown]
# **What you see.** In the first figure the accuracy against the epochs, in the second
# the seconds per epoch. The book printed an accuracy of 0.80 on one V100 and 0.84 on
# two, after 10 epochs. The second GPU has not improved it: with this recipe the
# accuracy moves by some points from run to run. On two cores of an AMD EPYC the `book`
# preset with one thread per context ends at 0.803 on one context and 0.818 on two, in
# 24.7 and 13.7 s per epoch. On H200s an epoch takes 0.256 s on one and 0.446 s on two:
# the second GPU makes it slower, as in the book ([all figures](../figures/README.md)).
#
# ## Summary
#
# > **Takeaway.** p = p - lr / n (g1 + g2 + ...), and the busiest link carries 2 (N - 1)
# > / N arrays in a ring, N - 1 at the book's device 0. On two H200s an epoch takes
# > 0.446 s, on one 0.256 s ([record](../figures/README.md)).
#
# - The gradient of a batch is the sum of its shards' gradients. That is why training on
#   several devices is the same training.
# - Replicas start equal and take the same steps; so they stay equal, and nobody ever
#   copies parameters again.
# - All-reduce: every device gets the sum. It is the only communication of a step.
# - The step divides by the size of the whole batch.
# - A second device halves the time that grows with the batch, not the fixed time of a
#   step, which grows with the number of devices.
#
# ## Exercises
#
# For those without *on paper* change a function above, run its cell and `train` again,
# and then set it back.
#
# 1. Leave out the `allreduce` in `train_batch`. What does `agree` say? Does the network
#    still learn? *(False. Each replica learns from its own half only, with steps half
#    as large, since they are still divided by the whole batch. After two epochs the
#    accuracy is about 0.10, where it was 0.31.)*
# 2. Divide by `X_shards[0].shape[0]`, the shard, instead of by the batch, and compare
#    `one_step` on two devices with `one_step` on one. *(On two devices the step is
#    twice as large, exactly that of one device with a learning rate of 0.4. With N
#    devices the rate would be N times as high, until training diverges.)*
# 3. Train three epochs with a learning rate of 0.02 and of 0.2, on one device and on
#    two, and print `largest_difference` of the first replicas (`train(...)[0][0]`).
#    *(At 0.02 they differ by 0.0001 at most, and nothing is learnt yet. At 0.2 they
#    differ by up to 0.3, where the largest parameter is 0.9, and yet both are right:
#    0.73 and 0.74. A large learning rate makes training chaotic: each rounding error
#    grows with every step, until two runs are two different networks.)*
# 4. *On paper.* Seven images go to three devices, and a step divides the summed
#    gradient by 7. By what would each device have to divide if the *mean* of three
#    means were taken? *(Shards of 3, 2 and 2. The mean of means counts an image of the
#    first shard 1/9 and the others 1/6: no common divisor mends that. Sum first, divide
#    once.)*
# 5. *On paper.* A step takes `0.8 ms + 2 us` per image on one device, on two `1.6 ms +
#    1 us`. From which batch on are two faster? *(`0.8 ms / 1 us = 800` images.)*
# 6. Write an `allreduce` that needs fewer calls: join the gradients of a replica to one
#    array, sum that, and cut it again. *(The sums are the same to the bit. To join and
#    to cut costs calls, too, so `d2lpar/buckets.py` keeps all parameters and all
#    gradients of a replica in one array each from the start.)*

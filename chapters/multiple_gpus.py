# %% [markdown]
# # Multi-GPU training from scratch
#
# How can two devices train *one* network, is the result the same as on one device, and
# is it faster?
#
# ![Left: test accuracy by seconds, five seeds, on one device and on two. Right: speed
# of a step on two devices over one, by batch size, on cores and on
# H200s](../figures/multiple_gpus/two-devices.png)
#
# **In one sentence.** Two devices learn what one learns, and faster if there is enough
# to do: *Dive into Deep Learning* (d2l) [1] trained LeNet with 256 images per batch in
# 1.8 s per epoch on one V100 GPU, and in **2.5 s on two**.
#
# A *device* is a GPU or a *CPU context*, which is a queue of work with its own threads
# on the processor (Chapter 2). Two CPU contexts compute in parallel, as two GPUs do, if
# each has a core to itself. Therefore you need no GPU: run this chapter as a notebook,
# or as `python chapters/multiple_gpus.py`.

# %%
import hashlib
import time
from statistics import median, quantiles
from textwrap import fill

import numpy

import d2lpar
from d2lpar import autograd, chapter, devices, gluon, np, npx

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
print(two)

# %% [markdown]
# ## The gradient of a sum is the sum of the gradients
#
# A network learns by *minibatch stochastic gradient descent*. We take a batch of
# images, sum the gradients of their losses, and take a small step in the opposite
# direction:
#
#     p = p - lr / batch_size * (sum of the gradients of all images of the batch)
#
# Apart from rounding, the order of a sum does not matter. Therefore two devices can
# each process one half of the images, provided that we add their two sums before the
# step. This is called *data parallelism*:
#
# ![One step on two devices](../docs/drawings/split-allreduce-update.svg)
#
# We check it with four numbers. Before you run a cell, replace `None` in
# `chapter.predict` by your guess.
#
# *Predict before you run*: we fit a line y = w x to four points, x = 1, 2, 3, 4 and
# y = 3, 5, 7, 9, starting from w = 0.5. What percentage of the gradient do the first
# two points contribute?

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
# The first two points contribute less because both their x and their errors are
# smaller.
#
# ## The network
#
# We use d2l's version of LeNet: two convolutions, each followed by ReLU and average
# pooling, and two dense layers. It takes images of shape (n, 1, 28, 28) and returns a
# score for each of 10 classes. The parameters are an argument: we pass the copy of the
# device that computes.

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
    """d2l's np.dot(X, W) + b, by the operator that is fast on CPUs, too."""
    return npx.fully_connected(X, W.T, b, num_hidden=W.shape[1])


loss = gluon.loss.SoftmaxCrossEntropyLoss()  # one value per image
print(f"{sum(p.size for p in params):,} parameters in {len(params)} arrays")
print("scores of 3 images:", lenet(np.ones((3, 1, 28, 28)), params).shape)

# %% [markdown]
# ## A replica per device
#
# Each device needs a copy of all parameters, a *replica*. `copyto` always creates a new
# array, even on the same device; otherwise updating one replica could silently change
# another. `attach_grad` allocates memory for the gradient of a parameter.


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
# To *reduce* means to combine many values into one, here by summing them. *All* means
# that every device receives the result. In d2l's implementation, device 0 collects the
# arrays of all other devices, adds them to its own, and sends the result back.
#
# *Predict before you run*: device 0 holds (1, 1), and device 1 holds (2, 2). What does
# device 1 hold after two all-reduces?


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
# After one all-reduce both devices hold (3, 3). A second one yields (6, 6): the
# function does not know that the arrays have already been summed. Chapter 7 builds
# all-reduces that share the work of device 0 ([watch them](../docs/players.md)). In
# PyTorch each device usually belongs to its own process, and a communication library,
# such as NCCL for GPUs, sums:
#
# <!-- fold: teaching/frameworks/pytorch_step.py allreduce -->
#
# ## Splitting a batch
#
# Gluon's `split_and_load` cuts an array along the first axis and copies each piece to
# its device. The piece of a device is called its *shard*. We split the labels in the
# same way, so that each image keeps its own.


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
# Five rows cannot be split evenly, so `split_and_load` raises an error. The package's
# `split_batch` assigns one more row to the first device. Each image still has the same
# weight, because a step divides by the number of all images.

# %%
X, y = np.arange(10).reshape((5, 2)), np.arange(5)
try:
    split_batch(X, y, two)
except ValueError as error:
    print(fill(f"ours: {error}", 88))
print("the package's:", *[len(shard) for shard in d2lpar.split_batch(X, y, two)[0]])

# %% [markdown]
# ## One step on two devices
#
# Now we put the four parts of the drawing together. No line of `train_batch` waits: an
# MXNet call hands work to a device and returns at once (Chapter 4), so one Python
# thread can keep both devices busy. The step divides by `X.shape[0]`, the size of the
# *whole* batch, because by then the gradients are sums over the whole batch.


# %%
def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():  # the loss of each shard, on its own device
        losses = [
            loss(lenet(X_shard, replica), y_shard)
            for X_shard, y_shard, replica in zip(X_shards, y_shards, device_params)
        ]
    for shard_loss in losses:  # its gradients, on the same device
        shard_loss.backward()
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
assert agree(device_params)

# %% [markdown]
# The loss of each image is about ln 10 = 2.30, because the untrained network assigns a
# probability of about 1/10 to each class. The replicas agree to the last bit: they
# started equal and took the same step. In PyTorch each process runs the same function
# for its own shard:
#
# <!-- fold: teaching/frameworks/pytorch_step.py split_batch train_batch -->
#
# ## Is it right?
#
# One device with the whole batch must arrive, up to rounding, at the same parameters as
# two devices with half of it each, and our functions at those of the package's.
#
# *Predict before you run*: will one device and two agree to the last bit, as the
# replicas do? Answer "yes" or "no".

# %%
chapter.predict("one and two devices agree to the bit", None)
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
# One device adds up 64 gradients, and two devices add up two sums of 32, which rounds
# other intermediate results. Near 0.01 neighbouring float32 numbers are about 1e-9
# apart, so a difference of this order is rounding. Over a long training it can grow;
# exercise 3 and [this picture](../figures/benchmarks/equivalence.png) show how far.
#
# ## The training loop
#
# We train on the 5,000 images of Fashion-MNIST that the package contains.
# `npx.waitall()` waits for the devices before we read the clock.

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


def train(devices, batch_size, lr, num_epochs=2):
    device_params = [get_params(params, device) for device in devices]
    for epoch in range(num_epochs):
        start = time.perf_counter()
        for i in range(0, len(X_train) - batch_size + 1, batch_size):
            X, y = X_train[i : i + batch_size], y_train[i : i + batch_size]
            train_batch(X, y, device_params, devices, lr)
        npx.waitall()
        seconds, acc = time.perf_counter() - start, accuracy(device_params[0])
        print(f"{len(set(devices))} device(s), epoch {epoch + 1}: ", end="")
        print(f"{acc:.3f}, {seconds:.2f} s")
    return device_params, seconds


train(two[:1], batch_size=16, lr=0.1)
device_params, _ = train(two, batch_size=16, lr=0.1)
print("replicas agree:", agree(device_params))

# %% [markdown]
# One device and two run the same training with different rounding, so expect similar
# accuracies in each epoch. The first epoch can end near 0.10, the accuracy of guessing.
#
# ## Why are the accuracies not equal?
#
# Both trainings start from the same parameters and take the same batches in the same
# order. However, floating-point addition is not *associative*: (a + b) + c and
# a + (b + c) can differ. A float32 number has 24 binary digits. Above 2^24 only even
# numbers can therefore be represented, and a single 1 that we add to 2^24 is lost.

# %%
a, b, c = numpy.float32([2**24, 1, 1])
print("((a + b) + c) - a =", ((a + b) + c) - a)
print("(a + (b + c)) - a =", (a + (b + c)) - a)

# %% [markdown]
# Which gradients are added first depends on where we cut the batch, and so far we cut
# it once for each device. Let us instead always cut it into four shards, and let the
# devices take turns: one device computes all four, and each of two devices computes two
# of them. `train_batch` can do this without a change, because several replicas may be
# on the same device. `allreduce` adds the four gradients in the same order, whoever
# computed them.
#
# To compare two trainings, we print a *hash* of their parameters. It is a short number
# that is computed from all bytes, and a single different bit changes it.


# %%
def in_four(devices):
    return [devices[k % len(devices)] for k in range(4)]


def fingerprint(replica):
    joined = b"".join(p.asnumpy().tobytes() for p in replica)
    return hashlib.sha256(joined).hexdigest()[:12]


for name, shared in (("a shard per device", list), ("four shards", in_four)):
    hashes = []
    for chosen in (two[:1], two):
        device_params, _ = train(shared(chosen), batch_size=64, lr=0.1, num_epochs=1)
        hashes.append(fingerprint(device_params[0]))
    print(f"{name}:", *hashes, "equal" if hashes[0] == hashes[1] else "different")
assert hashes[0] == hashes[1]

# %% [markdown]
# With a shard per device the two trainings end with different parameters. With four
# shards they end with the same ones, to the last bit, and only their times differ.
#
# Compare the seconds of one device as well. Four shards need four times the calls, and
# small shards use a processor less well than large ones. `d2lpar run multiple_gpus
# --same-bits` cuts each batch into eight shards, and its records contain the hash of
# each epoch. What must still be the same are the number of threads of a context, the
# kind of processor, and the version of MXNet, since each of them can change the order
# of sums within a shard.
#
# You want equal bits for debugging, because a difference is then an error and never
# rounding; for audits, in which others repeat a training on fewer devices; and if the
# number of devices changes in the middle of a training. The accuracy is no reason:
# neither order of a sum is better than the other.
#
# ## Is it faster?
#
# Each of two devices has half of the images. However, a single Python thread issues the
# operators for both, and eight arrays must be summed. We time a step with a small and
# with a large batch. One device and two take turns, because the speed of a machine
# drifts, and we compare them by one rule, which all chapters use: two times differ only
# if their *quartiles*, which enclose the middle half of the samples, do not overlap.


# %%
def time_steps(num_devices, batch_size, steps=4):
    """Milliseconds of a step."""
    chosen = two[:num_devices]
    device_params = [get_params(params, device) for device in chosen]
    X, y = X_train[:batch_size], y_train[:batch_size]
    train_batch(X, y, device_params, chosen, lr=0.01)  # a warm-up
    npx.waitall()
    start = time.perf_counter()
    for _ in range(steps):
        train_batch(X, y, device_params, chosen, lr=0.01)
    npx.waitall()
    return 1e3 * (time.perf_counter() - start) / steps


def verdict(one, both):
    """Two times differ if their quartiles do not overlap."""
    (low, _, high), (low_of_two, _, high_of_two) = (
        quantiles(times, n=4) for times in (one, both)
    )
    if low_of_two <= high and low <= high_of_two:
        return "no difference: the quartiles overlap"
    return f"two need {median(both) / median(one):.2f} times as long as one"


for batch_size in (16, 512):
    times = {1: [], 2: []}
    for _ in range(7):
        for n in (1, 2):
            times[n].append(time_steps(n, batch_size))
    print(f"batch {batch_size}: {median(times[1]):.1f} ms on one device, ", end="")
    print(f"{median(times[2]):.1f} ms on two; {verdict(times[1], times[2])}")

# %% [markdown]
# What a second device costs does not depend on the batch size, and what it saves grows
# with it. We therefore expect a smaller ratio for 512 images than for 16, and near one
# half if each context, which has one thread here, has a core to itself.
#
# On d2l's V100s the second GPU added `0.7 s / 235 = 3 ms` to each of the 235 steps. The
# arithmetic of 256 images, 13.5 million operations each (Chapter 4), needs only `256 *
# 13.5e6 / 15.7e12 = 0.22 ms` at the peak of a V100. d2l's loop also waits after every
# step and reads its images through a data loader. Chapter 6 takes these suspects one by
# one.
#
# ## On Fashion-MNIST
#
# The package's training, `d2lpar.lenet.train`, shuffles the images, and keeps all
# parameters of a replica in one array, so that a step needs one all-reduce instead of
# eight. `preset="book"` is d2l's recipe on all 60,000 images; the default, `quick`,
# uses fewer images and smaller batches.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus")

# %% [markdown]
# By default one context has a thread on each core and two contexts share them (first
# column), so the speedup compares two ways to use the same cores. With `threads=1` a
# context is a core, as in the cells above and in these records of d2l's recipe.

# %%
recorded = {}
for n in (1, 2):
    run = chapter.record(f"multiple_gpus/book-1thread-cpu{n}.jsonl")
    recorded[n] = median(epoch.seconds for epoch in run.epochs[1:])
    print(f"{n} context(s), 1 thread each: {recorded[n]:.3g} s per epoch, ", end="")
    print(f"accuracy {run.epochs[-1].test_acc:.3f}, ", end="")
    print(f"d2lpar {run.header.versions['d2lpar']}")
assert recorded[2] < 0.6 * recorded[1]
chapter.score()

# %% [markdown]
# On cores the second device shortens an epoch by more than two fifths, as the cell
# asserts. With the same batch d2l saw a slowdown on V100s; [a table of Chapter
# 6](scaling.py) has one and two H200s.
#
# d2l printed accuracies of 0.80 on one V100 and 0.84 on two. Two are not better: the
# accuracy moves by some points from run to run, as the bands in the first picture show.
#
# ## Summary
#
# > **Takeaway.** `p = p - lr / n * (g_1 + g_2 + ... + g_N)` with the sum `g_k` of the
# > gradients of shard k, and n images in *all* shards. N devices take the step of one
# > device, up to rounding, if their replicas start equal, each gets the same sum, and
# > the network processes each image by itself.
#
# With dropout, N devices and one are different trainings: each context draws masks of
# its own, which repeat with the seed ([why](../docs/second-gpu.md#dropout-and-seeds)).
#
# [`d2lpar verify`](../docs/verify.md) checks a step of your own, in any framework.
#
# ## Exercises
#
# 1. Leave out the `allreduce` in `train_batch`. What does `agree` print? Does the
#    network still learn? *(`False`. Each replica learns from its own half only, with
#    steps about half as large: its sum is divided by the size of the whole batch.)*
# 2. Divide by `X_shards[0].shape[0]`, the shard, instead of by the batch, and compare
#    `one_step` on two devices with `one_step` on one. *(On two devices the step is
#    twice as large: up to rounding, the step of one device with a learning rate of 0.4
#    instead of 0.2.)*
# 3. Train three epochs with a learning rate of 0.02 and of 0.2, on one device and on
#    two, and print `largest_difference` of the first replicas (`train(...)[0][0]`, with
#    `asnumpy()`). *(With a large learning rate training can be chaotic: a rounding
#    error grows from step to step, and if it becomes as large as the parameters, the
#    two runs end with different networks.)*
# 4. *On paper.* Seven images go to three devices, in shards of 3, 2 and 2. Each device
#    computes the *mean* gradient of its shard, and the three means are averaged, as
#    DistributedDataParallel (DDP) does. Which images count more? By what must each
#    device divide its *sum* instead? *(An image of the first shard counts 1/9 of the
#    result, and an image of the other shards 1/6, so these count more. If each device
#    divides its sum by `7 / 3`, the average is `(1/3) (3/7) (g1 + g2 + g3) = (g1 + g2 +
#    g3) / 7`. In general, divide by `n / N`.)*
# 5. *On paper.* A step takes `0.8 ms + 2 us` per image on one device, and on two
#    devices `1.6 ms + 1 us` per image. From which batch size on are two devices faster?
#    *(The second device adds `1.6 - 0.8 = 0.8 ms` and saves `2 - 1 = 1 us` per image.
#    Two devices are faster for more than `0.8 ms / 1 us = 800` images.)*
# 6. The same sum helps if *one* device has too little memory for a batch: it works
#    through the shards in rounds and steps after the last one (*gradient
#    accumulation*). Write `accumulate(X, y, replica, rounds, lr)` and compare it with
#    `one_step`. *(Call `p.attach_grad("add")` for each parameter, so that `backward`
#    adds to the gradients; before the next step set `p.grad[:] = 0`. Divide by the size
#    of the whole batch once. The results differ by rounding. In PyTorch, `no_sync`
#    leaves out the all-reduce of the earlier rounds.)*
#
# **Puzzles.** The puzzles about splitting, averaging and the first all-reduces can be
# solved now: `python -m d2lpar.puzzles` lists them.
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>

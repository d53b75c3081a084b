# %% [markdown]
# # Multi-GPU training from scratch
#
# How can k devices train *one* network? Do they compute what one device computes? Are
# they faster?
#
# ![How many times as fast two devices are as one, by batch size, on cores and on
# GPUs](../figures/multiple_gpus/two-devices.png)
#
# **In one sentence.** k devices compute the update of one device, and they are faster
# only if each of them has enough work.
#
# The authors of *Dive into Deep Learning* (d2l) [1] trained LeNet with batches of 256
# images. An epoch took 1.8 s on one V100 GPU and **2.5 s** on two.
#
# You need no GPU. In MXNet a *device* is a GPU or a *CPU context*, a queue of work with
# its own threads (Chapter 2). Run this chapter as a notebook, or as
# `python chapters/multiple_gpus.py`.

# %%
import time
from textwrap import fill

import numpy

import d2lpar
from d2lpar import autograd, chapter, devices, gluon, np, npx

k = 2  # the number of devices
all_devices = devices.parse(f"cpu:{k}")  # with GPUs: devices.parse(f"gpu:{k}")
print(all_devices)

# %% [markdown]
# ## Three ways to split the work
#
# ![By layers, by channels, or by data](../docs/drawings/ways-to-split.svg)
#
# - **By layers.** Each device computes some layers and sends their outputs to the next
#   device. It waits for the device before it.
# - **By channels.** Each device computes some channels of every layer. The devices
#   exchange outputs after every layer.
# - **By data.** Each device holds the whole network and processes some images of the
#   batch. The devices exchange gradients once per step.
#
# We split by data, which is called *data parallelism*. The code of the network does not
# change, and few numbers are exchanged: LeNet has 129,068 gradients, but its first
# pooling layer alone has 865,280 outputs for 256 images. However, data parallelism does
# not allow larger networks, because each device holds all parameters
# ([appendix](../docs/appendix.md#a-map-of-the-other-parallelisms)).
#
# ## Data parallelism
#
# In *minibatch stochastic gradient descent* we take a batch of n images, sum the
# gradients of their losses, and change the parameters p a little in the opposite
# direction:
#
#     p = p - lr / n * (sum of the gradients of all n images)
#
# On k devices a step of this training has five parts:
#
# - Split the batch into k *shards*, one for each device.
# - Each device computes the losses of its shard, with its own copy of the parameters.
# - Each device computes the gradient, summed over the images of its shard.
# - Sum the gradients of all devices, and send the sum to each of them.
# - Each device updates its own copy with this sum.
#
# ![One step on two devices](../docs/drawings/split-allreduce-update.svg)
#
# This is the update of one device, because a sum can be computed in parts. Before you
# run a cell, replace `None` in `chapter.predict` by your guess.
#
# *Predict before you run*: we fit a line y = w x to four points, x = 1, 2, 3, 4 and y =
# 3, 5, 7, 9, starting from w = 0.5. What percentage of the gradient do the first two
# points contribute?

# %%
chapter.predict("% of the gradient", None)  # write your number for None
x, y, w = numpy.array([1.0, 2, 3, 4]), numpy.array([3.0, 5, 7, 9]), 0.5


def gradient(x, y):
    """The derivative of sum((w x - y)^2) with respect to w."""
    return (2 * x * (w * x - y)).sum()


print(gradient(x, y), "=", gradient(x[:2], y[:2]), "+", gradient(x[2:], y[2:]))
chapter.answer("% of the gradient", 100 * gradient(x[:2], y[:2]) / gradient(x, y))

# %% [markdown]
# The first two points contribute less than half, because both their x and their errors
# are smaller.
#
# ## The network
#
# We use d2l's version of LeNet. It has two convolutions, each followed by ReLU and
# average pooling, and two dense layers. The parameters are an argument, so that each
# device can pass its own copy.

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
# Each device needs a copy of all parameters, a *replica*. `get_params` copies the
# parameters to a device and allocates memory for their gradients. `copyto` always
# creates a new array, even on the same device. Otherwise an update of one replica could
# change another one.


# %%
def get_params(params, device):
    new_params = [p.copyto(device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


device_params = [get_params(params, device) for device in all_devices]
for replica in device_params:
    print("b1 weight:", replica[1], "on", replica[1].ctx)
    print("b1 grad:", replica[1].grad, "on", replica[1].grad.ctx)

# %% [markdown]
# ## All-reduce
#
# To *reduce* means to combine many values into one, here by summing them. *All* means
# that every device receives the result. In d2l's implementation device 0 collects the
# arrays of all other devices, adds them to its own, and sends the sum back.
#
# *Predict before you run*: device 0 holds (1, 1), and device 1 holds (2, 2). What is
# the first number on device 1 after two all-reduces?


# %%
def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        data[0].copyto(data[i])


chapter.predict("first number after two all-reduces", None)
data = [np.ones((1, 2), ctx=device) * (i + 1) for i, device in enumerate(all_devices)]
print("before allreduce:\n", *data)
allreduce(data)
print("after allreduce:\n", *data)
allreduce(data)
chapter.answer("first number after two all-reduces", data[-1][0, 0].item())

# %% [markdown]
# After the first all-reduce both devices hold (3, 3). The second one adds these equal
# arrays, which yields (6, 6). Chapter 7 builds all-reduces that share the work of
# device 0 ([watch them](../docs/players.md)). In PyTorch each device usually belongs to
# its own process, and a communication library, such as NCCL for GPUs, computes the sum:
#
# <!-- fold: teaching/frameworks/pytorch_step.py allreduce -->
#
# ## Splitting a batch
#
# Gluon's `split_and_load` cuts an array along the first axis and copies each part to
# its device. `split_batch` does this for images and labels.


# %%
def split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    return (
        gluon.utils.split_and_load(X, devices),
        gluon.utils.split_and_load(y, devices),
    )


X, y = np.arange(12 * k).reshape((2 * k, 6)), np.arange(2 * k)
X_shards, y_shards = split_batch(X, y, all_devices)
print("input:\n", X)
for X_shard, y_shard in zip(X_shards, y_shards):
    print("on", X_shard.ctx, "labels", y_shard, "and rows\n", X_shard)

# %% [markdown]
# A batch of five images cannot be split evenly between two devices, so `split_and_load`
# raises an error. The package's `split_batch` assigns one more row to the first
# devices. Each image still has the same weight, because the update divides by the
# number of all images.

# %%
X, y = np.arange(4 * k + 2).reshape((-1, 2)), np.arange(2 * k + 1)
try:
    split_batch(X, y, all_devices)
except ValueError as error:
    print(fill(f"ours: {error}", 88))
shards, _ = d2lpar.split_batch(X, y, all_devices)
print("the package's:", *[len(shard) for shard in shards])

# %% [markdown]
# ## One step on k devices
#
# Now we put the five parts together. A call of MXNet queues work on a device and
# returns at once (Chapter 4), so one Python thread can keep k devices busy. The update
# divides by `X.shape[0]`, the size of the *whole* batch, because after the all-reduce
# the gradients are sums over the whole batch.


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
    for replica in device_params:  # the same update on every device
        for p in replica:
            p -= lr / X.shape[0] * p.grad
    return losses


X, y = np.random.uniform(size=(2 * k, 1, 28, 28)), np.arange(2 * k) % 10
losses = train_batch(X, y, device_params, all_devices, lr=0.2)
print("loss of each image:", *losses)


def agree(device_params):
    """Whether all replicas hold the same numbers, to the last bit."""
    first, *rest = [[p.asnumpy() for p in replica] for replica in device_params]
    return all((p == q).all() for replica in rest for p, q in zip(first, replica))


print("replicas agree:", agree(device_params))

# %% [markdown]
# The loss of each image is about ln 10 = 2.30, because the untrained network assigns a
# probability of about 1/10 to each class. The replicas agree to the last bit: they
# started equal and made the same update. In PyTorch each process runs the same function
# for its own shard:
#
# <!-- fold: teaching/frameworks/pytorch_step.py split_batch train_batch -->
#
# ## One device against k
#
# Do k devices compute the update of one device? We make one step with the same
# parameters and the same batch, on one device and on k devices. We also compare our
# functions with the package's.
#
# *Predict before you run*: the replicas of k devices agree to the last bit. Will the
# parameters of one device and of k devices do so, too? Answer "yes" or "no".

# %%
chapter.predict("one device and k agree to the bit", None)
X, y = np.random.uniform(size=(32 * k, 1, 28, 28)), np.arange(32 * k) % 10


def one_step(step, devices):
    """The parameters after a step from the same start, as NumPy arrays."""
    device_params = [get_params(params, device) for device in devices]
    step(X, y, device_params, devices, lr=0.2)
    return [p.asnumpy() for p in device_params[0]]


def largest_difference(a, b):
    return max(abs(p - q).max() for p, q in zip(a, b))


on_one, on_k = (
    one_step(train_batch, all_devices[:1]),
    one_step(train_batch, all_devices),
)
packages = one_step(d2lpar.train_batch, all_devices)
difference = largest_difference(on_one, on_k)
print(f"one device against {k}: {difference:.1e}")
print(f"ours against the package's: {largest_difference(on_k, packages):.1e}")
chapter.answer("one device and k agree to the bit", "yes" if difference == 0 else "no")

# %% [markdown]
# Two devices add two sums of 32 gradients, so they round other intermediate results
# than one device, which adds 64 gradients in a row. Neighbouring float32 numbers near
# 0.01 are about 1e-9 apart, so a difference of this size is rounding. It can grow in a
# long training ([picture](../figures/benchmarks/equivalence.png), exercise 3).
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
    """The share of the test images that are assigned to their class."""
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
        seconds = time.perf_counter() - start
        acc, count = accuracy(device_params[0]), len(set(devices))
        print(f"{count} device(s), epoch {epoch + 1}: {acc:.3f}, {seconds:.2f} s")
    return device_params


train(all_devices[:1], batch_size=16, lr=0.1)
device_params = train(all_devices, batch_size=16, lr=0.1)
print("replicas agree:", agree(device_params))

# %% [markdown]
# The trainings differ in rounding only, so we expect similar accuracies. After the
# first epoch it can be near 0.10, the accuracy of guessing.
#
# ## Why are the accuracies not equal?
#
# Both trainings start from the same parameters and take the same batches. However,
# floating-point addition is not *associative*: `(a + b) + c` and `a + (b + c)` can
# differ. For example, a float32 number has 24 binary digits, so a 1 that we add to 2^24
# is lost.

# %%
a, b, c = numpy.float32([2**24, 1, 1])
print("((a + b) + c) - a =", ((a + b) + c) - a)
print("(a + (b + c)) - a =", (a + (b + c)) - a)

# %% [markdown]
# Which gradients are added first depends on the number of shards. Let us always cut the
# batch into four shards. One device then computes all four, and each of two devices
# computes two. `train_batch` needs no change, because several replicas may be on one
# device. `allreduce` now adds the same four gradients in the same order.


# %%
def in_four(devices):
    return [devices[k % len(devices)] for k in range(4)]


for name, shared in (("a shard per device", list), ("four shards", in_four)):
    ends = [
        train(shared(chosen), batch_size=64, lr=0.1, num_epochs=1)[0]
        for chosen in (all_devices[:1], all_devices)
    ]
    print(f"{name}: the trainings end", "equal" if agree(ends) else "different")

# %% [markdown]
# With four shards the two trainings end with the same parameters, to the last bit. The
# number of threads, the kind of processor and the version of MXNet must stay the same,
# because they can change the order of the sums within a shard.
#
# Equal bits help to find errors, because a difference is then never rounding. They cost
# time, because four shards need four times the calls. In a record of version 0.6,
# batches of 64 take longer, and with 256 and more a difference [cannot be
# told](../figures/multiple_gpus.md#the-same-bits-on-any-number-of-devices). They do not
# make a training more accurate, because no order of a sum is better than another.
#
# ## Is it faster?
#
# Each of k devices processes 1/k of the images. However, one Python thread issues the
# operators of all devices, and eight arrays are summed in every step. We time steps in
# turn, because the speed of a machine drifts. `chapter.verdict` says whether the times
# differ, by a rule that Chapter 4 explains.


# %%
def time_steps(num_devices, batch_size, steps=4):
    """Milliseconds of a step."""
    chosen = all_devices[:num_devices]
    device_params = [get_params(params, device) for device in chosen]
    X, y = X_train[:batch_size], y_train[:batch_size]
    train_batch(X, y, device_params, chosen, lr=0.01)  # a warm-up
    npx.waitall()
    start = time.perf_counter()
    for _ in range(steps):
        train_batch(X, y, device_params, chosen, lr=0.01)
    npx.waitall()
    return 1e3 * (time.perf_counter() - start) / steps


for batch_size in (16, 512):
    of_one, of_k = [], []
    for _ in range(7):
        of_one.append(time_steps(1, batch_size))
        of_k.append(time_steps(k, batch_size))
    names = "a step on 1 device", f"a step on {k} devices"
    said = chapter.verdict(of_one, of_k, names, "ms", in_turn=True)
    print(fill(f"batch {batch_size}: {said}", 88))

# %% [markdown]
# A second device adds a fixed cost to each step, and it saves time in proportion to the
# batch. More devices should therefore help more with 512 images than with 16. If each
# context has a core to itself, the speedup for 512 images should be near k. Chapter 6
# asks why d2l's second GPU did not help with 256 images.
#
# ## Larger batches in practice
#
# With k devices we often make the batch k times as large, so that a shard is as large
# as the batch on one device. An epoch then has 1/k of the updates. We usually increase
# the learning rate in proportion to the batch, up to a limit
# ([appendix](../docs/appendix.md#larger-batches)). To compare speeds, compare epochs of
# *equal* batches, because a larger batch can be faster per image on one device, too.
# Batch normalisation sees only the images of a shard (Chapter 10).
#
# ## On Fashion-MNIST
#
# The package's training shuffles the images and sums all gradients as one array. The
# preset `quick` is the default, and `book` is d2l's recipe on all 60,000 images.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus")

# %%
chapter.score()

# %% [markdown]
# By default k contexts share the same cores. With `threads=1` each context uses one
# core, so a second context adds a core. In records of d2l's recipe an epoch then takes
# [18.8 s](../figures/multiple_gpus/book-1thread-cpu1.jsonl "seconds per epoch") on one
# context, and [10.5 s](../figures/multiple_gpus/book-1thread-cpu2.jsonl
# "seconds per epoch") on two. With the same batch, the larger network ResNet-18 trains
# faster on two GPUs: an epoch takes [4.87 s] on one H100 and [2.94 s] on two (one
# training each, Chapter 5).
#
# [4.87 s]: ../figures/gpus/benchmarks/resnet18.jsonl "1 GPU, batch 256, lr 0.1"
# [2.94 s]: ../figures/gpus/benchmarks/resnet18.jsonl "2 GPUs, batch 256, lr 0.1"
#
# Two GPUs do not learn better, although d2l printed an accuracy of 0.80 on one and of
# 0.84 on two. The accuracy changes by several points from run to run.
#
# ## Summary
#
# > **Takeaway.** A step on k devices is `p = p - lr / n * (g_1 + g_2 + ... + g_k)`.
# > Here g_i is the sum of the gradients of shard i, and n counts the images of *all*
# > shards. It is the step of one device, up to rounding, if the replicas start equal,
# > each of them receives the same sum, and the network processes each image by itself.
# > (With dropout it is not, because [each device draws its own
# > masks](../docs/second-gpu.md#dropout-and-seeds).)
#
# [`d2lpar verify`](../docs/verify.md) checks a step of your own, in any framework.
#
# ## Exercises
#
# 1. Leave out the `allreduce` in `train_batch`. What does `agree` print? Does the
#    network still learn? *(`False`. Each of two replicas learns from its own half only.
#    Its steps are about half as large, because its sum is divided by the size of the
#    batch.)*
# 2. Divide by `X_shards[0].shape[0]`, the size of a shard, instead of by the size of
#    the batch, and compare `one_step` on k devices with `one_step` on one. *(On two
#    devices the step is twice as large. Up to rounding it is the step of one device
#    with a learning rate of 0.4 instead of 0.2.)*
# 3. Train three epochs with batches of 16 images and a learning rate of 0.02, then of
#    0.2, on one device and on k. Print `largest_difference` of the replicas
#    `train(...)[0]`, as NumPy arrays. *(With 0.02 the accuracy stays at 0.100, as if by
#    guessing, and the parameters differ by less than 1e-4. With 0.2 both trainings
#    learn, and their parameters differ by more than 0.1, because a rounding error grows
#    from step to step.)*
# 4. *On paper.* Seven images go to three devices, in shards of 3, 2 and 2. Each device
#    computes the *mean* gradient of its shard, and the three means are averaged, as
#    DistributedDataParallel (DDP) does. Which images count more? By what must each
#    device divide its *sum* instead? *(An image of the first shard counts 1/9 of the
#    result, and an image of the other shards 1/6, so these count more. If each device
#    divides its sum by `7 / 3`, the average is `(1/3) (3/7) (g1 + g2 + g3) = (g1 + g2 +
#    g3) / 7`. In general, divide by `n / k`.)*
# 5. *On paper.* Our `allreduce` sums arrays of b bytes on k devices through device 0.
#    How many bytes does device 0 receive and send, and how many does each other device?
#    *(Device 0 receives `(k - 1) b` and sends `(k - 1) b`. Each other device sends b
#    and receives b. The work of device 0 grows with k. Chapter 7 shares it.)*
#
# **Puzzles.** `python -m d2lpar.puzzles` lists the puzzles. Those about splitting,
# averaging and the first all-reduces can be solved now.
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>; the printed
#   times are those of its MXNet notebook of July 2019,
#   <https://github.com/mli/d2l-1day-notebooks>

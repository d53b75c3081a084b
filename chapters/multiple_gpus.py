# %% [markdown]
# # Multi-GPU training from scratch
#
# You have trained networks on one device. The images of a batch can be shared, so let
# us train *one* network on several devices. We implement four short functions that do
# this, and check that k devices compute what one device computes. Then we ask whether
# they are faster.
#
# ![How many times as fast two devices are as one, by batch size, on cores and on
# GPUs](../figures/multiple_gpus/two-devices.png)
#
# The authors of *Dive into Deep Learning* (d2l) [1] trained LeNet in this way. An epoch
# took 1.8 s on one V100 GPU and **2.5 s** on two.
#
# You need no GPU. In MXNet a *device* is a GPU or a *CPU context*, a queue of work with
# its own threads (Chapter 2). Run this chapter as a notebook, or as
# `python chapters/multiple_gpus.py`.

# %%
import numpy
from matplotlib.figure import Figure

import d2lpar
from d2lpar import autograd, chapter, devices, gluon, np, npx

k = 2  # the number of devices
all_devices = devices.parse(f"cpu:{k}")  # with GPUs: devices.parse(f"gpu:{k}")

# %% [markdown]
# ## Splitting the work
#
# ![By layers, by channels, or by data](../docs/drawings/ways-to-split.svg)
#
# We could give each device some layers, or some channels of every layer. However, the
# devices would then exchange outputs in the middle of a step. We split the *data*
# instead. Each device holds the whole network and processes some images of the batch,
# and the devices exchange gradients once per step. This is called *data parallelism*.
#
# In *minibatch stochastic gradient descent* we sum the gradients of n images, and
# change the parameters p a little in the opposite direction:
#
#     p = p - lr / n * (sum of the gradients of all n images)
#
# A sum can be computed in parts. Therefore we cut the batch into k *shards*, and each
# device sums the gradients of its shard. Then we add these sums, and every device makes
# the same update.
#
# ![One step on two devices](../docs/drawings/split-allreduce-update.svg)
#
# ## The network
#
# We use d2l's version of LeNet, with two convolutions and two dense layers. The
# parameters are an argument, so that each device can pass its own copy.

# %%
rng = numpy.random.default_rng(0)


def weight(*shape, scale=0.1):
    return np.array(rng.normal(scale=scale, size=shape), dtype="float32")


params = [weight(20, 1, 3, 3), np.zeros(20), weight(50, 20, 5, 5), np.zeros(50)]
params += [weight(800, 128), np.zeros(128), weight(128, 10), np.zeros(10)]


def lenet(X, params):
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = npx.convolution(data=X, weight=W1, bias=b1, kernel=(3, 3), num_filter=20)
    h1 = npx.pooling(npx.relu(h1), pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = npx.convolution(data=h1, weight=W2, bias=b2, kernel=(5, 5), num_filter=50)
    h2 = npx.pooling(npx.relu(h2), pool_type="avg", kernel=(2, 2), stride=(2, 2))
    # np.dot(h2, W3) + b3, by the operator that is fast on CPUs, too
    h3 = npx.fully_connected(h2, W3.T, b3, num_hidden=128, no_bias=False)
    return npx.fully_connected(npx.relu(h3), W4.T, b4, num_hidden=10, no_bias=False)


loss = gluon.loss.SoftmaxCrossEntropyLoss()  # one value per image

# %% [markdown]
# d2l starts from smaller weights, and its first epochs only guess. With a standard
# deviation of 0.1 the network learns from the first epoch on.
#
# ## A replica per device
#
# Each device needs a copy of all parameters, a *replica*. `get_params` copies them to a
# device and allocates memory for their gradients.


# %%
def get_params(params, device):
    new_params = [p.copyto(device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


device_params = [get_params(params, device) for device in all_devices]
print("b4, and its gradient:", device_params[-1][-1], device_params[-1][-1].grad)

# %% [markdown]
# ## All-reduce
#
# To *reduce* means to combine many values into one, here by summing them. *All* means
# that every device receives the result. In d2l's implementation device 0 collects the
# arrays of all other devices, adds them to its own, and sends the sum back.
#
# *Predict before you run*: device 0 holds (1, 1), and device 1 holds (2, 2). What is
# the first number on device 1 after two all-reduces? Replace `None` by your guess.


# %%
def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        data[0].copyto(data[i])


chapter.predict("first number after two all-reduces", None)
data = [np.ones((1, 2), ctx=device) * (i + 1) for i, device in enumerate(all_devices)]
allreduce(data)
print("after allreduce:\n", *data)
allreduce(data)
chapter.answer("first number after two all-reduces", data[-1][0, 0].item())

# %% [markdown]
# The first all-reduce leaves (3, 3) on both devices. The second one adds these equal
# arrays. In PyTorch each device belongs to its own process, and a communication library
# computes the sum:
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
print("labels", *y_shards, "and rows", *X_shards, sep="\n")

# %% [markdown]
# For a batch of five `split_and_load` raises an error. The package's `split_batch`
# assigns one more row to the first device.
#
# ## One step on k devices
#
# Now we put the parts together. A call of MXNet queues work on a device and returns at
# once, so one Python thread can keep k devices busy as long as it issues work faster
# than they compute it (Chapter 5). The update divides by the size of the *whole* batch,
# because after the all-reduce the gradients are sums over the whole batch.


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


# %% [markdown]
# In PyTorch each process runs the same function for its own shard:
#
# <!-- fold: teaching/frameworks/pytorch_step.py split_batch train_batch -->
#
# ## One device against k
#
# Do k devices compute the update of one device? We make one step with the same
# parameters and the same batch on one device, on k devices, and on k devices by the
# package's functions.
#
# *Predict before you run*: all replicas of k devices start equal and make the same
# update. Do the parameters of one device and of k devices agree to the last bit, too?
# Answer "yes" or "no".

# %%
chapter.predict("one device and k agree to the bit", None)
X, y = np.random.uniform(size=(32 * k, 1, 28, 28)), np.arange(32 * k) % 10


def one_step(step, devices):
    """The parameters after a step from the same start, a flat array per replica."""
    device_params = [get_params(params, device) for device in devices]
    step(X, y, device_params, devices, lr=0.05)
    return [numpy.concatenate([p.asnumpy().ravel() for p in r]) for r in device_params]


(on_one,) = one_step(train_batch, all_devices[:1])
on_k = one_step(train_batch, all_devices)
packages = one_step(lambda *a, lr: d2lpar.train_batch(*a, lr, net=lenet), all_devices)
print("replicas agree:", all((p == on_k[0]).all() for p in on_k))
difference = abs(on_one - on_k[0]).max()
to_package = abs(on_k[0] - packages[0]).max()
print(f"one device to {k}: {difference:.1e}, ours to the package's: {to_package:.1e}")
chapter.answer("one device and k agree to the bit", "yes" if difference == 0 else "no")

# %% [markdown]
# Two devices add two sums of 32 gradients, and one device adds 64 gradients in a row.
# They round at other places. A float32 number near 0.1 has neighbours at a distance of
# about 1e-8, so a difference of this size is rounding. An exercise of Chapter 6 fixes
# the order of the additions.
#
# ## The training loop
#
# We train on images of Fashion-MNIST that the package contains. The curves show the
# accuracy on the test images.

# %%
X_train, y_train, X_test, y_test = d2lpar.datasets.fashion_sample()
X_train = np.array(X_train[:, None] / 255, dtype="float32")  # (n, 1, 28, 28)
X_test = np.array(X_test[:, None] / 255, dtype="float32")
y_train = np.array(y_train, dtype="float32")


def train(devices, batch_size=64, lr=0.05, num_epochs=4):
    """The accuracy on the test images after each epoch."""
    device_params, accuracies = [get_params(params, device) for device in devices], []
    for _ in range(num_epochs):
        for i in range(0, len(X_train) - batch_size + 1, batch_size):
            X, y = X_train[i : i + batch_size], y_train[i : i + batch_size]
            train_batch(X, y, device_params, devices, lr)
        y_hat = lenet(X_test.copyto(devices[0]), device_params[0]).argmax(axis=1)
        accuracies.append((y_hat.asnumpy() == y_test).mean())
    print(f"{len(devices)} device(s):", *accuracies)
    return accuracies


figure = Figure(figsize=(5, 2.4), layout="constrained")
axes = figure.subplots()
for chosen, line in ((all_devices[:1], "o-"), (all_devices, "x--")):
    axes.plot(train(chosen), line)
axes.set(xlabel="epoch", ylabel="accuracy: o 1 device, x all", xticks=range(4))
chapter.show(figure, "accuracy-by-epoch")

# %% [markdown]
# The curves lie close together, because the two trainings differ by rounding only.
#
# ## Is it faster?
#
# Each of k devices processes fewer images. However, one Python thread issues the
# operators of all devices, and gradients are summed in every step. The package's
# training shuffles the images, sums all gradients as one array, and measures epochs on
# one device and on k. Both rows use the same cores: one context with all threads, or k
# contexts that share them. To add a core with each context, set `threads=1`. Chapter 3
# explains the rule behind the mark `?`, and Chapter 5 asks from which batch on a second
# device pays. The learning rate is six times ours, so the accuracy jumps from epoch to
# epoch.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_gpus")

# %%
chapter.score()

# %% [markdown]
# ## Summary
#
# > **Takeaway.** A step on k devices is `p = p - lr / n * (g_1 + g_2 + ... + g_k)`.
# > Here g_i is the sum of the gradients of shard i, and n counts the images of *all*
# > shards. It is the step of one device, up to rounding, if the network processes each
# > image by itself.
#
# The replicas stay equal, because they start equal and receive the same sum.
# [`d2lpar verify`](../docs/verify.md) checks a step of your own, in any framework.
#
# ## Exercises
#
# 1. Leave out the `allreduce` in `train_batch`. Do the replicas agree after
#    `one_step`? Does the network still learn? *(They differ. Each replica learns from
#    its own shards only. Its steps are about half as large, because its sum is divided
#    by the size of the batch.)*
# 2. Divide by `X_shards[0].shape[0]`, the size of a shard, and compare `one_step` on k
#    devices with `one_step` on one. *(On two devices the step is twice as large: it is
#    the step of one device with twice the learning rate.)*
# 3. *On paper.* Seven images go to three devices, in shards of 3, 2 and 2. Each device
#    computes the *mean* gradient of its shard, and the three means are averaged, as
#    DistributedDataParallel (DDP) does. Which images count more? *(An image of the
#    first shard counts 1/9 of the result, and an image of the other shards 1/6. If each
#    device divides its sum by `7 / 3` instead, all images count alike.)*
# 4. *Open.* How would you share the work of device 0 in `allreduce` among 16 devices?
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>; the times are
#   those of its MXNet notebook of July 2019,
#   <https://github.com/mli/d2l-1day-notebooks>

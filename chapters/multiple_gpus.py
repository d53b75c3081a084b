# %% [markdown]
# # Multi-GPU training from scratch
#
# Source: the book, "Training on Multiple GPUs",
# <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
#
# Split each batch over the devices, compute gradients on each, sum them (all-reduce),
# and let every device take the same step. Run it as a script, or cell by cell as a
# notebook:
#
#     python chapters/multiple_gpus.py --devices auto --num-devices 1,2
#     d2lpar run multiple_gpus --preset book

# %%
from d2lpar import (
    allreduce,
    chapter,
    devices,
    get_params,
    init_lenet,
    lenet,
    np,
    split_batch,
    train_batch,
)

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **One replica per device.** `get_params` copies the parameters to a device and
# attaches gradients. The bias of the first convolution and its gradient start at zero.

# %%
params = init_lenet(scale=0.01, seed=0)
device_params = [get_params(params, device) for device in two]
print("b1 weight:", device_params[0][1])
print("b1 grad:", device_params[0][1].grad)

# %% [markdown]
# **All-reduce** adds up the arrays of all devices and gives every device the sum.

# %%
data = [np.ones((1, 2), ctx=device) * (k + 1) for k, device in enumerate(two)]
print("before allreduce:\n", data[0], "\n", data[1])
allreduce(data)
print("after allreduce:\n", data[0], "\n", data[1])

# %% [markdown]
# **A batch is split** in order, features and labels alike. Shards may be uneven: 2
# devices take 3 and 2 of 5 images.

# %%
X, y = np.arange(24).reshape((4, 6)), np.arange(4)
X_shards, y_shards = split_batch(X, y, two)
print("input =\n", X)
print("output =\n", X_shards[0], "\n", X_shards[1])

# %% [markdown]
# **One step.** Each device computes the loss and the gradients of its shard; the
# gradients are summed; every replica moves by the sum divided by the *global* batch
# size. Python waits for nothing until the loss is printed: MXNet runs asynchronously.

# %%
X, y = np.random.uniform(size=(5, 1, 28, 28)), np.array([0, 1, 2, 3, 4])
losses = train_batch(X, y, device_params, two, lr=0.2, net=lenet.lenet)
print("loss of each image:", *losses)
print(
    "replicas agree:", (device_params[0][1] == device_params[1][1].copyto(two[0])).all()
)

# %% [markdown]
# **Training** on Fashion-MNIST, on 1, 2, ... devices: the loop is `d2lpar.lenet.train`.
# `book` is the book's recipe. `quick` shows the same in a minute, with less data, and
# with smaller batches so that a short run still takes enough steps to leave the plateau
# at an accuracy of 0.10. Each device count is measured in a process of its own; the
# first epoch warms up and does not count in the times.

# %%
PRESETS = {
    "quick": {
        "num_epochs": 5,
        "global_batch_size": 64,
        "lr": 0.2,
        "data": {"n_train": 12_000, "n_test": 2_000},
    },
    "book": {"num_epochs": 10, "global_batch_size": 256, "lr": 0.2},
}

if __name__ == "__main__":
    chapter.measure("multiple_gpus", lenet.WORKLOAD, PRESETS)

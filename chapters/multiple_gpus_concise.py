# %% [markdown]
# # Multi-GPU training, concise: Gluon
#
# Source: the book, "Concise Implementation for Multiple GPUs",
# <https://d2l.ai/chapter_computational-performance/multiple-gpus-concise.html>
#
# Gluon does what the first chapter does by hand: a `HybridBlock` keeps one replica per
# device, `Trainer` all-reduces and updates through a kvstore, `hybridize` compiles the
# network. Run it as a script, or cell by cell as a notebook:
#
#     python chapters/multiple_gpus_concise.py --devices auto --num-devices 1,2
#     d2lpar run multiple_gpus_concise --preset book

# %%
from d2lpar import (
    autograd,
    chapter,
    devices,
    init_lenet,
    lenet_concise,
    lenet_workers,
    np,
    split_batch,
)

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **One replica per device.** `initialize(ctx=devices)` creates them; `build` then gives
# them the first chapter's parameters, so that both chapters start from the same point.

# %%
net, trainer, loss = lenet_concise.build(init_lenet(0.01, seed=0), two, lr=0.2)
b1 = net[0].bias
print("b1 weight:", b1.list_data()[0])
print("b1 grad:", b1.list_grad()[0])

# %% [markdown]
# **The kvstore all-reduces**: `trainer.step` pushes the gradients of all devices, sums
# them, and gives every replica the same update. It divides by the *global* batch size.

# %%
X, y = np.random.uniform(size=(5, 1, 28, 28)), np.array([0, 1, 2, 3, 4])
X_shards, y_shards = split_batch(X, y, two)
with autograd.record():
    losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
for l in losses:
    l.backward()
trainer.step(batch_size=5)
print("loss of each image:", *losses)
print("replicas agree:", (b1.data(two[0]) == b1.data(two[1]).copyto(two[0])).all())

# %% [markdown]
# **Training** is the same loop, with these lines in place of `train_batch`:
# `d2lpar.lenet_concise.train`. The compiled network is faster and equally accurate. The
# presets are the first chapter's, so that the two can be compared:
#
#     d2lpar compare figures/multiple_gpus/book-cpu2.jsonl \
#         figures/multiple_gpus_concise/book-cpu2.jsonl

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
    # The workload of lenet_concise, which `d2lpar launch` can share among workers, too.
    chapter.measure("multiple_gpus_concise", lenet_workers.WORKLOAD, PRESETS)

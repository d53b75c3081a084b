# %% [markdown]
# # Several machines: a parameter server
#
# Source: the book, "Training on Multiple GPUs", carried over to several machines,
# <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
#
# Beyond one process or one machine: *workers* train, each with devices of its own, and
# *servers* sum what the workers push. MXNet has both (ps-lite, behind
# `kvstore("dist_sync")`); the launcher starts and watches them:
#
#     d2lpar launch --workers 2 -- run multiple_machines --preset book
#     python chapters/multiple_machines.py --devices auto --num-devices 1,2
#     d2lpar run multiple_machines --preset book     (the same without a server)

# %%
import numpy

from d2lpar import (
    autograd,
    chapter,
    devices,
    get_params,
    gluon,
    init_lenet,
    lenet,
    lenet_workers,
    np,
)
from d2lpar.shards import shares
from d2lpar.workers import plan

one = devices.parse("cpu:1")

# %% [markdown]
# **Each worker takes its part.** All workers go through the same batches, drawn from
# the same random seed. Worker k takes a contiguous part of each batch, which may be
# empty in the last one, and splits it over its own devices as before.

# %%
for batch in (5, 2):
    parts = [list(range(batch))[part] for part in shares(batch, 3)]
    print(f"a batch of {batch} on three workers:", parts)

# %% [markdown]
# **The servers sum.** A worker pushes the gradient of the sum, not the mean, of its
# samples' losses; a server waits for all pushes and returns their sum, the gradient of
# the whole batch. So W workers with D devices each compute what one device computes.


# %%
def gradient(X: numpy.ndarray, y: numpy.ndarray) -> numpy.ndarray:
    """The gradient of W1 that a worker pushes."""
    params = get_params(init_lenet(0.1, seed=0), one[0])
    with autograd.record():
        scores = lenet.lenet(np.array(X), params)
        l = gluon.loss.SoftmaxCrossEntropyLoss()(scores, np.array(y))
    l.backward()
    return params[0].grad.asnumpy()


rng = numpy.random.default_rng(0)
X, y = rng.random((5, 1, 28, 28), numpy.float32), numpy.arange(5)
pushed = [gradient(X[part], y[part]) for part in shares(5, 2)]
whole = gradient(X, y)
print("sum of the pushes = whole batch:", numpy.allclose(sum(pushed), whole, rtol=1e-4))

# %% [markdown]
# **Each process reads its role** from its environment. `d2lpar launch` sets it;
# `--print` prints it for Slurm or another terminal. A scheduler introduces the
# processes to each other. On the hosts of a `--hosts` file they are started over ssh.

# %%
for role in plan.plan(workers=2, servers=1, arguments=["run", "multiple_machines"]):
    names = ("DMLC_ROLE", "D2LPAR_WORKER")
    print(f"{role.name}:", {n: v for n, v in role.environment.items() if n in names})

# %% [markdown]
# **When a process dies** the others deadlock. The launcher ends them and restarts all
# from the last checkpoint; the result is the same to the bit. Other ways to share,
# compared by `d2lpar plot figures/multiple_machines/book-2workers-*.jsonl`:
#
#     d2lpar launch --compress 0.5 -- run multiple_machines        (2 bits per gradient)
#     d2lpar launch --kvstore dist_async -- run multiple_machines  (no worker waits)

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
    chapter.measure("multiple_machines", lenet_workers.WORKLOAD, PRESETS)

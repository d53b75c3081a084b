# %% [markdown]
# # Several machines: a parameter server
#
# Seed: d2l, "Multi-GPU Computation Implementation from Scratch" (001), on machines
#
# One machine is not enough, or one process: *workers* train, each with devices of its
# own, and *servers* hold the sums of what they push. MXNet has both (ps-lite, behind
# `kvstore("dist_sync")`); the launcher starts and watches them:
#
#     d2lpar launch --workers 2 -- run multiple_machines --preset book
#     python chapters/multiple_machines.py --devices auto --num-devices 1,2
#     d2lpar run multiple_machines --preset book     (the same without a server)

# %%
import numpy

from d2lpar import chapter, devices, get_params, init_lenet, lenet
from d2lpar._mxnet import autograd, gluon, np
from d2lpar.workers import group, plan

one = devices.parse("cpu:1")

# %% [markdown]
# **Each takes its part.** All workers go through the same batches, drawn from the same
# seed. Of each, worker k takes its contiguous part, which may be empty in the last one,
# and splits it over its own devices, as before.

# %%
for batch in (5, 2):
    parts = [list(range(batch))[group.span(batch, k, count=3)] for k in range(3)]
    print(f"a batch of {batch} on three workers:", parts)

# %% [markdown]
# **The servers sum.** A worker pushes the gradient of its samples' losses, summed, not
# averaged; a server waits for all pushes and hands back their sum. It is the gradient
# of the whole batch: so W workers with D devices each compute what one device does.


# %%
def gradient(X: numpy.ndarray, y: numpy.ndarray) -> numpy.ndarray:
    """What a worker pushes of W1."""
    params = get_params(init_lenet(0.1, seed=0), one[0])
    with autograd.record():
        l = gluon.loss.SoftmaxCrossEntropyLoss()(
            lenet(np.array(X), params), np.array(y)
        )
    l.backward()
    return params[0].grad.asnumpy()


rng = numpy.random.default_rng(0)
X, y = rng.random((5, 1, 28, 28), numpy.float32), numpy.arange(5)
spans = [group.span(5, k, count=2) for k in range(2)]
pushed = [gradient(X[span], y[span]) for span in spans]
whole = gradient(X, y)
print("sum of the pushes = whole batch:", numpy.allclose(sum(pushed), whole, rtol=1e-4))

# %% [markdown]
# **Who is who** stands in the environment of each process. `d2lpar launch` sets it, and
# `--print` writes it out for Slurm, Kubernetes or another terminal. A scheduler
# introduces them to each other. On hosts of a `--hosts` file they are started over ssh.

# %%
for role in plan.plan(workers=2, servers=1, arguments=["run", "multiple_machines"]):
    names = ("DMLC_ROLE", "D2LPAR_WORKER")
    print(f"{role.name}:", {n: v for n, v in role.environment.items() if n in names})

# %% [markdown]
# **When one dies** the others would wait for ever. The launcher ends them, and all
# start again from the last checkpoint, on the same bits. Other ways to share, compared
# by `d2lpar plot figures/multiple_machines/book-2workers-*.jsonl`:
#
#     d2lpar launch --compress 0.5 -- run multiple_machines        (gradients in 2 bits)
#     d2lpar launch --kvstore dist_async -- run multiple_machines  (nobody waits)

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
    chapter.measure("multiple_machines", "d2lpar.lenet_concise:train", PRESETS)

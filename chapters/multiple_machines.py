# %% [markdown]
# # Several processes, and find the mistake
#
# In Chapter 1 one Python process issued the work of all devices. On several machines
# each has a process of its own, and PyTorch starts a process per GPU even on one
# machine. The step stays the same: split, sum, divide once, update alike. Here we sum
# gradients over processes with MXNet's own server. Then we look at five steps that are
# *wrong*, and find each mistake from its numbers.
#
# ![One server, four servers, a ring, and a ring over
# NVLink](../docs/drawings/topologies.svg)
#
# According to *Dive into Deep Learning* (d2l) [1], three GPUs need **60 ms** to send
# gradients of 160 MB to a fourth one over links of 16 GB/s and to receive the sums. If
# each of the four sums a quarter of the numbers, this takes 15 ms. A ring (Chapter 6)
# takes the same time without a server, and faster links shorten it.
#
# Run this chapter as a notebook, or as `python chapters/multiple_machines.py`. The
# workers of a whole training are started by `d2lpar launch --workers 2 -- run
# multiple_machines`.

# %%
import sys
import tempfile
from textwrap import fill
from types import SimpleNamespace

import numpy

from d2lpar import chapter, mx
from d2lpar.parallel import shares
from d2lpar.verify import verify
from d2lpar.workers.launch import launch

# %% [markdown]
# ## Push, sum, pull
#
# ![Workers push their gradients to a server and pull the
# sums](../docs/drawings/parameter-server.svg)
#
# MXNet divides the roles. *Workers* compute gradients and *push* them to a *server*.
# The server adds up what arrives under a key, which names a parameter, and replies to a
# *pull* once all workers have pushed. A *scheduler* introduces the processes to each
# other. Push and pull together are an all-reduce through a separate process.
#
# All workers run the same program. `mx.kv.create("dist_sync")` connects a worker to the
# server, and `pushpull` replaces a gradient by the sum over all workers. Worker k takes
# a contiguous part of each batch. It pushes the gradient of the *sum* of its losses, so
# that parts of different length need no special case.

# %%
WORKER = """
import sys
import numpy
from d2lpar import autograd, get_params, gluon, init_lenet, lenet, mx, np
from d2lpar.parallel import shares

store = mx.kv.create("dist_sync")
rng = numpy.random.default_rng(0)
X, y = rng.random((5, 1, 28, 28), numpy.float32), numpy.arange(5)
part = shares(5, store.num_workers)[store.rank]  # of the batch, for this worker
params = get_params(init_lenet(0.1), mx.cpu(0))
with autograd.record():
    scores = lenet.lenet(np.array(X[part]), params)
    l = gluon.loss.SoftmaxCrossEntropyLoss()(scores, np.array(y[part]))
l.backward()
for key, p in enumerate(params):
    store.init(key, np.zeros_like(p.grad))
    store.pushpull(key, p.grad, out=p.grad)  # the sum takes the gradient's place
sums = numpy.concatenate([p.grad.asnumpy().ravel() for p in params])
numpy.save(f"{sys.argv[1]}/{store.rank}.npy", sums)
"""
if not mx.runtime.Features().is_enabled("DIST_KVSTORE"):
    print("skipped: this MXNet was built without the distributed kvstore")
else:
    sums = {}
    for workers in (1, 2):  # one worker has the whole batch
        with tempfile.TemporaryDirectory() as folder:
            launch([sys.executable, "-c", WORKER, folder], workers=workers)
            sums[workers] = [numpy.load(f"{folder}/{k}.npy") for k in range(workers)]
    for k, part in enumerate(shares(5, 2)):
        gap = abs(sums[2][k] - sums[1][0]).max()
        print(f"worker {k}, images {part.start} to {part.stop - 1}:", end=" ")
        print(f"its sum is {gap:.0e} from the gradient of the whole batch")

# %% [markdown]
# Both workers pulled the gradient of the whole batch, up to rounding. Neither program
# contains networking code. `launch` starts the scheduler, the server and the workers on
# this machine; on several machines the launcher of the site does
# ([several machines](../docs/usage.md#several-machines)).
#
# In each step a worker pushes 129,068 numbers and pulls the same number, whatever the
# batch. A second machine saves at most half of a step. Therefore it can pay if half of
# a step takes longer than the traffic that is not hidden.
#
# *Predict before you run*: how many milliseconds do the pushes of two workers occupy a
# server's link of 1 Gbit/s?

# %%
chapter.predict("ms of traffic each way", None)  # write your number for None
chapter.answer("ms of traffic each way", 2 * 4 * 129_068 * 8 / 1e6)

# %% [markdown]
# With `dist_sync` each step waits for the slowest worker. With `dist_async` the server
# updates the parameters at each push, and no worker waits. A gradient then belongs to
# older parameters. [Records of version 0.3](../figures/multiple_machines.md) have the
# times and accuracies of both.
#
# ## Five wrong steps
#
# A program with a mistake rarely crashes. It trains, a little worse. We write a step of
# a linear model on text. Each row of a batch has a number of valid *tokens*, and the
# loss is a mean over all tokens of the batch. Each device takes its part of the rows,
# as a process would. It can process them in pieces, one after the other (*gradient
# accumulation*), and the gradient can be clipped to a norm. One line is right, and five
# lines A to E are wrong.


# %%
def gradient(w, rows, y):
    """Summed over all tokens of some rows, and the number of these tokens."""
    tokens, X = rows[:, :1], rows[:, 1:]
    return 2 * X.T @ (tokens * (X @ w - y)), max(tokens.sum(), 1)


def clip(g, norm):
    return g if norm is None else g * min(1, norm / numpy.linalg.norm(g))


def make_step(which):
    def step(params, X, y, num_devices, lr, accumulate=1, clip_norm=None):
        (w,), devices = params, []
        for part in shares(len(y), num_devices):
            pieces = numpy.array_split(numpy.arange(len(y))[part], accumulate)
            devices.append([gradient(w, X[p], y[p]) for p in pieces if len(p)])
        devices = [pieces for pieces in devices if pieces]  # that got any row
        sums = [sum(g for g, _ in pieces) for pieces in devices]
        tokens = [sum(n for _, n in pieces) for pieces in devices]
        means = [g / n for g, n in zip(sums, tokens)]
        of_pieces = [sum(g / n for g, n in p) / len(p) * sum(n for _, n in p)
                     for p in devices]  # fmt: skip
        clipped = [clip(g, clip_norm) * n for g, n in zip(means, tokens)]
        g = {
            "right": lambda: clip(sum(sums) / sum(tokens), clip_norm),
            "A": lambda: clip(sums[0] / sum(tokens), clip_norm),
            "B": lambda: clip(sum(sums) / tokens[0], clip_norm),
            "C": lambda: clip(sum(means) / len(means), clip_norm),
            "D": lambda: clip(sum(of_pieces) / sum(tokens), clip_norm),
            "E": lambda: sum(clipped) / sum(tokens),
        }[which]()
        return [w - lr * g]

    return step


# %% [markdown]
# We compare a step on two devices with the right step on one device, and print their
# distance as a share of the step: for a batch whose rows have four tokens each, for a
# batch with different numbers of tokens, with two pieces per device, and with clipping.
#
# *Predict before you run*: which of the five mistakes changes *nothing* unless the step
# is clipped? Write its letter.


# %%
def init(seed):
    return [numpy.random.default_rng(seed).normal(size=(6, 1))]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    tokens, rows = rng.integers(1, 9, (n, 1)), rng.normal(size=(n, 6))
    return numpy.concatenate([tokens, rows], axis=1), rng.normal(size=(n, 1))


chapter.predict("changes nothing without clipping", None)  # a letter, in quotes
X, y = batch(8, seed=1)
equal = numpy.concatenate([numpy.full((8, 1), 4), X[:, 1:]], axis=1)
cases = [(equal, {}), (X, {}), (X, {"accumulate": 2}), (X, {"clip_norm": 0.5})]
print("        4 tokens each  1 to 8 tokens  two pieces  clipped")
silent = []
for which in ("right", "A", "B", "C", "D", "E"):
    apart = []
    for rows, how in cases:
        w, lr = init(0), 0.1
        (one,) = make_step("right")(w, rows, y, 1, lr, **how)
        (two,) = make_step(which)(w, rows, y, 2, lr, **how)
        apart.append(numpy.linalg.norm(two - one) / numpy.linalg.norm(one - w[0]))
    print(f"{which:10}", *(f"{100 * gap:10.0f} %" for gap in apart))
    silent += [which] if max(apart[:3]) < 1e-9 < apart[3] else []
chapter.answer("changes nothing without clipping", *silent)

# %% [markdown]
# A batch of equal rows hides C, D and E. Therefore test a step with uneven batches, and
# with every option that you use. Now look at the lines again. A uses the sum of device
# 0 only. B divides by the tokens of one device. C averages means of devices with
# different numbers of tokens, as DDP does with the mean loss of a shard. D does so with
# the pieces. E clips each device's own gradient before the sum.
#
# `d2lpar verify` makes such comparisons for your own step, in any framework. Let us see
# what it says of these.

# %%
for which in ("right", "A", "B", "C", "D", "E"):
    checks = verify(SimpleNamespace(init=init, batch=batch, step=make_step(which)))
    wrong = [check for check in checks[:-1] if check.verdict == "wrong"]
    print(fill(f"{which} -> {wrong[0].line if wrong else checks[-1].line}", 88))
chapter.score()

# %% [markdown]
# A PyTorch program can be checked as it is, one process per device:
# `d2lpar verify --run "train.py" --devices 2` ([more](../docs/verify.md)).
#
# ## One process
#
# Finally, we train in one process on 1, 2, ... devices, as in Chapter 4. Several
# workers pay only if they are faster than this run.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_machines")

# %% [markdown]
# ## Summary
#
# > **Takeaway.** Push gradients of *summed* losses, add them up, and divide once by
# > what the loss is a mean of: all samples or all tokens of the global batch. A step
# > sends `2 * workers * parameters * 4` bytes through the server.
#
# ## Exercises
#
# 1. *On paper.* Eight workers have gradients of 0.5 MB, and the server has a link of 10
#    Gbit/s. How long does a step's traffic take each way, and how long in a ring of the
#    eight? *(`8 * 0.5e6 * 8 / 10e9 = 3.2 ms`. In a ring
#    `2 * 7 / 8 * 0.5e6 * 8 / 10e9 = 0.7 ms`.)*
# 2. Start three workers. Which sums do they pull? *(They take 2, 2 and 1 images and
#    pull the same sums as before, up to rounding.)*
# 3. In DDP, C is not your mistake but the library's average. What must each process
#    multiply its loss by? *(By the number of its tokens times the number of processes,
#    divided by the tokens of the global batch. These are known only after an
#    all-reduce of one number.)*
# 4. *Open.* A worker dies in the middle of a step. What should the rest do?
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Parameter Servers",
#   <https://d2l.ai/chapter_computational-performance/parameterserver.html>

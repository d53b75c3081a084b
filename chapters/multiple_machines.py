# %% [markdown]
# # Several machines: a parameter server
#
# Source: the book, "Training on Multiple GPUs" and "Parameter Servers", carried over to
# several machines,
# <https://d2l.ai/chapter_computational-performance/parameterserver.html>
#
# Beyond one process or one machine: *workers* train, each with devices of its own, and
# *servers* sum what the workers push. MXNet has both (ps-lite, behind
# `kvstore("dist_sync")`); `d2lpar launch`, the launcher, starts and watches them:
#
#     d2lpar launch --workers 2 -- run multiple_machines --preset book
#     python chapters/multiple_machines.py --devices auto --num-devices 1,2
#     d2lpar run multiple_machines --preset book     (the same without a server)
#
# **What you will learn.**
#
# - what a parameter server does, in fifteen lines;
# - how workers share a batch, so that W workers compute what one device computes;
# - to start MXNet's server and two workers yourself, as four processes;
# - what travels over the network, and what 2-bit compression saves;
# - what happens when a process dies.
#
# ![Workers push gradients, pull sums](../docs/drawings/parameter-server.svg)

# %%
import os
import subprocess
import sys
import tempfile

import numpy

from d2lpar import (
    autograd,
    chapter,
    devices,
    get_params,
    gluon,
    init_lenet,
    lenet,
    mx,
    np,
)
from d2lpar.parallel import shares
from d2lpar.workers import launch

one = devices.parse("cpu:1")

# %% [markdown]
# ## Each worker takes its part
#
# All workers go through the same batches, drawn from the same random seed. Worker k
# takes a contiguous part of each batch, which may be empty in the last one, and splits
# it over its own devices as before.

# %%
for batch in (5, 2):
    parts = [list(range(batch))[part] for part in shares(batch, 3)]
    print(f"a batch of {batch} on three workers:", parts)

# %% [markdown]
# ## The server sums
#
# A worker pushes the gradient of the *sum*, not of the mean, of its samples' losses.
# The server adds up what arrives under a key, and answers a pull when every worker has
# pushed. That is an all-reduce through a process of its own.


# %%
class Server:
    """Sums of what all workers push, by key."""

    def __init__(self, num_workers):
        self.num_workers, self.arrived = num_workers, {}

    def push(self, key, value):
        self.arrived.setdefault(key, []).append(value)

    def pull(self, key):
        if len(self.arrived[key]) < self.num_workers:
            raise RuntimeError(f"{key}: a pull waits until every worker has pushed")
        return sum(self.arrived[key])


def gradients(X: numpy.ndarray, y: numpy.ndarray) -> list[numpy.ndarray]:
    """Of the summed losses of some images, by each parameter of LeNet."""
    params = get_params(init_lenet(0.1, seed=0), one[0])
    if len(y) == 0:
        return [numpy.zeros(p.shape, "float32") for p in params]
    with autograd.record():
        scores = lenet.lenet(np.array(X), params)
        l = gluon.loss.SoftmaxCrossEntropyLoss()(scores, np.array(y))
    l.backward()
    return [p.grad.asnumpy() for p in params]


# %% [markdown]
# *Predict before you run*: five images on two workers are three and two. Is the sum of
# what they push the gradient of all five? And if each pushed the gradient of its *mean*
# loss and the server took the average, by how much would that miss the gradient of the
# mean of all five?

# %%
chapter.predict("% that the average of means is off", None)  # write your number
rng = numpy.random.default_rng(0)
X, y = rng.random((5, 1, 28, 28), numpy.float32), numpy.arange(5)
server = Server(num_workers=2)
for number, part in enumerate(shares(len(y), 2)):
    for key, gradient in enumerate(gradients(X[part], y[part])):
        server.push(key, gradient)
    if number == 0:
        try:
            server.pull(0)
        except RuntimeError as waits:
            print(waits)
pulled = [server.pull(key) for key in range(8)]
whole = gradients(X, y)
same = all(numpy.allclose(p, w, rtol=1e-3, atol=1e-6) for p, w in zip(pulled, whole))
print("sum of the pushes = whole batch:", same)
assert same

means = [gradients(X[part], y[part])[7] / len(y[part]) for part in shares(5, 2)]
off = abs(sum(means) / 2 - whole[7] / 5).max() / abs(whole[7] / 5).max()
chapter.answer("% that the average of means is off", round(100 * off))

# %% [markdown]
# **What you see.** The sum of what both push is the gradient of all five images. The
# average of means is another vector, because an image among three counts less than one
# among two.
#
# Then each worker takes the step p -= lr / 5 x sum on its own replicas. All received
# the same sum, so all replicas agree. Here are W workers and one device side by side,
# for three steps of a linear model that fits into a line:


# %%
def train(num_workers, num_steps=3, lr=0.1):
    w = [numpy.zeros(784) for _ in range(num_workers)]  # a replica per worker
    images, targets = X.reshape(5, 784).astype(float), y / 5
    for _ in range(num_steps):
        server = Server(num_workers)
        for number, part in enumerate(shares(5, num_workers)):
            error = images[part] @ w[number] - targets[part]
            server.push("w", images[part].T @ error)
        for number in range(num_workers):
            w[number] = w[number] - lr / 784 / 5 * server.pull("w")
    return w


(alone,) = train(1)
for num_workers in (2, 3, 6):
    replicas = train(num_workers)
    agree = all((w == replicas[0]).all() for w in replicas)
    gap = abs(replicas[0] - alone).max()
    print(f"{num_workers} workers: replicas agree {agree}, off one device by {gap:.0e}")

# %% [markdown]
# ## MXNet's server, for real
#
# Every process reads its role from its environment: one *scheduler* through which the
# others find each other, one *server* and two *workers*. `d2lpar launch` sets these
# variables; with `--print` it only prints them, for Slurm or another terminal. On the
# hosts of a `--hosts` file the roles are started over ssh.

# %%
port = launch.free_port("127.0.0.1")
roles = launch.plan(2, servers=1, arguments=["run", "multiple_machines"], port=port)
for role in roles:
    names = ("DMLC_ROLE", "D2LPAR_WORKER")
    print(f"{role.name}:", {n: v for n, v in role.environment.items() if n in names})

# %% [markdown]
# This is a worker's whole program. `dist_sync` is the server's side of an all-reduce:
# `pushpull` pushes a gradient and puts the sum of all workers in its place; like
# everything in MXNet it returns at once, and whoever reads the array waits.

# %%
WORKER = """
import sys, numpy
from d2lpar import autograd, get_params, gluon, init_lenet, lenet, mx, np
from d2lpar.parallel import shares

store = mx.kv.create("dist_sync")
rng = numpy.random.default_rng(0)
X, y = rng.random((5, 1, 28, 28), numpy.float32), numpy.arange(5)
part = shares(5, store.num_workers)[store.rank]
params = get_params(init_lenet(0.1, seed=0), mx.cpu(0))
with autograd.record():
    scores = lenet.lenet(np.array(X[part]), params)
    l = gluon.loss.SoftmaxCrossEntropyLoss()(scores, np.array(y[part]))
l.backward()
for key, p in enumerate(params):
    store.init(key, np.zeros_like(p.grad))
    store.pushpull(key, p.grad, out=p.grad)
print(f"worker {store.rank} of {store.num_workers}: {len(y[part])} images", flush=True)
numpy.savez(f"{sys.argv[1]}/{store.rank}.npz", *[p.grad.asnumpy() for p in params])
"""


def run_roles(folder):
    """Start all roles on this machine; what each worker pulled, after they ended."""
    processes = []
    for role in roles:
        command = role.command(sys.executable)
        if role.kind == "worker":
            command = [sys.executable, "-c", WORKER, folder]
        environment = {**os.environ, **role.environment}
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(command, env=environment, stdout=pipe, text=True)
        )
    try:
        printed = [p.communicate(timeout=100)[0] for p in processes]
        print(*sorted(printed), sep="", end="")
    finally:
        for process in processes:
            process.kill()  # if a worker failed, the others wait for it
    for number in range(2):
        with numpy.load(f"{folder}/{number}.npz") as file:
            yield [file[f"arr_{key}"] for key in range(8)]


if not mx.runtime.Features().is_enabled("DIST_KVSTORE"):
    print("skipped: this MXNet was built without the distributed kvstore")
else:
    with tempfile.TemporaryDirectory() as folder:
        for number, sums in enumerate(run_roles(folder)):
            pairs = zip(sums, whole)
            same = all(numpy.allclose(s, w, rtol=1e-3, atol=1e-6) for s, w in pairs)
            print(f"worker {number} pulled the gradient of the whole batch: {same}")
            assert same

# %% [markdown]
# **What you see.** Each worker pulled the gradient of the whole batch. The program
# contains no networking code and no locks. A training, which also hands out its first
# parameters in this way, has a trap: MXNet orders a push after the last pull of the
# *same array*. A first gradient may overtake the first pull of a parameter, and a slow
# worker then receives a sum of gradients as its weights, without an error. The package
# waits there, and has a test that finds the wrong weights otherwise ([several
# machines](../docs/several-machines.md)).
#
# ## What travels
#
# *Predict before you run*: LeNet has 129,068 parameters in float32. At a global batch
# of 256 an epoch has 235 steps. Which is more, an epoch of Fashion-MNIST's images, or
# what two workers and a server send meanwhile? How long does a step's traffic take at 1
# Gbit/s, each way?

# %%
chapter.predict("ms of traffic each way", None)
num_bytes = sum(p.size for p in init_lenet()) * 4
per_epoch = 235 * 2 * 2 * num_bytes  # steps x workers x (push and pull)
print(f"a push or a pull: {num_bytes / 1e6:.2f} MB; an epoch: {per_epoch / 1e6:.0f} MB")
print(f"the images of an epoch: {60_000 * 784 / 1e6:.0f} MB")
milliseconds = 2 * num_bytes * 8 / 1e6
print("a step, at the server's link of 1 Gbit/s:")
chapter.answer("ms of traffic each way", milliseconds)

# %% [markdown]
# **What you see.** Two workers and a server send several times as much as the images of
# an epoch. The server's link carries every worker's gradients: with more workers it is
# the limit, and more servers share the keys.
#
# Compare the traffic with the work. On two contexts of an AMD EPYC an epoch of 235
# steps takes 13.6 s ([table](../figures/README.md)), a step `13.6 s / 235 = 58 ms`. A
# second machine could save half of that, 29 ms, and costs the traffic printed above. On
# machines twice as fast it would cost more than it saves.
#
# A ring needs no server: every worker sends `2 (N - 1) / N` gradients to its neighbour,
# and no link carries more than another (chapter 1). A parameter server can lose a
# worker, take uneven parts and update without waiting; a ring needs all of its members
# at every step.
#
# ## Two bits per number
#
# `--compress T` pushes -T, 0 or T for each number, and keeps the rest, which is added
# to the gradient of the next step.
#
# *Predict before you run*: the threshold is 0.5. What arrives per step of a gradient of
# 0.02, on the mean of 100 steps, and of one of 0.9?


# %%
def compressed(gradient, rest, threshold):
    """What is pushed, in 2 bits per number, and the rest."""
    gradient = gradient + rest
    pushed = numpy.where(
        abs(gradient) >= threshold, threshold * numpy.sign(gradient), 0
    )
    return pushed, gradient - pushed


chapter.predict("0.02 arrives as", None)
chapter.predict("0.9 arrives as", None)
steady, rest, arrived = numpy.array([0.02, -0.3, 0.9]), numpy.zeros(3), numpy.zeros(3)
for step in range(1, 101):
    pushed, rest = compressed(steady, rest, threshold=0.5)
    arrived += pushed
    if step in (1, 2, 10, 100):
        print(f"after {step:3} steps of {steady}: {arrived / step} per step arrived")
chapter.answer("0.02 arrives as", arrived[0] / 100)
chapter.answer("0.9 arrives as", arrived[2] / 100)
chapter.score()

# %% [markdown]
# **What you see.** A gradient that is small and steady arrives in rare, large pieces:
# late, but not lost. One that is larger than the threshold never arrives in full: 0.9
# comes as 0.5 in every step, and the rest piles up. What workers pull is not
# compressed, so the traffic halves at most.
#
# **Or do not wait.** With `--kvstore dist_async` the server updates at each push: no
# worker waits, gradients are of older parameters, and no two runs are the same.
#
#     d2lpar launch --compress 0.5 -- run multiple_machines
#     d2lpar launch --kvstore dist_async -- run multiple_machines
#
# ## When a process dies
#
# The other processes would deadlock in `pushpull`, because the sum never completes. The
# launcher therefore monitors all processes; if one dies, it stops the rest and restarts
# everything from the last checkpoint. With two workers the result is the same to the
# bit.
#
# ## Three ways to share, measured
#
# `d2lpar launch` trains on several workers. As a script or a notebook this chapter
# trains the same on 1, 2, ... devices of one process, without a server: that is what
# several workers have to beat.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_machines")

# %% [markdown]
# **What you see.** One process, whose training is chapter 5's. Here are two workers and
# a server on one machine, for 10 epochs with the book's recipe and three seeds each:
#
# | [record](../figures/README.md) | sent per epoch | seconds per epoch | accuracy |
# |---|---|---|---|
# | sums (`dist_sync`) | 487 MB | 16.3 | 0.811, 0.798, 0.843 |
# | 2 bits per gradient | 260 MB | 17.1 | 0.818, 0.838, 0.830 |
# | `dist_async` | 487 MB | 13.5 | 0.835, 0.847, 0.841 |
#
# ![Three ways to share](../figures/multiple_machines/book-2workers-sharing.png)
#
# The sums send what was computed above. Two bits per gradient send more than half of
# it, because only the pushes are compressed, and save no time on one machine, where
# sending costs little. Not waiting saves a sixth. Neither makes this training worse;
# but three seeds of one recipe do not show that inexact gradients are better.
#
# ## Summary
#
# > **Takeaway.** A step sends 2 x workers x parameters x 4 bytes through the server: `2
# > * 2 * 516,272 * 235 = 485e6` bytes in an epoch of two workers; 487 MB were counted
# > ([record](../figures/README.md)).
#
# - A parameter server is an all-reduce through a process of its own: push, sum, pull.
# - Push gradients of summed losses, and divide once by the global batch. Then uneven
#   and empty parts need no special case.
# - The traffic of a step does not depend on the batch: with larger batches a second
#   machine gains more.
# - A synchronous sum waits for everybody, so somebody must watch.
#
# ## Exercises
#
# 1. *On paper.* Eight workers, a link of 10 Gbit/s at the server, gradients of 0.5 MB.
#    How long does a step's traffic take each way, and how long in a ring of the eight?
#    *(`8 * 0.5e6 * 8 / 10e9 = 3.2 ms`. In a ring `2 * 7 / 8 * 0.5e6 * 8 / 10e9 = 0.7
#    ms`, push and pull together.)*
# 2. **Three workers.** Plan three, and start them. *(They take 2,
#    2 and 1 images and pull the same sums.)*
# 3. **An average instead of a sum.** Let `pull` divide by the number of workers, and
#    leave the rest. *(The gradient divided by two: every step is half
#    as long. Dividing by one worker's batch instead of the global batch would
#    compensate, but only if all parts have the same size.)*
# 4. **The threshold.** Send `steady` for 100 steps with thresholds of 5, 0.5 and 0.05.
#    *(5 sends the 0.9 in full and nothing yet of the 0.02. A threshold of 0.05 sends
#    the 0.02 in full and only 0.05 of the others: a threshold below the gradients makes
#    all of them alike.)*
# 5. *On paper.* **When is a second machine faster?** Take `58 ms` for a batch of 256 on
#    one machine, half of it on two, and the traffic from above at 1 Gbit/s, the push
#    and the pull. *(The traffic does not depend on the batch, the saving grows with it:
#    from `256 * 16.5 / 29 = 146` images on with pushes and pulls that overlap, and a
#    tenth of that at 10 Gbit/s.)*
# 6. **Kill a worker.** Start `d2lpar launch --workers 2 -- run multiple_machines`, and
#    end one worker's process from another terminal (`kill -9`). *(The launcher says
#    which one was killed, restarts all from the last checkpoint ("restart 1 of 3"), and
#    ends with the accuracy of an undisturbed run.)*

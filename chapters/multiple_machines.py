# %% [markdown]
# # Several machines: a parameter server
#
# How do several machines train *one* network, and when does a second machine pay?
# According to *Dive into Deep Learning* (d2l) [1], three GPUs need **60 ms** to send
# gradients of 160 MB to a fourth one over links of 16 GB/s and to receive the sums. If
# each of the four adds up a quarter of the numbers, this takes 15 ms.
#
# ![Workers push their gradients to a server and pull the
# sums](../docs/drawings/parameter-server.svg)
#
# **In one sentence.** Workers push gradients to a server and pull the sums, and a
# second machine pays only if half of a step takes longer than this traffic.
#
# MXNet divides the roles: *workers* compute gradients, and *servers* sum them. In this
# chapter we write a server in a few lines, start MXNet's own server with two workers,
# and count what is sent over the network. Then we compare two workers with one process,
# with compressed gradients, and with workers that do not wait for each other.
#
# Run this chapter as a notebook, or `python chapters/multiple_machines.py --num-devices
# 1,2`. The workers of a whole training are started by `d2lpar launch --workers 2 -- run
# multiple_machines`.

# %%
import inspect
import math
import sys
import tempfile
from statistics import median
from textwrap import fill

import numpy
from matplotlib.figure import Figure

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
from d2lpar.records.comparison import (
    arm_times,
    final_accuracy,
    phrase,
    seconds_per_epoch,
    summarize,
)
from d2lpar.records.kinds import timed_epochs
from d2lpar.workers.launch import launch

one = devices.parse("cpu:1")

# %% [markdown]
# ## A part of each batch for each worker
#
# All workers go through the same batches, drawn from the same random seed. Worker k
# takes a contiguous part of each batch and splits it over its own devices as before. In
# a small batch, a part can be empty.

# %%
for batch in (5, 2):
    parts = [list(range(batch))[part] for part in shares(batch, 3)]
    print(f"a batch of {batch} on three workers:", parts)

# %% [markdown]
# ## The server sums
#
# A worker *pushes* the gradient of the *sum* of its samples' losses, not of their mean.
# The server adds up what arrives under a key, which names a parameter. It replies to a
# *pull* once all workers have pushed. Push and pull together are an all-reduce
# (Chapter 1) through a separate process.


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
# Two workers take three and two of five images. The sum of their pushes is the gradient
# of all five, since a gradient is linear in the losses.
#
# *Predict before you run*: suppose that each worker pushed the gradient of its *mean*
# loss, and the server averaged both means. How large would the error be, as a share of
# the length of the gradient of the mean loss of all five?

# %%
chapter.predict("% that the average of means is off", None)  # write your number
rng = numpy.random.default_rng(0)
X, y = rng.random((5, 1, 28, 28), numpy.float32), numpy.arange(5)
server, means = Server(num_workers=2), []
for number, part in enumerate(shares(len(y), 2)):
    pushed = gradients(X[part], y[part])
    for key, gradient in enumerate(pushed):
        server.push(key, gradient)
    means.append([gradient / len(y[part]) for gradient in pushed])
    if number == 0:
        try:
            server.pull(0)
        except RuntimeError as waits:
            print(waits)
pulled, whole = [server.pull(key) for key in range(8)], gradients(X, y)
same = all(numpy.allclose(p, w, rtol=1e-3, atol=1e-6) for p, w in zip(pulled, whole))
print("sum of the pushes = whole batch:", same)
assert same


def joined(arrays):
    return numpy.concatenate([numpy.ravel(a) for a in arrays])


mean = joined(whole) / 5
error = (joined(means[0]) + joined(means[1])) / 2 - mean
off = numpy.linalg.norm(error) / numpy.linalg.norm(mean)
chapter.answer("% that the average of means is off", 100 * off)

# %% [markdown]
# The average of both means weights an image by 1/6 in the larger part and by 1/4 in the
# smaller part, instead of 1/5. With the sums S1 and S2 of the parts, the error is
# `(S2 / 2 - S1 / 3) / 10`, a tenth of the difference between the mean gradients. It is
# 0 only if they are the same. How could one have estimated it? If both mean gradients
# have the same length and are perpendicular, the error is `sqrt(2) / 10 = 0.14` of this
# length, and the gradient is `sqrt(0.6**2 + 0.4**2) = 0.72` of it. The share is then
# `0.14 / 0.72 = 20 %`. A larger share means that the gradients partly cancel, or that
# their lengths differ.
#
# With the right sums each worker takes the step `p -= lr / 5 * sum` on its own
# replicas. All receive the same sum, so all replicas agree. We compare several workers
# with one device in three steps of a linear model.


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
    assert agree and gap < 1e-12

# %% [markdown]
# ## MXNet's server
#
# MXNet needs one process per role, and each reads its role from its environment. One
# *scheduler* introduces the processes to each other, one *server* sums, and two
# *workers* train. On several machines srun or mpirun sets the variables. On this
# machine `launch` sets them.

# %%
clone = chapter.record("benchmarks/workers.jsonl").path.parents[2]
worker = clone / "teaching" / "frameworks" / "worker.py"
print(inspect.getsource(launch).partition("try:")[0])

# %% [markdown]
# The next cell prints the program of a worker and starts it twice, beside a scheduler
# and a server. `mx.kv.create("dist_sync")` connects it to the server. `pushpull` pushes
# a gradient and replaces it by the sum over all workers. The call is asynchronous; the
# first read of the array blocks.

# %%
print(worker.read_text(encoding="utf-8").partition('"""\n\n')[2])

if not mx.runtime.Features().is_enabled("DIST_KVSTORE"):
    print("skipped: this MXNet was built without the distributed kvstore")
else:
    folder = tempfile.TemporaryDirectory()
    launch([sys.executable, str(worker), folder.name], workers=2)
    for number in range(2):
        with numpy.load(f"{folder.name}/{number}.npz") as file:
            sums, images = [file[f"arr_{key}"] for key in range(8)], file["images"]
        pairs = zip(sums, whole)
        same = all(numpy.allclose(s, w, rtol=1e-3, atol=1e-6) for s, w in pairs)
        print(f"worker {number}: {images} images; its sum is the whole batch's: {same}")
        assert same
    folder.cleanup()

# %% [markdown]
# The program contains no networking code and no locks. Real training has a pitfall,
# however, because the initial parameters are distributed in the same way. MXNet orders
# a push after the last pull of the *same array*, so a first gradient can overtake the
# first pull of a parameter. A slow worker then receives a sum of gradients as its
# weights, without an error. In the package all workers therefore begin with the same
# parameters by their seed, and none is sent.
#
# ## The traffic
#
# In each step a worker pushes 129,068 numbers and pulls the same number. This traffic
# does not depend on the batch.
#
# *Predict before you run*: how many milliseconds do the pushes of two workers occupy a
# server's link of 1 Gbit/s?

# %%
chapter.predict("ms of traffic each way", None)
num_bytes = sum(p.size for p in init_lenet()) * 4
per_epoch = 235 * 2 * 2 * num_bytes  # steps x workers x (push and pull)
print(f"a push or a pull: {num_bytes / 1e6:.2f} MB; an epoch: {per_epoch / 1e6:.0f} MB")
print(f"the images of an epoch: {60_000 * 784 / 1e6:.0f} MB")
each_way = 2 * num_bytes * 8 / 1e6
chapter.answer("ms of traffic each way", each_way)

# %% [markdown]
# Two gradients of `129,068 * 32` bits occupy the link for `8.26e6 / 1e9` seconds, and
# the pulls do the same in the other direction. In an epoch this adds up to ten times
# the bytes of the images. The link of the server carries the gradients of all workers,
# except of a worker on its own machine. With N workers, one of them there, `N - 1`
# gradients cross the link each way.
#
# If each of the N machines also runs a server for one N-th of the numbers, as each of
# d2l's four GPUs does, a link carries `2 (N - 1) / N` gradients each way, push and pull
# together. A ring (Chapter 7) has the same traffic without a server. With `dist_sync`
# and with a ring each step needs all workers, and both can sum uneven parts.
#
# ## When does a second machine pay?
#
# A second machine saves at most half of the time of a step and adds the traffic. If
# pushes and pulls overlap, only one direction counts. The place of the server
# determines how many gradients cross a link. If the server is on the machine of the
# first worker, one gradient crosses each way. To and from a server on a third machine
# two gradients cross. We take the step from a record of one
# process with two contexts of an AMD EPYC
# ([record](../figures/seeds/multiple_gpus_concise/book-cpu2.jsonl)).

# %%
run = chapter.record("seeds/multiple_gpus_concise/book-cpu2.jsonl")
epoch = summarize([epoch.seconds for epoch in timed_epochs(run)]).median
step = 1e3 * epoch / 235
print(f"{epoch:.1f} s per epoch", end=", ")
print(f"{step:.0f} ms per step; a second machine saves {step / 2:.0f} ms at most")
for server, crossing in (("beside worker 0", 1), ("on a third machine", 2)):
    traffic = crossing * num_bytes * 8 / 1e6
    one_way, both_ways = (256 * t / (step / 2) for t in (traffic, 2 * traffic))
    print(f"server {server}: {traffic:.1f} ms each way, break-even at", end=" ")
    print(f"{both_ways:.0f} images,\n    or {one_way:.0f} if both overlap")

# %% [markdown]
# The saving grows with the batch and the traffic does not, so the break-even is where
# both are equal. We assume that the time of a step is proportional to the batch. We
# neglect the latency of the network and the work of the server, which move the
# break-even up. A training that hides part of the traffic behind the backward pass
# moves it down. On machines that are twice as fast the saving is halved, and the
# break-even doubles.
#
# What does a server cost on a *single* machine, where it saves no time? A record of
# version 0.2 has one process and two workers, each with the same number of threads in
# all. In its third row one process also writes checkpoints.

# %%
record = chapter.record("benchmarks/workers.jsonl")
arms = {(a.work, a.name): a.summary for a in arm_times(record)}
names = ("1 process, 2 contexts", "2 workers", "the same, checkpoint every epoch")
for batch in ("256", "2,048"):
    for name in names:
        seconds = arms[f"an epoch of 60,000 images, batch {batch}", name]
        print(f"batch {batch:5} {name:33}{seconds} s")

# %% [markdown]
# Each row has three processes, too few for the rule of Chapter 4. The last row shows
# how little three epochs tell: its process does more work, but with 2,048 images all
# three of its epochs are *shorter*. The record therefore does not measure the cost of a
# server, whose purpose is several machines.
#
# ## Two bits per number
#
# With MXNet's `set_gradient_compression` and a threshold T a worker pushes -T, 0 or T
# for each number. It keeps the rest and adds it to the gradient of the next step.
#
# *Predict before you run*: the threshold is 0.5. What arrives per step, on average over
# 100 steps, of a gradient of 0.02, and of one of 0.9?


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
# A small and steady gradient is transmitted as occasional large updates: delayed, but
# not lost. A steady gradient above the threshold never arrives in full. At most 0.5 is
# sent per step, so 0.9 arrives as 0.5 and the rest grows. The pulled sums are not
# compressed, so the traffic is halved at best.
#
# ## Not waiting
#
# With the key-value store `dist_async` the server updates the parameters at each push,
# and no worker waits for another. In the next cell two workers take eight steps of
# random length. With `dist_sync`, each step lasts as long as its slower worker.

# %%
lengths = numpy.random.default_rng(3).uniform(0.5, 1.5, size=(2, 8))
starts = {
    "async": lengths.cumsum(axis=1) - lengths,
    "sync": numpy.tile(lengths.max(axis=0).cumsum() - lengths.max(axis=0), (2, 1)),
}
figure = Figure(figsize=(6.5, 2), layout="constrained")
axes, labels = figure.subplots(), []
for way, begin in starts.items():
    print(f"{way}: the last worker ends after {(begin + lengths).max():.1f}")
    for worker in (0, 1):
        bars = list(zip(begin[worker], lengths[worker]))
        axes.broken_barh(bars, (len(labels) - 0.4, 0.8), ec="white", fc="#0072B2")
        labels.append(f"{way}, worker {worker}")
axes.set_yticks(range(4), labels)
axes.set_xlabel("time; white: waiting")
chapter.show(figure, "workers")

# %% [markdown]
# Without waiting, the end is the larger of two sums of lengths. With waiting, it is the
# sum of the larger lengths, which cannot be smaller.
#
# What does it cost not to wait? A worker's gradient is then of older parameters,
# because the other worker has changed them in the meantime. With two equally fast
# workers it is one step old, with N workers N - 1. Old gradients limit the learning
# rate. We minimise `w^2 / 2` with gradients that are some steps old, and compare with a
# limit from the theory of delayed difference equations.


# %%
def distance_after(steps, lr, age):
    """|w| after some steps from w = 1, each with the gradient of `age` steps before."""
    history = [1.0] * (age + 1)
    for _ in range(steps):
        history.append(history[-1] - lr * history[-1 - age])
    return abs(history[-1])


for age in (0, 1, 4, 16):
    limit = 2 * math.sin(math.pi / (4 * age + 2))
    below, above = (distance_after(3_000, f * limit, age) for f in (0.9, 1.1))
    print(f"gradients {age:2} steps old: limit {limit:.3f}", end=", ")
    print(f"|w| = {below:.0e} below it, {above:.0e} above it")
    assert below < 1e-5 < 1e4 < above

# %% [markdown]
# The steps converge below the limit `2 * sin(pi / (4 * age + 2))` and diverge above it,
# here at `0.9 * limit` and `1.1 * limit`. For old gradients the limit is close to
# `pi / (2 * age + 1)`. The age is about the number of workers, so twice as many workers
# need about half of the learning rate, if they are many. In addition, the order of the
# pushes depends on time, so two asynchronous runs can differ.
#
# Let us compare the three ways with records of two workers and a server on one machine
# of two cores, with three seeds each, by version 0.5, which had all three
# ([picture](../figures/multiple_machines/sharing.png)). Each worker had two threads, so
# the workers competed for the cores.

# %%
ways = {"dist_sync": "", "2 bits per gradient": "-2bit", "dist_async": "-async"}
seconds, sent = {}, {}
for way, suffix in ways.items():
    names = [f"book{seed}-2workers{suffix}-cpu2" for seed in ("", "-seed1", "-seed2")]
    runs = [chapter.record(f"multiple_machines/{name}.jsonl") for name in names]
    epochs = [epoch for run in runs for epoch in timed_epochs(run)]
    seconds[way] = seconds_per_epoch(*runs)
    sent[way] = median(epoch.wire_bytes for epoch in epochs) / 1e6
    accuracies = ", ".join(f"{final_accuracy(run):.3f}" for run in runs)
    print(f"{way:19} {sent[way]:.0f} MB and {seconds[way]} s per epoch,")
    print(f"{'':19} accuracy {accuracies}")
for way in ("2 bits per gradient", "dist_async"):
    print(fill(phrase(way, seconds[way], "dist_sync", seconds["dist_sync"]), 88))

# %% [markdown]
# The sums send what we have computed above. Two bits per gradient send more than half
# of it, since only the pushes are compressed. The rule does not tell whether they save
# time, and the median is higher. Not waiting is faster, by more than equal runs differ.
#
# Compare the accuracies only as ranges of three seeds. Where ranges overlap, the
# records do not show which way trains better.
#
# ## When a process dies
#
# A synchronous sum blocks if one process dies. `d2lpar launch` monitors all processes.
# If one dies, it ends the rest. With `--checkpoint-every 1` the same launch continues
# from the last epoch, if it is given the checkpoint as `--resume`.
#
# ## One process
#
# Finally, we train in one process on 1, 2, ... devices, as in Chapter 5. Several
# workers pay only if they are faster than this run.

# %%
if __name__ == "__main__":
    runs = chapter.measure("multiple_machines")

# %% [markdown]
# ## Summary
#
# > **Takeaway.** A step sends `2 * workers * parameters * 4` bytes through the server.
# > The workers on other machines send their part over its link. A second machine pays
# > if half of a step takes longer than the traffic that is not hidden, so it pays with
# > large batches first.
#
# A parameter server is an all-reduce through a separate process: push, sum, pull.
# Workers push gradients of summed losses and divide once by the global batch, so uneven
# and empty parts need no special case. Compression reduces the pushes only. Workers
# that do not wait for each other finish sooner, but their gradients are older, and the
# learning rate must allow it.
#
# ## Exercises
#
# 1. *On paper.* Eight workers have gradients of 0.5 MB, and the server has a link of 10
#    Gbit/s. How long does a step's traffic take each way, and how long in a ring of the
#    eight? *(`8 * 0.5e6 * 8 / 10e9 = 3.2 ms`. In a ring
#    `2 * 7 / 8 * 0.5e6 * 8 / 10e9 = 0.7 ms`, push and pull together.)*
# 2. **Three workers.** Launch three. Which sums do they pull? *(They take
#    2, 2 and 1 images and pull the same sums as before, up to rounding.)*
# 3. **An average instead of a sum.** Let `pull` divide by the number of workers and
#    leave the rest. *(The gradient is divided by W, so each step is 1 / W as long.
#    Dividing by one worker's batch instead of the global batch would compensate only if
#    all parts have the same size.)*
# 4. **The threshold.** Send `steady` for 100 steps with thresholds of 5, 0.5 and 0.05.
#    *(A threshold of 5 sends 0.9 on average, and nothing yet of 0.02. A threshold of
#    0.05 sends 0.02, and only 0.05 of the larger gradients. A threshold below all
#    gradients makes them equal.)*
# 5. *On paper.* **Break-even.** A step of 256 images takes s ms on one machine, half of
#    it on two, and a gradient of LeNet takes g ms at 1 Gbit/s. From which batch on is a
#    second machine faster if the server is beside worker 0? *(If push and pull follow
#    each other, from `256 * 2 g / (s / 2) = 1,024 g / s` images on, with `g = 4.13`. If
#    they overlap, from half of that. At 10 Gbit/s it is a tenth of either. We have
#    assumed that a step is proportional to its batch.)*
# 6. **Kill a worker.** Start `d2lpar launch --workers 2 -- run multiple_machines
#    --checkpoint-every 1` and end one worker's process from another terminal
#    (`kill -9`). *(The launcher names the worker and ends. Started again with
#    `--resume`, it ends with the accuracy of an undisturbed run.)*
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Parameter Servers",
#   <https://d2l.ai/chapter_computational-performance/parameterserver.html>
# - Li et al., "Scaling Distributed Machine Learning with the Parameter Server",
#   <https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu>

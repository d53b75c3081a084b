# %% [markdown]
# # When does a second device pay?
#
# In Chapter 1 two devices computed the parameters of one device, up to rounding. From
# which batch size on do they compute them *faster*?
#
# ![Speed of a step in Gluon on two devices over one, by batch size, on cores and on
# GPUs](../figures/multiple_gpus/two-devices.png)
#
# **In one sentence.** If devices share neither cores nor memory bandwidth, a second
# device pays as soon as the computation that it saves takes longer than the all-reduce
# and Python's extra work.
#
# With batches of 256 images, an epoch took the authors of *Dive into Deep Learning*
# (d2l) [1] 1.8 s on one V100 GPU and **2.5 s on two**. In our records of Gluon, a
# second core pays from 32 images on, and a second GPU from 2,048 on.
#
# Run this chapter as a notebook, or as `python chapters/scaling.py --num-devices 1,2`.

# %%
import json
import time
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import median
from textwrap import fill

from matplotlib.figure import Figure

from d2lpar import chapter, devices, init_lenet, mx, np, npx
from d2lpar.lenet import train_batch
from d2lpar.parallel import allreduce, get_params
from d2lpar.records.rule import compare_all, of_turns
from d2lpar.scaling.model import studies
from d2lpar.scaling.result import pays_from, speedups

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
GPUS = "gpus"  # the folder of figures/ with the records of two GPUs

# %% [markdown]
# ## A lower and an upper bound
#
# ![Timelines of three training steps, on one device and on two, with a small and with a
# large batch](../docs/drawings/step-costs.svg)
#
# While the devices compute, Python issues the next operations. With a small batch
# (above), Python needs more time than the devices, and twice that time for two devices.
# With a large batch (below), the devices need more time, and they share the images. Let
# `one(b)` be the time of a step on a *single* device with b images. A step with B
# images has three parts:
#
# | part of a step | one device | N devices |
# |---|---|---|
# | Python issues the operators | `python` | `N * python` |
# | the devices run the forward and backward pass | `one(B)` | `one(B / N)` |
# | the gradients are summed | 0 | `all_reduce` |
#
# MXNet calls are asynchronous (Chapter 4). At best Python and the devices overlap
# completely, and the slower one determines the time. At worst they take turns, and the
# all-reduce is added:
#
#     max(N * python, one(B / N))  <=  step  <=  N * python + one(B / N) + all_reduce
#
# We call this range a *bracket* [2]. The model assumes that the devices share nothing,
# and that Python has a core to itself. Two GPUs with an idle host fulfil this. Two CPU
# contexts share caches and memory. We test the model with three records.
#
# *Predict before you run*: how many times as long as for one GPU does Python need to
# issue a step for two GPUs, in Gluon?
#
# *Predict before you run*: do most steps of Gluon on two cores lie below, inside or
# above their bracket?


# %%
def break_even(speedup_by_batch):
    """The largest batch with a slower second device, and from which on it pays."""
    slower = [b for b, speedup in speedup_by_batch.items() if speedup and speedup < 1]
    pays = pays_from(speedup_by_batch)
    return f"above {max(slower, default=0):,}" + (f", at most {pays:,}" if pays else "")


chapter.predict("times Python's time for two GPUs", None)  # a number for None
chapter.predict("steps on two cores: below, inside or above", None)  # a word
for name, path in {
    "two cores, in Gluon": "scaling/book-1thread-concise-cpu2.jsonl",
    "two cores, from scratch": "scaling/book-1thread-scratch-cpu2.jsonl",
    "two GPUs, in Gluon": f"{GPUS}/scaling/book-1thread-concise-gpu2.jsonl",
}.items():
    (study,) = studies([chapter.record(path)])
    python, places = {1: [], 2: []}, Counter()
    for (n, batch), of_processes in study.records.items():
        python[n] += [s for step in of_processes for s in step.issue_seconds]
        low, high = study.bracket(2).get(batch, (None, None))
        if n == 2 and low:
            took = study.steps[n, batch]
            place = "below" if took < low else "above" if took > high else "inside"
            places[place] += 1
    twice = median(python[2]) / median(python[1])
    print(f"{name}: Python needs {twice:.2f} times as long;", end=" ")
    print(*(f"{places[p]} {p}" for p in ("below", "inside", "above")), sep=", ")
    print(f"    break-even: {break_even(speedups(study, 2))} images")
    if name == "two cores, in Gluon":
        most = max(places, key=places.get)
chapter.answer("steps on two cores: below, inside or above", most)
chapter.answer("times Python's time for two GPUs", twice)

# %% [markdown]
# Two GPUs have twice as many operators, so we expect a factor of about 2.
#
# On the GPUs no step lies above its bracket, so the upper end is a safe estimate. The
# cores do not fulfil the condition. There all steps in Gluon lie above their brackets.
# From scratch some steps lie above and some below.
#
# The *break-even* is the batch size at which two devices are as fast as one. It lies
# between the largest batch with which they are slower and the batch from which on they
# are always faster, both by Chapter 4's rule.
#
# ## One device and two
#
# Now we time our functions of Chapter 1 on your machine. `time_step` returns the time
# of a step, and the time that Python needs to issue it. The bracket of two devices
# needs both for one device with half of the batch.


# %%
def time_step(chosen, batch_size, steps=4):
    X = np.random.uniform(size=(batch_size, 1, 28, 28), ctx=chosen[0])
    y = np.arange(batch_size, ctx=chosen[0]) % 10
    device_params = [get_params(init_lenet(), device) for device in chosen]
    for _ in range(2):  # the first series warms up
        npx.waitall()
        start, python = time.perf_counter(), 0.0
        for _ in range(steps):
            begin = time.perf_counter()
            train_batch(X, y, device_params, chosen, lr=1e-3)
            python += time.perf_counter() - begin
        npx.waitall()
    return 1e3 * (time.perf_counter() - start) / steps, 1e3 * python / steps


def time_all_reduce():
    """Milliseconds to sum arrays of the shapes of LeNet's gradients."""
    replicas = [get_params(init_lenet(), device) for device in two]
    npx.waitall()
    start = time.perf_counter()
    for arrays in zip(*replicas):
        allreduce(list(arrays))
    npx.waitall()
    return 1e3 * (time.perf_counter() - start)


sizes = [2, 4, 8, 16, 32, 64, 128]
found = {(n, batch): [] for batch in sizes for n in (1, 2)}
for turn in range(5):
    for n, batch in found if turn % 2 == 0 else reversed(found):
        found[n, batch].append(time_step(two[:n], batch))
all_reduce = median(time_all_reduce() for _ in range(15))

pairs = {}
print("batch   one ms   two ms   bracket of two")
for half, batch in zip(sizes, sizes[1:]):
    one, both = ([ms for ms, _ in found[n, batch]] for n in (1, 2))
    of_half, python = (median(of_each) for of_each in zip(*found[1, half]))
    low, high = max(2 * python, of_half), 2 * python + of_half + all_reduce
    print(f"{batch:5} {median(one):8.1f} {median(both):8.1f} {low:8.1f}, {high:5.1f}")
    pairs[batch] = of_turns(one), of_turns(both)
said = chapter.verdict(one, both, ("one device", "two"), "ms")
print(fill(f"128 images: {said}", 88))
told = zip(pairs, compare_all(list(pairs.values())))  # one allowance for all batches
by_batch = {batch: c.ratio if c.is_told else None for batch, c in told}
print(f"break-even: {break_even(by_batch)} images")

# %% [markdown]
# ## Inside one step
#
# MXNet's profiler records when each operator begins and ends. We trace a step with a
# small and with a large batch. The sum waits for the *straggler*, the device whose
# gradients are ready last.

# %%
SUMS = ("CopyCPU2CPU", "_npi_add")  # what an all-reduce does on CPU contexts


def traced(step):
    """The fastest of 8 steps: (ms, Python's ms, [(operator, device, begin, end)])."""
    taken = []
    for _ in range(8):
        npx.waitall()
        begin = 1e3 * time.time()
        step()
        python = 1e3 * time.time() - begin
        npx.waitall()
        taken.append((1e3 * time.time() - begin, python, begin))
    return min(taken)


mx.profiler.set_config(profile_all=True, filename="profile.json")  # once per process
mx.profiler.set_state("run")
fastest = []
for batch in (16, 512):
    X = np.random.uniform(size=(batch, 1, 28, 28), ctx=two[0])
    y = np.arange(batch, ctx=two[0]) % 10
    replicas = [get_params(init_lenet(), device) for device in two]
    fastest.append(traced(partial(train_batch, X, y, replicas, two, lr=1e-3)))
mx.profiler.set_state("stop")
mx.profiler.dump()
events = json.loads(Path("profile.json").read_text())["traceEvents"]
Path("profile.json").unlink()
places = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
lanes = ["Python", *(f"{device.device_type}/{device.device_id}" for device in two)]
begins, ends = ([e for e in events if e["ph"] == phase] for phase in "BE")
figure = Figure(figsize=(8, 4.4), layout="constrained")
for axes, (ms, python, start) in zip(figure.subplots(2), fastest):
    axes.barh(0, python, color="0.4")
    ready = dict.fromkeys(lanes[1:], 0.0)  # when a device's own gradients are ready
    for b, e in zip(begins, ends):
        place, begin, end = places[b["pid"]], *(x["ts"] / 1e3 - start for x in (b, e))
        if place in ready and 0 < begin < ms and b["name"] != "DeleteVariable":
            color = "C2" if b["name"] in SUMS else "C0"
            axes.barh(lanes.index(place), end - begin, left=begin, color=color)
            if "onvolution" in b["name"]:  # the first layer's backward pass comes last
                ready[place] = max(ready[place], end)
    axes.set_yticks(range(3), lanes)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds; green: copies and sums")
    straggler = max(ready, key=ready.get)
    print(
        f"{ms:.1f} ms, Python busy for {python / ms:.0%}; {straggler} is the", end=" "
    )
    print(
        f"straggler, {max(ready.values()) - min(ready.values()):.1f} ms after the other"
    )
chapter.show(figure, "one-step")

# %% [markdown]
# With 16 images, look for gaps, in which a device waits for Python or for the other
# device. With 512 images, Python's bar ends early, and the devices compute side by
# side. Profiling slows execution down, so read the order and not the times.
#
# ## From the bracket to a decision
#
# If the bracket holds, two devices **cannot** pay where even its lower end is above the
# time of one device. They are **certain** to pay where even its upper end is below:
#
#     cannot pay:      max(N * python, one(B / N)) >= one(B)
#     certain to pay:  N * python + one(B / N) + all_reduce < one(B)
#
# We can therefore make a second device pay with a smaller batch in four ways: compile
# the network (Chapter 5), hide the all-reduce (Chapter 7), train a larger network, or
# remove the factor N from `N * python`. PyTorch's DistributedDataParallel (DDP) removes
# it. It starts one process per GPU, which issues the work of this GPU only.
#
# The first table has the milliseconds of a step of 256 images. The second table has DDP
# on one, two and four H200s.
#
# *Predict before you run*: how many times as fast as one H200 are four with a batch of
# 8,192?

# %%
chapter.predict("speedup of four H200s, batch 8,192", None)
no_graph = f"{GPUS}/no_graph/multiple_gpus_concise/book-gpu"
chapter.table(
    f"{GPUS}/peers/one/custom-gpu1.jsonl",
    f"{GPUS}/peers/two/custom-gpu2.jsonl",
    *(f"{no_graph}{n}.jsonl" for n in (1, 2)),
    per=235,
    unit="ms",
)
print()
names = [f"gpu_scaling/book-ddp-gpu{n}.jsonl" for n in (1, 2, 4)]
ddp = chapter.table(*names, unit="ms")
large = ddp["PyTorch DDP, batch 8,192"]
chapter.answer("speedup of four H200s, batch 8,192", large[1].median / large[4].median)

# %% [markdown]
# Compare times within a row, where one GPU and two run the same program.
#
# A *CUDA graph* removes most of `python`, because the driver replays a whole pass that
# it has recorded. "d2lpar concise" uses graphs, and the last row is the same training
# without them. Never compare one GPU with a graph and two GPUs without. One difference
# remains: from 256 images per GPU on, a graph computes biases as weights.
#
# A larger network has more work per operator. ResNet-18 with 256 images takes
# [0.60 times] as long on two H100s as on one (one training each, Chapter 5).
#
# [0.60 times]: ../figures/gpus/benchmarks/resnet18.jsonl
#   "2 GPUs, batch 256, lr 0.1 / 1 GPU, batch 256, lr 0.1"
#
# In the upper rows of the second table the time does not grow with the batch. It is not
# spent on arithmetic, so more GPUs cannot reduce it.
#
# ## Your devices
#
# Finally, we time the package's trainings, which sum all gradients as one array.

# %%
if __name__ == "__main__":
    runs = chapter.measure("scaling")
chapter.score()

# %% [markdown]
# The shaded band is the bracket of several devices.
#
# ## Summary
#
# > **Takeaway.** If devices share neither cores nor memory bandwidth, a step takes from
# > about `max(N * python, one(B / N))` to `N * python + one(B / N) + all_reduce`. N
# > devices pay once the upper end is below `one(B)`. With one process per device, omit
# > `N *`.
#
# A break-even is a range of batches, and it holds for one form of the program.
#
# ## Exercises
#
# 1. Double the channels of both convolutions, to 40 and 100. How does each part of a
#    step change? *(There are `8.55 / 2.25 = 3.8` times as many multiplications, but
#    `python` stays, because the number of operators does. The gradients grow from
#    129,068 to 306,718 numbers. If `one(B)` follows the multiplications, a second
#    device pays with smaller batches.)*
# 2. *On paper.* A step of b images takes `1.2 + 0.004 b` ms on one GPU and
#    `2.4 + 0.002 b` on two. From which batch on do two GPUs pay? What is the answer if
#    a CUDA graph on one GPU only lowers 1.2 to 0.4? *(Two GPUs cost 1.2 ms more and
#    save 0.002 ms per image, so 600 images. With the graph they cost 2 ms more, so
#    1,000 images.)*
# 3. *On paper.* Strong scaling from one device to eight reduces a step from 80 ms to 16
#    ms. What are the speedup and the *parallel efficiency*, speedup / N? Which share s
#    does [Amdahl's law](../docs/appendix.md#amdahls-and-gustafsons-laws) imply?
#    *(`80 / 16 = 5` and `5 / 8 = 63 %`. If f ms are not reduced,
#    `16 = f + (80 - f) / 8`, so `f = 48 / 7 = 6.9` ms and `s = 6.9 / 80 = 8.6 %`.)*
# 4. *On paper.* GPUs cost 3 dollars per hour each. A training takes 8 hours on one GPU,
#    5 on two and 4 on four. How many do you rent? *(They cost 24, 30 and 48 dollars.
#    Rent one, unless an hour is worth more than `6 / 3 = 2` dollars. From `18 / 1 = 18`
#    dollars per hour on, rent four.)*
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
# - [2] Austin et al., *How to Scale Your Model*,
#   <https://jax-ml.github.io/scaling-book/>

# %% [markdown]
# # When does a second device pay?
#
# In Chapter 1 two devices computed the update of one device. When are they faster? Each
# device has half of the images, but Python issues twice as many operations, and the
# gradients must be summed. Here we turn this into two inequalities, test them on
# records, and decide for your machine.
#
# ![Timelines of three training steps, on one device and on two, with a small and with a
# large batch](../docs/drawings/step-costs.svg)
#
# With batches of 256 images, an epoch took the authors of *Dive into Deep Learning*
# (d2l) [1] 1.8 s on one V100 GPU and **2.5 s on two**.
#
# Run this chapter as a notebook, or as `python chapters/scaling.py --num-devices 1,2`.

# %%
import time
from collections import Counter
from statistics import median
from textwrap import fill

from d2lpar import (
    allreduce,
    chapter,
    devices,
    get_params,
    init_lenet,
    np,
    npx,
    train_batch,
)
from d2lpar.records.rule import compare_all, of_turns
from d2lpar.scaling.model import studies

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## A lower and an upper bound
#
# A step with B images has three parts. Let `one(b)` be the time of a step on a *single*
# device with b images.
#
# | part of a step | one device | N devices |
# |---|---|---|
# | Python issues the operators | `python` | `N * python` |
# | the devices run the forward and backward pass | `one(B)` | `one(B / N)` |
# | the gradients are summed | 0 | `all_reduce` |
#
# MXNet calls are asynchronous (Chapter 3). At best Python and the devices overlap
# completely, and the slower one determines the time. At worst they take turns, and the
# all-reduce is added:
#
#     max(N * python, one(B / N))  <=  step  <=  N * python + one(B / N) + all_reduce
#
# The model assumes that the devices share nothing. GPUs fulfil this. CPU contexts share
# caches and memory, so on cores use it as a reason, not as a number. Even on GPUs the
# lower end is an estimate, because Python often needs less than N times its time.
#
# ## The decision
#
# A second device **cannot** pay where even the lower end is above the time of one
# device. It is **certain** to pay where even the upper end is below it:
#
#     cannot pay:      max(N * python, one(B / N)) >= one(B)
#     certain to pay:  N * python + one(B / N) + all_reduce < one(B)
#
# Let us test this. In our records of two cores and of two GPUs we know the bounds of
# every batch, and by the rule of Chapter 3 whether two devices were faster.
#
# *Predict before you run*: how many decisions are contradicted, that is, a batch that
# "cannot pay" was faster, or a batch that is "certain to pay" was slower?


# %%
def decision(low, high, one):
    """What the bounds of a step on two devices say beside the time on one."""
    if low >= one:
        return "cannot pay"
    return "certain to pay" if high < one else "open"


chapter.predict("contradicted decisions", None)  # write your number for None
contradicted = 0
for name, path in {
    "two cores, in Gluon": "scaling/book-1thread-concise-cpu2.jsonl",
    "two cores, from scratch": "scaling/book-1thread-scratch-cpu2.jsonl",
    "two H100s, in Gluon": "gpus/scaling/book-1thread-concise-gpu2.jsonl",
}.items():
    (study,) = studies([chapter.record(path)])
    both = {
        batch for batch in study.batches if {(1, batch), (2, batch)} <= {*study.steps}
    }
    bounds = {batch: ends for batch, ends in study.bracket(2).items() if batch in both}
    pairs = [(study.seconds(1, batch), study.seconds(2, batch)) for batch in bounds]
    outcomes, inside = Counter(), 0
    for bound, (one, of_two), found in zip(bounds.values(), pairs, compare_all(pairs)):
        inside += bound[0] <= of_two.median <= bound[1]
        said = decision(*bound, one.median)
        was = ("slower", "faster")[found.ratio > 1] if found.is_told else "not told"
        outcomes[said, was] += 1
    contradicted += outcomes["cannot pay", "faster"]
    contradicted += outcomes["certain to pay", "slower"]
    counts = (f"{n} {said}, {was}" for (said, was), n in sorted(outcomes.items()) if n)
    print(fill(f"{name}: {'; '.join(counts)}", 88))
    print(f"    {inside} of {len(pairs)} steps lie between their bounds")
chapter.answer("contradicted decisions", contradicted)

# %% [markdown]
# Many steps lie outside their bounds, and still the decisions hold. How could one have
# known? A decision needs only that a bound and the time of one device are in the right
# order.
#
# ## One device and two
#
# Now we decide for your machine, with the functions of Chapter 1. `time_step` returns
# the time of a step, and the time that Python needs to issue it. The bounds of two
# devices need both for one device with half of the batch.


# %%
def time_step(chosen, batch_size, steps=4):
    """Milliseconds of a step, and of Python in it."""
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


sizes = [4, 8, 16, 32, 64, 128]
found = {(n, batch): [] for batch in sizes for n in (1, 2)}
for turn in range(6):
    for n, batch in found if turn % 2 == 0 else reversed(found):
        found[n, batch].append(time_step(two[:n], batch))
all_reduce = median(time_all_reduce() for _ in range(15))
ms = {key: [step for step, _ in values] for key, values in found.items()}
pairs = [(of_turns(ms[1, batch]), of_turns(ms[2, batch])) for batch in sizes[1:]]
print("batch  one ms  two ms  bounds of two    decision        ratio")
for half, (one, both), told in zip(sizes, pairs, compare_all(pairs)):
    of_half, python = (median(times) for times in zip(*found[1, half]))
    low, high = max(2 * python, of_half), 2 * python + of_half + all_reduce
    print(
        f"{2 * half:5} {one.median:7.1f} {both.median:7.1f} {low:7.1f}, {high:6.1f}",
        end="",
    )
    print(f"    {decision(low, high, one.median):15} {told.cell}")

# %% [markdown]
# The last column divides the time of one context by the time of two, with the marks of
# Chapter 3.
#
# ## Making it pay
#
# The inequalities name four ways to make a second device pay with a smaller batch.
# Compile the network, so that `python` is one call (Chapter 4). Hide the all-reduce
# (Chapter 6). Train a larger network, whose `one(B)` grows more than the rest. Or
# remove the factor N from `N * python`: PyTorch's DistributedDataParallel starts one
# process per GPU, which issues the work of this GPU only.
#
# On GPUs a *CUDA graph* replays a whole pass that the driver has recorded, and removes
# most of `python`. Never compare one GPU with a graph and two GPUs without.
#
# ## Your devices
#
# Finally, we time the package's trainings, which sum all gradients as one array, in
# processes of their own. In the first picture, look for the batch from which the marks
# above 1x are filled. In the second, see whether two devices stay in the band between
# their bounds. The third splits a step: compare the sum of gradients at both batches.
# In the last, find the fastest way to sum 504 KiB (Chapter 6).

# %%
if __name__ == "__main__":
    runs = chapter.measure("scaling")
chapter.score()

# %% [markdown]
# ## Summary
#
# > **Takeaway.** N devices pay once `N * python + one(B / N) + all_reduce < one(B)`.
# > They cannot pay as long as `max(N * python, one(B / N)) >= one(B)`. With one process
# > per device, omit `N *`.
#
# The *break-even* is the batch from which on N devices are faster. It holds for one
# form of the program.
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
#    ms. What are the speedup and the *parallel efficiency*, speedup / N? How many ms
#    are not reduced, by Amdahl's law? *(`80 / 16 = 5` and `5 / 8 = 63 %`. If f ms are
#    not reduced, `16 = f + (80 - f) / 8`, so `f = 48 / 7 = 6.9` ms.)*
# 4. *Open.* A training takes 8 hours on one GPU, 5 on two and 4 on four, at 3 dollars
#    per GPU and hour. How many do you rent?
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
# - Austin et al., *How to Scale Your Model*, <https://jax-ml.github.io/scaling-book/>

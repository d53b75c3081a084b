# %% [markdown]
# # When does a second device pay?
#
# Source: the book, "Training on Multiple GPUs", its last experiment,
# <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
#
# **What you will learn.** Why two of the book's V100s were slower than one, 2.5 s per
# epoch against 1.8 s. How to measure a step at many batch sizes and to find the
# *break-even*, the batch size from which two devices are faster than one. A model of a
# step with three costs, which you fit yourself and test on steps that it has not seen.
# Strong and weak scaling, and what a large batch does to the accuracy.
#
# Run this chapter cell by cell as a notebook, or as a program:
#
#     python chapters/scaling.py --devices auto --num-devices 1,2
#     d2lpar run scaling --preset book
#
# *Predict before you run*: from which batch size on are two devices faster than one,
# here, for LeNet? 2, 20, 200 or 2,000?

# %%
import time
from statistics import median

import numpy

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
from d2lpar.scaling.measure import scaled_lr
from d2lpar.scaling.model import break_even, fit_all_reduce, fit_step

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## What a step costs
#
# Follow one step of chapter 4 and ask of each part what a second device does to it.
#
# | part | on one device | on N devices |
# |---|---|---|
# | Python issues the operators | a fixed time | N times that, one after the other |
# | forward and backward | a time per image | the shard is B / N images: divided by N |
# | all-reduce | none | N - 1 copies there, N - 1 back |
#
# ![A step's parts on one device and on two](../docs/drawings/step-costs.svg)
#
# Only the middle line gets better. So a second device pays if half of the batch's work
# is more than what Python and the all-reduce add:
#
#     seconds(N, B) = N * fixed + per_image * B / N + (N - 1) * exchange
#
# ## Measured
#
# Steps of chapter 4's training, in a row, as in training: Python may run ahead. The
# median of several rows, after one that warms up.


# %%
def seconds_per_step(chosen, batch_size, steps=4, rows=5):
    X = np.random.uniform(size=(batch_size, 1, 28, 28), ctx=chosen[0])
    y = np.arange(batch_size, ctx=chosen[0]) % 10
    device_params = [get_params(init_lenet(), device) for device in chosen]
    seconds = []
    for _ in range(rows + 1):
        npx.waitall()
        start = time.perf_counter()
        for _ in range(steps):
            train_batch(X, y, device_params, chosen, lr=1e-3)
        npx.waitall()
        seconds.append((time.perf_counter() - start) / steps)
    return median(seconds[1:])


steps = {}
print("batch   1 device  2 devices  speedup")
for batch in (2, 8, 32, 128):
    for count in (1, 2):
        steps[count, batch] = seconds_per_step(two[:count], batch)
    one, both = steps[1, batch], steps[2, batch]
    print(f"{batch:5} {1e3 * one:7.2f} ms {1e3 * both:7.2f} ms {one / both:8.2f}")

speedups = {batch: steps[1, batch] / steps[2, batch] for batch in (2, 8, 32, 128)}
turn = break_even(speedups)
print("break-even at a batch of", "more than 128" if turn is None else f"{turn:.0f}")

# %% [markdown]
# Two devices lose with small batches and win with large ones. *Speedup* is the time on
# one device over that on N, and *parallel efficiency* is speedup / N. At best two
# devices have a speedup of 2, an efficiency of 1.
#
# ## Explained
#
# The first two parameters come from steps on **one** device alone: time = fixed +
# per_image * B is a straight line. The third is the time of the all-reduce of eight
# arrays of LeNet's shapes.
#
# *Predict before you run*: how well will this predict the steps on two devices, of
# which it has seen none?


# %%
def seconds_of_all_reduce(shapes, repeats=15):
    gradients = [[np.ones(shape, ctx=device) for device in two] for shape in shapes]
    seconds = []
    for _ in range(repeats):
        npx.waitall()
        start = time.perf_counter()
        for data in gradients:
            allreduce(data)
        npx.waitall()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


batches = [batch for count, batch in steps if count == 1]
times = numpy.array([steps[1, batch] for batch in batches])
# A straight line; weighted, so that 10 % count alike for small and large batches.
per_image, fixed = numpy.polyfit(batches, times, deg=1, w=1 / times)
shapes = [p.shape for p in init_lenet()]
exchange = seconds_of_all_reduce(shapes)
print(f"fixed {1e3 * fixed:.2f} ms, per image {1e6 * per_image:.0f} us, ", end="")
print(f"all-reduce {1e3 * exchange:.2f} ms")
for batch in batches:
    predicted = 2 * fixed + per_image * batch / 2 + exchange
    measured = steps[2, batch]
    print(
        f"two devices, batch {batch:3}: predicted {1e3 * predicted:6.2f} ms, measured "
        f"{1e3 * measured:6.2f} ms ({100 * (predicted / measured - 1):+.0f} %)"
    )
print(f"break-even by the model: {(fixed + exchange) / (per_image / 2):.0f}")

# %% [markdown]
# The last line follows from setting seconds(1, B) = seconds(2, B): a batch must be so
# large that half of its images take as long as one device's fixed time and the
# all-reduce. It names what makes a second device pay earlier: less Python (compile:
# chapter 5), a faster all-reduce, or a *slower* device or a *larger* network, which
# raise the time per image.
#
# That explains the V100s. Half of a batch of 256 is 128 images of 13.5 million
# operations, 1.7 GFLOP: a tenth of a millisecond at a V100's peak of 15.7 TFLOPS, and
# hardly a millisecond in practice. The second GPU added 3 ms to each step (0.7 s in 235
# steps).
#
# Are the predictions far too low? Then something else uses the cores: the model knows
# the time of a device that is alone, and two contexts need two free cores.
#
# The package's model is the same, but its all-reduce has a time per array and one per
# byte, so that it can be asked about other networks, and about more devices than there
# are. Here are four steps that were measured on two cores of an AMD EPYC. The model is
# fitted to the two on one device:

# %%
recorded = {(1, 8): 3.15e-3, (1, 512): 176e-3, (2, 8): 3.56e-3, (2, 512): 97e-3}
all_reduce = fit_all_reduce(2, [(1, 4_096, 0.11e-3), (8, 516_272, 0.60e-3)])
model = fit_step(recorded, all_reduce, 8, 516_272, without=[2])
print(f"{1e3 * model.fixed:.1f} ms + {1e6 * model.per_sample:.0f} us per sample")
for batch in (8, 512):
    predicted, measured = 1e3 * model.seconds(2, batch), 1e3 * recorded[2, batch]
    print(f"two devices, batch {batch}: {predicted:.1f} ms, measured {measured:.1f} ms")
speedups = {batch: recorded[1, batch] / recorded[2, batch] for batch in (8, 512)}
print(f"break-even between the two: {break_even(speedups):.0f}, ", end="")
print(f"by the model {model.break_even(2):.0f}")
for count in (2, 4, 8):
    faster = [f"{model.speedup(count, batch):.2f}" for batch in (8, 64, 512, 8192)]
    print(f"{count} devices, batches of 8, 64, 512, 8,192: {', '.join(faster)} times")

# %% [markdown]
# At a batch of 512 the prediction is 8 % too low, at 8 nearly 20 %, so the break-even
# by the model is too early. The reason is Python. In that run it needed 1.4 ms per
# step to issue the work of one device and 2.9 ms for two. On one device most of that is
# hidden, because Python issues the next operators while the device computes: only 0.4
# ms remain as the fixed time. Two devices compute a batch of 8 in less time than Python
# needs, so nothing hides it. The model adds the costs up; it does not know which of
# them overlap.
#
# ## Strong and weak scaling
#
# *Strong scaling* keeps the global batch: the same training, the same numbers, sooner.
# Its shards shrink with N, until the fixed costs win. *Weak scaling* keeps each
# device's batch, so the global batch grows with N. It scales better, but it is
# **another training**: N times fewer steps per epoch.
#
# The usual remedy is to multiply the learning rate by N, too, and to start with the
# small one for some epochs (Goyal et al. 2017, <https://arxiv.org/abs/1706.02677>).
#
# *Predict before you run*: the book's rate is 0.2 at a batch of 256. Four devices make
# it 1,024. Which rate in the first epoch, and which in the fifth?

# %%
for epoch in range(1, 6):
    lr = scaled_lr(1024, epoch, base_lr=0.2, base_batch=256, warmup=3)
    print(f"epoch {epoch}, batch 1,024 instead of 256: lr {lr:.1f}")

# %% [markdown]
# It helps up to a point. With the book's LeNet and data, 8 epochs at a batch of 128,
# 256, 512 and 1,024 end at an accuracy of 0.83, 0.78, 0.76 and 0.66
# (`figures/scaling/book-1thread-results.txt`): in 8 epochs the large batches just take
# too few steps. So the question is not "how many images per second" but "how many
# seconds to this accuracy".
#
# ## The map
#
# The run uses one thread per context, so that a device is a core. It draws a map of the
# speedup over batch sizes and devices; a step's parts by leaving each out
# (`d2lpar.scaling.step`); five kinds of all-reduce (`d2lpar.scaling.allreduce`); and
# accuracy under weak scaling. It does so for chapter 4's training ("from scratch") and
# chapter 5's ("concise"). A machine's speed drifts by ten per cent within minutes. So
# steps on one device and on two take turns, and a speedup is the ratio of times from
# the same minutes.

# %%
if __name__ == "__main__":
    runs = chapter.measure("scaling")

# %% [markdown]
# On two cores of an AMD EPYC two contexts pay from a batch of 11 (concise) and 17 (from
# scratch); on two H200s from about 1,100 and 2,400 (`figures/README.md`). The faster
# the device, the later a second one pays.
#
# ## Summary
#
# - A second device halves the work per image and adds Python's time for it, and the
#   all-reduce. It pays from a batch size on, the break-even.
# - Three numbers, two of them measured on one device, predict it.
# - A fast device and a small network move the break-even up. The book's batch of 256 is
#   below that of its V100s.
# - Strong scaling gives the same training sooner. Weak scaling is another training;
#   compare the time to an accuracy.
#
# ## Exercises
#
# 1. Find the break-even more exactly, with more batch sizes around it, and run it
#    twice. *(The two differ: near the break-even both take equally long, so noise
#    decides. A speedup of 1.0 means nothing without its spread.)*
# 2. Double the channels of both convolutions, to 40 and 100. Count the multiplications
#    per image: by how much does per_image grow, and where does the break-even go?
#    *(From 2.25 to 8.55 million, 3.8 times: most of them are in the second convolution,
#    which has four times as many. There are as many operators as before, so `fixed`
#    stays: the break-even falls to about a quarter.)*
# 3. Multiply `exchange` by 10, as over a slow network. From which batch do two devices
#    pay? *((fixed + 10 exchange) / (per_image / 2): many times as large. Chapter 13 is
#    about this.)*
# 4. Time the all-reduce of one array of 129,068 numbers instead of LeNet's eight:
#    `seconds_of_all_reduce([(129_068,)])`. *(About half, or a third: each array costs a
#    fixed time. Two idle cores took 0.22 ms instead of 0.60. So the package's training
#    keeps all parameters of a replica in one array.)*
# 5. Ask the model for 8 devices: `model.speedup(8, batch)`. Why does it never reach 8
#    at any batch that fits in memory? *(N * fixed: one Python issues the work of all
#    eight; 5.86 at a batch of 512, 7.82 at 8,192. With one process per device,
#    `fit_step(..., one_python=False)`, the fixed time counts once: 6.48 at 512.)*

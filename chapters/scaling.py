# %% [markdown]
# # When does a second device pay?
#
# Source: the book, "Training on Multiple GPUs", its last experiment,
# <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
#
# **What you will learn.** Why two of [the
# book's](https://d2l.ai/chapter_computational-performance/multiple-gpus.html) V100s
# were slower than one, 2.5 s per epoch against 1.8 s. How to measure a step at many
# batch sizes and to find the *break-even*, the batch size from which two devices are
# faster than one. A model of a step, the longer of Python's time and the devices',
# which you fit to one device and test on steps that it has not seen. Strong and weak
# scaling, and what a large batch does to the accuracy.
#
# Run this chapter cell by cell as a notebook, or as a program:
#
#     python chapters/scaling.py --devices auto --num-devices 1,2
#     d2lpar run scaling --preset book
#
# *Predict before you run*: from which batch size on are two devices faster than one,
# here, for LeNet? 2, 20, 200 or 2,000?

# %%
import json
import math
import os
import time
from collections import Counter
from pathlib import Path
from statistics import median

import numpy
from matplotlib.figure import Figure

from d2lpar import (
    allreduce,
    chapter,
    devices,
    get_params,
    init_lenet,
    mx,
    np,
    npx,
    train_batch,
)
from d2lpar.scaling.model import break_even, fit_step

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## What a step costs
#
# Follow one step of chapter 1 and ask of each part what a second device does to it.
#
# | part | on one device | on N devices |
# |---|---|---|
# | Python issues the operators | `issue` | N * `issue`, one after the other |
# | forward, backward | `fixed` + `per_image` * B | `fixed` + `per_image` * B / N |
# | all-reduce | none | (N - 1) * `exchange` |
#
# The devices compute their shards side by side. The book's all-reduce makes N - 1
# copies there and N - 1 back. MXNet queues what Python issues, so Python does not wait:
# it issues the work of the next device, and then the next step, while the devices
# compute.
#
# ![Three steps on one device and on two](../docs/drawings/step-costs.svg)
#
# ## One step, as MXNet's profiler sees it
#
# The profiler notes when each operator begins and ends, and on which device. Two
# readings of a clock tell when Python begins to issue the step and when it is done.
#
# *Predict before you run*: for how much of a step on two contexts is Python busy, with
# 16 images, and with 512?


# %%
def one_step(batch):
    """When the fastest of some steps begins, is issued, is done; microseconds."""
    X = np.random.uniform(size=(batch, 1, 28, 28), ctx=two[0])
    y = np.arange(batch, ctx=two[0]) % 10
    device_params = [get_params(init_lenet(), device) for device in two]
    steps = []
    for _ in range(8):
        npx.waitall()
        begin = time.time()
        train_batch(X, y, device_params, two, lr=1e-3)
        issued = time.time()
        npx.waitall()
        steps.append([1e6 * t for t in (begin, issued, time.time())])
    return min(steps, key=lambda times: times[2] - times[0])


chapter.predict("% of 16 images' step", None)  # write your number for None
chapter.predict("% of 512 images' step", None)
trace = Path("runs", "one-step-trace.json")
trace.parent.mkdir(exist_ok=True)
mx.profiler.set_config(profile_imperative=True, filename=str(trace))
mx.profiler.set_state("run")
spans = {batch: one_step(batch) for batch in (16, 512)}
mx.profiler.set_state("stop")
mx.profiler.dump()  # MXNet does this once per process
profile = json.loads(trace.read_text())["traceEvents"]
for batch, (begin, issued, done) in spans.items():
    share = 100 * (issued - begin) / (done - begin)
    chapter.answer(f"% of {batch} images' step", share)

# %% [markdown]
# Here are the two steps. The cell also writes them in the form that trace viewers read:
# a name, a beginning and a duration for each operator.

# %%
lanes = {f"{device.device_type}/{device.device_id}": k for k, device in enumerate(two)}
lane_of = {e["pid"]: lanes.get(e["args"]["name"]) for e in profile if e["ph"] == "M"}
begins, ends = ([e for e in profile if e["ph"] == phase] for phase in "BE")
operators = [  # name, lane, beginning, end
    (b["name"], lane_of[b["pid"]] + 1, b["ts"], e["ts"])
    for b, e in zip(begins, ends)
    if lane_of[b["pid"]] is not None and b["name"] != "DeleteVariable"
]

figure, events = Figure(figsize=(8, 4.4), layout="constrained"), []
for axes, (batch, (begin, issued, done)) in zip(figure.subplots(2), spans.items()):
    seen = [operator for operator in operators if begin < operator[2] < done]
    busy = Counter()
    for name, lane, start, end in [("Python", 0, begin, issued), *seen]:
        sums = name in ("CopyCPU2CPU", "_npi_add")
        color = "C2" if sums else ("0.4", "C0", "C1")[lane]
        place = {"left": (start - begin) / 1e3, "width": (end - start) / 1e3}
        axes.barh(lane, **place, color=color, edgecolor=color, linewidth=0.5)
        busy[lane] += (end - start) / 1e3
        times = {"ts": round(start - begin), "dur": round(end - start)}
        events.append({"name": name, "ph": "X", "pid": batch, "tid": lane, **times})
    axes.set_yticks(range(3), ["Python", "device 0", "device 1"])
    axes.invert_yaxis()
    axes.set_title(
        f"a step of {batch} images; green: copies and sums", fontsize="medium"
    )
    print(f"batch {batch}: {(done - begin) / 1e3:.1f} ms; busy: Python ", end="")
    print(f"{busy[0]:.1f}, device 0 {busy[1]:.1f}, device 1 {busy[2]:.1f} ms")
axes.set_xlabel("milliseconds")
trace.write_text(json.dumps({"traceEvents": events}))
chapter.show(figure, "one-step")

# %% [markdown]
# **What you see.** With 16 images Python is busy for half of the step or more, and the
# devices wait between operators. With 512 Python has issued everything early in the
# step, and the devices compute side by side. In both, the devices begin while Python is
# still issuing.
#
# The profiler makes a step slower, so read the order from it, not the times. To look at
# each operator, open `runs/one-step-trace.json`, or [one from two cores of an AMD
# EPYC](../figures/scaling/one-step-trace.json), in <https://ui.perfetto.dev> ("Open
# trace file"): processes 16 and 512 are the batches, thread 0 is Python, and threads 1
# and 2 are the devices. `python chapters/scaling.py --dry-run` writes it, and
# `d2lpar run multiple_gpus --profile` the trace of a whole training.
#
# ## The longer of two times, not their sum
#
# So in a row of steps whichever takes longer decides. To see it, make Python slower:
# let it sleep in every step. We time rows of eight steps and wait only at their end, as
# in training. The results are medians of five rows, after one that warms up.
#
# *Predict before you run*: one context takes about 30 ms for a step of 64 images. Now
# Python sleeps for 10 ms in every step. By how much does a step get longer?


# %%
def time_steps(chosen, batch_size, more=0.0, python=time.sleep, steps=8, rows=5):
    """Seconds of a step, and of Python to issue it, with `more` seconds of Python."""
    X = np.random.uniform(size=(batch_size, 1, 28, 28), ctx=chosen[0])
    y = np.arange(batch_size, ctx=chosen[0]) % 10
    device_params = [get_params(init_lenet(), device) for device in chosen]
    seconds, issue = [], []
    for _ in range(rows + 1):
        npx.waitall()
        start = time.perf_counter()
        for _ in range(steps):
            python(more)
            train_batch(X, y, device_params, chosen, lr=1e-3)
        issue.append((time.perf_counter() - start) / steps)
        npx.waitall()
        seconds.append((time.perf_counter() - start) / steps)
    return median(seconds[1:]), median(issue[1:])


time_steps(two[:1], 64)  # MXNet's first steps: it allocates memory
alone, _ = time_steps(two[:1], 64)
chapter.predict("ms more for 10 ms of sleep", None)
measured = {}
print("one context, 64 images\nPython  device  longer     sum  measured, ms")
for ms in (0, 5, 10, 60):
    step, python = time_steps(two[:1], 64, more=ms / 1e3)
    numbers = python, alone, max(python, alone), python + alone, step
    print("  ".join(f"{1e3 * t:6.1f}" for t in numbers))
    measured[ms] = 1e3 * step
longer = measured[10] - measured[0]
chapter.answer("ms more for 10 ms of sleep", round(longer, 1))

# %% [markdown]
# **What you see.** Until Python takes longer than the device, its time costs nothing.
# After that, the device's time hardly costs anything: a row of eight begins with Python
# alone and ends with the device alone, so up to an eighth of the shorter time comes on
# top. The model is least right where both are about as long.
#
# Sleeping needs no core. On a GPU's host Python has a core of its own, too, and the
# model of a step is
#
#     python  = N * issue
#     device  = fixed + per_image * B / N + (N - 1) * exchange
#     seconds = max(python, device)
#
# CPU contexts are different: they and Python share the cores.
#
# *Predict before you run*: two contexts on two cores, 128 images, and 15 ms more of
# Python per step. By how many milliseconds is counting slower than sleeping?


# %%
def count(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


cores = os.cpu_count() if two[0].device_type == "cpu" else math.inf
time_steps(two, 128)
print(f"two contexts on {cores} cores: a step while Python sleeps, and counts, ms")
chapter.predict("ms more for counting", None)
differences = []
for _ in range(3):  # in turn, because a machine's speed drifts
    slept, counted = (time_steps(two, 128, 0.015, f)[0] for f in (time.sleep, count))
    print(f"{1e3 * slept:5.1f}  {1e3 * counted:5.1f}")
    differences.append(1e3 * (counted - slept))
chapter.answer("ms more for counting", round(median(differences), 1))

# %% [markdown]
# **What you see.** On two cores counting makes the step longer by some milliseconds,
# although Python takes less time than the step: three threads want to compute, and
# there are two cores. In a step the cores have N * (issue + device) to do, and cannot
# do it faster than
#
#     cores   = N * (issue + device) / number of cores
#     seconds = max(python, device, cores)
#
# With more cores than contexts there is no difference, and the third term is never the
# longest.
#
# ## Measured


# %%
steps, issues = {}, []
print("batch   1 device  2 devices  speedup")
for batch in (2, 8, 32, 128):
    for n in (1, 2):
        steps[n, batch], python = time_steps(two[:n], batch)
        if n == 1:
            issues.append(python)
    one, both = steps[1, batch], steps[2, batch]
    print(f"{batch:5} {1e3 * one:7.2f} ms {1e3 * both:7.2f} ms {one / both:8.2f}")

speedups = {batch: steps[1, batch] / steps[2, batch] for batch in (2, 8, 32, 128)}
turn = break_even(speedups)
print("break-even at a batch of", "more than 128" if turn is None else f"{turn:.0f}")

# %% [markdown]
# **What you see.** Two devices lose with small batches and win with large ones, on an
# otherwise idle machine. *Speedup* is the time on
# one device over that on N, and *parallel efficiency* is speedup / N. At best two
# devices have a speedup of 2, an efficiency of 1.
#
# ## Predicted
#
# Everything comes from **one** device alone: Python's time to issue a step, and a
# straight line, fixed + per_image * B. The last number is the time of the all-reduce of
# eight arrays of LeNet's shapes.
#
# *Predict before you run*: by how much will this model miss steps on two devices, none
# of which were used to fit it?


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


batches = [batch for n, batch in steps if n == 1]
times = numpy.array([steps[1, batch] for batch in batches])
# A straight line; weighted, so that 10 % count alike for small and large batches.
per_image, fixed = numpy.polyfit(batches, times, deg=1, w=1 / times)
issue = median(issues)
shapes = [p.shape for p in init_lenet()]
exchange = seconds_of_all_reduce(shapes)
print(f"issue {1e3 * issue:.2f} ms, fixed {1e3 * fixed:.2f} ms, ", end="")
print(f"per image {1e6 * per_image:.0f} us, all-reduce {1e3 * exchange:.2f} ms")
chapter.predict("% of error, median", None)
errors = []
print("two devices: Python  device   cores  longest  measured, ms")
for batch in batches:
    device = fixed + per_image * batch / 2 + exchange
    bounds = 2 * issue, device, 2 * (issue + device) / cores
    numbers = *bounds, max(bounds), steps[2, batch]
    error = 100 * (max(bounds) / steps[2, batch] - 1)
    row = "  ".join(f"{1e3 * t:6.2f}" for t in numbers)
    print(f"batch {batch:4}:  {row}  ({error:+.0f} %)")
    errors.append(abs(error))
chapter.answer("% of error, median", round(median(errors)))

# %% [markdown]
# **What you see.** The model is right to some tens of per cent. If the predictions are
# far too low, another program is using the cores.
#
# Where does two devices' time become that of one? One device takes
# fixed + per_image * B, at batches where a second one can pay. So on GPUs the batch
# must be above both of
#
#     (N * issue - fixed) / per_image      where Python decides
#     N * exchange / per_image             where the devices decide
#
# This names what makes a second device pay earlier: less Python (compile: chapter 5),
# a faster all-reduce, or a *slower* device or a *larger* network, which raise the time
# per image.
#
# That explains [the
# book's](https://d2l.ai/chapter_computational-performance/multiple-gpus.html) V100s,
# with 1.8 and 2.5 s per epoch. Half of a batch of 256 is 128 images of 13.5 million
# operations, 1.7 GFLOP: a tenth of a millisecond at a V100's peak of 15.7 TFLOPS, and
# hardly a millisecond in practice. So this is all that a second GPU could save, and it
# added 3 ms to each step (0.7 s in 235 steps).
#
# ## Two H200s, predicted from one
#
# The package's model is the same (`d2lpar.scaling.model`). Here are steps of LeNet in
# Gluon on one H200 and on two, from
# [a record](../figures/h200/scaling/book-1thread-results.txt). Python takes 0.829 ms to
# issue a step on one of them, and the all-reduce 0.284 ms. The record is of commit
# 74e636b. Before version 0.4 the package timed a step that cut each batch on the first
# GPU, which chapter 5's training does not do. We can test the model on these steps, but
# their break-even is not that of today's training.

# %%
recorded = {  # ms of a step on one GPU and on two, by global batch
    8: (0.792, 1.63),
    64: (0.818, 1.53),
    256: (1.14, 1.50),
    512: (1.72, 1.50),
    1024: (1.84, 1.89),
    2048: (2.88, 2.06),
    4096: (5.04, 3.09),
    8192: (9.30, 5.24),
}
on_one = {batch: one / 1e3 for batch, (one, _) in recorded.items()}
model = fit_step(on_one, issue=0.829e-3, exchange=0.284e-3)
print(f"{1e3 * model.fixed:.2f} ms + {1e6 * model.per_sample:.2f} us per image")
for batch, (_, measured) in recorded.items():
    predicted = 1e3 * model.seconds(2, batch)
    error = 100 * (predicted / measured - 1)
    print(f"batch {batch:5}: predicted {predicted:.2f} ms, {measured} ({error:+.0f} %)")

# %% [markdown]
# How far the model misses all batches of the records is printed at the end of their
# results: [two H200s](../figures/h200/scaling/book-1thread-results.txt) and [two CPU
# contexts](../figures/scaling/book-1thread-results.txt).
#
# ![Two H200s, predicted](../figures/h200/scaling/book-1thread-steps-concise.png)
#
# Look at 512 and 1,024 images on one GPU: twice the images take little longer. No sum
# or maximum of straight lines does that. The network computes them in another form.
# From 1,024 images per GPU on, the package of that commit took the bias of a
# convolution as a weight (`tuning.bias_as_weight`), whose gradient cuDNN computes
# faster. At a global batch of 1,024 one GPU used the fast form and each of two the slow
# one, so the speedup falls there. Wherever Python does not decide, a step on two GPUs
# takes what one GPU needs for half of the images, and 0.2 ms more.
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
chapter.predict("rate in the fifth epoch", None)
for epoch in range(1, 6):
    share = min(1, (epoch - 1) / 3)  # of the way from 0.2 to four times as much
    lr = 0.2 + share * (4 * 0.2 - 0.2)
    print(f"epoch {epoch}, batch 1,024 instead of 256: lr {lr:.1f}")
chapter.answer("rate in the fifth epoch", lr)
chapter.score()

# %% [markdown]
# **What you see.** The rate starts at 0.2 and reaches 4 times that, 0.8, after the
# warm-up. A higher rate helps up to a point. With the book's LeNet and data, 8 epochs
# at a batch of 128, 256, 512 and 1,024 end at an accuracy of 0.83, 0.78, 0.76 and 0.66
# ([record](../figures/scaling/book-1thread-results.txt)): in 8 epochs the large batches
# take too few steps. So the question is not "how many images per second" but "how many
# seconds to this accuracy".
#
# ## Speedup over batch sizes
#
# The run uses one thread per context, so that a device is a core. It draws the speedup
# over batch sizes, with every pair of samples; a step's parts by leaving each out
# (`d2lpar.scaling.step`); five kinds of all-reduce (`d2lpar.scaling.allreduce`); and
# accuracy under weak scaling. It does so for chapter 1's training ("from scratch") and
# chapter 5's ("concise"). A machine's speed drifts by ten per cent within minutes. So
# steps on one device and on two take turns, and a speedup is the ratio of times from
# the same minutes.

# %%
if __name__ == "__main__":
    runs = chapter.measure("scaling")

# %% [markdown]
# **What you see.** The first figure shows from which batch size on a second context is
# faster, and the parts show why: with small batches Python and the update decide, with
# large ones the forward and backward pass. Near the break-even both take equally long,
# so a sharp number would be noise. The faster the device, the larger the batch must be:
# compare the records of [two cores](../figures/scaling/book-1thread-results.txt) and of
# [two H200s](../figures/h200/scaling/book-1thread-results.txt). Both are of the step
# before version 0.4. Your run times the step of the trainings themselves.
#
# ## Summary
#
# > **Takeaway.** Step = max(N x Python, device / N + (N - 1) x all-reduce), so two GPUs
# > win from a batch of about (2 x Python - fixed) / time per image on, if Python
# > decides. Its terms on [two
# > H200s](../figures/h200/scaling/book-1thread-results.txt), of the step before 0.4.
#
# - A second device halves the work per image and adds Python's time for it, and the
#   all-reduce. It pays from a batch size on, the break-even.
# - Python and the devices work at the same time: a step takes the longer of their
#   times. On CPU contexts Python needs a core, too.
# - Three numbers measured on one device, and the all-reduce, predict steps on two: to
#   about a tenth in the median, to a third at worst.
# - A fast device and a small network move the break-even up. The book's batch of 256 is
#   below that of its V100s.
# - Strong scaling gives the same training sooner. Weak scaling is another training;
#   compare the time to an accuracy.
#
# ## Exercises
#
# 1. Find the break-even more exactly, with more batch sizes around it, and run it
#    twice. *(The two runs differ: near the break-even both take equally long, so noise
#    decides. A speedup of 1.0 means nothing without its spread.)*
# 2. Double the channels of both convolutions, to 40 and 100. Count the multiplications
#    per image: by how much does per_image grow, and where does the break-even go?
#    *(From 2.25 to 8.55 million, `8.55 / 2.25 = 3.8`: most of them are in the second
#    convolution, which has four times as many. There are as many operators as before,
#    so `issue` stays: the break-even falls to about a quarter.)*
# 3. *On paper.* Strong scaling from one device to eight takes a step from 80 ms to 16
#    ms. What are speedup and parallel efficiency, and which part of the 80 ms is not
#    split? *(`80 / 16 = 5` and `5 / 8 = 63 %`. From `16 = f + (80 - f) / 8` follows `f
#    = 6.9 ms`.)*
# 4. *On paper.* Multiply `exchange` by 10, as over a slow network. From which batch do
#    two GPUs pay? *(Where the devices decide, from 2 * exchange / per_image on, ten
#    times the batch. `fit_step(on_one, 0.829e-3, 2.84e-3).break_even(2)` computes it.
#    Chapter 14 is about this.)*
# 5. Time the all-reduce of one array of 129,068 numbers instead of LeNet's eight:
#    `seconds_of_all_reduce([(129_068,)])`. *(It takes about half as long, or less: each
#    array costs a fixed time. So the package's training keeps all parameters of a
#    replica in one array.)*
# 6. Ask the model of the H200s for 8 devices: `model.speedup(8, batch)`. At which batch
#    do they reach 4? *(Where one GPU takes four times as long as one Python needs to
#    issue the work of all eight, `8 * 0.829 = 6.6` ms. With one process per device the
#    issuing would take 0.8 ms: chapter 14.)*

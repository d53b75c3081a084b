# %% [markdown]
# # When does a second device pay?
#
# In Chapter 1 we trained LeNet on several devices and found that they compute the same
# parameters as one device, up to rounding. Whether they compute them *faster* is
# another question. *Dive into Deep Learning* (d2l) [1] timed this training with a batch
# of 256 images: an epoch took 1.8 s on one V100 GPU and **2.5 s on two**. The second
# GPU made the training slower.
#
# Why can a second device slow training down, and from which batch size on does it speed
# training up? In this chapter we answer both questions with one inequality, which we
# test on your machine and with measurements on one, two and four H200 GPUs.
#
# ![Timelines of three training steps, on one device and on two, with a small and with a
# large batch](../docs/drawings/step-costs.svg)
#
# The drawing shows the idea. While the devices compute, Python issues the next
# operations. In the upper half, with a small batch, Python takes longer, and it needs
# twice the time for two devices. In the lower half, with a large batch, the devices
# take longer, and two of them share the images.
#
# Run this chapter as a notebook, or as `python chapters/scaling.py --num-devices 1,2`.

# %%
import time
from statistics import median

from matplotlib.figure import Figure

from d2lpar import chapter, devices, init_lenet, np, npx
from d2lpar.parallel import allreduce, get_params, train_batch
from d2lpar.records.kinds import ArmSample, StepRecord
from d2lpar.scaling.model import break_even, studies
from d2lpar.scaling.trace import draw, trace_steps

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# ## The same result on faster GPUs
#
# d2l published its times in 2019. In single precision a V100 has a peak of 15.7 TFLOPS
# [2], while an H200 has a peak of 67 TFLOPS [3]. We have run d2l's training loop on two
# H200s and recorded the time of every epoch
# ([record](../figures/h200/peers/custom-gpu2.jsonl)). Functions and loop are d2l's, so
# these times do not depend on the version of our package, which was one before 0.4.
#
# *Predict before you run*: on V100s the second GPU added 0.7 s to an epoch. How many
# seconds does it add on H200s? Write your guess in place of `None`.

# %%
chapter.predict("s that the second H200 adds per epoch", None)
samples = chapter.record("h200/peers/custom-gpu2.jsonl").lines_of(ArmSample)
one, both = (
    median(s.seconds for s in samples if s.arm == name and not s.warm_up)
    for name in ("d2l's notebook loop, 1 GPU", "d2l's notebook loop, 2 GPUs")
)
print(f"one H200: {one:.2f} s per epoch, two: {both:.2f} s per epoch")
print(f"the second adds {1e3 * (both - one) / 235:.1f} ms to each of 235 steps")
chapter.answer("s that the second H200 adds per epoch", round(both - one, 2))
assert one < 1.8 and 0.6 < both - one < 0.8  # V100s: 1.8 s, and 0.7 s, to 0.1 s

# %% [markdown]
# One H200 is faster than one V100, but the second H200 adds as much time as the second
# V100 did: the assertion allows for d2l's times being rounded to one decimal. If this
# time were spent on arithmetic, we would expect faster GPUs to reduce it. Our first
# suspect is therefore the host, where Python issues the work of both GPUs. One
# coincidence proves little, however: the hosts differ as well, and two other programs
# occupied memory on the second V100 (Chapter 2). So let us look at a step in detail.
#
# ## A lower and an upper bound
#
# A step of data-parallel training consists of three parts. We write `one(b)` for the
# time of a step on a *single* device with a batch of b images. On N devices, with a
# global batch of B images, the parts take the following times:
#
# | part of a step | one device | N devices |
# |---|---|---|
# | Python issues the operators | `python` | `N * python` |
# | the devices run the forward and backward pass | `one(B)` | `one(B / N)` |
# | the gradients are summed | 0 | `all_reduce` |
#
# The devices compute their shards side by side, so the second row is the time of the
# slowest device. Note that `one(b)` is the time of a whole step and includes what
# Python needs for it. Where Python determines `one(B / N)`, the sum of the rows
# therefore counts some of its work twice, and it can only be too large.
#
# How do the parts add up? MXNet calls are asynchronous (Chapter 4), so Python can issue
# the next operators while the devices are still computing. At best the two overlap
# completely, and the slower one determines the time. At worst they take turns, and the
# all-reduce comes on top:
#
#     max(N * python, one(B / N))  <=  step  <=  N * python + one(B / N) + all_reduce
#
# Austin et al. [4] bound the time of computation and communication in the same way. We
# call the range a *bracket*. Where a step lies in it depends on how well a program
# overlaps the parts. We express this as a *place* between 0, the lower end, and 1.


# %%
def bracket(python, device, all_reduce=0.0):
    return max(python, device), python + device + all_reduce


def place(step, low, high):
    return (step - low) / (high - low)


# %% [markdown]
# ## Inside one step
#
# MXNet's profiler notes when each operator begins and ends, and on which device. We
# also read the clock when Python begins to issue a step and when it has finished. Let
# us trace one step with a small batch and one with a large batch.
#
# *Predict before you run*: for which share of a step on two contexts is Python busy,
# with 16 images, and with 512?

# %%
chapter.predict("% of a step of 16 images", None)
chapter.predict("% of a step of 512 images", None)
traced = trace_steps(two, (16, 512))
for step in traced:
    busy = ", ".join(f"{device} {ms:.1f}" for device, ms in step.busy.items())
    print(f"{step.batch_size} images: {step.milliseconds:.1f} ms; busy: {busy} ms")
    print(f"  device {step.straggler} has its gradients {step.waiting:.1f} ms later")
    share = round(100 * step.busy["Python"] / step.milliseconds)
    chapter.answer(f"% of a step of {step.batch_size} images", share)
chapter.show(draw(traced), "one-step")

# %% [markdown]
# Look for two things in the picture. With 16 images, expect gaps between the operators
# of a device. In these gaps the device has finished its work and waits for Python or,
# at the end of the step, for the other device. With 512 images, expect Python's bar to
# end early in the step: everything has been issued, and the devices compute side by
# side.
#
# The device whose gradients are ready last is the *straggler* of this step, because the
# sum has to wait for it. With 16 images it may simply be the device that Python serves
# last. With 512 images its delay is small if both devices are equally fast and have a
# core each. If the delay is a large part of the step, one explanation is that another
# program uses one of the cores.
#
# Profiling slows execution down. Use the picture to see in which order things happen
# rather than how long they take. The cell has also written the two steps to
# `runs/one-step-trace.json`, which trace viewers such as <https://ui.perfetto.dev> can
# open.
#
# ## Overlap
#
# A bracket is widest, compared with its lower end, when Python and the device take
# equally long. Let us create this situation. The function below returns the median time
# of a step and the median time that Python needs to issue it. It can slow Python down
# by letting it sleep. It waits for the devices at the end of a series of steps or, like
# d2l's loop, after every step.
#
# *Predict before you run*: Python sleeps for as long as the device computes. At which
# place is a step if we wait at the end of eight steps, and if we wait after every step?


# %%
def time_step(chosen, batch_size, sleep=0.0, wait=False, steps=8, series=5):
    X = np.random.uniform(size=(batch_size, 1, 28, 28), ctx=chosen[0])
    y = np.arange(batch_size, ctx=chosen[0]) % 10
    device_params = [get_params(init_lenet(), device) for device in chosen]
    seconds, python = [], []
    for _ in range(series + 1):
        npx.waitall()
        start, issuing = time.perf_counter(), 0.0
        for _ in range(steps):
            begin = time.perf_counter()
            time.sleep(sleep)
            train_batch(X, y, device_params, chosen, lr=1e-3)
            issuing += time.perf_counter() - begin
            if wait:
                npx.waitall()
        npx.waitall()
        seconds.append((time.perf_counter() - start) / steps)
        python.append(issuing / steps)
    return median(seconds[1:]), median(python[1:])  # the first series warms up


chapter.predict("place, waiting after eight steps", None)
chapter.predict("place, waiting after every step", None)
batch = 64 if two[0].device_type == "cpu" else 8192
places = {False: [], True: []}
for _ in range(3):
    device, python = time_step(two[:1], batch, series=3)
    low, high = bracket(device + python, device)
    print(f"{1e3 * low:.1f} ms to {1e3 * high:.1f} ms, places:", end="")
    for wait in (False, True):
        step, _ = time_step(two[:1], batch, sleep=device, wait=wait, series=3)
        places[wait].append(place(step, low, high))
        print(f" {places[wait][-1]:.2f}", end="\n" if wait else "")
print(f"places expected: 1/8, and {1 - python / device:.2f} to 1")
chapter.answer("place, waiting after eight steps", round(median(places[False]), 2))
chapter.answer("place, waiting after every step", round(median(places[True]), 2))

# %% [markdown]
# Which places should we expect? In a series of eight steps Python's first sleep and the
# device's last computation have nothing to overlap with. Even perfect overlap therefore
# gives a place of about 1/8. A larger place means that they overlap less, or that the
# device computes more slowly while Python works than it does alone.
#
# If we wait after every step, only the overlap within the step remains, where the
# device computes while Python issues. Then the place lies between the last two numbers,
# provided that the device resumes at full speed. A place above 1 indicates that it does
# not, for example because its threads must first wake up. If the speed of your machine
# drifts within a row, places can lie on either side of these values, and they differ
# from row to row.
#
# ## One device and two
#
# To compute the bracket of two devices we measure one device with half of the batch.
# The time of the all-reduce is the only number for which we need both devices.
#
# *Predict before you run*: at which batch size do one and two devices of your machine
# take equally long?


# %%
def time_all_reduce(repeats=15):
    """Seconds to sum arrays of the shapes of LeNet's gradients over two devices."""
    replicas = [get_params(init_lenet(), device) for device in two]
    seconds = []
    for _ in range(repeats):
        npx.waitall()
        start = time.perf_counter()
        for arrays in zip(*replicas):
            allreduce(list(arrays))
        npx.waitall()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


chapter.predict("break-even batch", None)
sizes = [2, 4, 8, 16, 32, 64, 128]
steps, issue = {}, {}
for batch in sizes:
    for n in (1, 2):
        steps[n, batch], issue[n, batch] = time_step(two[:n], batch)
all_reduce = time_all_reduce()

print("batch   one ms   two ms  speedup  bracket of two  place")
speedups, places = {}, []
for half, batch in zip(sizes, sizes[1:]):
    python, device = 2 * issue[1, half], steps[1, half]
    low, high = bracket(python, device, all_reduce)
    one, both = steps[1, batch], steps[2, batch]
    speedups[batch] = one / both
    places.append(place(both, low, high))
    print(f"{batch:5} {1e3 * one:8.1f} {1e3 * both:8.1f} {one / both:8.2f}", end="")
    print(f" {1e3 * low:8.1f}, {1e3 * high:5.1f} {places[-1]:6.1f}")
inside = sum(-0.1 <= p <= 1.1 for p in places)
print(f"{inside} of {len(places)} steps lie in their bracket, to a tenth of its width")
equal = break_even(speedups)
found = "above 128" if equal is None else "4 or less" if equal == 4 else round(equal)
chapter.answer("break-even batch", found)

# %% [markdown]
# The *speedup* is the time on one device divided by the time on two, so two devices pay
# if it exceeds 1. The *break-even* is the batch size at which the speedup reaches 1,
# interpolated between the rows. Both times are almost equal there, so expect a
# different number when you run the cell again. The table says where to look: two
# devices can only take as long as one where the time of one lies in the bracket of two.
#
# A place that is clearly above 1 has two possible explanations. One is that the devices
# have slowed each other down: the bracket assumes that they share nothing, but two CPU
# contexts, Python and all other programs share the cores, the caches and the memory
# bandwidth of one processor. The other is drift, which moves a place upwards or
# downwards if the machine was faster or slower while we measured one device. If the
# same row is above 1 when you run the cell again, drift is the less likely explanation.
#
# ## From the bracket to a decision
#
# Two devices **cannot** pay if even the lower bound is above the time of one device.
# They are **certain** to pay if even the upper bound is below it:
#
#     cannot pay:      N * python >= one(B)
#     certain to pay:  one(B) - one(B / N) > N * python + all_reduce
#
# The second line compares what the additional devices save, on the left, with what they
# cost at most, on the right. Between the two conditions the answer depends on the
# overlap.
#
# We check both with steps of Chapter 5's network on H200s, where one process serves
# both GPUs ([record](../figures/h200/scaling/book-1thread-concise-gpu2.jsonl)). The
# cell prints the commit of the package that was measured, which is from before 0.4. Its
# steps cut each batch on the first GPU, as Chapter 5's `train_batch` does, and did not
# add up the losses. The package's training differs in both.
#
# *Predict before you run*: how many of the verdicts "cannot pay" and "certain to pay"
# does the measured speedup contradict?

# %%
chapter.predict("verdicts contradicted", None)
record = chapter.record("h200/scaling/book-1thread-concise-gpu2.jsonl")
(study,) = studies([record])
measured = study.steps  # seconds by (devices, batch)
alone = {batch: seconds for (n, batch), seconds in measured.items() if n == 1}


def verdict(one, batch, python, all_reduce, n=2):
    if n * python >= one[batch]:
        return "cannot pay"
    saved = one[batch] - one[batch // n]
    return "certain to pay" if saved > n * python + all_reduce else "open"


print(f"python {1e3 * study.issue:.2f} ms, all-reduce {1e3 * study.exchange:.2f} ms,")
print("commit", record.header.git_commit[:7])
wrong = 0
for batch in study.batches[1:]:
    said = verdict(alone, batch, study.issue, study.exchange)
    speedup = measured[1, batch] / measured[2, batch]
    print(f"batch {batch:5}: speedup {speedup:.2f}, {said}")
    wrong += said == ("certain to pay" if speedup < 1 else "cannot pay")
chapter.answer("verdicts contradicted", wrong)
assert wrong == 0
assert measured[1, 1024] / measured[2, 1024] < measured[1, 512] / measured[2, 512]

# %% [markdown]
# Apart from the all-reduce, the verdicts use measurements on one GPU only. As the
# assertion confirms, the speedups on two GPUs contradict none of them.
#
# How sharp are the bounds? [A picture](../figures/scaling/bracket.png) shows the steps
# of all our records, and the bracket as a band. On the H200s some steps lie a little
# below it. One explanation is that `python` is itself measured, on one GPU. On CPU
# contexts, which share cores and memory, many lie above the bracket. So take a verdict
# that is decided by a few per cent as open.
#
# One row is out of order: with 1,024 images the speedup is smaller than with 512. One
# explanation is a change of form. From 1,024 images per GPU on, the package of that
# commit computed the bias of a convolution as a weight, [which is
# faster](../benchmarks/SPEED.md#biases-as-weights-from-384-images-per-gpu-on). At this
# batch size one GPU therefore had the faster form and two GPUs did not. The present
# package changes the form with fewer images, so do not expect this row from it. The
# verdicts hold for the package that was measured.
#
# The conditions also tell us how to make a second device pay with a smaller batch. We
# can reduce `python` by compiling the network (Chapter 5), hide the all-reduce behind
# the backward pass (Chapter 7), or train a larger network, for which `one(B)` grows
# faster. Finally, we can remove the factor N from `N * python`.
#
# ## One process per device
#
# PyTorch's DistributedDataParallel (DDP) starts one process per GPU. Each process has a
# Python interpreter of its own and issues the work of its own GPU only. On a batch of
# B / N each process does what a single process does on the same batch, and then takes
# part in the all-reduce. If the GPUs are equally fast, the bracket becomes narrow: N
# GPUs with a batch of B take as long as one GPU with a batch of B / N, plus at most the
# all-reduce. We check this with LeNet on one, two and four H200s
# ([records](../figures/gpu_scaling/book-ddp-gpu4.jsonl)).
#
# *Predict before you run*: how many times as fast as one H200 are four with a batch of
# 256, and with a batch of 8,192?

# %%
chapter.predict("speedup of four H200s, batch 256", None)
chapter.predict("speedup of four H200s, batch 8,192", None)
ddp, figure = {}, Figure(figsize=(7, 4), layout="constrained")
axes = figure.subplots()
for n, marker in zip((1, 2, 4), "os^"):
    lines = chapter.record(f"gpu_scaling/book-ddp-gpu{n}.jsonl").lines_of(StepRecord)
    times = {line.global_batch_size: 1e3 * median(line.seconds) for line in lines}
    ddp.update({(n, batch): ms for batch, ms in times.items()})
    axes.loglog([b / n for b in times], times.values(), f"{marker}-", label=n)
axes.set(xlabel="images per GPU", ylabel="milliseconds per step of PyTorch DDP")
axes.set_yticks([2, 5, 10], ["2", "5", "10"])
axes.minorticks_off()
axes.legend(title="GPUs")
chapter.show(figure, "ddp")
small = [ms for (n, batch), ms in ddp.items() if n == 1 and batch <= 1024]
print(f"one GPU: {min(small):.2f} to {max(small):.2f} ms with 32 to 1,024 images")
for n in (2, 4):
    ratios = [ms / ddp[1, b // n] for (k, b), ms in ddp.items() if k == n and b >= 128]
    print(f"{n} GPUs: {min(ratios):.2f} to {max(ratios):.2f} times as long as ", end="")
    print("one GPU with as many images per GPU")
print("batch 64, time of two GPUs / time of one:")
for name, times in (("one process, our record", measured), ("two processes, DDP", ddp)):
    print(f"  {name}: {times[2, 64] / times[1, 64]:.2f}")
for batch in (256, 8192):
    speedup = round(ddp[1, batch] / ddp[4, batch], 2)
    chapter.answer(f"speedup of four H200s, batch {batch:,}", speedup)
chapter.score()
assert max(small) < 1.2 * min(small) and max(ratios) < 1.4

# %% [markdown]
# If the time of a step depended on the images per GPU alone, the three curves would
# coincide. The second and third line of the output show how close they come. On the
# left the time does not grow with the number of images (first line), so it is not spent
# on arithmetic, and more GPUs cannot reduce it. On the right it grows with the images
# per GPU, and more GPUs do reduce it. Where a curve lies above that of one GPU, one
# explanation is the all-reduce.
#
# Which ratios should we expect with a batch of 64? If Python determines the time, the
# lower end of the bracket predicts a ratio of 2 for one process, and of 1 for a process
# per GPU. Compare the last two lines. They come from two libraries, and DDP's record
# does not contain the time that Python needs, so they agree with this explanation but
# do not prove it.
#
# We can now return to d2l's second V100. Half of a batch of 256 images requires 1.7
# GFLOP, or `1.7e9 / 15.7e12 = 0.11 ms` at the peak of a V100. A second GPU saves that
# much if the arithmetic runs at this speed, but it added `0.7 s / 235 = 3 ms` to each
# step. d2l's loop doubles `python` by issuing the work of both GPUs in one process. It
# also waits after every step, so this time cannot overlap with the previous step. How
# much of the additional time this explains we cannot say, because nobody has recorded
# Python's time on that host.
#
# ## Amdahl's law
#
# So far we have added devices and kept the batch, which is called *strong scaling*. Let
# s be the share of a step on one device that further devices do not reduce. If nothing
# overlaps, *Amdahl's law* (1967) gives the speedup of N devices:
#
#     speedup = 1 / (s + (1 - s) / N)
#
# It cannot exceed 1 / s, however many devices we use. Since Amdahl's law adds up the
# parts of a step, it belongs to the upper end of our bracket; the lower end allows a
# speedup of min(N, 1 / s). As an example we take DDP with 8,192 images, and its step
# with 32 images for the part that does not shrink.

# %%
s, n = ddp[1, 32] / ddp[1, 8192], 4
amdahl, overlapped = 1 / (s + (1 - s) / n), min(n, 1 / s)
speedup = ddp[1, 8192] / ddp[n, 8192]
print(f"s = {s:.2f}, speedup by Amdahl's law {amdahl:.2f}, ", end="")
print(f"measured {speedup:.2f}, with perfect overlap {overlapped:.2f}")
assert amdahl < speedup < overlapped

# %% [markdown]
# The measured speedup lies between the two, as the assertion confirms. Divided by N it
# is called the *parallel efficiency*.
#
# ## Larger batches
#
# If large batches make more devices pay, why not enlarge the batch along with the
# number of devices? This is called *weak scaling*. Let s now be the share of a step on
# N devices that a step on one device would also need, whatever its batch. For the whole
# batch one device would need `s + (1 - s) * N` times as long as N devices do. This
# speedup has no upper limit (*Gustafson's law*, 1988).
#
# However, it is a different training, because an epoch now has only 1/N of the steps.
# To compensate, one usually multiplies the learning rate by N, after a few epochs of
# warm-up [5]. This works up to the *critical batch size* [6], in whose model the number
# of steps to a given loss is
#
#     steps(B) = steps_min * (1 + B_critical / B)
#
# Far below `B_critical`, doubling the batch nearly halves the number of steps; far
# above it, doubling the batch saves almost none. What matters in the end is the time to
# a given accuracy, `steps(B) * step`. The critical batch size determines the first
# factor, and the bracket the second.
#
# ## Your devices
#
# Finally, we time the steps of the package's trainings of Chapters 1 and 5, with larger
# batches than above.

# %%
if __name__ == "__main__":
    runs = chapter.measure("scaling")

# %% [markdown]
# Where the quartiles of both times overlap, we cannot tell which one is shorter. In the
# picture of a step's time the band is the bracket of several devices. As above, it is
# computed from steps on one device and from the all-reduce. For times above the band
# the same two explanations remain, devices that slow each other down and drift.
#
# The bars divide a step into its parts. To time a part we run steps that end before it
# and steps that end after it, in turn, and subtract; a part that is smaller than the
# noise is missing. The last picture compares ways to compute the same all-reduce. Its
# vertical axis is NCCL's *bus bandwidth* ([how it is defined](../docs/players.md)). The
# hollow marks sum LeNet's gradients as eight arrays, the filled ones a single array.
#
# ## Summary
#
# > **Takeaway.** If devices share neither cores nor memory bandwidth, a step takes from
# > `max(N * python, one(B / N))` to `N * python + one(B / N) + all_reduce`. N devices
# > cannot pay while `N * python >= one(B)`. They are certain to pay once `one(B) -
# > one(B / N) > N * python + all_reduce`. With one process per device, omit `N *`.
#
# ## Exercises
#
# 1. Repeat the measurement of "One device and two" with `wait=True`. Does the
#    break-even move? *(Python can no longer issue the next step early. This costs time
#    on one device and on two, so the break-even may move either way.)*
# 2. Double the channels of both convolutions, to 40 and 100. How does each part of a
#    step change? *(There are `8.55 / 2.25 = 3.8` times as many multiplications, since
#    the second convolution has four times as many, but the same number of operators.
#    The gradients grow from 129,068 to 306,718 numbers. So `python` stays, and if
#    `one(B)` follows the multiplications, a second device pays with smaller batches.)*
# 3. *On paper.* Strong scaling from one device to eight reduces a step from 80 ms to 16
#    ms. What are the speedup and the parallel efficiency? Which share s does Amdahl's
#    law imply? *(`80 / 16 = 5` and `5 / 8 = 63 %`. If f ms are not reduced, `16 = f +
#    (80 - f) / 8`, so `f = 48 / 7 = 6.9` ms and `s = 6.9 / 80 = 8.6 %`.)*
# 4. *On paper.* Device 1 needs twice as long per image as device 0. What is the speedup
#    over device 0 alone with equal shards, and with the best split? Neglect Python and
#    the all-reduce. *(With equal shards device 1 takes as long as device 0 alone for
#    the whole batch, a speedup of 1. With two thirds of the batch on device 0 both take
#    `2 / 3` of the time, a speedup of `3 / 2`.)*
# 5. Which speedup does the bracket allow for eight H200s at a batch of 8,192, in one
#    process and with a process per GPU? *(At most `alone[8192] / bracket(8 *
#    study.issue, alone[1024])[0]`, and the same without the factor 8. In one process
#    Python limits the speedup, with a process per GPU the GPUs do.)*
# 6. Train LeNet with batches of 128 and 512, each with its best learning rate, and
#    count the steps to a test accuracy of 0.7. Estimate the critical batch size. *(For
#    `r = steps(128) / steps(512)` it is `(r - 1) / (1 / 128 - r / 512)`. If r is close
#    to 4, both batches are far below it; if r is close to 1, both are far above.)*
#
# **Puzzles.** `python -m d2lpar.puzzles` has one about the best overlap of the backward
# pass and the sums of the gradients: `overlap`.
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
# - [2] NVIDIA, "Tesla V100 GPU Accelerator", data sheet,
#   <https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf>
# - [3] NVIDIA, "H200 Tensor Core GPU", data sheet,
#   <https://www.nvidia.com/en-us/data-center/h200/>
# - [4] Austin et al., *How to Scale Your Model*, on bounds by the maximum and the sum,
#   <https://jax-ml.github.io/scaling-book/roofline/>
# - [5] Goyal et al., "Accurate, Large Minibatch SGD",
#   <https://arxiv.org/abs/1706.02677>
# - [6] McCandlish et al., "Large-Batch Training", <https://arxiv.org/abs/1812.06162>

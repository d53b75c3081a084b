# %% [markdown]
# # What a device is
#
# A program prints "2 devices". Which two are they, and do both of them work?
#
# ![Each device has a queue of work](../docs/drawings/queues-of-devices.svg)
#
# **In one sentence.** A device is a queue of work, its name holds within one process
# only, and whether it is busy shows only while you watch it.
#
# When the authors of *Dive into Deep Learning* (d2l) timed two GPUs in 2019,
# `nvidia-smi` listed four GPUs and, on one of them, **two other Python processes** [1].
# Their notebook saw two of the four, and does not say which.
#
# Run this chapter as a notebook, or as `python chapters/devices.py`. `d2lpar devices`
# prints the same summary in a terminal.

# %%
import time
from textwrap import fill

import psutil
from matplotlib.figure import Figure

from d2lpar import chapter, devices, mx, np, npx, try_gpu
from d2lpar.machine.cards import as_text, machine

# %% [markdown]
# ## What is in this machine
#
# We begin with a summary of the CPU and of every GPU. The information about GPUs comes
# from CUDA's driver and from NVML, the library behind `nvidia-smi`.
#
# - **Compute capability**: the generation of a GPU's instructions, for example 7.5 for
#   a T4 and 9.0 for an H200. A program needs machine code for it, or intermediate code
#   (PTX) that the driver can compile. MXNet's official GPU packages contain machine
#   code only, for 5.0 to 8.6. (A GPU of capability 8.9 runs the code for 8.6.)
# - **Memory**: a GPU has its own memory. Data must be copied into it, and therefore fit
#   into it, before the GPU can work on them.
# - **Link**: how data reaches the GPU, from the host and from other GPUs. NVLink is
#   faster than PCIe. In data-parallel training the gradients cross this link in every
#   step.

# %%
here = machine()
print(as_text(here))

# %% [markdown]
# Before you time anything, read more in the output of `nvidia-smi`. `GPU-Util` is the
# share of the last moments in which any kernel ran, and the list below the table names
# the processes on each GPU. If you may choose two of several GPUs, choose a pair that
# `nvidia-smi topo -m` marks `NV`, for NVLink.
#
# ## What MXNet calls a device
#
# MXNet calls a device a *context*. `mx.gpu(0)`, `mx.gpu(1)`, ... are GPUs. `mx.cpu(0)`,
# `mx.cpu(1)`, ... are queues of work on the host, each with its own threads. CPU
# contexts share the cores and the memory of the host. Thanks to them you can run
# everything in these chapters without a GPU.
#
# *Predict before you run*: what does d2l's `try_gpu(7)` return on a machine that has no
# such GPU: "an error", "None", or the name of a device?

# %%
chapter.predict("try_gpu(7) returns", None)  # "an error", "None" or a device
print("auto:", devices.parse("auto"))
print("cpu:2:", devices.parse("cpu:2"))
for text in ("gpu:8", "cpu:0", "tpu"):
    try:
        print(f"{text}:", devices.parse(text))
    except ValueError as error:
        print(fill(f"{text}: {error}", 88))
print("mx.gpu(7) can be written anywhere:", mx.gpu(7))
chapter.answer("try_gpu(7) returns", str(try_gpu(7)))

# %% [markdown]
# The last two lines are traps. Without such a GPU, `try_gpu(7)` returns the CPU. On a
# machine with one GPU, a "two-GPU" timing then measures a GPU and a CPU, without a
# warning. And `mx.gpu(7)` is only a name; the error comes later, when an array is
# created there. `devices.parse` checks first, and its error lists what exists.
#
# ## Names are relative
#
# The environment variable `CUDA_VISIBLE_DEVICES` lists the GPUs that a process may see,
# and the process numbers those from 0. With `CUDA_VISIBLE_DEVICES=2,3` the GPU that
# `nvidia-smi` calls 2 is `mx.gpu(0)`. Something like this must have happened in d2l's
# notebook: its listing has four GPUs, but `d2l.try_all_gpus()` returned two. So we
# cannot tell whether the other two processes ran on one of its GPUs.
#
# *Predict before you run*: with `CUDA_VISIBLE_DEVICES=2,0`, which number does
# `nvidia-smi` have for `mx.gpu(1)`?

# %%
chapter.predict("nvidia-smi's number of gpu(1)", None)
visible = [int(number) for number in "2,0".split(",")]
chapter.answer("nvidia-smi's number of gpu(1)", visible[1])

# %% [markdown]
# A name is not a promise of hardware either.
#
# *Predict before you run*: how many contexts does `devices.parse("cpu:64")` return on
# this machine?

# %%
chapter.predict("contexts of cpu:64", None)
print(f"this process may use {here.cpu.usable_cores} core(s)")
chapter.answer("contexts of cpu:64", len(devices.parse("cpu:64")))

# %% [markdown]
# You may create more contexts than there are cores. This is useful for checking that a
# program is correct, but says nothing about its speed, because the contexts share the
# cores.
#
# ## How busy are they?
#
# A second device helps only if it is busy. The library psutil reports how much time on
# the cores a process has used. In the cell below one context, and then two, compute
# sines for a second; 100 % is one core. As each context has one thread here, two
# contexts with a core each should use twice as much as one. The cell applies this rule:
# they compute side by side if they use at least 1.5 times as much.

# %%
two = devices.parse("cpu:2")  # psutil sees the cores only, not GPUs


def watched(chosen, seconds=1.0, every=0.1):
    """Per cent of a core, ten times a second, while the devices compute sines."""
    arrays = [np.ones((1000, 1000), ctx=device) for device in chosen]
    npx.waitall()
    process, percents = psutil.Process(), []
    process.cpu_percent()  # begins to count
    begin = last = time.perf_counter()
    while last < begin + seconds:
        for array in arrays:
            np.sin(array)
        npx.waitall()
        if time.perf_counter() > last + every:
            percents.append(process.cpu_percent())
            last = time.perf_counter()
    return percents


figure = Figure(figsize=(6, 2.4), layout="constrained")
axes = figure.subplots()
used = []
for chosen in (two[:1], two):
    percents = watched(chosen)
    used.append(sum(percents) / len(percents))
    name = f"{len(chosen)} context(s)"
    print(f"{name}: {used[-1]:.0f} % of a core")
    axes.plot(percents, "o-", label=name)
axes.set(xlabel="tenths of a second", ylabel="% of a core", ylim=(0, None))
axes.legend()
chapter.show(figure, "devices-at-work")
apart = used[1] > 1.5 * used[0]
print("two contexts compute", "side by side" if apart else "no more than one does")
chapter.score()

# %% [markdown]
# If the cell prints "no more than one does", two contexts cannot show what a second
# device is worth. Look for another program with `top`, and run the cell again before
# you time anything.
#
# While a training runs, `htop` in another terminal shows how busy each core is. For
# GPUs [this page](../docs/second-gpu.md#look-while-it-runs) explains nvtop and nvitop,
# and how to read their numbers.
#
# ## The devices of a run
#
# Finally, we list the devices that `d2lpar run` selects by itself: every GPU that MXNet
# can use, or one CPU context per core. The name of each device says what computes
# there, for example `cpu(0) (1 thread of 2 cores)`, or the model of a GPU. The record
# of a run has the same names.

# %%
for device in devices.parse("auto"):
    print(devices.label(device))

# %% [markdown]
# ## Summary
#
# > **Takeaway.** N devices that are busy for shares `u_1, ..., u_N` of the time do the
# > work of at most `u_1 + ... + u_N` devices. CPU contexts do the work of at most as
# > many cores as the process may use.
#
# Ask for devices in a way that fails if they do not exist, and watch a training before
# you time it. The [appendix](../docs/appendix.md#cores-and-peaks-of-a-card) computes
# the peak of a card from its cores and its clock, and compares its peaks in float32,
# TF32 and 16 bits.
#
# ## Exercises
#
# 1. Create an array on a GPU that does not exist: `np.ones(3, ctx=mx.gpu(7))`.
#    *(MXNet's message does not mention the number 7. On a build without CUDA it says
#    that the operator is not implemented for GPU. Compare it with
#    `devices.parse("gpu:8")`.)*
# 2. Call `watched(devices.parse("cpu:4"))` and compare with two contexts. *(On a
#    machine with two cores four contexts cannot use more than `2 * 100 %`. More
#    contexts do not make more cores.)*
# 3. *On paper.* Two GPUs are busy for 90 % and 40 % of a step. How many times as fast
#    as one GPU that is always busy can they be? *(At most `0.9 + 0.4 = 1.3` times.)*
# 4. *On paper.* A T4 has 40 multiprocessors with 64 CUDA cores each and a clock of
#    1,590 MHz, and each core performs one multiplication and one addition per cycle.
#    What is its peak? *(`2 * 40 * 64 * 1.59e9 = 8.1e12` operations per second, which is
#    what its data sheet says.)*
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>; the listing
#   is in its run of 5 July 2019, <https://github.com/mli/d2l-1day-notebooks>

# %% [markdown]
# # What a device is
#
# A program prints "2 devices". Which two are they, and are both busy?
#
# ![Each device has a queue of work](../docs/drawings/queues-of-devices.svg)
#
# **In one sentence.** A device is a queue of work, whose number is valid in one process
# only. We learn whether it is busy by watching it while the program runs.
#
# In 2019 the authors of *Dive into Deep Learning* (d2l) timed two GPUs. `nvidia-smi`
# listed four GPUs, and **two other Python processes** on one of them [1]. Did one of
# the two timed GPUs also serve these processes?
#
# Run this chapter as a notebook, or as `python chapters/devices.py`.

# %%
import time

import psutil
from matplotlib.figure import Figure

from d2lpar import chapter, devices, mx, np, npx, try_gpu
from d2lpar.machine.cards import as_text, machine

# %% [markdown]
# ## A queue of work
#
# MXNet calls a device a *context*. `mx.gpu(0)`, `mx.gpu(1)`, ... are GPUs. `mx.cpu(0)`,
# `mx.cpu(1)`, ... are queues of work on the host, each with its own threads. Python
# appends operations to a queue, and background threads execute them. Two devices
# compute at the same time, because their queues are independent. CPU contexts share the
# cores and the memory of the host.
#
# The next cell prints a summary of the CPU and of every GPU, as `d2lpar doctor` does
# in a terminal. For a GPU it contains:
#
# - **Compute capability**: the generation of a GPU's instructions, for example 7.5 for
#   a T4 and 9.0 for an H200. A program needs machine code for it. MXNet's official GPU
#   packages have code for 5.0 to 8.6, which also runs on GPUs of 8.9.
# - **Memory**: a GPU has its own memory. Data must be copied into it before the GPU can
#   work on them (Chapter 3).
# - **Link**: the connection to the host and to other GPUs. NVLink is faster than PCIe.
#   In data-parallel training the gradients cross a link in every step.

# %%
here = machine()
print(as_text(here))

# %% [markdown]
# ## Names
#
# The name of a device is easily misread. First, a name may select another device than
# you expect.
#
# *Predict before you run*: what does d2l's `try_gpu(7)` return on a machine that has no
# such GPU: "an error", "None", or the name of a device?

# %%
chapter.predict("try_gpu(7) returns", None)  # "an error", "None" or a device
chapter.answer("try_gpu(7) returns", str(try_gpu(7)))
print("a name:", mx.gpu(7))
print("cpu:2:", devices.parse("cpu:2"))
print("auto:", ", ".join(map(devices.label, devices.parse("auto"))))

# %% [markdown]
# Without such a GPU, `try_gpu(7)` returns the CPU. On a machine with one GPU a timing
# of "two GPUs" then measures a GPU and a CPU, without a warning. `mx.gpu(7)` is only a
# name. The error comes when an array is created there. In contrast, `devices.parse`
# checks that a GPU exists. For `auto` it selects every GPU that MXNet can use, or else
# one CPU context per core.
#
# Second, numbers are relative. The environment variable `CUDA_VISIBLE_DEVICES` lists
# the GPUs that a process may use, and the process numbers these GPUs from 0. With
# `CUDA_VISIBLE_DEVICES=2,3` the GPU that `nvidia-smi` calls 2 is `mx.gpu(0)`. Probably
# this variable was set in d2l's run, because the program found two of the four GPUs. We
# do not know which two. Therefore we cannot tell whether one of them also served the
# other processes.
#
# *Predict before you run*: with `CUDA_VISIBLE_DEVICES=2,0`, which number does
# `nvidia-smi` have for `mx.gpu(1)`?

# %%
chapter.predict("nvidia-smi's number of gpu(1)", None)
visible = 2, 0  # the GPUs that the process may use, in its order
chapter.answer("nvidia-smi's number of gpu(1)", visible[1])

# %% [markdown]
# Third, several devices may share the same hardware.
#
# *Predict before you run*: this cell asks for 64 CPU contexts. How many does MXNet
# create on a machine with two cores?

# %%
chapter.predict("contexts of cpu:64", None)
print(f"this process may use {here.cpu.usable_cores} core(s)")
chapter.answer("contexts of cpu:64", len(devices.parse("cpu:64")))

# %% [markdown]
# A context is only a queue, so there can be more contexts than cores. Use them to test
# a program, not to time it, because they share the cores.
#
# ## Watching
#
# A second device helps only if it is busy. The library psutil reports how much time on
# the cores a process has used. In the cell one context computes sines for a second, and
# then two contexts do. Each context has one thread here. We therefore expect about 100
# % of a core for one context, and 200 % for two contexts.


# %%
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


two = devices.parse("cpu:2")  # psutil sees the cores only, not GPUs
figure = Figure(figsize=(6, 2.4), layout="constrained")
axes = figure.subplots()
for chosen in (two[:1], two):
    percents = watched(chosen)
    name = f"{len(chosen)} context(s)"
    print(f"{name}: {sum(percents) / len(percents):.0f} % of a core")
    axes.plot(percents, "o-", label=name)
axes.set(xlabel="tenths of a second", ylabel="% of a core", ylim=(0, None))
axes.legend()
chapter.show(figure, "devices-at-work")
chapter.score()

# %% [markdown]
# If two contexts use nearly twice as much as one context, they compute side by side. If
# not, use `top` to find another program that uses the cores, and run the cell again. As
# long as two contexts do not use more of the cores, they cannot be faster.
#
# While a training runs, `htop` in another terminal shows how busy each core is. For
# GPUs, `nvidia-smi` prints the processes on each GPU and `GPU-Util`, the share of the
# recent time in which any kernel ran
# ([more](../docs/second-gpu.md#look-while-it-runs)). To choose two of several GPUs,
# take a pair that `nvidia-smi topo -m` marks `NV`, for NVLink.
#
# ## Summary
#
# > **Takeaway.** If device i is busy for the share `u_i` of the time, k devices
# > together do the work of at most `u_1 + ... + u_k` devices. CPU contexts together do
# > at most the work of the cores that the process may use.
#
# Ask for devices by a call that fails if they do not exist, and watch a training before
# you time it. The [appendix](../docs/appendix.md#cores-and-peaks-of-a-card) computes
# the peak of a GPU from its cores and its clock.
#
# ## Exercises
#
# 1. Create an array on a GPU that does not exist: `np.ones(3, ctx=mx.gpu(7))`. *(MXNet
#    accepts the name `mx.gpu(7)`. It raises an error when it creates the array, and the
#    message does not mention the number 7. Compare it with the message of
#    `devices.parse("gpu:8")`.)*
# 2. Call `watched(devices.parse("cpu:4"))` and compare with two contexts. *(On a
#    machine with two cores four contexts cannot use more than `2 * 100 %`. More
#    contexts do not make more cores.)*
# 3. *On paper.* Two GPUs are busy for 90 % and 40 % of a step. How many times as fast
#    as one GPU that is always busy can they be? *(At most `0.9 + 0.4 = 1.3` times.)*
# 4. *On paper.* A T4 has 40 multiprocessors with 64 CUDA cores each. In each cycle of
#    its clock of 1,590 MHz, every core performs one multiplication and one addition.
#    What is the T4's peak? *(`2 * 40 * 64 * 1.59e9 = 8.1e12` operations per second, as
#    in its data sheet.)*
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>; the listing
#   is in its run of 5 July 2019, <https://github.com/mli/d2l-1day-notebooks>

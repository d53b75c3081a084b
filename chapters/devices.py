# %% [markdown]
# # What a device is
#
# A program prints "2 devices". Which two are they, and are both busy?
#
# ![Each device has a queue of work](../docs/drawings/queues-of-devices.svg)
#
# **In one sentence.** A device is a queue of work. Its number is valid in one process
# only, and to learn whether it is busy we watch it while the program runs.
#
# When the authors of *Dive into Deep Learning* (d2l) timed two GPUs in 2019,
# `nvidia-smi` listed four GPUs and, on one of them, **two other Python processes** [1].
# Their program could use two of the four. The notebook does not say which.
#
# Run this chapter as a notebook, or as `python chapters/devices.py`. `d2lpar devices`
# prints the same summary in a terminal.

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
# appends operations to a queue, and background threads start them. Two devices compute
# at the same time, because their queues are independent. CPU contexts share the cores
# and the memory of the host. Thanks to them we can run all chapters without a GPU.
#
# The next cell prints a summary of the CPU and of every GPU. For a GPU it contains:
#
# - **Compute capability**: the generation of a GPU's instructions, for example 7.5 for
#   a T4 and 9.0 for an H200. A program needs machine code for it. MXNet's official GPU
#   packages have code for 5.0 to 8.6. (A GPU of capability 8.9 runs the code for 8.6.)
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
# The name of a device is easily misread. First, a name may stand for something else.
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
# name, and the error comes when an array is created there. `devices.parse` checks
# first. For `auto` it selects every GPU that MXNet can use, or else one CPU context per
# core.
#
# Second, numbers are relative. The environment variable `CUDA_VISIBLE_DEVICES` lists
# the GPUs that a process may use, and the process numbers those from 0. With
# `CUDA_VISIBLE_DEVICES=2,3` the GPU that `nvidia-smi` calls 2 is `mx.gpu(0)`. Probably
# this variable was set in d2l's run, because the listing has four GPUs and the program
# found two. We therefore cannot tell whether the two other processes ran on one of
# them.
#
# *Predict before you run*: with `CUDA_VISIBLE_DEVICES=2,0`, which number does
# `nvidia-smi` have for `mx.gpu(1)`?

# %%
chapter.predict("nvidia-smi's number of gpu(1)", None)
visible = 2, 0  # the GPUs that the process may use, in its order
chapter.answer("nvidia-smi's number of gpu(1)", visible[1])

# %% [markdown]
# Third, that a device has a name does not mean that hardware exists for it alone.
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
# the cores a process has used. In the cell one context, and then two contexts, compute
# sines for a second. Here each context has one thread, so we expect about 100 % of a
# core for one context, and 200 % for two.


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
# not, another program uses the cores. Find it with `top` and run the cell again: until
# then two contexts cannot show a speedup.
#
# While a training runs, `htop` in another terminal shows how busy each core is. For
# GPUs, `GPU-Util` of `nvidia-smi` is the share of the last moments in which any kernel
# ran, and a list names the processes on each GPU
# ([more](../docs/second-gpu.md#look-while-it-runs)). To choose two of several GPUs,
# take a pair that `nvidia-smi topo -m` marks `NV`, for NVLink.
#
# ## Summary
#
# > **Takeaway.** If device i is busy for the share `u_i` of the time, k devices
# > together do the work of at most `u_1 + ... + u_k` devices. CPU contexts do the work
# > of at most the number of cores that the process may use.
#
# Ask for devices in a way that fails if they do not exist, and watch a training before
# you time it. The [appendix](../docs/appendix.md#cores-and-peaks-of-a-card) computes
# the peak of a GPU from its cores and its clock.
#
# ## Exercises
#
# 1. Create an array on a GPU that does not exist: `np.ones(3, ctx=mx.gpu(7))`.
#    *(The name `mx.gpu(7)` is accepted, and the error comes with the array. MXNet's
#    message does not mention the number 7. On a build without CUDA it says that the
#    operator is not implemented for GPU. Compare it with `devices.parse("gpu:8")`.)*
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

# %% [markdown]
# # What a device is
#
# Source: the least-squares notes, "Querying your GPU"; the GPU wiki, "nvtop",
# <https://github.com/Daegeun02/GPGPU> (`2022_05_03.ipynb`, in Korean),
# <https://github.com/likejazz/likejazz.github.io> (`_wiki/GPU-Data-Science.md`, in
# Korean)
#
# A program prints "2 devices". Which two, how fast are they, and do both of them work?
#
# **What you will learn.** Which devices this machine has, and what their numbers mean:
# cores, clock, memory. Why a GPU is fast: cores × clock × 2. What MXNet
# calls a device, with and without a GPU. How to watch a training and tell whether all
# devices work, with our own watch and with nvtop.
#
# Run this chapter cell by cell as a notebook, or as a program:
#
#     python chapters/devices.py --devices auto
#     d2lpar run devices --preset book
#     d2lpar devices --json             the same cards for another program
#     d2lpar devices --watch            how busy they are, once a second

# %%
import time

import psutil
from matplotlib.figure import Figure

from d2lpar import chapter, devices, mx, np, npx, try_gpu
from d2lpar.machine.cards import as_text, machine

# %% [markdown]
# ## What is in this machine
#
# A card for each GPU, and one for the processor. The notes ask PyCUDA for a GPU's name,
# its compute capability, its memory and its multiprocessors; here NVML answers, the
# library behind `nvidia-smi`, and the driver.
#
# - **Compute capability**: the generation of the GPU's instructions, 7.5 for a T4. A
#   program needs machine code for it: MXNet's GPU packages have it for 5.0 to 8.9.
# - **Multiprocessor**: the part of a GPU that is most like a core of a CPU. It has many
#   *CUDA cores*, each of which computes one float32 at a time.
# - **Memory**: a GPU has its own. What does not fit there cannot be computed there.
# - **Link**: how data reaches it, from the host and from other GPUs (NVLink is faster
#   than PCIe). In data-parallel training the gradients cross this link in every step.

# %%
here = machine()
print(as_text(here))

# %% [markdown]
# ## How many cores?
#
# The notes multiply the multiprocessors, which the driver reports, by the cores of one,
# from a table by compute capability: 40 x 128 = 5,120 cores for a T4.
#
# *Predict before you run*: a core does one multiplication and one addition per cycle,
# and a T4's highest clock is 1,590 MHz. The GPU wiki says that it reaches 8.1 TFLOPS,
# 8.1 million million operations in a second. How many cores is that?


# %%
def teraflops(cores: int, clock_mhz: int) -> float:
    return 2 * cores * clock_mhz * 1e6 / 1e12


chapter.predict("cores of a T4", None)  # write your number for None
notes = {5.0: 128, 5.1: 128, 5.2: 128, 6.0: 64, 6.1: 128, 6.2: 128, 7.5: 128}
nvidia = {5.0: 128, 5.2: 128, 6.0: 64, 6.1: 128, 6.2: 128, 7.5: 64}
for capability, cores in notes.items():
    if cores != nvidia.get(capability):
        print(f"capability {capability}: {cores} in the notes", end="; ")
        print("NVIDIA:", nvidia.get(capability, "no such GPU"))
for per_multiprocessor in (notes[7.5], nvidia[7.5]):
    cores = 40 * per_multiprocessor
    print(f"40 x {per_multiprocessor} = {cores:,} cores", end=": ")
    print(f"{teraflops(cores, 1590):.1f} TFLOPS")
chapter.answer("cores of a T4", cores)

# %% [markdown]
# **What you see.** A T4 has half the cores that the notes print. Their table has 128
# for capability 7.5 where NVIDIA has 64, and a capability 5.1 that no GPU has. The
# lesson is not the table but the check: if a number can be computed in two ways,
# compute it in both. A T4's 8.1 TFLOPS and its clock leave 2,560 cores. (Where NVML
# reports the core count itself, a card shows it beside the table's.)
#
# ## What a GPU adds
#
# More cores. One CPU core is faster and far more versatile than a CUDA core, but there
# are only a few of them. It also computes several floats with one instruction, in the
# lanes of a vector register; a CUDA core corresponds to one such lane. (Many CPU cores
# use two registers at once.)

# %%
floats = (here.cpu.vector_bits or 32) // 32
cores = min(here.cpu.physical_cores or here.cpu.logical_cores, here.cpu.usable_cores)
print(f"this host: {cores} cores x {floats} floats in one instruction")
for gpu in here.gpus:
    print(f"{gpu.label}: {gpu.cores or gpu.cores_by_table} cores")
lanes = cores * floats
print(f"a T4 computes {2560 / lanes:.0f} times as many floats at a time")

# %% [markdown]
# All these cores are of use only if there is as much *independent* work: a batch of 256
# images with thousands of outputs each, not one number after another. And they must be
# fed: [a T4](https://www.nvidia.com/en-us/data-center/tesla-t4/) reads its own memory
# at 320 GB/s, but gets data from the host at no more than 16 GB/s. Chapter 3 measures
# what that means.
#
# ![Two memories and the link between them](../docs/drawings/host-and-device.svg)
#
# ## What MXNet calls a device
#
# A *context*: `mx.gpu(0)`, `mx.gpu(1)`, ... for GPUs; `mx.cpu(0)`, `mx.cpu(1)`, ... for
# queues of work on the host, each with threads of its own. CPU contexts share the
# host's cores and memory. They make everything in these chapters run, and be tested,
# without a GPU: two contexts on two cores really compute at the same time.
#
# ![Each device has a queue of work](../docs/drawings/queues-of-devices.svg)
#
# *Predict before you run*: which of these devices exist here? What does the book's
# `try_gpu(7)` return, on a machine that has no such GPU: an error, None, or a device?

# %%
chapter.predict("try_gpu(7) returns", None)  # "an error", "None" or a device
print("auto:", devices.parse("auto"))
print("cpu:2:", devices.parse("cpu:2"))
for text in ("gpu:8", "cpu:0", "tpu"):
    try:
        print(f"{text}:", devices.parse(text))
    except ValueError as error:
        print(f"{text}: {error}")
print("mx.gpu(7) can be written anywhere:", mx.gpu(7))
chapter.answer("try_gpu(7) returns", str(try_gpu(7)))

# %% [markdown]
# **What you see.** The last two lines are traps. Without such a GPU `try_gpu(7)`
# returns the CPU: a "two-GPU" timing on a machine with one GPU then measures a GPU and
# a CPU, without a warning. And `mx.gpu(7)` is only a name; the error comes later, when
# an array is made there. `devices.parse` looks first, and says what exists.
#
# More contexts than cores are allowed. They take turns, so they show that a program is
# right, not that it is fast.
#
# ## How busy are they?
#
# A second device helps only if it is busy. psutil knows how much time of the cores this
# process has used; below, contexts compute sines for a second.
#
# *Predict before you run*: 100 % is one core. How much will one context use, how much
# two?

# %%
two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")


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


chapter.predict("% of a core that two contexts use", None)
figure = Figure(figsize=(6, 2.4), layout="constrained")
axes = figure.subplots()
for chosen in (two[:1], two):
    percents = watched(chosen)
    name = f"{len(chosen)} device(s)"
    print(f"{name}: {sum(percents) / len(percents):.0f} % of a core")
    axes.plot(percents, "o-", label=name)
axes.set(xlabel="tenths of a second", ylabel="% of a core", ylim=(0, None))
axes.legend()
chapter.show(figure, "devices-at-work")
used = sum(percents) / len(percents)
chapter.answer("% of a core that two contexts use", round(used))
chapter.score()

# %% [markdown]
# **What you see.** On an idle machine with two cores or more, one context uses about
# one core and two use two. Less than that for two contexts means that something else
# uses the cores, or that the contexts wait for each other. `d2lpar devices --watch` is
# a screen that you keep open in another terminal.
#
# On GPUs the wiki recommends nvtop. How to install it, and what its numbers mean,
# stands in [why is my second GPU slower?](../docs/second-gpu.md#look-while-it-runs)
#
# ## The devices of a run
#
# The measurement of this chapter is a list: the cards again, and the devices that the
# flags choose. The name of each says what computes there: `cpu(0) (1 thread of 2
# cores)`, or a GPU's model. The record of a run has the same names.

# %%
if __name__ == "__main__":
    runs = chapter.measure("devices")

# %% [markdown]
# <details><summary>What this cell printed on a host with an H200</summary>
#
#     gpu(0) NVIDIA H200
#       capability       9.0
#       memory           140.4 GiB, 138.9 GiB free
#       multiprocessors  132 x 128 = 16,896 CUDA cores by the table; 16,896 by NVML
#       driver           580.159.04, CUDA 13.0
#     a run on 1 device uses gpu(0) NVIDIA H200
#
# The highest clock of an H200 is 1,980 MHz (`nvidia-smi -q -d CLOCK`). By the formula
# that is `2 * 16_896 * 1.98e9 = 66.9e12` operations per second.
#
# </details>
#
# ## Summary
#
# > **Takeaway.** Peak speed = 2 x cores x clock: `2 * 2560 * 1.59e9 = 8.1e12`
# > operations per second for [a
# > T4](https://www.nvidia.com/en-us/data-center/tesla-t4/). A device that is idle adds
# > none of it.
#
# - A device is where work is queued and computed: `mx.gpu(i)` or `mx.cpu(i)`.
# - A GPU is many simple cores with a memory of its own behind a slow link.
# - Check what you are told: compute a number in two ways.
# - Ask for devices in a way that fails if they are not there.
# - Watch a training before you time it.
#
# ## Exercises
#
# 1. *On paper.* The book used V100s: 80 multiprocessors, capability 7.0, 1,530 MHz. How
#    many cores and TFLOPS? *(`80 * 64 = 5,120` cores, `2 * 5,120 * 1.53e9 = 15.7e12`
#    operations per second, which is [NVIDIA's own
#    figure](https://www.nvidia.com/en-us/data-center/v100/).)*
# 2. *On paper.* What is the peak of a host? A modern core does a multiplication and an
#    addition on one or two registers per cycle. *(2 x cores x floats x registers x
#    clock. For 2 cores with 16 floats, two registers and 3 GHz: `2 * 2 * 16 * 2 * 3e9 =
#    384e9`, 5 % of a T4.)*
# 3. Make an array on a GPU that does not exist: `np.ones(3, ctx=mx.gpu(7))`. *(MXNet's
#    error has no word about the number 7: on a build without CUDA it says that the
#    operator is not implemented for GPU. Compare `devices.parse("gpu:8")`.)*
# 4. Call `watched(devices.parse("cpu:4"))` on a machine with two cores. *(About 200 %:
#    the contexts share the cores. More contexts do not make more cores.)*
# 5. Leave out `npx.waitall()` in the loop (and be ready to restart the kernel). *(In
#    its second Python queues more than 10,000 rounds, minutes of work: the devices are
#    still at 200 % long after the function has returned, and the next line that needs a
#    number waits for all of it. `d2lpar.training.Epoch` bounds how far Python runs
#    ahead.)*

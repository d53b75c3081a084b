# %% [markdown]
# # What a device is
#
# A program prints "2 devices". Which two, how fast are they, and do both of them work?
#
# ![Each device has a queue of work](../docs/drawings/queues-of-devices.svg)
#
# The last question is not a trivial one. When the authors of *Dive into Deep Learning*
# (d2l) timed two GPUs in 2019, their own listing of `nvidia-smi` showed **two other
# Python processes** on the second GPU [1]. In this chapter we list the CPUs and GPUs of
# a machine, estimate a GPU's peak speed from its core count and clock rate, learn how
# MXNet names devices, and check that all of them are busy while they compute.
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
# ## What is in this machine
#
# We begin by printing a summary of every GPU and of the CPU. The information about GPUs
# comes from CUDA's driver and from NVML, the library behind `nvidia-smi`.
#
# - **Compute capability**: the generation of a GPU's instructions, for example 7.5 for
#   a T4 and 9.0 for an H200. A program needs machine code for it, or intermediate code
#   (PTX) that the driver can compile. MXNet's official GPU packages contain machine
#   code only, for 5.0 to 8.6.
# - **Multiprocessor**: a *streaming multiprocessor* (SM) is the closest analogue of a
#   CPU core. It contains dozens of *CUDA cores*, each of which computes one float32
#   number at a time.
# - **Memory**: a GPU has its own memory. Data must be copied into it, and therefore fit
#   into it, before the GPU can work on them.
# - **Link**: how data reaches the GPU, from the host and from other GPUs. NVLink is
#   faster than PCIe. In data-parallel training the gradients cross this link in every
#   step.

# %%
here = machine()
print(as_text(here))

# %% [markdown]
# In a terminal `nvidia-smi` prints similar facts. Before you time anything, read three
# more things there. `Memory-Usage` is the memory that all processes together use,
# `GPU-Util` is the share of the last moments in which any kernel ran, and the list
# below the table names the processes on each GPU. In the listing of 2019 [1], GPU 1 has
# 2,005 of its 16,130 MiB in use by two Python processes, although the notebook has not
# used a GPU yet, and its `GPU-Util` is `0 %`. So no process was computing on it at that
# moment. Nobody knows whether this remained so during the timing.
#
# `nvidia-smi topo -m` prints how each pair of GPUs is connected: `NV` and a number mean
# that many NVLinks, `PIX` means at most one PCIe bridge, `PHB` the host bridge of a
# processor, and `SYS` the connection between two processors. If you may choose two
# GPUs of several, choose a pair with `NV`, and prefer `PIX` to `SYS`.
#
# ## How many cores?
#
# A published set of lecture notes on GPU computing [2] multiplies the number of SMs, as
# reported by the driver, by the number of cores per SM, which it looks up in a table
# indexed by compute capability. For a T4 this gives 40 x 128 = 5,120 cores. Is that
# right?
#
# We can check it. A CUDA core performs one multiplication and one addition per cycle,
# so its peak is twice its clock rate. A T4's highest clock is 1,590 MHz, and its peak
# in float32 is 8.1 TFLOPS [3], that is, 8.1 million million operations per second.
#
# *Predict before you run*: how many cores does a T4 have?


# %%
def teraflops(cores: int, clock_mhz: int) -> float:
    return 2 * cores * clock_mhz * 1e6 / 1e12


chapter.predict("cores of a T4", None)  # write your number for None
notes, nvidia = {7.5: 128}, {7.5: 64}  # cores per SM, by compute capability
for per_multiprocessor in (notes[7.5], nvidia[7.5]):
    cores = 40 * per_multiprocessor
    print(f"40 x {per_multiprocessor} = {cores:,} cores", end=": ")
    print(f"{teraflops(cores, 1590):.1f} TFLOPS")
chapter.answer("cores of a T4", cores)

# %% [markdown]
# Only the second line agrees with the published peak. The peak alone would have
# sufficed: `8.1e12 / (2 * 1.59e9) = 2,547`, which is 2,560 up to the rounding of 8.1.
# So a T4 has half of the cores that the notes print, because their table has 128 cores
# per SM where NVIDIA's documentation has 64. (It also lists a capability 5.1, which no
# GPU has.) More important than the table is the method: if a number can be computed in
# two ways, compute it in both.
#
# ## What a GPU adds
#
# A GPU has many more cores. A single CPU core is faster and more versatile than a CUDA
# core, but a CPU has only a few of them. To compare the two fairly, note that each CPU
# core processes several floats per instruction, using vector registers. A CUDA core
# corresponds to *one* float of such a register. Many CPU cores use two registers per
# cycle and run at a higher clock than a GPU. The ratio of the peak speeds is then
# smaller than the ratio that the next cell prints (exercise 2).

# %%
floats = (here.cpu.vector_bits or 32) // 32
cores = min(here.cpu.physical_cores or here.cpu.logical_cores, here.cpu.usable_cores)
print(f"this host: {cores} cores x {floats} floats in one instruction")
for gpu in here.gpus:
    print(f"{gpu.label}: {gpu.cores or gpu.cores_by_table} cores")
lanes = cores * floats
print(f"a T4 has {2560 / lanes:.0f} times as many CUDA cores as this host has floats")

# %% [markdown]
# So many cores help only if there is enough *independent* work for all of them: a batch
# of 256 images, say, rather than one number after another. They must also be supplied
# with data. A T4 reads its own memory at up to 320 GB/s, but it receives data from the
# host at no more than 16 GB/s over PCIe [3]. For the H200 of the drawing the two rates
# are 4,800 and 64 GB/s [4]. (Data sheets often add both directions of a link, which
# doubles its rate.) Chapter 3 shows what follows from this.
#
# ![Two memories and the link between them](../docs/drawings/host-and-device.svg)
#
# ## Three peaks of one card
#
# Since 2017 NVIDIA's data-centre GPUs have *tensor cores* besides CUDA cores. A tensor
# core multiplies small matrices in one instruction, with inputs of lower precision. A
# float32 number has 23 bits for its fraction. TF32 and bfloat16 (bf16) keep the range
# of float32, but only 10 and 7 bits of the fraction. A card therefore has several
# peaks, and you must know which one applies to your program. From the data sheets [3]
# [4], in TFLOPS, for dense matrices:
#
# | card | float32, CUDA cores | TF32, tensor cores | 16 bits, tensor cores |
# |---|---|---|---|
# | T4 [3] | 8.1 | none | 65 |
# | H200 [4] | 67 | 495 | 990 |
#
# The 16 bits are float16 on a T4, which has no bf16. On an H200 float16 and bf16 have
# the same peak. The formula `2 * cores * clock` gives the first column only. MXNet
# trains in float32; whether it uses TF32 for matrix products is a setting, which our
# records name.
#
# ## What MXNet calls a device
#
# MXNet calls a device a *context*. `mx.gpu(0)`, `mx.gpu(1)`, ... are GPUs. `mx.cpu(0)`,
# `mx.cpu(1)`, ... are queues of work on the host, each with its own threads. CPU
# contexts share the cores and the memory of the host. Thanks to them you can run
# everything in these chapters without a GPU, and two contexts that have a core each
# really compute at the same time.
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
        print(f"{text}: {error}")
print("mx.gpu(7) can be written anywhere:", mx.gpu(7))
chapter.answer("try_gpu(7) returns", str(try_gpu(7)))

# %% [markdown]
# The last two lines are traps. Without such a GPU, `try_gpu(7)` returns the CPU. On a
# machine with one GPU, a "two-GPU" timing then measures a GPU and a CPU, without a
# warning. And `mx.gpu(7)` is only a name; the error comes later, when an array is
# created there. `devices.parse` checks first, and its error lists what exists.
#
# You may create more contexts than there are cores. This is useful for checking that a
# program is correct, but says nothing about its speed.
#
# ## How busy are they?
#
# A second device helps only if it is busy. The library psutil reports how much time on
# the cores a process has used. In the cell below, one context and then two compute
# sines for a second.
#
# *Predict before you run*: 100 % is one core. How many per cent do two contexts use?

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
# A context of this chapter has one thread. On an idle machine with two cores or more,
# expect one context to use about one core, and two contexts to use two (`2 * 100 %`).
# If a single context uses clearly less than one core, another program uses the cores.
#
# If two contexts use clearly less than twice as much as one, there are three suspects:
# another program; the operating system, which may let both threads take turns on one
# core; and the contexts themselves, which may wait for each other. As long as this
# lasts, a second context cannot show what a second device is worth. Run the cell again
# before you time anything, and if the numbers remain, look for the program with `top`.
#
# While a training runs, `htop` in another terminal shows how busy each core is. For
# GPUs [this page](../docs/second-gpu.md#look-while-it-runs) explains nvtop and nvitop,
# and how to read their numbers.
#
# ## The devices of a run
#
# Finally, we list the devices that the command-line flags select. The name of each one
# says what computes there, for example `cpu(0) (1 thread of 2 cores)`, or the model of
# a GPU. The record of a run has the same names.

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
# > **Takeaway.** The float32 peak of the CUDA cores is `2 * cores * clock`. Tensor
# > cores have higher peaks for lower precision. An idle device adds nothing to either.
#
# A device is a place where work is queued and computed: `mx.gpu(i)` or `mx.cpu(i)`. A
# GPU consists of many simple cores with their own memory, behind a link that is slower
# than this memory. Check what you are told by computing a number in two ways. Ask for
# devices in a way that fails if they do not exist, and watch a training before you time
# it.
#
# ## Exercises
#
# 1. *On paper.* d2l used V100s: 80 SMs of capability 7.0 with 64 cores each, and a
#    clock of 1,530 MHz. How many cores and TFLOPS are these? *(`80 * 64 = 5,120` cores,
#    `2 * 5,120 * 1.53e9 = 15.7e12` operations per second, the peak in the data sheet
#    [5]. So the wrong count of a T4's cores is the right count of a V100's.)*
# 2. *On paper.* What is the peak of a host with 2 cores, registers of 16 floats, two
#    registers per cycle, and 3 GHz? What share of a T4 is that? *(`2 * 2 * 16 * 2 * 3e9
#    = 384e9` operations per second, `384e9 / 8.1e12 = 4.7 %`. A T4 has
#    `2560 / (2 * 16) = 80` times as many CUDA cores as this host has floats in
#    registers; two registers per cycle and the higher clock reduce the factor to 21.)*
# 3. Create an array on a GPU that does not exist: `np.ones(3, ctx=mx.gpu(7))`.
#    *(MXNet's message does not mention the number 7. On a build without CUDA it says
#    that the operator is not implemented for GPU. Compare it with
#    `devices.parse("gpu:8")`.)*
# 4. Call `watched(devices.parse("cpu:4"))` and compare with two contexts. *(On a
#    machine with two cores four contexts cannot use more than `2 * 100 %`. More
#    contexts do not make more cores.)*
# 5. Leave out `npx.waitall()` in the loop, and be ready to restart the kernel. *(Python
#    queues work much faster than the devices do it. They are still busy long after the
#    function has returned, and the next line that needs a number waits for all of it.
#    `d2lpar.training.Epoch` limits how far Python runs ahead.)*
# 6. *On paper.* A step of a language model needs 2e15 operations. How long does it take
#    at least on an H200, in float32 on CUDA cores, in TF32, and in bf16? *(`2e15 /
#    67e12 = 30 s`, `2e15 / 495e12 = 4.0 s` and `2e15 / 990e12 = 2.0 s`. These are lower
#    bounds. Chapter 4 defines the share of a peak that a program reaches.)*
#
# ## Sources
#
# - [1] Zhang et al., *Dive into Deep Learning*, "Training on Multiple GPUs",
#   <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>; the listing
#   is in its run of 5 July 2019, <https://github.com/mli/d2l-1day-notebooks>
# - [2] Least-squares notes on GPU computing, "Querying your GPU" (in Korean),
#   `2022_05_03.ipynb` of <https://github.com/Daegeun02/GPGPU>
# - [3] NVIDIA, "T4 Tensor Core GPU",
#   <https://www.nvidia.com/en-us/data-center/tesla-t4/>
# - [4] NVIDIA, "H200 Tensor Core GPU",
#   <https://www.nvidia.com/en-us/data-center/h200/>, without the factor of two for
#   sparse matrices
# - [5] NVIDIA, "V100 Tensor Core GPU", <https://www.nvidia.com/en-us/data-center/v100/>
#
# nvtop was recommended by "GPU Data Science" (in Korean),
# <https://github.com/likejazz/likejazz.github.io> (`_wiki/GPU-Data-Science.md`).

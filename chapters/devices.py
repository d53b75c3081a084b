# %% [markdown]
# # What a device is
#
# Seed: PyCUDA notes, "Querying your GPU", in Korean (000), and nvtop, in Korean (002)
#
# A card for each GPU and one for the CPU contexts: how many, how fast, how much memory,
# how they are linked; and how busy they are. Nothing is measured on 1, 2, ... devices:
#
#     python chapters/devices.py --devices auto
#     d2lpar run devices --preset book
#     d2lpar devices --json             the same cards for another program
#     d2lpar devices --watch            how busy they are, once a second

# %%
import os
import time

from d2lpar import chapter, devices
from d2lpar._mxnet import np, npx
from d2lpar.machine import load
from d2lpar.machine.cards import as_text, cores_text, machine
from d2lpar.machine.gpu_cards import CORES_PER_MULTIPROCESSOR, GpuCard

here = machine()
print(as_text(here))

# %% [markdown]
# **The seed's sum.** It multiplies a GPU's multiprocessors, which the driver tells, by
# the CUDA cores of one, which it looks up by compute capability. NVIDIA has 64 for 7.5
# where the seed has 128, so a T4 has half of what it printed; and there is no 5.1.

# %%
SEEDS_TABLE = {5.0: 128, 5.1: 128, 5.2: 128, 6.0: 64, 6.1: 128, 6.2: 128, 7.5: 128}
for capability, seeds in SEEDS_TABLE.items():
    nvidias = CORES_PER_MULTIPROCESSOR.get(tuple(map(int, str(capability).split("."))))
    if seeds != nvidias:
        print(f"capability {capability}: the seed has {seeds}, NVIDIA {nvidias}")

each = CORES_PER_MULTIPROCESSOR[7, 5]
t4 = GpuCard(0, 0, "Tesla T4", (7, 5), 40, each, clock=1590)
print(f"{t4.name}: 40 x {each} = {t4.cores_by_table:,}; the seed: 40 x 128 = 5,120")

# %% [markdown]
# **Another seed proves it.** A core does one multiplication and one addition a clock:
# at the T4's highest clock, 1,590 MHz, that is the 8.1 TFLOPS of seed 002 with 2,560
# cores. With 5,120 it would be 16.3. Better not to multiply at all: NVML counts cores
# itself, and a card says so where the table disagrees.


# %%
def teraflops(cores: int, clock_mhz: int) -> float:
    return 2 * cores * clock_mhz * 1e6 / 1e12


print(f"2,560 cores: {teraflops(2560, t4.clock):.1f} TFLOPS")
print(f"5,120 cores: {teraflops(5120, t4.clock):.1f} TFLOPS")

# %% [markdown]
# **What a GPU adds** is number: a CUDA core does what one place of a CPU's vector
# register does (of which many CPU cores have two at work). And memory of its own, which
# data must first reach over a link; CPU contexts share the host's, and its cores.

# %%
floats = (here.cpu.vector_bits or 32) // 32
cores = here.cpu.usable_physical or here.cpu.usable_cores
print(f"this host: {cores} cores x {floats} floats in one instruction")
for gpu in here.gpus:
    print(f"{gpu.label}: {cores_text(gpu)}")

# %% [markdown]
# **How busy they are.** Two CPU contexts at work on two cores, watched from a thread;
# `d2lpar run ... --watch` does so to a run, and draws it under its accuracy.

# %%
two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
arrays = [np.ones((1000, 1000), ctx=device) for device in two]
taken, end = [], time.perf_counter() + 1
with load.sampling(os.getpid(), taken.append, interval=0.25):
    while time.perf_counter() < end:
        sines = [np.sin(array) for array in arrays]
        npx.waitall()
print(f"{taken[-1].cpu_percent:.0f} % of a core, {taken[-1].busy_threads} threads busy")


# %% [markdown]
# **The devices of a run**: those that the flags name, as its record calls them.


# %%
def show_devices(chosen: list, **flags) -> None:
    names = ", ".join(map(devices.label, chosen))
    print(f"a run on {len(chosen)} uses {names}")


if __name__ == "__main__":
    chapter.show("devices", show_devices)

# %% [markdown]
# # What a device is
#
# Source: the least-squares notes, "Querying your GPU"; the GPU wiki, "nvtop"
#
# One card for each GPU and one for the CPU contexts: how many there are, how fast, how
# much memory they have, how they are linked, and how busy they are.
#
#     python chapters/devices.py --devices auto
#     d2lpar run devices --preset book
#     d2lpar devices --json             the same cards for another program
#     d2lpar devices --watch            how busy they are, once a second

# %%
import os
import time

from d2lpar import chapter, devices, np, npx
from d2lpar.machine import load
from d2lpar.machine.cards import as_text, cores_text, machine
from d2lpar.machine.gpu_cards import CORES_PER_MULTIPROCESSOR, GpuCard

here = machine()
print(as_text(here))

# %% [markdown]
# **How many cores?** The notes multiply the multiprocessors, which the driver reports,
# by the cores of one, from a table by compute capability. It has 128 for 7.5 where
# NVIDIA has 64, so a T4 has half the cores they print; and there is no capability 5.1.

# %%
NOTES_TABLE = {5.0: 128, 5.1: 128, 5.2: 128, 6.0: 64, 6.1: 128, 6.2: 128, 7.5: 128}
for capability, notes in NOTES_TABLE.items():
    nvidia = CORES_PER_MULTIPROCESSOR.get(tuple(map(int, str(capability).split("."))))
    if notes != nvidia:
        print(f"capability {capability}: {notes} in the notes, {nvidia} by NVIDIA")

each = CORES_PER_MULTIPROCESSOR[7, 5]
t4 = GpuCard(0, 0, "Tesla T4", (7, 5), 40, each, clock=1590)
print(f"{t4.name}: 40 x {each} = {t4.cores_by_table:,}; the notes: 40 x 128 = 5,120")

# %% [markdown]
# **A check by speed.** A core does one multiplication and one addition per cycle. With
# 2,560 cores at the T4's highest clock, 1,590 MHz, that makes the 8.1 TFLOPS of the GPU
# wiki; 5,120 would make 16.3. NVML counts cores itself: a card says if it disagrees.


# %%
def teraflops(cores: int, clock_mhz: int) -> float:
    return 2 * cores * clock_mhz * 1e6 / 1e12


print(f"2,560 cores: {teraflops(2560, t4.clock):.1f} TFLOPS")
print(f"5,120 cores: {teraflops(5120, t4.clock):.1f} TFLOPS")

# %% [markdown]
# **What a GPU adds** is quantity: a CUDA core does the work of one lane of a CPU's
# vector register (many CPU cores use two registers at once). It also has memory of its
# own, which data must first reach over a link. CPU contexts share the host's.

# %%
floats = (here.cpu.vector_bits or 32) // 32
cores = here.cpu.usable_physical or here.cpu.usable_cores
print(f"this host: {cores} cores x {floats} floats in one instruction")
for gpu in here.gpus:
    print(f"{gpu.label}: {cores_text(gpu)}")

# %% [markdown]
# **How busy are they?** A thread watches two CPU contexts at work. `d2lpar run ...
# --watch` watches a run in the same way and draws the result under its accuracy.

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
# **The devices of a run**: those that the flags name, as the record names them.


# %%
def show_devices(chosen: list, **flags) -> None:
    names = ", ".join(map(devices.label, chosen))
    print(f"a run on {len(chosen)} uses {names}")


if __name__ == "__main__":
    chapter.show("devices", show_devices)

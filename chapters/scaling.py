# %% [markdown]
# # When does a second device pay?
#
# Source: the book, "Training on Multiple GPUs", its last experiment,
# <https://d2l.ai/chapter_computational-performance/multiple-gpus.html>
#
# In the book two V100s are slower than one: 2.5 s per epoch against 1.8 s. From which
# batch size on would they be faster? Here is the map: the time of a step at every
# global batch size on 1, 2, ... devices, its parts, and a prediction for N devices.
#
#     python chapters/scaling.py --devices auto --num-devices 1,2
#     d2lpar run scaling --preset book

# %%
from d2lpar import chapter, devices
from d2lpar.records.step_model import StepModel, break_even, fit_all_reduce, fit_step
from d2lpar.studies import scaling

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")

# %% [markdown]
# **A model of a step.** It takes a fixed time per device (Python issues every operator,
# for one device after the other), a time per sample of a device's shard, and that of
# the all-reduce, which depends on arrays and bytes. A second device halves the shards
# and adds to the rest: it pays if half a shard saves more than that.

# %%
all_reduce = fit_all_reduce(2, [(1, 4_096, 0.1e-3), (8, 516_272, 0.7e-3)])
model = StepModel(2e-3, 0.3e-3, all_reduce, num_arrays=8, num_bytes=516_272)
for batch in (2, 8, 64, 512):
    print(
        f"batch {batch:3}: two devices are {model.speedup(2, batch):.2f} times as fast"
    )
print(f"break-even at a batch of {model.break_even(2):.1f}")

# %% [markdown]
# **Measured, then fitted.** The parameters come from steps on one device (here, four
# from this repository's records). Each run prints how well they predict the steps on
# two, which the fit has not seen.

# %%
steps = {(1, 8): 3.15e-3, (1, 512): 176e-3, (2, 8): 3.56e-3, (2, 512): 97e-3}
fitted = fit_step(steps, all_reduce, 8, 516_272, without=[2])
print(f"{1e3 * fitted.fixed:.1f} ms + {1e6 * fitted.per_sample:.0f} us per sample")
for batch in (8, 512):
    predicted, measured = 1e3 * fitted.seconds(2, batch), 1e3 * steps[2, batch]
    print(f"two devices, batch {batch}: {predicted:.1f} ms, measured {measured:.1f} ms")
turn = break_even({batch: steps[1, batch] / steps[2, batch] for batch in (8, 512)})
print(f"break-even between the two: {turn:.0f}")

# %% [markdown]
# **Strong and weak scaling.** Strong scaling keeps the global batch: the same numbers,
# sooner. Weak scaling keeps each device's batch, so the global one grows, and with it
# the learning rate, after a warm-up (Goyal et al. 2017). There are fewer steps, which
# may cost accuracy.
#
# **The run** uses one thread per context, so that a device is a core. It draws the map
# with rows predicted for more devices, a step's parts by leaving each out
# (`d2lpar.studies.step_parts`), five kinds of all-reduce
# (`d2lpar.studies.allreduce_variants`), and accuracy under weak scaling.

# %%
SIZES = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
PRESETS = {
    "quick": {
        "batch_sizes": [2, 8, 32, 128, 512],
        "samples": 3,
        "seconds": 0.2,
        "parts_at": [32, 512],
        "all_reduce_sizes": [2**12, 2**16, 2**20, 2**24],
        "per_device_batch_sizes": [32],
        "num_epochs": 3,
        "base_batch": 64,
        "data": {"n_train": 6_000, "n_test": 1_000},
    },
    "book": {
        "batch_sizes": SIZES,
        "parts_at": [32, 256, 2048],
        "all_reduce_sizes": [2**k for k in range(10, 28, 2)],
        "per_device_batch_sizes": [128, 512],
        "num_epochs": 8,
        "warmup": 3,
    },
    "dry-run": {
        "batch_sizes": [8, 32],
        "samples": 1,
        "seconds": 0.01,
        "parts_at": [8],
        "all_reduce_sizes": [2**12],
        "per_device_batch_sizes": [16],
        "data": {"n_train": 128, "n_test": 100},
    },
}

if __name__ == "__main__":
    ways = {"scratch": {"implementation": "from scratch", "per_device_batch_sizes": []},
            "concise": {"implementation": "concise"}}  # fmt: skip
    chapter.measure("scaling", scaling.WORKLOAD, PRESETS, variants=ways, threads=1)

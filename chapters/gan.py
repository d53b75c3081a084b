# %% [markdown]
# # A GAN on CryptoPunks, data-parallel
#
# Seed: "Parallelism and GPU computing" (003), its second half, from PyTorch
#
# A generator draws faces of 24 x 24 pixels out of noise; a discriminator learns to tell
# them from real ones. Each device has a replica of both, and a shard of each batch:
#
#     python chapters/gan.py --devices auto --num-devices 1,2
#     d2lpar run gan --preset book       (4,000 epochs of the full batch: for GPUs)
#
# The faces are the CryptoPunks where `punks.png` can be found or downloaded, else
# generated ones; the artwork has no open licence, and is no part of this project.

# %%
import numpy

from d2lpar import chapter, devices, gan, split_batch
from d2lpar._mxnet import autograd, np
from d2lpar.datasets import face_quality, punks

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
data = punks.load("synthetic", n_train=600)
X = np.array(data.X[:200]).astype("float32") / 255
z = np.random.normal(size=(200, *gan.Z_SHAPE))
X_shards, z_shards = split_batch(X, z, two)

# %% [markdown]
# **One step.** The fakes are made once and serve both updates, as in the seed. The
# discriminator sees them detached; through its opinion of them the generator learns.
# Both Adams sum the gradients over the devices, and divide by the global batch.

# %%
state = gan.start(seed=0)
nets = gan.Nets(state, two, lr=1e-4)
with autograd.record():
    fakes = gan.generate(nets.G, z_shards)
d_losses, opinions = gan.update_D([(X_shards, fakes)], nets.D, nets.adam_D)
g_losses = gan.update_G([fakes], nets.D, nets.adam_G)
print("loss of D:", sum(float(l) for l in d_losses) / 400)
print("loss of G:", sum(float(l) for l in g_losses) / 200)

# %% [markdown]
# **BatchNorm** takes mean and variance over each device's own shard: so two devices
# compute something else than one. Synchronised, they compute the same.

# %%
one = gan.Nets(state, two[:1], lr=1e-4)
for synchronised in (False, True):
    with autograd.train_mode():
        (whole,) = gan.generate(one.G, [z])
        parts = gan.generate(gan.Nets(state, two, 1e-4).G, z_shards, synchronised)
    together = numpy.concatenate([part.asnumpy() for part in parts])
    gap = numpy.abs(together - whole.asnumpy()).max()
    print(f"synchronised={synchronised}: the faces differ by {gap:.1e}")

# %% [markdown]
# **Memory.** 10,000 faces through 128 channels of 12 x 12 are 0.7 GB a layer. With
# `--micro-batch-size` a device takes so many at a time; gradients add up.
#
# **How good?** A distance of pixels, and whether it copies: the nearest face of the
# data set. Two halves of the data themselves are this far apart:

# %%
halves = data.X[:300], data.X[300:]
print("distance of two halves:", face_quality.sliced_wasserstein(*halves))
drawn = gan.sample(state, n=300, seed=7, device=two[0])
print("of an untrained one's faces:", face_quality.sliced_wasserstein(drawn, halves[0]))
print("nearest to three faces:", face_quality.nearest(drawn[:3], data.X)[1])

# %% [markdown]
# **Training** on 1, 2, ... devices, with an animation of one noise's face. `Ctrl-C`
# leaves a checkpoint, `--resume last` goes on, `d2lpar sample` draws faces from one.

# %%
PRESETS = {
    "quick": {
        "num_epochs": 20,
        "global_batch_size": 100,
        "lr": 2e-4,
        "micro_batch_size": None,
        "sync_batch_norm": False,
        "frames_every": 1,
        "data": {"n_train": 5_000},
    },
    "book": {
        "num_epochs": 4_000,
        "global_batch_size": 10_000,
        "lr": 1e-4,
        "micro_batch_size": None,
        "sync_batch_norm": False,
        "frames_every": 10,
    },
    "dry-run": {"num_epochs": 1, "global_batch_size": 50, "data": {"n_train": 100}},
}

if __name__ == "__main__":
    plan = {"load": "d2lpar.datasets.punks:load"}
    # Each temporary buffer of MXNet's grows to the largest activation; 16 are as fast.
    plan["environment"] = {"MXNET_CPU_TEMP_COPY": "16"}
    chapter.measure("gan", "d2lpar.gan.training:train", PRESETS, **plan)

# %% [markdown]
# # A GAN on CryptoPunks, data-parallel
#
# Source: the CryptoPunks notebook, "Redoing our GAN example"
#
# A generator turns noise into faces of 24 x 24 pixels; a discriminator learns to tell
# them from real ones. Each device has a replica of both and a shard of each batch:
#
#     python chapters/gan.py --devices auto --num-devices 1,2
#     d2lpar run gan --preset book       (4,000 epochs of the full batch: for GPUs)
#
# The faces are the CryptoPunks if `punks.png` is found or can be downloaded, else
# generated ones. The artwork has no open licence and is not part of this project.

# %%
import numpy

from d2lpar import autograd, chapter, devices, gan, np, split_batch
from d2lpar.datasets import face_quality, punks

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
data = punks.load("synthetic", n_train=600)
X = np.array(data.X[:200]).astype("float32") / 255
z = np.random.normal(size=(200, *gan.Z_SHAPE))
X_shards, z_shards = split_batch(X, z, two)

# %% [markdown]
# **One step.** The fakes serve both updates, as in the notebook: detached for the
# discriminator, whose opinion then teaches the generator. Both Adam optimisers sum the
# gradients over the devices and divide by the global batch size.

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
# **BatchNorm** takes mean and variance over each device's own shard, so two devices do
# not compute what one computes. Synchronised, they do.

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
# **Memory.** 10,000 faces with 128 channels of 12 x 12 take 0.7 GB per layer;
# `--micro-batch-size` limits how many a device takes at a time.
#
# **How good are they?** A distance between sets of faces tells; the nearest real face
# shows whether the generator copies. Two halves of the data are this far apart:

# %%
halves = data.X[:300], data.X[300:]
print("distance of two halves:", face_quality.sliced_wasserstein(*halves))
drawn = gan.sample(state, n=300, seed=7, device=two[0])
print("of untrained faces:", face_quality.sliced_wasserstein(drawn, halves[0]))
print("nearest to three faces:", face_quality.nearest(drawn[:3], data.X)[1])

# %% [markdown]
# **Training** on 1, 2, ... devices, with an animation of the face of one noise. Ctrl-C
# leaves a checkpoint; `--resume last` continues from it, `d2lpar sample` draws from it.

# %%
PRESETS = {
    "quick": {
        "num_epochs": 20,
        "global_batch_size": 100,
        "lr": 2e-4,
        "micro_batch_size": None,
        "sync_batch_norm": False,
        "frames_every": 1,
        "data": {"n_train": 2_500},
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
    # Each of MXNet's temporary buffers grows to the largest activation; 16 are as fast.
    few_buffers = {"MXNET_CPU_TEMP_COPY": "16"}
    chapter.measure("gan", gan.WORKLOAD, PRESETS, environment=few_buffers)

# %% [markdown]
# # Case study: a GAN on CryptoPunks
#
# In Chapter 1 we trained one network on several devices. A *generative adversarial
# network* (GAN) consists of two networks. A *generator* G turns random numbers into
# pictures, and a *discriminator* D learns to tell these pictures from real ones. Here
# we train both against each other, and measure whether the pictures get better.
#
# ![Above: faces that a generator draws of eight noises, after 0 to 21,666 steps
# of training. Below: the share of the real faces that are covered, by steps, with and
# without spectral normalisation](../figures/gan/faces.png)
#
# A published course notebook [1] trains a GAN on the 10,000 CryptoPunks, which are
# faces of 24 x 24 pixels, for **4,000 epochs**.
#
# Run this chapter as a notebook, or as `python chapters/gan.py --num-devices 1,2`. The
# artwork of the CryptoPunks has no open licence and is not part of this project. The
# cells therefore use faces assembled from drawn sprites. `d2lpar run gan` trains on the
# CryptoPunks if it finds `punks.png` or can download it.

# %%
import numpy
from PIL import Image

from d2lpar import allreduce, autograd, chapter, devices, gan, gluon, np, split_batch
from d2lpar.datasets import punks
from d2lpar.datasets.punks import enlarged, sheet
from d2lpar.records.kinds import FrameRecord

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
data = punks.load("synthetic", n_train=1200)


def picture(faces):
    """Rows of ten faces uint8 (n, 3, 24, 24) as an image, which a notebook shows."""
    return Image.fromarray(enlarged(sheet(faces, columns=10), 3))


picture(data.X[:10])

# %% [markdown]
# ## The two networks
#
# The generator upsamples random numbers, its *noise*, to a face. The discriminator is a
# small convolutional network with a single output.
#
# The notebook's discriminator ends in a sigmoid. Our network instead returns a *score*,
# which is positive for "real", and the sigmoid becomes part of the loss. The loss then
# stays finite: in float32 the sigmoid of -120 is zero, and its logarithm is minus
# infinity.


# %%
def generator():
    """Noise (n, 16, 3, 3) to faces (n, 3, 24, 24) in [0, 1]."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2DTranspose(128, 10, use_bias=False, in_channels=16),
        gluon.nn.BatchNorm(in_channels=128),
        gluon.nn.Activation("relu"),
        gluon.nn.Conv2DTranspose(3, 4, 2, 1, use_bias=False, in_channels=128),
        gluon.nn.Activation("sigmoid"),
    )
    return net


def discriminator():
    """Faces (n, 3, 24, 24) to scores (n, 1), above 0 for faces taken for real."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(6, 5, activation="relu", in_channels=3),
        gluon.nn.MaxPool2D(2, 2),
        gluon.nn.Conv2D(12, 5, activation="relu", in_channels=6),
        gluon.nn.MaxPool2D(2, 2),
        gluon.nn.Dense(32, activation="relu", in_units=12 * 3 * 3),
        gluon.nn.Dense(1, in_units=32),
    )
    return net


bce = gluon.loss.SigmoidBinaryCrossEntropyLoss()


def replicate(net, values, devices):
    net.initialize(ctx=devices)
    for parameter, value in zip(net.collect_params().values(), values):
        parameter.set_data(np.array(value))
    net.hybridize()
    return net


state = gan.start(seed=0)
D = replicate(discriminator(), state.params_D, two)
G = replicate(generator(), state.params_G, two)

# %% [markdown]
# ## Adam after an all-reduce
#
# The notebook trains with *Adam*, which keeps moving averages m of each gradient and v
# of its square. We pass it the gradient summed over the devices and divided by the
# global batch. Every device then computes the same m and v without communication.


# %%
class Adam:
    def __init__(self, net, lr):
        every = net.collect_params().values()
        self.params = [p for p in every if p.grad_req != "null"]  # no running averages
        self.lr, self.num_steps = lr, 0
        self.moments = [
            [(np.zeros_like(g), np.zeros_like(g)) for g in p.list_grad()]
            for p in self.params
        ]

    def step(self, batch_size):
        self.num_steps += 1
        c1, c2 = 1 - 0.9**self.num_steps, 1 - 0.999**self.num_steps
        for p, moments in zip(self.params, self.moments):
            gradients = p.list_grad()
            allreduce(gradients)
            for w, g, (m, v) in zip(p.list_data(), gradients, moments):
                g = g / batch_size
                m[:] = 0.9 * m + 0.1 * g
                v[:] = 0.999 * v + 0.001 * g * g
                w[:] = w - self.lr * (m / c1) / (np.sqrt(v / c2) + 1e-8)


# %% [markdown]
# ## One step
#
# A step consists of two updates, drawn here for one device:
#
# ![One step: the generator makes fakes, the discriminator is updated, then it judges
# the same fakes again for the update of the generator](../docs/drawings/gan-step.svg)
#
# The generated pictures, called *fakes*, are made once and serve both updates, as in
# the notebook. In its own update the discriminator receives them *detached*, so that no
# gradient reaches the generator. Then the updated discriminator judges them again. This
# time the gradient flows through the discriminator into the generator, whose target is
# the verdict "real".
#
# *Predict before you run*: the untrained discriminator cannot tell real faces from
# fakes. What is its loss?


# %%
def step(X_shards, z_shards, adam_D, adam_G):
    n = sum(len(X) for X in X_shards)
    with autograd.record():
        fakes = [G(z) for z in z_shards]
        d_losses = []
        for X, fake in zip(X_shards, fakes):
            scores = D(np.concatenate([X, fake.detach()]))  # real ones first
            ones = np.ones((len(X), 1), ctx=X.ctx)
            d_losses.append(bce(scores, np.concatenate([ones, 0 * ones])))
    autograd.backward(d_losses)
    adam_D.step(2 * n)
    with autograd.record():
        g_losses = [
            bce(D(fake), np.ones((len(fake), 1), ctx=fake.ctx)) for fake in fakes
        ]
    autograd.backward(g_losses)
    adam_G.step(n)
    d_loss = sum(float(l.sum()) for l in d_losses)
    g_loss = sum(float(l.sum()) for l in g_losses)
    return d_loss / (2 * n), g_loss / n


chapter.predict("loss of an untrained D", None)  # write your number for None
X = np.array(data.X[:200]).astype("float32") / 255
draw = numpy.random.default_rng(1)
z = np.array(draw.standard_normal((200, *gan.Z_SHAPE), "float32"))
X_shards, z_shards = split_batch(X, z, two)
adam_D, adam_G = Adam(D, lr=1e-4), Adam(G, lr=1e-4)
d_loss, g_loss = step(X_shards, z_shards, adam_D, adam_G)
print(f"loss of D: {d_loss:.6f}, of G: {g_loss:.6f}; log 2 = {numpy.log(2):.6f}")

nets = gan.Nets(state, two, lr=1e-4)
sums = gan.step(X_shards, z_shards, nets)
d_loss, g_loss = sum(map(float, sums.d_losses)), sum(map(float, sums.g_losses))
print(f"d2lpar:    {d_loss / 400:.6f},       {g_loss / 200:.6f}")
nets.update(state)  # copies the parameters to the host
for net, params in ((D, state.params_D), (G, state.params_G)):
    for mine, packaged in zip(net.collect_params().values(), params):
        assert numpy.allclose(mine.list_data()[0].asnumpy(), packaged, atol=2e-6)
chapter.answer("loss of an untrained D", d_loss / 400)

# %% [markdown]
# If all scores were zero, each sigmoid would be one half and the loss `log 2`. The
# scores of an untrained network are close to zero. The gradients of the discriminator
# are divided by `2 * n`, because each face comes with a fake, and those of the
# generator by `n`. The package takes the same step in a different way, and all
# parameters agree.
#
# Two networks change nothing about data parallelism: split once, sum the gradients of
# each network before its own update, and divide by the global batch. G contains
# BatchNorm, which sees only the shard of a device (Chapter 4). `sync_batch_norm`
# communicates its means and variances.
#
# ## How good are faces?
#
# The losses show who is winning, not how good the pictures are. We therefore compare
# *features* of generated and of real faces, the outputs of three random convolutions.
# Let m1, m2 be the means of both sets of features and C1, C2 their covariances.
#
# - The *Fréchet distance* is `|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))` [2]. It is
#   zero for equal means and covariances.
# - The *coverage* is the share of real faces with a generated face in their
#   *neighbourhood*, which extends to their fifth nearest real neighbour [3].
#
# To learn what these measures are worth, we apply them to sets that we can judge by
# eye.
#
# *Predict before you run*: which set is nearest to the drawn faces by the Fréchet
# distance, after other drawn faces: "noise", the "mean face", or "black"?

# %%
chapter.predict("nearest after other faces", None)
real = gan.RealFaces(gan.features(data.X[:600], two[0]))
references = gan.references(real, data.X[600:], two[0])
for name, quality in references.items():
    print(f"{name:17} Fréchet {quality.frechet:6.1f}, coverage {quality.coverage:.2f}")
by_distance = sorted(references, key=lambda name: references[name].frechet)
chapter.answer("nearest after other faces", by_distance[1])
chapter.score()

# %% [markdown]
# The distance separates drawn faces from the rest. However, it ranks noise nearer than
# the mean face, which our eyes would not. A small distance alone therefore does not
# prove that a generator draws faces. We read it together with the coverage.
#
# ## Two recipes
#
# The notebook's recipe takes one step per epoch, with all faces at once. The preset
# `sharp` has wider networks, batches of 64, a larger learning rate, and *spectral
# normalisation* [4], which divides the weights of each layer of D by their largest
# singular value. The estimate of this value is *state*. The package draws it once and
# copies it to every device, because random numbers of MXNet depend on the device.
#
# Here are records of the CryptoPunks on GPUs, after at most 1,000, 3,000 and 20,000
# steps. That of `sharp` is of version 0.3.

# %%
names = {
    "notebook's recipe": "gpus/gan/as-published-gpu1.jsonl",
    "wide, spectral": "h200/gan/sharp-gpu1.jsonl",
}
for most in (1_000, 3_000, 20_000):
    for name, path in names.items():
        run = chapter.record(path)
        frame = [f for f in run.lines_of(FrameRecord) if f.num_steps <= most][-1]
        print(f"{name:18} {frame.num_steps:7,} steps:", end=" ")
        print(f"Fréchet {frame.frechet:4.1f}, coverage {frame.coverage:.2f}")

# %% [markdown]
# In each pair of rows `sharp` covers more faces, and its distance is smaller.
# The first picture of this chapter changes only spectral normalisation. The notebook's
# recipe trained to its end looks like this ([numbers](../figures/gan.md)):
#
# ![The published recipe on one GPU: eight noises during 4,000 steps, and 25 faces at
# the end, which are heads with hair in wrong colours](../figures/gan/published.png)
#
# ## Training, measured
#
# Finally, we train on the drawn faces with 1, 2, ... devices, and animate the faces of
# eight noises. The preset `quick` draws heads with hair and `book` draws faces, both on
# two cores. `sharp` and `as-published` are meant for GPUs.

# %%
if __name__ == "__main__":
    runs = chapter.measure("gan", data="synthetic")  # without it, CryptoPunks

# %% [markdown]
# Compare the last Fréchet distance with the first one and with the distance of noise,
# and read the coverage beside it. BatchNorm in G sees other shards on one device than
# on two, so the two trainings differ even with the same seed.
#
# ## Summary
#
# > **Takeaway.** N devices compute what one computes if the gradients of each network
# > are summed before its own update and every layer is a function of one sample. Layers
# > that see a batch must communicate, and layers with state must start equal.
#
# ## Exercises
#
# 1. Leave out the all-reduce in `Adam.step` and take ten steps. By how much can the
#    replicas differ? *(In its first steps Adam changes a parameter by at most about the
#    learning rate, 1e-4. After ten steps two replicas therefore differ by up to about
#    `2 * 10 * 1e-4 = 0.002`.)*
# 2. Divide by the shard instead of the batch, `adam_D.step(n)`. What changes? *(All
#    gradients are multiplied by 2. Adam divides by the root of their mean square, so
#    the factor cancels except for epsilon. With SGD each step would be twice as long.)*
# 3. *On paper.* D ends in a score s. What is its loss for a real face if s = 0, and if
#    s = -120? *(`log 2 = 0.69`, and 120.)*
# 4. *Open.* How would you notice that G draws few different faces?
#
# ## Sources
#
# - [1] The CryptoPunks notebook, "Redoing our GAN example",
#   <https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb>
# - [2] Heusel et al., "GANs Trained by a Two Time-Scale Update Rule",
#   <https://arxiv.org/abs/1706.08500>
# - [3] Naeem et al., "Reliable Fidelity and Diversity Metrics for Generative Models",
#   <https://arxiv.org/abs/2002.09797>
# - [4] Miyato et al., "Spectral Normalization for Generative Adversarial Networks",
#   <https://arxiv.org/abs/1802.05957>

# %% [markdown]
# # A GAN on CryptoPunks, data-parallel
#
# Source: the CryptoPunks notebook, "Redoing our GAN example",
# <https://github.com/smart-stats/ds4bio_book/blob/main/book/gpu.ipynb>
#
# A generator turns noise into faces of 24 x 24 pixels; a discriminator learns to tell
# them from real ones. Each device has a replica of both and a shard of each batch. Run
# this chapter as a notebook, or as a program:
#
#     python chapters/gan.py --devices auto --num-devices 1,2
#     d2lpar run gan --preset book           (faces, in 20 minutes on two cores)
#     d2lpar run gan --preset sharp          (better ones: minutes on a GPU)
#     d2lpar run gan --preset as-published   (the notebook's recipe: minutes on a GPU)
#
# The faces are the CryptoPunks if `punks.png` is found or can be downloaded, else
# drawn ones. The artwork has no open licence and is not part of this project; the cells
# below use faces that are put together from drawn sprites.
#
# **What you will learn.**
#
# - the notebook's two networks, and the two updates of a step;
# - where the split, the all-reduce and the division by the batch go when there are two
#   networks and an Adam each;
# - why BatchNorm breaks "N devices compute what one computes", and how to mend it;
# - how to tell whether generated faces get better, without being fooled by noise;
# - what makes a GAN draw faces instead of rubble, and what each replica must share
#   for it.
#
# ![One step of a GAN on several devices](../docs/drawings/gan-step.svg)

# %%
import numpy
from PIL import Image

from d2lpar import allreduce, autograd, chapter, devices, gan, gluon, np, split_batch
from d2lpar.datasets import punks
from d2lpar.datasets.punks import enlarged, sheet

two = devices.parse("cpu:2")  # on a machine with two GPUs: devices.parse("gpu:2")
data = punks.load("synthetic", n_train=1200)
print(data.X.dtype, data.X.shape)


def picture(faces):
    """Ten faces uint8 (n, 3, 24, 24) as an image, which a notebook shows."""
    return Image.fromarray(enlarged(sheet(faces[:10], columns=10), 3))


picture(data.X)

# %% [markdown]
# ## The two networks
#
# The generator upsamples 16 channels of 3 × 3 random numbers to 128 channels of 12 × 12
# and then to a 3 × 24 × 24 face. The discriminator is a small convolutional network
# that ends in one number.
#
# The notebook's discriminator ends in a sigmoid. Here that is left out, and a score
# above 0 means "real". The sigmoid moves into the loss, which then stays finite: in
# float32 the sigmoid of -120 is 0, and the loss would need its logarithm. (PyTorch's
# loss, which the notebook uses, cuts the logarithm off at -100.)


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
score, real = np.array([[-120.0]]), np.array([[1.0]])
probability = 1 / (1 + np.exp(-score))
print("sigmoid, then log:", -np.log(probability), "both in one:", bce(score, real))

# %% [markdown]
# ## Replicas
#
# `gan.start` draws the parameters on the host, from PyTorch's default distributions, as
# the notebook has them. Every device gets the same copy.


# %%
def replicate(net, values, devices):
    net.initialize(ctx=devices)
    for parameter, value in zip(net.collect_params().values(), values):
        parameter.set_data(np.array(value))
    net.hybridize()
    return net


state = gan.start(seed=0)
D = replicate(discriminator(), state.params_D, two)
G = replicate(generator(), state.params_G, two)
for name, net in (("D", D), ("G", G)):
    count = sum(p.list_data()[0].size for p in net.collect_params().values())
    print(f"{name}: {count:,} numbers on each of {two}")

# %% [markdown]
# ## Adam, after an all-reduce
#
# Adam keeps a running mean m of each gradient and one, v, of its square. Data parallel,
# it sees the *sum* of the devices' gradients, divided once by the global batch. m and v
# are then the same on every device and need not be sent.


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
# The fakes are made once and serve both updates, as in the notebook. The discriminator
# sees them *detached*: its update must not reach the generator. Then the updated
# discriminator judges them again, and this time the gradient flows through it into the
# generator, which wants the verdict "real".
#
# *Predict before you run*: (1) Untrained, the discriminator knows nothing. What is its
# loss? (2) By which number are the discriminator's gradients divided, if each of two
# devices has 100 real faces and makes 100 fakes?


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
# **What you see.** The untrained discriminator's loss is log 2, that of guessing. Its
# gradients are divided by 400: 200 real faces and 200 fakes, on both devices together.
#
# The parameters agree to a small part of a step of Adam, which is 1e-4: the assertions
# allow 2e-6. The package is faster: it pads the discriminator's 6 and 12 channels to 8
# and 16 with zeros that stay zero, skips the gradients with respect to D when only G is
# updated, and uses one fused operator per update.
#
# ## BatchNorm: what data parallelism changes
#
# BatchNorm subtracts the mean of the batch and divides by its standard deviation. A
# device sees only its shard, so its mean is another one.
#
# *Predict before you run*: by how much do faces in [0, 1] differ at most if two devices
# make 100 each, instead of one making 200?

# %%
chapter.predict("largest difference of two faces", None)
start = gan.start(seed=0)
whole, parts = gan.Nets(start, two[:1], 1e-4), gan.Nets(start, two, 1e-4)
for synchronised in (False, True):
    with autograd.train_mode():
        (together,) = gan.forward(whole.G, [z])
        shards = gan.forward(parts.G, z_shards, synchronised)
    apart = numpy.concatenate([shard.asnumpy() for shard in shards])
    gap = numpy.abs(apart - together.asnumpy()).max()
    print(f"synchronised={synchronised}: the faces differ by {gap:.1e}")
    if not synchronised:
        chapter.answer("largest difference of two faces", gap)

# %% [markdown]
# **What you see.** Apart, faces differ by 0.01, three of 255 shades: hardly visible,
# but far more than rounding, and each step of the training adds to it.
#
# Synchronised, the mean and the variance are taken over all devices: two more
# all-reduces of 128 numbers, in the forward pass. The next cell does this by hand for
# the first two layers of an untrained generator (BatchNorm scale 1, shift 0):

# %%
with autograd.train_mode():
    hs = [parts.G[0](z_k) for z_k in z_shards]  # (100, 128, 12, 12) on each device
    means = [h.mean(axis=(2, 3)).sum(axis=0) for h in hs]
    allreduce(means)
    means = [mean.reshape((1, -1, 1, 1)) / 200 for mean in means]
    squares = [(h - mean) ** 2 for h, mean in zip(hs, means)]
    variances = [square.mean(axis=(2, 3)).sum(axis=0) for square in squares]
    allreduce(variances)
    normalised = [
        (h - mean) / np.sqrt(variance.reshape((1, -1, 1, 1)) / 200 + 1e-5)
        for h, mean, variance in zip(hs, means, variances)
    ]
    one_device = whole.G[1](whole.G[0](z))
apart = numpy.concatenate([h.asnumpy() for h in normalised])
print(f"normalised over both: differs by {abs(apart - one_device.asnumpy()).max():.0e}")

# %% [markdown]
# `--sync-batch-norm` trains in this way. Its gradient, too, must be summed over the
# devices, and a step takes longer (`d2lpar/gan/networks.py`). By default
# each device keeps its own mean, as with PyTorch's `DistributedDataParallel`.
#
# ## How good are faces?
#
# A GAN's losses measure a contest, not the faces. And a measure that compares pixels
# one by one is beaten by noise that has the mean and the deviation of each pixel. So
# the package compares *features*: the outputs of three random convolutions, which see
# edges and how they are arranged, of generated and of real faces.
#
# - The **Fréchet distance** compares the means and covariances of both sets of
#   features; 0 is best.
# - **Coverage** is the share of the real faces that have a generated one among their
#   five nearest neighbours; **distinct** counts how many different real faces are the
#   nearest to some generated one. Both are small if a generator draws few faces,
#   however good they are.
#
# *Predict before you run*: put in order by the Fréchet distance to 600 drawn faces:
# 600 other drawn faces, noise, the mean face, black. Which one is farthest?

# %%
chapter.predict("farthest from faces", None)
real = gan.RealFaces(gan.features(data.X[:600], two[0]))


def report(name, quality):
    print(
        f"{name:17} Fréchet {quality.frechet:6.1f}, coverage {quality.coverage:.2f}, "
        f"distinct {quality.distinct:.2f}, density {quality.density:.2f}"
    )


references = gan.references(real, data.X[600:], two[0])
for name, quality in references.items():
    report(name, quality)
farthest = max(references, key=lambda name: references[name].frechet)
chapter.answer("farthest from faces", farthest)

# %% [markdown]
# **What you see.** The order is the one that the eye sees, and it is tested, for these
# faces and for the CryptoPunks. **Density**, how often a face lies among the neighbours
# of a real one, fails: it rewards the mean face, and so a generator that draws few
# typical faces. It is printed because density up and coverage down are the sign of such
# a *mode collapse*; it is no measure of quality.
#
# ## A wider pair of networks
#
# The notebook's discriminator has 5,789 parameters, and its recipe takes one step per
# epoch, on all 10,000 faces at once. Smaller batches alone do not help: the
# discriminator wins, its loss falls to 0, and the generator learns nothing more. The
# preset `sharp` takes networks of 890,000 (G) and 660,000 (D) parameters
# (`gan.WideGenerator`, `gan.WideDiscriminator`), batches of 64, and **spectral
# normalisation**: the weights W of each layer of D are divided by their largest
# singular value, so that D cannot become arbitrarily steep.
#
# That value is u . W v for two vectors u and v, which a *power iteration* finds. The
# weights change little in a step of the training, and so one iteration per step is
# enough:

# %%
W = numpy.random.default_rng(0).standard_normal((64, 300))
u = numpy.random.default_rng(1).standard_normal(64)
for iteration in range(1, 61):
    v = W.T @ u
    v /= numpy.linalg.norm(v)
    u = W @ v
    u /= numpy.linalg.norm(u)
    if iteration in (1, 5, 20, 60):
        print(f"after {iteration:2}: {u @ W @ v:.3f}")
print(f"singular value: {numpy.linalg.svd(W, compute_uv=False)[0]:.3f}")

# %% [markdown]
# u and v are state, like the running averages of BatchNorm, and begin at random.
# MXNet's random numbers depend on the device, so if every device draws its own u, the
# replicas divide the same weights by different numbers.
#
# *Predict before you run*: Two devices start from equal weights; the second one has
# another u and v in one layer. By what does each divide that layer's weights? After one
# step: do the weights themselves differ, and what are they divided by then?


# %%
def compare_replicas(nets, when):
    layer = nets.spectral[1]
    weights = [W.asnumpy() for W in layer.weight.list_data()]
    vectors = zip(layer.u.list_data(), layer.v.list_data())
    divisors = [
        u.asnumpy() @ W.reshape(len(W), -1) @ v.asnumpy()
        for W, (u, v) in zip(weights, vectors)
    ]
    gap = numpy.abs(weights[0] - weights[1]).max()
    print(f"{when}: divided by", *(f"{d:.5f}" for d in divisors), f"; apart by {gap}")


X = np.array(data.X[:64]).astype("float32") / 255
z = np.array(draw.standard_normal((64, *gan.WideGenerator.z_shape), "float32"))
for own in (False, True):
    nets = gan.Nets(gan.start(0, width=16, d_norm="spectral"), two, lr=1e-3, beta1=0)
    if own:
        layer, draw = nets.spectral[1], numpy.random.default_rng(2)
        for vector in (layer.u, layer.v):
            other = draw.standard_normal(vector.shape).astype("float32")
            other /= numpy.linalg.norm(other)
            vector.list_data()[1][:] = np.array(other, ctx=two[1])
    compare_replicas(nets, "vectors of its own" if own else "the same vectors ")
    gan.step(*split_batch(X, z, two), nets)
    compare_replicas(nets, "      after a step")

# %% [markdown]
# **What you see.** With the same vectors everything stays equal to the bit, *without
# any communication*: equal weights and equal vectors give equal vectors. With vectors
# of their own the two replicas are two networks. Their weights still get the same
# updates, because the gradients are summed, but that sum is the gradient of neither.
# The difference of the divisors shrinks with each power iteration, and no error ever
# tells of it. So u and v are drawn once on the host, copied to each device, and saved
# in the checkpoint.
#
# ## From "D wins" to faces
#
# *Predict before you run*: 300 steps on batches of 32 of these drawn faces, four times:
# the notebook's networks; the wide ones, D without normalisation, with BatchNorm, and
# with spectral normalisation. In which of them does D win outright?


# %%
def trained(lr, beta1=0.0, **networks):
    """The faces after eight epochs; prints how good they are, and D's opinions."""
    state = gan.start(seed=0, **networks)
    settings = {"global_batch_size": 32, "lr": lr, "beta1": beta1, "num_epochs": 8}
    *_, frame, end = gan.train(2, devices=two, data=data, state=state, **settings)
    report(networks.get("d_norm", "notebook"), frame)
    print(f"{'':17} D(x) {end.d_real:.2f}, D(G(z)) {end.d_fake:.2f}")
    opinions[networks.get("d_norm", "notebook")] = end.d_real - end.d_fake
    return gan.sample(state, n=10, seed=7, device=two[0])


chapter.predict("D wins with: none, batch, spectral?", None)
opinions = {}  # how far apart D holds real faces and fakes
rows = [
    trained(lr=1e-3, beta1=0.9),
    trained(lr=3e-3, width=16, d_norm="none"),
    trained(lr=3e-3, width=16, d_norm="batch"),
    trained(lr=3e-3, width=16, d_norm="spectral"),
]
winner = max(opinions, key=opinions.get)
chapter.answer("D wins with: none, batch, spectral?", winner)
chapter.score()
Image.fromarray(enlarged(sheet(numpy.concatenate(rows), columns=10), 3))

# %% [markdown]
# **What you see.** With BatchNorm D wins outright: it takes every face for what it is.
# In its own update it sees real faces and fakes in one batch, whose mean gives them
# away; in the generator's it sees fakes alone, and lets them pass, so G is told that
# all is well.
#
# 300 steps do not tell spectral normalisation from none. Thousands do: on H200s, with
# all CryptoPunks, a width of 64 and batches of 64 ([records](../figures/README.md)):
#
# | | steps | Fréchet | coverage | distinct | density |
# |---|---|---|---|---|---|
# | the notebook's recipe | 2,670 | 20.1 | 0.00 | 0.12 | 0.00 |
# | wide, no normalisation | 10,048 | 12.9 | 0.48 | 0.27 | 0.81 |
# | wide, spectral | 10,362 | 4.1 | 0.81 | 0.49 | 0.78 |
# | wide, spectral | 30,144 | 3.1 | 0.86 | 0.49 | 0.95 |
# | noise, for comparison | | 27.7 | 0.00 | 0.04 | 0.00 |
# | other real faces | | 0.51 | 0.97 | 0.51 | 1.02 |
#
# The notebook's recipe covers next to none of the faces, with a discriminator of 5,789
# parameters and one step per epoch. Without normalisation the faces are sharp, and
# fewer: their density is as high, their coverage is not, and the generated faces are
# near to 27 in place of 49 different real ones per 100.
#
# ![Eight noises, with spectral normalisation](../figures/h200/gan/sharp-strip.png)
#
# ![25 faces without normalisation](../figures/h200/gan/custom-d-norm-none-samples.png)
#
# And BatchNorm in G, of each GPU's own 32 faces or of all 64? After 2,826 steps on two
# GPUs coverage is 0.52 with its own and 0.51 with all of them, the Fréchet distance 4.9
# and 5.5 (one run each): no difference that one could see. But a step takes 16.5 ms in
# place of 8.4, and 7.0 on one GPU, where PyTorch takes 9.6
# ([times](../figures/README.md)). The mean of 32 faces is good
# enough here; "N devices compute what one computes" has its price, and it is for you to
# say whether you need it.
#
# ## Training, measured
#
# On 1, 2, ... devices, with an animation of the faces of eight noises. Ctrl-C leaves a
# checkpoint; `--resume last` continues from it, `d2lpar sample` draws from it. The
# presets differ in the networks and the number of steps: `quick` draws heads with hair
# in a minute, `book` faces in 20 minutes, both on two cores. With
# `as-published`, 10,000 faces with 128 channels of 12 x 12 take 0.7 GB per layer, and
# `--micro-batch-size` limits how many a device takes at a time.

# %%
if __name__ == "__main__":
    runs = chapter.measure("gan")

# %% [markdown]
# **What you see.** The Fréchet distance falls and the coverage rises from row to row,
# and one device and two draw faces of the same quality: they are two trainings, not
# one, because BatchNorm in G sees other shards.
#
# ## Summary
#
# > **Takeaway.** Coverage = the share of real faces with a generated one among their
# > five nearest neighbours. The notebook's recipe reaches 0.00, the wide networks with
# > spectral normalisation 0.86 of 0.97 ([records](../figures/README.md)).
#
# - Two networks change nothing about data parallelism: split once, all-reduce the
#   gradients of each network before its own update, divide by the global batch.
# - Adam's moments are replicas like the parameters: equal sums keep them equal.
# - A layer that looks at the whole batch, such as BatchNorm, must communicate, or it
#   computes something else on each device.
# - The vectors of spectral normalisation are state. Equal on every device, they stay
#   equal without communication.
# - Losses of a GAN do not say how good its faces are. Measures of features do, read
#   beside noise and beside other real faces; coverage tells whether they are many.
#
# ## Exercises
#
# 1. **Leave out the all-reduce** in `Adam.step`, and take ten steps. *(The replicas'
#    parameters differ by 0.001 to 0.002, as much as ten steps move them. With it they
#    are equal to the bit.)*
# 2. **Divide by the shard instead of the batch**, `adam_D.step(n)`. *(Next to nothing
#    changes: after ten steps the parameters differ by 5e-5 where they have moved by
#    1e-3. Adam divides by the root of the mean square, so a factor cancels, but for
#    epsilon. With SGD every step would be twice as long.)*
# 3. *On paper.* D ends in a score s. What is its loss for a real face if s = 0, and if
#    s = -120? What does a sigmoid followed by a logarithm give in float32? *(log 2 =
#    0.69, and 120. The sigmoid of -120 is 0 in float32, and its logarithm minus
#    infinity.)*
# 4. *On paper.* D is divided by its largest singular value in each layer. How much can
#    the score of D change if an input moves by d? *(By d times the product of the
#    layers' norms: by d at most if all layers were dense, since ReLU does not stretch.
#    A convolution can stretch more than its reshaped weights do.)*
# 5. **Momentum.** Call `trained(lr=3e-3, width=16, d_norm="spectral", beta1=0.5)`.
#    *(A Fréchet distance of 32 in place of 30, and a third of the
#    coverage: momentum goes on towards where the other network was.)*
# 6. **Vectors that stay.** Replace `nets.iterate_spectral_vectors` by a function that
#    does nothing, and print what the layers divide by after 300 steps, beside
#    `numpy.linalg.svd`. *(U . W v has fallen behind the largest
#    singular value, or changed its sign, -0.8 where that is 1.4; and a Fréchet distance
#    of 47 in place of 30.)*

"""The GAN: against PyTorch and NumPy, N devices as one, and its trainings."""

import runpy
from pathlib import Path

import numpy
import pytest

from d2lpar import devices, gan
from d2lpar._mxnet import autograd, gluon, np
from d2lpar.datasets import punks
from d2lpar.errors import DivergedError, SettingError
from d2lpar.experiments import get
from d2lpar.gan import measures, training
from d2lpar.gan.updates import Adam
from d2lpar.padding import cut
from d2lpar.parallel import split_batch
from d2lpar.records import kinds

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "benchmarks" / "peers" / "gan_pytorch.py"


@pytest.fixture(autouse=True)
def few_features(request, monkeypatch):
    """Frames are judged by 72 features in place of 1,152, in a tenth of the time."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(measures, "CHANNELS", (3, 4, 4, 8))


LR = 1e-4


class Pair(gan.Nets):
    """Both networks on some devices, and steps that are waited for."""

    def __init__(self, chosen="cpu:1", seed=0, width=None, d_norm="none"):
        self.state = gan.start(seed, width, d_norm)
        chosen = devices.parse(chosen) if isinstance(chosen, str) else chosen
        super().__init__(self.state, chosen, lr=LR)

    def step(self, X, z, **options):
        """The two losses, each a mean."""
        shards = split_batch(X, z, self.devices[: len(X)])
        d_losses, g_losses = gan.step(*shards, self, **options)
        d_loss, g_loss = sum(map(float, d_losses)), sum(map(float, g_losses))
        return d_loss / (2 * len(X)), g_loss / len(X)

    def result(self):
        self.update(self.state)
        return self.state.params_D + self.state.params_G

    def gradients(self):
        """A tenth of those of the first step, which Adam's first means are, as one."""
        self.update(self.state)
        moments = self.state.moments_D, self.state.moments_G
        firsts = [m for of_net in moments for m in of_net[: len(of_net) // 2]]
        return numpy.concatenate([m.ravel() for m in firsts])


@pytest.fixture
def batch():
    rng = numpy.random.default_rng(1)
    X = rng.random((11, 3, 24, 24), dtype=numpy.float32)
    return X, rng.standard_normal((11, *gan.Z_SHAPE), dtype=numpy.float32)


# Against NumPy


def convolve(x, W, b):
    windows = numpy.lib.stride_tricks.sliding_window_view(x, W.shape[2:], (2, 3))
    return numpy.einsum("nchwij,ocij->nohw", windows, W) + b[:, None, None]


def convolve_back(x, W, stride=1, pad=0):
    """A transposed convolution: each number of x adds its multiple of a window of W."""
    (n, _, h, w), (_, c, k, _) = x.shape, W.shape
    y = numpy.zeros((n, c, (h - 1) * stride + k, (w - 1) * stride + k))
    for i in range(h):
        for j in range(w):
            window = y[:, :, i * stride : i * stride + k, j * stride : j * stride + k]
            window += numpy.einsum("nc,cokl->nokl", x[:, :, i, j], W)
    return y[:, :, pad : y.shape[2] - pad, pad : y.shape[3] - pad]


def scores(x, params):
    """The notebook's discriminator in float64."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    for W, b in ((W1, b1), (W2, b2)):
        n, c, h, w = (x := convolve(x, W, b)).shape
        x = x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5)).clip(min=0)
    return (x.reshape(len(x), -1) @ W3.T + b3).clip(min=0) @ W4.T + b4


def generated(z, params):
    """The notebook's generator in float64, normalised by its batch."""
    W1, gamma, beta, _, _, W2 = params
    h = convolve_back(z, W1)
    mean, var = (f((0, 2, 3), keepdims=True) for f in (h.mean, h.var))
    h = (h - mean) / numpy.sqrt(var + 1e-5)
    h = (h * gamma[:, None, None] + beta[:, None, None]).clip(min=0)
    return 1 / (1 + numpy.exp(-convolve_back(h, W2, stride=2, pad=1)))


def loss_D(X, z, D, G):
    real, fake = scores(X, D), scores(generated(z, G), D)
    return numpy.logaddexp(0, [-real, fake]).mean()


def loss_G(z, D, G):
    return numpy.logaddexp(0, -scores(generated(z, G), D)).mean()


def slope(loss, params, k, direction, h=1e-7):
    """The derivative of `loss` by parameter k in a direction."""
    above, below = (
        loss([*params[:k], params[k] + step * direction, *params[k + 1 :]])
        for step in (h, -h)
    )
    return (above - below) / (2 * h)


def test_a_steps_losses_and_gradients_are_numpys(batch):
    """The first mean of Adam is a tenth of the gradient."""
    X, z = batch[0][:4], batch[1][:4]
    X[0] = 0.5  # equal pixels: the largest of four is every one of them
    pair = Pair("cpu:2")
    nets = pair.state.params_D, pair.state.params_G
    D, G = ([p.astype(float) for p in params] for params in nets)
    losses = pair.step(X, z, synchronised=True)
    pair.result()
    stepped = [p.astype(float) for p in pair.state.params_D]
    assert losses == pytest.approx((loss_D(X, z, D, G), loss_G(z, stepped, G)), 1e-5)
    of_D, of_G = pair.state.moments_D[:8], pair.state.moments_G[:4]
    for mean, k in zip(of_D, range(8)):
        expected = slope(lambda D: loss_D(X, z, D, G), D, k, numpy.sign(mean))
        assert 10 * abs(mean).sum() == pytest.approx(expected, rel=1e-3)
    for mean, k in zip(of_G, (0, 1, 2, 5)):  # no running averages
        expected = slope(lambda G: loss_G(z, stepped, G), G, k, numpy.sign(mean))
        assert 10 * abs(mean).sum() == pytest.approx(expected, rel=1e-3)


def test_adam_is_numpys():
    """Gradients of the size of epsilon tell its place in the rule, MXNet's is other."""
    rng, contexts = numpy.random.default_rng(0), devices.parse("cpu:2")
    W = rng.normal(size=(3, 40)).astype("float32")
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=40, use_bias=False))
    gan.build(net, [W], contexts)
    adam, (parameter,) = Adam(net, 0.01, beta1=0.5), net.collect_params().values()
    m = v = numpy.zeros(W.shape)
    expected = W.astype(float)
    for t in range(1, 6):
        shards = rng.normal(size=(2, *W.shape)) * 10 ** rng.uniform(-9, 0, W.shape)
        for target, shard in zip(parameter.list_grad(), shards):
            target[:] = np.array(shard, ctx=target.ctx)
        adam.step(7)
        g = shards.sum(0) / 7
        m, v = 0.5 * m + 0.5 * g, 0.999 * v + 0.001 * g * g
        c1, c2 = 1 - 0.5**t, 1 - 0.999**t
        expected -= 0.01 * (m / c1) / (numpy.sqrt(v / c2) + 1e-8)
        for replica in parameter.list_data():
            numpy.testing.assert_allclose(
                replica.asnumpy() - W, expected - W, rtol=1e-3, atol=1e-6
            )


# Against PyTorch


@pytest.fixture
def theirs(torch, monkeypatch):
    """The notebook's networks and optimisers with a state's parameters."""
    monkeypatch.syspath_prepend(NOTEBOOK.parent)
    notebook = runpy.run_path(str(NOTEBOOK))

    class Theirs:
        def __init__(self, state):
            self.D = notebook["create_discriminator"]()
            self.G = notebook["create_generator"]()
            with torch.no_grad():
                for net, params in ((self.D, state.params_D), (self.G, state.params_G)):
                    values = iter(params)
                    for name, target in net.state_dict().items():
                        if not name.endswith("num_batches_tracked"):
                            target.copy_(torch.tensor(next(values)))
            self.optimizers = [
                torch.optim.Adam(net.parameters(), lr=1e-4) for net in (self.D, self.G)
            ]

        def step(self, X, z):
            errors = notebook["step"](
                torch.tensor(X), torch.tensor(z), self.G, self.D, *self.optimizers
            )
            return tuple(error.item() for error in errors)

    return Theirs


def relative(actual, expected):
    return numpy.linalg.norm(actual - expected) / numpy.linalg.norm(expected)


@pytest.mark.parity
def test_losses_gradients_and_adam_are_pytorchs(theirs, batch):
    """To 1e-4, relative, also every gradient of the last of five steps."""
    ours, num_steps = Pair(), 5
    expected = theirs(ours.state)
    for _ in range(num_steps):
        assert ours.step(*batch) == pytest.approx(expected.step(*batch), rel=1e-4)
    for net, their_net, count in ((ours.D, expected.D, 8), (ours.G, expected.G, 4)):
        own = [p for p in net.collect_params().values() if p.grad_req != "null"]
        assert len(own) == count
        for p, q in zip(own, their_net.parameters()):
            assert relative(cut(p.data().asnumpy(), q.shape), q.detach().numpy()) < 1e-4
            if net is ours.G:  # the notebook adds the generator's loss to D's gradients
                gradient = cut(p.grad().asnumpy(), q.shape) / len(batch[0])
                assert relative(gradient, q.grad.numpy()) < 1e-4


def wide_in_torch(torch, state, width):
    """The wide networks in PyTorch; evaluating leaves the spectral vectors alone."""
    nn, w = torch.nn, width
    conv, deconv = nn.Conv2d, nn.ConvTranspose2d
    spectral = torch.nn.utils.spectral_norm
    D = nn.Sequential(
        spectral(conv(3, w, 4, 2, 1)), nn.LeakyReLU(0.2),
        spectral(conv(w, 2 * w, 4, 2, 1)), nn.LeakyReLU(0.2),
        spectral(conv(2 * w, 4 * w, 4, 2, 1)), nn.LeakyReLU(0.2),
        spectral(conv(4 * w, 1, 3)), nn.Flatten(),
    ).eval()  # fmt: skip
    G = nn.Sequential(
        deconv(100, 4 * w, 3, bias=False), nn.BatchNorm2d(4 * w), nn.ReLU(),
        deconv(4 * w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(),
        deconv(2 * w, w, 4, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(),
        deconv(w, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    values = iter(state.params_D)
    with torch.no_grad():
        for layer in D[::2]:
            if isinstance(layer, nn.Conv2d):
                spectral = layer.weight_u, layer.weight_v
                for target in (layer.weight_orig, layer.bias, *spectral):
                    target.copy_(torch.tensor(next(values)))
        values = iter(state.params_G)
        for name, target in G.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                target.copy_(torch.tensor(next(values)))
    return D, G


@pytest.mark.parity
def test_wide_networks_and_their_gradients_are_pytorchs(torch, wide_batch):
    ours = Pair("cpu:1", 0, 8, "spectral")
    ours.iterate_spectral_vectors()
    ours.update(ours.state)
    D, G = wide_in_torch(torch, ours.state, 8)
    X, z = (np.array(a) for a in wide_batch)
    with autograd.train_mode():
        fakes = ours.G(z)
    expected = (G(torch.tensor(z.asnumpy())) + 1) / 2
    numpy.testing.assert_allclose(
        fakes.asnumpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-6
    )
    gan.update_D([X], [fakes], ours.D, ours.adam_D)
    both = torch.tensor(2 * numpy.concatenate([X.asnumpy(), fakes.asnumpy()]) - 1)
    labels = torch.concat([torch.ones(11, 1), torch.zeros(11, 1)])
    torch.nn.BCEWithLogitsLoss(reduction="sum")(D(both), labels).backward()
    theirs = [p for layer in D[::2] for p in layer.parameters()]
    theirs = {tuple(p.shape): p.grad.numpy() for p in theirs}
    for p in ours.adam_D.params:
        assert relative(p.grad().asnumpy(), theirs[p.shape]) < 1e-4
    assert len(theirs) == len(ours.adam_D.params) == 8


# N devices against one


def furthest(ours, expected):
    """The largest relative difference of two lists of parameters, by norms."""
    return max(
        numpy.linalg.norm(a - b) / (numpy.linalg.norm(b) + 1e-3)
        for a, b in zip(ours, expected)
    )


@pytest.fixture
def wide_batch(batch):
    X, _ = batch
    rng = numpy.random.default_rng(2)
    shape = (len(X), *gan.WideGenerator.z_shape)
    return X, rng.standard_normal(shape, dtype=numpy.float32)


@pytest.mark.parametrize("num_devices", [1, 2, 13])  # 11 faces: two devices have none
@pytest.mark.parametrize(("width", "d_norm"), [(None, "none"), (8, "spectral")])
def test_synchronised_n_devices_equal_one_cpu(
    num_devices, width, d_norm, batch, wide_batch, contexts
):
    """On GPUs, which round otherwise: the same losses, and gradients of a first step.

    Adam steps by `LR` even where rounding decides the sign of a gradient.
    """
    chosen = contexts(num_devices)
    on_cpus = chosen[0].device_type == "cpu"
    one, several = (Pair(of, 0, width, d_norm) for of in ("cpu:1", chosen))
    X, z = wide_batch if width else batch
    for number in range(3):
        expected = one.step(X, z)
        actual = several.step(X, z, synchronised=True)
        assert actual == pytest.approx(expected, rel=1e-5 if on_cpus else 1e-4)
        if number == 0:
            assert relative(several.gradients(), one.gradients()) < 1e-3
    if on_cpus:
        assert furthest(several.result(), one.result()) < 1e-4
    # The replicas are equal to the bit, the spectral vectors among them.
    for net in (several.D, several.G):
        for name, p in net.collect_params().items():
            if "running" not in name:  # devices without a face keep theirs
                first, *others = (replica.asnumpy() for replica in p.list_data())
                for other in others:
                    numpy.testing.assert_array_equal(other, first)


def test_spectral_vectors_find_the_largest_singular_value(wide_batch):
    pair = Pair("cpu:1", 0, 8, "spectral")
    pair.adam_D.lr = 0  # the weights stay
    for _ in range(60):
        pair.step(*wide_batch)
    for layer in pair.spectral:
        weight, u, v = (p.data().asnumpy() for p in (layer.weight, layer.u, layer.v))
        matrix = weight.reshape(len(weight), -1)
        assert u @ matrix @ v == pytest.approx(numpy.linalg.norm(matrix, 2), rel=1e-3)


# Training


@pytest.fixture(scope="module")
def faces():
    return punks.load("synthetic", n_train=300)


def test_train_yields_epochs_and_frames(monkeypatch, faces):
    monkeypatch.setattr(measures, "MAX_COMPARED", 30)
    faces = faces.head(60)
    how = {"devices": "cpu:2", "global_batch_size": 25, "data": faces}
    batches, keys = training.batches, []
    monkeypatch.setattr(
        training, "batches", lambda *args: keys.append(args[-1]) or batches(*args)
    )
    lines = list(gan.train(2, num_epochs=5, frames_every=2, **how))
    assert len({*map(tuple, keys)}) == 5  # each epoch has an order and a noise
    epochs = [line for line in lines if isinstance(line, kinds.GanEpochRecord)]
    frames = [line for line in lines if isinstance(line, kinds.FrameRecord)]
    assert [e.epoch for e in epochs] == [1, 2, 3, 4, 5]
    assert [f.epoch for f in frames] == [0, 1, 2, 4, 5]
    assert [f.num_steps for f in frames] == [0, 3, 6, 12, 15]
    assert [f.samples == "" for f in frames] == [True] * 4 + [False]
    assert [f.references == {} for f in frames] == [False] + [True] * 4
    # What a perfect generator would reach, of as many faces.
    assert 0 < frames[0].references["other real faces"]["frechet"] < frames[0].frechet
    assert len(frames[-1].distances) == 25
    # Before it has learnt, the discriminator is at a loss.
    assert epochs[0].d_loss == pytest.approx(numpy.log(2), abs=0.05)
    how |= {"num_epochs": 1, "sync_batch_norm": True}
    one, two = ([*gan.train(n, **how)][-1].d_loss for n in (1, 2))
    assert abs(two - one) < 1e-6 < abs(epochs[0].d_loss - one)


def test_the_losses_are_those_of_the_step(faces):
    """A full batch: the record is what one step of a Pair gives."""
    faces = faces.head(60)
    pair, X = Pair(), np.array(faces.X, dtype="uint8")
    ((X, z),) = training.batches(X, 60, gan.Z_SHAPE, [0, 1])
    expected = pair.step(X, z)
    *_, epoch = gan.train(
        1, devices="cpu:1", global_batch_size=60, num_epochs=1, data=faces, seed=0
    )
    assert (epoch.d_loss, epoch.g_loss) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_the_quick_recipe_learns_to_draw():
    """Where a seed ends depends on the processor, so the bounds are wide."""
    quick = {k: v for k, v in get("gan").presets["quick"].items() if k != "data"}
    data = punks.load("synthetic", n_train=2500)
    lines = list(gan.train(2, devices="cpu:2", data=data, **quick))
    first, *_, last = frames = [x for x in lines if isinstance(x, kinds.FrameRecord)]
    assert last.frechet < first.references["mean face"]["frechet"]
    most = max(frame.coverage for frame in frames)
    assert most > 10 * first.references["noise"]["coverage"]


def test_an_epoch_takes_every_face_once_in_an_order_of_its_own(faces):
    X, first = np.array(faces.X, dtype="uint8"), []
    for epoch in (1, 4):
        taken = list(training.batches(X, 70, gan.Z_SHAPE, [3, epoch]))
        images = numpy.concatenate([images.asnumpy() for images, _ in taken])
        numpy.testing.assert_allclose(images.sum(0), faces.X.sum(0) / 255, rtol=1e-4)
        first.append([a.asnumpy() for a in taken[0]])
    assert all((a != b).any() for a, b in zip(*first))


def test_what_diverges_says_so(faces):
    state = gan.start(0)
    state.params_D[-1][0] = numpy.nan
    with pytest.raises(DivergedError, match="epoch 1 is not finite.* 0.0001"):
        list(gan.train(1, devices="cpu:1", num_epochs=1, data=faces, state=state))
    assert state.epoch == 0 and state.num_steps == 0


def test_other_networks_and_data_are_refused(faces):
    for settings, named in (
        ((0, 8, "instance"), "'instance': write spectral, none"),
        ((0, None, "spectral"), "the notebook's networks take none"),
    ):
        with pytest.raises(SettingError, match=named):
            gan.start(*settings)
    for data, error, named in (
        (faces.head(11), SettingError, "n-train 11: at least 12 faces"),
        (faces.X, TypeError, r"data is a ndarray: write datasets.FaceData\(X, "),
    ):
        with pytest.raises(error, match=named):
            next(gan.train(1, devices="cpu:1", data=data))


def test_new_faces_are_those_of_their_noise():
    state, (device,) = gan.start(0), devices.parse("cpu:1")
    faces = gan.sample(state, 7, seed=1, device=device)
    assert faces.shape == (7, 3, 24, 24) and faces.dtype == numpy.uint8
    # A face depends on its own noise alone.
    numpy.testing.assert_array_equal(gan.sample(state, 3, 1, device), faces[:3])
    assert (gan.sample(state, 7, 2, device) != faces).any()

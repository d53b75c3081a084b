"""A GAN that draws faces of 24 x 24 pixels, trained data-parallel.

A generator makes faces of noise, a discriminator tells them from those of the data set,
and each learns from the other. Every device has a shard of each batch; gradients are
summed over the devices and divided by the global batch, so that N devices compute what
one computes, but for BatchNorm, unless it is synchronised (`sync_batch_norm`).

Source: seed 003 (PyTorch), its networks, losses and Adam; the names `update_D` and
`update_G` are d2l's; Goodfellow et al., "Generative Adversarial Nets" (2014).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy

from d2lpar import datasets
from d2lpar._mxnet import autograd, gluon, mx, np, npx
from d2lpar.datasets import face_images, face_quality, punks
from d2lpar.errors import DivergedError
from d2lpar.gan.adam import Adam
from d2lpar.gan.networks import (
    DEVICE_CHANNELS,
    Z_SHAPE,
    Discriminator,
    Generator,
    build,
    faces_of,
    generate,
    host_params,
    init_params,
    trained,
)
from d2lpar.parallel import split_batch
from d2lpar.records.kinds import FrameRecord, GanEpochRecord
from d2lpar.training import check_settings, check_whole, choose

# float32 losses of scores: log(1 + exp(-|score|)), finite where log(sigmoid) is not.
_bce = gluon.loss.SigmoidBinaryCrossEntropyLoss()
_bce.hybridize()

# Python runs ahead of the devices, by this many batches at most: each that waits holds
# its activations.
BATCHES_IN_FLIGHT = 2
NUM_FACES = 1_000


def update_D(
    rounds: Iterable[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]],
    net_D: Discriminator,
    adam: Adam,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """One Adam step of the discriminator: real faces towards 1, fakes towards 0.

    `rounds` are micro-batches whose gradients are added up, of (X_shards, fakes), each
    (n_k, 3, 24, 24), an array a device; one round is the rule. The fakes are detached:
    nothing flows into the generator. The loss is the mean over the real and the fake
    faces, as in the seed. Returns each shard's sum of losses (over 2 n_k faces) and its
    sums of the discriminator's opinion (2,), D(x) and D(G(z)), without waiting.
    """
    adam.zero_grad()
    loss_sums, opinions, n = [], [], 0
    for X_shards, fakes in rounds:
        with autograd.record():
            # One call for both: the seed makes two, and joins the results.
            faces = [np.concatenate([X, f.detach()]) for X, f in zip(X_shards, fakes)]
            scores = [net_D(x) for x in faces]
            losses = [_bce(s, _real_then_fake(s)) for s in scores]
        autograd.backward(losses)  # together: a synchronised graph is one
        loss_sums += [l.sum() for l in losses]
        opinions += [npx.sigmoid(s).reshape((2, -1)).sum(axis=1) for s in scores]
        n += sum(len(X) for X in X_shards)
    adam.step(2 * n)
    return loss_sums, opinions


def update_G(
    rounds: Iterable[Sequence[np.ndarray]], net_D: Discriminator, adam: Adam
) -> list[np.ndarray]:
    """One Adam step of the generator, so that its fakes are taken for real.

    `rounds` are micro-batches of fakes, an array (n_k, 3, 24, 24) a device, made within
    ``autograd.record()``. Returns each shard's sum of losses, without waiting.
    """
    adam.zero_grad()
    loss_sums, n = [], 0
    for fakes in rounds:
        # The chain rule by hand: what each pixel does to the loss, and no gradients of
        # the discriminator; then back through the generator.
        pixels = [f.detach() for f in fakes]
        for x in pixels:
            x.attach_grad()
        with autograd.record():
            losses = [_bce(net_D(x), np.ones((len(x), 1), ctx=x.ctx)) for x in pixels]
        autograd.backward(list(fakes), autograd.grad(losses, pixels))
        loss_sums += [l.sum() for l in losses]
        n += sum(len(f) for f in fakes)
    adam.step(n)
    return loss_sums


def _real_then_fake(scores: np.ndarray) -> np.ndarray:
    """Labels (2 n, 1): n ones and n zeros."""
    n = len(scores) // 2
    return np.concatenate(
        [np.ones((n, 1), ctx=scores.ctx), np.zeros((n, 1), ctx=scores.ctx)]
    )


def step(
    X_shards: Sequence[np.ndarray],
    z_shards: Sequence[np.ndarray],
    net_D: Discriminator,
    net_G: Generator,
    adam_D: Adam,
    adam_G: Adam,
    *,
    micro_batch_size: int | None = None,
    synchronised: bool = False,
) -> tuple[list, list, list]:
    """Update the discriminator, then the generator, on one batch, as in the seed.

    The fakes are made once and serve both updates. With a `micro_batch_size` (faces a
    device and a round) only one round's activations are in memory at a time; the fakes
    are then made again for the second update, by the same generator: the result is that
    of the whole batch, but for BatchNorm, which sees a round at a time. Returns the
    loss sums of D, those of G, and D's opinions (see :func:`update_D`).
    """
    X_shards = [X for X in X_shards if len(X)]  # more devices than faces
    z_shards = [z for z in z_shards if len(z)]
    longest = max(len(X) for X in X_shards)
    size = micro_batch_size or longest
    parts = [
        (_part(X_shards, start, size), _part(z_shards, start, size))
        for start in range(0, longest, size)
    ]
    if len(parts) == 1:
        with autograd.record():
            fakes = generate(net_G, z_shards, synchronised)
        d_losses, opinions = update_D([(X_shards, fakes)], net_D, adam_D)
        return d_losses, update_G([fakes], net_D, adam_G), opinions

    def rounds_of_D():
        for X_part, z_part in parts:
            with autograd.train_mode():
                fakes = generate(net_G, z_part, synchronised)
            yield X_part, fakes

    def rounds_of_G():
        for _, z_part in parts:
            with autograd.record():
                fakes = generate(net_G, z_part, synchronised)
            yield fakes

    d_losses, opinions = update_D(rounds_of_D(), net_D, adam_D)
    return d_losses, update_G(rounds_of_G(), net_D, adam_G), opinions


def _part(shards: Sequence[np.ndarray], start: int, size: int) -> list[np.ndarray]:
    """Rows start : start + size of every shard that has them."""
    return [shard[start : start + size] for shard in shards if len(shard) > start]


@dataclass
class TrainingState:
    """All that a run carries from one epoch to the next; independent of devices.

    Parameters and moments are host arrays, in the networks' order; `num_steps` have
    been taken by each Adam, `epoch` is the number of finished epochs, `rng` draws order
    and noise, `fixed_z` (1, 16, 3, 3) is the noise of the frames.
    """

    params_D: list[numpy.ndarray]
    params_G: list[numpy.ndarray]
    moments_D: list[numpy.ndarray]
    moments_G: list[numpy.ndarray]
    fixed_z: numpy.ndarray
    rng: numpy.random.Generator
    num_steps: int = 0
    epoch: int = 0

    workload: ClassVar[str] = "gan"
    _LISTS: ClassVar = ("params_D", "params_G", "moments_D", "moments_G")

    def tensors(self) -> dict[str, numpy.ndarray]:
        """The state's arrays by name, for a checkpoint."""
        named = {
            f"{name}.{i}": array
            for name in self._LISTS
            for i, array in enumerate(getattr(self, name))
        }
        return {**named, "fixed_z": self.fixed_z}

    def facts(self) -> dict:
        """The rest of the state, as JSON has it."""
        return {
            "epoch": self.epoch,
            "num_steps": self.num_steps,
            "rng": self.rng.bit_generator.state,
        }

    @classmethod
    def restore(cls, tensors: dict[str, numpy.ndarray], facts: dict) -> TrainingState:
        """The inverse of :meth:`tensors` and :meth:`facts`."""
        lists = {name: [] for name in cls._LISTS}
        for name in cls._LISTS:
            while f"{name}.{len(lists[name])}" in tensors:
                lists[name].append(tensors[f"{name}.{len(lists[name])}"])
        rng = numpy.random.default_rng()
        rng.bit_generator.state = facts["rng"]
        steps, epoch = facts["num_steps"], facts["epoch"]
        return cls(**lists, fixed_z=tensors["fixed_z"], rng=rng, num_steps=steps,
                   epoch=epoch)  # fmt: skip


def start(seed: int = 0) -> TrainingState:
    """The state before the first epoch, drawn from `seed` on the host."""
    params = [
        init_params(net, numpy.random.default_rng([seed, k]))
        for k, net in enumerate((Discriminator(), Generator()))
    ]
    moments = [
        [numpy.zeros_like(p) for _ in range(2) for p in trained(net, values)]
        for net, values in zip((Discriminator(), Generator()), params)
    ]
    rng, rng_z = (numpy.random.default_rng([seed, k]) for k in (2, 3))
    z = rng_z.standard_normal((1, *Z_SHAPE), dtype=numpy.float32)
    return TrainingState(*params, *moments, fixed_z=z, rng=rng)


class Nets:
    """Both networks and their Adams on the devices, as a state has them."""

    def __init__(
        self, state: TrainingState, devices: Sequence[mx.Context], lr: float
    ) -> None:
        self.D = build(Discriminator(DEVICE_CHANNELS), state.params_D, devices)
        self.G = build(Generator(), state.params_G, devices)
        self.adam_D, self.adam_G = (
            Adam(list(net.collect_params().values()), lr) for net in (self.D, self.G)
        )
        self.adam_D.set_moments(state.moments_D, state.num_steps)
        self.adam_G.set_moments(state.moments_G, state.num_steps)

    def update(self, state: TrainingState) -> None:
        """Bring the state up to date, from the first device."""
        state.params_D = host_params(self.D, like=state.params_D)
        state.params_G = host_params(self.G, like=state.params_G)
        state.moments_D = self.adam_D.host_moments(like=state.moments_D)
        state.moments_G = self.adam_G.host_moments(like=state.moments_G)
        state.num_steps = self.adam_G.num_steps


def train(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    global_batch_size: int = 10_000,
    lr: float = 1e-4,
    num_epochs: int = 4_000,
    micro_batch_size: int | None = None,
    sync_batch_norm: bool = False,
    frames_every: int = 10,
    seed: int = 0,
    data: punks.FaceData | None = None,
    state: TrainingState | None = None,
) -> Iterator[GanEpochRecord | FrameRecord]:
    """Train both networks, yielding a record an epoch, and frames. Nothing is printed.

    `devices`, `num_devices`, `num_epochs` and `state` are as in
    :func:`d2lpar.lenet.train`; the defaults are the seed's recipe, `data` the real
    CryptoPunks. A frame is drawn and its quality measured before the first epoch, after
    every `frames_every`, and after the last. `micro_batch_size` and `sync_batch_norm`
    are those of :func:`step`. Order and noise are drawn on the host, for all devices.

    Raises :class:`SettingError` or :class:`DeviceError` for settings that cannot be,
    and :class:`DivergedError` after an epoch whose loss is no longer finite.
    """
    check_settings(global_batch_size, lr, num_epochs)
    check_whole("frames-every", frames_every)
    if micro_batch_size is not None:
        check_whole("micro-batch-size", micro_batch_size)
    devices = choose(devices, num_devices)
    data = datasets.cryptopunks() if data is None else data
    state = start(seed) if state is None else state
    nets = Nets(state, devices, lr)
    faces = np.array(data.X, dtype="uint8", ctx=devices[0])
    last = state.epoch + num_epochs
    if state.epoch == 0:
        yield frame(nets.G, devices[0], state, data, with_samples=False)

    while state.epoch < last:
        npx.waitall()
        begin = time.perf_counter()
        sums = [[], [], []]  # of D's losses, G's losses, D's opinions
        in_flight: deque = deque()
        for X, z in batches(faces, global_batch_size, state.rng):
            shards = split_batch(X, z, devices)
            found = step(
                *shards, nets.D, nets.G, nets.adam_D, nets.adam_G,
                micro_batch_size=micro_batch_size, synchronised=sync_batch_norm,
            )  # fmt: skip
            for kept, more in zip(sums, found):
                kept += more
            in_flight.append(found[1][-1])
            if len(in_flight) > BATCHES_IN_FLIGHT:
                in_flight.popleft().wait_to_read()
        npx.waitall()
        trained_at = time.perf_counter()
        state.epoch += 1
        nets.update(state)
        drawn = None
        if state.epoch % frames_every == 0 or state.epoch == last:
            drawn = frame(nets.G, devices[0], state, data, state.epoch == last)
        drawn_at = time.perf_counter()
        if drawn is not None:
            yield drawn
        # Last: after it a checkpoint may be written of all that this epoch gave.
        yield _epoch_record(
            state.epoch, trained_at - begin, drawn_at - trained_at, sums, len(faces), lr
        )


def batches(
    faces: np.ndarray, batch_size: int, rng: numpy.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One epoch of real faces float32 (n, 3, 24, 24) in [0, 1] and noise (n, 16, 3, 3).

    `faces` is uint8, on the device where the batches are made. An epoch's order and
    noise go there at once: a copy from the host waits for all that cpu(0) has to do.
    """
    n, device = len(faces), faces.ctx
    order = np.array(rng.permutation(n).astype("int32"), dtype="int32", ctx=device)
    noise = rng.standard_normal((n, *Z_SHAPE), dtype=numpy.float32)
    z = np.array(noise, ctx=device)
    for first in range(0, n, batch_size):
        index = order[first : first + batch_size]
        X = faces.take(index, axis=0, mode="clip").astype("float32") / 255
        yield X, z[first : first + batch_size]


def frame(
    net_G: Generator,
    device: mx.Context,
    state: TrainingState,
    data: punks.FaceData,
    with_samples: bool,
) -> FrameRecord:
    """What the generator draws now, and how far that is from the real faces."""
    # The same noise and the same real faces every time: only the generator changes.
    rng = numpy.random.default_rng(0)
    n = min(NUM_FACES, len(data.X))
    z = rng.standard_normal((n, *Z_SHAPE), dtype=numpy.float32)
    drawn = faces_of(net_G, z, device)
    real = data.X[rng.choice(len(data.X), n, replace=False)]
    samples = {}
    if with_samples:
        numbers, distances = face_quality.nearest(drawn[:25], data.X)
        samples = {
            "samples": face_images.to_png(face_images.sheet(drawn[:25], 5)),
            "nearest": numbers.tolist(),
            "distances": [round(d, 4) for d in distances],
        }
    return FrameRecord(
        epoch=state.epoch,
        fixed=face_images.to_png(
            face_images.sheet(faces_of(net_G, state.fixed_z, device), 1)
        ),
        quality=face_quality.sliced_wasserstein(drawn, real),
        **samples,
    )


def sample(
    state: TrainingState, n: int, seed: int, device: mx.Context
) -> numpy.ndarray:
    """New faces, uint8 (n, 3, 24, 24), of noise drawn from `seed`."""
    check_whole("n", n)
    z = numpy.random.default_rng(seed).standard_normal((n, *Z_SHAPE), numpy.float32)
    return faces_of(build(Generator(), state.params_G, [device]), z, device)


def _epoch_record(
    epoch: int,
    seconds: float,
    eval_seconds: float,
    sums: list[list[np.ndarray]],
    n: int,
    lr: float,
) -> GanEpochRecord:
    d_loss, g_loss, opinions = (sum(a.asnumpy() for a in arrays) for arrays in sums)
    if not (math.isfinite(d_loss) and math.isfinite(g_loss)):
        raise DivergedError(
            f"training diverged: the losses of epoch {epoch} are {float(d_loss):g} and "
            f"{float(g_loss):g}; use a smaller learning rate than {lr:g}"
        )
    return GanEpochRecord(
        epoch=epoch,
        seconds=seconds,
        samples_per_sec=n / seconds,
        d_loss=float(d_loss) / (2 * n),
        g_loss=float(g_loss) / n,
        d_real=float(opinions[0]) / n,
        d_fake=float(opinions[1]) / n,
        eval_seconds=eval_seconds,
    )

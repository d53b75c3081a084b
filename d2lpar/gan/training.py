"""The epochs of a GAN's training, and what its generator draws meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from d2lpar import datasets, epochs
from d2lpar._mxnet import mx, np
from d2lpar.datasets import punks
from d2lpar.errors import SettingError
from d2lpar.gan import measures
from d2lpar.gan.networks import build, faces_of, new_networks, set_params
from d2lpar.gan.updates import Nets, TrainingState, start, step
from d2lpar.parallel import split_batch
from d2lpar.records.kinds import FrameRecord, GanEpochRecord

BATCHES_IN_FLIGHT = 2  # each batch that waits holds its activations
NUM_SAMPLES = 25


def train(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    global_batch_size: int = 10_000,
    lr: float = 1e-4,
    num_epochs: int = 4_000,
    sync_batch_norm: bool = False,
    frames_every: int = 10,
    width: int | None = None,
    d_norm: str = "none",
    beta1: float = 0.9,
    seed: int = 0,
    data: punks.FaceData | None = None,
    state: TrainingState | None = None,
) -> Iterator[GanEpochRecord | FrameRecord]:
    """Train both networks, yielding a record per epoch, and frames.

    Arguments and errors are as in :func:`d2lpar.lenet.train`, :func:`step` and
    :func:`start`; `beta1` is Adam's. Frames are drawn before the first epoch, after 1,
    2, 4, ... epochs, after every `frames_every` epochs, and after the last epoch.
    """
    epochs.check_settings(global_batch_size, lr, num_epochs)
    devices = epochs.choose(devices, num_devices)
    data = datasets.cryptopunks() if data is None else data
    if not isinstance(data, punks.FaceData):
        raise TypeError(
            f'data is a {type(data).__name__}: write datasets.FaceData(X, "my faces")'
        )
    epochs.check_pixels("faces", data.X, (3, 24, 24))
    if state is None:
        state = start(seed, width, d_norm)
    epochs.check_state(state, TrainingState.workload, seed)
    nets, last = Nets(state, devices, lr, beta1), state.epoch + num_epochs
    faces, n = np.array(data.X, dtype="uint8", ctx=devices[0]), len(data.X)
    maker = FrameMaker(state, data, devices[0])
    if state.epoch == 0:
        yield maker.frame(state)
    while state.epoch < last:
        epoch, steps = epochs.Epoch(BATCHES_IN_FLIGHT), []
        key = [state.seed, state.epoch + 1]
        for X, z in batches(faces, global_batch_size, nets.G.z_shape, key):
            shards = split_batch(X, z, devices[: len(X)])
            steps.append(step(*shards, nets, synchronised=sync_batch_norm))
            epoch.keep_pace(steps[-1].g_losses[-1:])
        epoch.stop()
        d_loss, g_loss = (
            float(sum(array.asnumpy() for of_step in every for array in of_step))
            for every in zip(*steps)
        )
        loss = f"the loss of epoch {state.epoch + 1}"
        epochs.check_finite(loss, [d_loss + g_loss], lr)
        nets.update(state)
        state.epoch = number = state.epoch + 1
        early = number < frames_every and not number & (number - 1)  # 1, 2, 4, ...
        is_drawn = early or number % frames_every == 0 or number == last
        frames = [maker.frame(state, with_samples=number == last)] if is_drawn else []
        record = GanEpochRecord(
            epoch=number, **epoch.times(n), d_loss=d_loss / (2 * n), g_loss=g_loss / n
        )
        yield from frames
        yield record  # a checkpoint after it has all of this epoch


def batches(
    faces: np.ndarray, batch_size: int, z_shape: tuple[int, ...], key: list[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield an epoch of faces float32 (n, 3, 24, 24) in [0, 1] and noise, by `key`."""
    n, device = len(faces), faces.ctx
    # Copied for the whole epoch: a copy from the host waits for all the work of cpu(0).
    order = epochs.shuffled(n, numpy.random.default_rng([*key, 1]), device)
    rng = numpy.random.default_rng([*key, 2])
    z = np.array(rng.standard_normal((n, *z_shape), numpy.float32), ctx=device)
    for first in range(0, n, batch_size):
        index = order[first : first + batch_size]
        X = faces.take(index, axis=0, mode="clip").astype("float32") / 255
        yield X, z[first : first + batch_size]


class FrameMaker:
    """Draw the frames of a training, and compare them with half of the data's faces."""

    def __init__(
        self, state: TrainingState, data: punks.FaceData, device: mx.Context
    ) -> None:
        self.data, self.device = data, device
        _, net = new_networks(state.width, state.d_norm)
        self.net = build(net, state.params_G, [device])
        order = numpy.random.default_rng(0).permutation(len(data.X))
        n = min(measures.MAX_COMPARED, len(data.X) // 2)
        if n <= measures.NEIGHBOURS:
            raise SettingError(
                f"n-train {len(data.X)}: at least {2 * measures.NEIGHBOURS + 2} faces, "
                "to measure the quality of generated ones"
            )
        # The others show what a perfect generator would reach.
        self.chosen, self.others = data.X[order[:n]], data.X[order[n : 2 * n]]
        self.real = measures.RealFaces(measures.features(self.chosen, device))

    def frame(self, state: TrainingState, with_samples: bool = False) -> FrameRecord:
        """Draw faces by the state's generator, and measure their quality."""
        set_params(self.net, state.params_G)
        shape = (len(self.chosen), *self.net.z_shape)  # the same noise every time
        z = numpy.random.default_rng(0).standard_normal(shape, dtype=numpy.float32)
        drawn = faces_of(self.net, z, self.device)
        fixed = faces_of(self.net, state.fixed_z, self.device)
        quality = self.real.quality(measures.features(drawn, self.device))
        facts: dict[str, Any] = quality._asdict()
        if state.epoch == 0:
            known = measures.references(self.real, self.others, self.device)
            facts["references"] = {name: q._asdict() for name, q in known.items()}
        if with_samples:
            samples = drawn[:NUM_SAMPLES]
            distances = punks.distances_to(samples, self.data.X)
            facts["samples"] = punks.to_png(punks.sheet(samples, columns=5))
            facts["distances"] = numpy.round(distances, 4).tolist()
        return FrameRecord(
            epoch=state.epoch,
            num_steps=state.num_steps,
            fixed=punks.to_png(punks.sheet(fixed, columns=len(fixed))),
            num_fixed=len(fixed),
            **facts,
        )


def sample(
    state: TrainingState, n: int, seed: int, device: mx.Context
) -> numpy.ndarray:
    """Draw new faces, uint8 (n, 3, 24, 24), of noise drawn from `seed`."""
    _, net = new_networks(state.width, state.d_norm)
    z = numpy.random.default_rng(seed).standard_normal((n, *net.z_shape), numpy.float32)
    return faces_of(build(net, state.params_G, [device]), z, device)

"""The GAN's training state, its Adam, and one step: discriminator, then generator.

Source: the notebook; Goodfellow et al. (GANs, 2014); Kingma and Ba (Adam, 2015).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy

from d2lpar._mxnet import autograd, gluon, gluon_block, mx, np
from d2lpar.buckets import views
from d2lpar.devices import check_contexts
from d2lpar.epochs import State, check_finite
from d2lpar.errors import SettingError
from d2lpar.gan.networks import (
    D_NORMS,
    PowerIteration,
    Shards,
    SpectralConv2D,
    build,
    forward,
    init_params,
    new_networks,
)
from d2lpar.on_gpus import flatten
from d2lpar.padding import cut, pad
from d2lpar.parallel import allreduce, zero

BETA2, EPSILON = 0.999, 1e-8
NUM_FIXED = 8  # noises whose faces are drawn all through a training


@gluon_block
class DiscriminatorLoss(gluon.HybridBlock):
    """Map scores (2 n, 1), n real and n fake, to their loss."""

    def compute(self, F, scores):
        real, fake = F.np.split(scores.reshape((2, -1)), 2, axis=0)
        of_real = F.npx.activation(-real, "softrelu")
        of_fake = F.npx.activation(fake, "softrelu")
        return (of_real + of_fake).sum()


@gluon_block
class GeneratorLoss(gluon.HybridBlock):
    """Map scores (n, 1) of fake faces, which should be above 0, to their loss."""

    def compute(self, F, scores):
        return F.npx.activation(-scores, "softrelu").sum()


_d_loss, _g_loss = DiscriminatorLoss(), GeneratorLoss()
for _loss in (_d_loss, _g_loss):
    _loss.hybridize()  # one call from Python instead of many


@dataclass
class TrainingState(State):
    """The state after `epoch` epochs, on the host: :func:`train` continues from it."""

    params_D: list[numpy.ndarray]  # with spectral vectors
    params_G: list[numpy.ndarray]
    moments_D: list[numpy.ndarray]  # Adam's means, then its variances
    moments_G: list[numpy.ndarray]
    fixed_z: numpy.ndarray  # (8, ...), the noise of the frames
    seed: int
    num_steps: int = 0  # of each Adam
    epoch: int = 0
    width: int | None = None
    d_norm: str = "none"

    workload: ClassVar[str] = "gan"


def start(
    seed: int = 0, width: int | None = None, d_norm: str = "none"
) -> TrainingState:
    """Return the state before the first epoch, drawn from `seed` on the host.

    The networks are the notebook's, or have a `width` and a `d_norm`, "spectral" or
    "none". Raises :class:`SettingError` for another `d_norm`.
    """
    if width is None and d_norm != "none":
        raise SettingError(f"d-norm {d_norm!r}: the notebook's networks take none")
    if d_norm not in D_NORMS:
        raise SettingError(f"d-norm {d_norm!r}: write {', '.join(D_NORMS)}")
    nets = new_networks(width, d_norm)
    params_D, params_G = (
        init_params(net, numpy.random.default_rng([seed, k]))
        for k, net in enumerate(nets)
    )
    moments_D, moments_G = (
        [numpy.zeros(p.shape, numpy.float32) for p in trained(net) * 2] for net in nets
    )
    shape = (NUM_FIXED, *nets[1].z_shape)
    fixed_z = numpy.random.default_rng([seed, 3]).standard_normal(shape, numpy.float32)
    return TrainingState(
        params_D, params_G, moments_D, moments_G, fixed_z, seed, 0, 0, width, d_norm
    )


def trained(net: gluon.Block) -> list[gluon.Parameter]:
    """Return the parameters that have a gradient: no running averages."""
    return [p for p in net.collect_params().values() if p.grad_req != "null"]


class Adam:
    """Adam by PyTorch's rule, which adds epsilon after correcting the bias."""

    def __init__(self, net: gluon.Block, lr: float, beta1: float = 0.9) -> None:
        self.params = trained(net)
        self.lr, self.beta1, self.num_steps = lr, beta1, 0
        # On GPUs one update does the work of many.
        flat = self.params[0].list_ctx()[0].device_type == "gpu"
        groups = [(p.list_data(), p.list_grad()) for p in self.params]
        if flat:
            groups = [flatten(self.params)]
        self.values, self.gradients = zip(*groups)
        self.means, self.variances = (
            [[np.zeros_like(g) for g in replicas] for replicas in self.gradients]
            for _ in range(2)
        )
        # The replicas of every parameter's mean, then of every variance.
        self.moments: list[Sequence[np.ndarray]] = [*self.means, *self.variances]
        if flat:
            shapes = [p.shape for p in self.params]
            self.moments = [
                replicas
                for flats in self.moments
                for replicas in zip(*(views(array, shapes) for array in flats))
            ]

    def zero_grad(self) -> None:
        """Set all gradients to 0: devices without faces would keep the last step's."""
        for gradients in zip(*self.gradients):  # those of one device
            zero(gradients)

    def step(self, batch_size: int) -> None:
        """Sum the gradients over the devices, and step by the sums / `batch_size`."""
        self.num_steps += 1
        c1 = 1 - self.beta1**self.num_steps
        c2 = 1 - BETA2**self.num_steps
        every = zip(self.values, self.gradients, self.means, self.variances)
        for values, gradients, means, variances in every:
            allreduce(gradients)
            for arrays in zip(values, gradients, means, variances):
                weight, *others = (a.as_nd_ndarray() for a in arrays)
                mx.nd.adam_update(
                    weight, *others, out=weight, beta1=self.beta1, beta2=BETA2,
                    lr=self.lr * math.sqrt(c2) / c1, epsilon=EPSILON * math.sqrt(c2),
                    rescale_grad=1 / batch_size,
                )  # fmt: skip


class Nets:
    """Both networks and their Adams on the devices, built from a state."""

    def __init__(
        self,
        state: TrainingState,
        devices: Sequence[mx.Context],
        lr: float,
        beta1: float = 0.9,
    ) -> None:
        check_contexts(devices)
        net_D, net_G = new_networks(state.width, state.d_norm, padded=True)
        self.D = build(net_D, state.params_D, devices)
        self.G = build(net_G, state.params_G, devices)
        self.adam_D = Adam(self.D, lr, beta1)
        self.adam_G = Adam(self.G, lr, beta1)
        self.adam_D.num_steps = self.adam_G.num_steps = state.num_steps
        # The state's arrays on each device, where channels may have been added.
        self.replicas: dict[str, list[Sequence[np.ndarray]]] = {
            "params_D": [p.list_data() for p in self.D.collect_params().values()],
            "params_G": [p.list_data() for p in self.G.collect_params().values()],
            "moments_D": self.adam_D.moments,
            "moments_G": self.adam_G.moments,
        }
        for name in ("moments_D", "moments_G"):
            for replicas, value in zip(self.replicas[name], getattr(state, name)):
                for replica in replicas:
                    replica[:] = np.array(pad(value, replica.shape), ctx=replica.ctx)
        self.devices = list(devices)
        self.spectral = [block for block in net_D if isinstance(block, SpectralConv2D)]
        self.power_iteration = PowerIteration([b.u.shape[0] for b in self.spectral])
        self.power_iteration.hybridize()

    def iterate_spectral_vectors(self) -> None:
        """Take a power iteration on every device, from its own replica's weights."""
        if not self.spectral:
            return
        for device in self.devices:
            now = [p.data(device) for b in self.spectral for p in (b.weight, b.u)]
            targets = [p.data(device) for b in self.spectral for p in (b.u, b.v)]
            for target, vector in zip(targets, self.power_iteration(*now)):
                vector.copyto(target)

    def update(self, state: TrainingState) -> None:
        """Copy the first device's values to the state; DivergedError unless finite."""
        host = {}
        for name, arrays in self.replicas.items():
            pairs = zip(arrays, getattr(state, name))
            host[name] = [cut(of_one[0].asnumpy(), old.shape) for of_one, old in pairs]
        name = f"a parameter after epoch {state.epoch + 1}"
        check_finite(name, [*host["params_D"], *host["params_G"]], self.adam_G.lr)
        vars(state).update(host, num_steps=self.adam_G.num_steps)


class StepSums(NamedTuple):
    """What a step measures on each shard of n_k faces, not yet waited for."""

    d_losses: list[np.ndarray]  # sums over 2 n_k faces
    g_losses: list[np.ndarray]  # sums over n_k faces


def step(
    X_shards: Shards, z_shards: Shards, nets: Nets, *, synchronised: bool = False
) -> StepSums:
    """Update both networks on one batch: faces (n_k, 3, 24, 24), noise (n_k, ...)."""
    nets.iterate_spectral_vectors()
    with autograd.record():
        fakes = forward(nets.G, z_shards, synchronised)
    d_losses = update_D(X_shards, fakes, nets.D, nets.adam_D)
    return StepSums(d_losses, update_G(fakes, nets.D, nets.adam_G))


def update_D(
    X_shards: Shards, fakes: Shards, net_D: gluon.Block, adam: Adam
) -> list[np.ndarray]:
    """Take an Adam step of the discriminator: real faces towards 1, fakes towards 0.

    Both are one array (n_k, 3, 24, 24) per device. No gradient reaches the generator.
    Returns `d_losses` of :class:`StepSums`, not waited for.
    """
    adam.zero_grad()
    with autograd.record():
        # One call for both; the notebook makes two, and joins the results.
        faces = [np.concatenate([X, f.detach()]) for X, f in zip(X_shards, fakes)]
        losses = [_d_loss(net_D(x)) for x in faces]
    autograd.backward(losses)
    adam.step(2 * sum(map(len, X_shards)))
    return losses


def update_G(fakes: Shards, net_D: gluon.Block, adam: Adam) -> list[np.ndarray]:
    """Take an Adam step of the generator, so that its fakes are taken for real.

    `fakes` are (n_k, 3, 24, 24) per device, made within ``autograd.record()``. Returns
    `g_losses` of :class:`StepSums`, not waited for.
    """
    adam.zero_grad()
    # The chain rule by hand: first the gradient of the loss by each pixel, without
    # gradients of the discriminator; then back through the generator.
    pixels = [f.detach() for f in fakes]
    for x in pixels:
        x.attach_grad()
    with autograd.record():
        losses = [_g_loss(net_D(x)) for x in pixels]
    autograd.backward(list(fakes), autograd.grad(losses, pixels))
    adam.step(sum(map(len, fakes)))
    return losses

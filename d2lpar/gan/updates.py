"""What a training carries, Adam, and one step: discriminator first, then generator.

Every device has a shard of the batch. Gradients are summed over the devices and divided
by the global batch, so that N devices compute what one computes; except for BatchNorm,
unless it is synchronised.

Source: the CryptoPunks notebook (PyTorch); the names `update_D` and `update_G` are
d2l's; Goodfellow et al., "Generative Adversarial Nets" (2014); Kingma and Ba, "Adam"
(2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy

from d2lpar._mxnet import autograd, gluon, mx, np, npx
from d2lpar.devices import check_contexts
from d2lpar.gan.networks import (
    DEVICE_CHANNELS,
    Z_SHAPE,
    Discriminator,
    Generator,
    build,
    cut,
    generate,
    host_params,
    init_params,
    pad,
)
from d2lpar.parallel import allreduce

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
LISTS = ("params_D", "params_G", "moments_D", "moments_G")  # in a state, in order

# float32 losses of scores: log(1 + exp(-|score|)), finite where log(sigmoid) is not.
_bce = gluon.loss.SigmoidBinaryCrossEntropyLoss()
_bce.hybridize()


@dataclass
class TrainingState:
    """The state after `epoch` epochs, on the host; it does not depend on the devices.

    Parameters and moments are host arrays, in the networks' order. `fixed_z`
    (1, 16, 3, 3) is the noise of the frames; `num_steps` is the number of steps that
    each Adam has taken. To continue a training, pass its state to :func:`train` again.
    """

    params_D: list[numpy.ndarray]
    params_G: list[numpy.ndarray]
    moments_D: list[numpy.ndarray]
    moments_G: list[numpy.ndarray]
    fixed_z: numpy.ndarray
    seed: int
    num_steps: int = 0
    epoch: int = 0

    workload: ClassVar[str] = "gan"

    def next_rngs(self) -> list[numpy.random.Generator]:
        """The generators of the next epoch's order and of its noise."""
        key = [self.seed, self.epoch + 1]
        return [numpy.random.default_rng([*key, k]) for k in (1, 2)]

    def tensors(self) -> dict[str, numpy.ndarray]:
        """The state's arrays by name, for a checkpoint."""
        named = {"fixed_z": self.fixed_z}
        for name in LISTS:
            for i, array in enumerate(getattr(self, name)):
                named[f"{name}.{i}"] = array
        return named

    def facts(self) -> dict:
        """The rest of the state, as JSON can hold it."""
        return {"epoch": self.epoch, "seed": self.seed, "num_steps": self.num_steps}

    @classmethod
    def restore(cls, tensors: dict[str, numpy.ndarray], facts: dict) -> TrainingState:
        """The inverse of :meth:`tensors` and :meth:`facts`."""
        lists = {}
        for name in LISTS:
            n = sum(key.startswith(f"{name}.") for key in tensors)
            lists[name] = [tensors[f"{name}.{i}"] for i in range(n)]
        return cls(**lists, fixed_z=tensors["fixed_z"], **facts)


def start(seed: int = 0) -> TrainingState:
    """The state before the first epoch, drawn from `seed` on the host."""
    params, moments = [], []
    for k, net in enumerate((Discriminator(), Generator())):
        params.append(init_params(net, numpy.random.default_rng([seed, k])))
        trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
        moments.append([numpy.zeros(p.shape, numpy.float32) for p in trained * 2])
    rng_z = numpy.random.default_rng([seed, 3])
    z = rng_z.standard_normal((1, *Z_SHAPE), dtype=numpy.float32)
    return TrainingState(*params, *moments, fixed_z=z, seed=seed)


class Adam:
    """Adam for parameters with a replica per device: the same step on every replica.

    The rule is PyTorch's ``torch.optim.Adam``, which adds epsilon after correcting the
    bias. (MXNet's own adds it before, which gives epsilon a hundred times more weight
    in the first steps.)

    `params` are Gluon parameters; those without a gradient (running averages) are left
    out. :meth:`step` sums the gradients over the devices and divides them once, by the
    global batch, so that every replica takes the same step.
    """

    def __init__(self, params: Sequence[gluon.Parameter], lr: float) -> None:
        self.params = [p for p in params if p.grad_req != "null"]
        self.lr, self.num_steps = lr, 0
        self.means, self.variances = (
            [[np.zeros_like(g) for g in p.list_grad()] for p in self.params]
            for _ in range(2)
        )

    def zero_grad(self) -> None:
        """Set the gradients of all replicas to 0."""
        for p in self.params:
            for gradient in p.list_grad():  # p.zero_grad() fails on these arrays
                gradient[:] = 0

    def step(self, batch_size: int) -> None:
        """One step on gradients that are sums over a global batch of `batch_size`."""
        self.num_steps += 1
        c1, c2 = (1 - beta**self.num_steps for beta in (BETA1, BETA2))
        for p, means, variances in zip(self.params, self.means, self.variances):
            gradients = p.list_grad()
            allreduce(gradients)
            for arrays in zip(p.list_data(), gradients, means, variances):
                weight, *others = (a.as_nd_ndarray() for a in arrays)
                mx.nd.adam_update(
                    weight, *others, out=weight, beta1=BETA1, beta2=BETA2,
                    lr=self.lr * math.sqrt(c2) / c1, epsilon=EPSILON * math.sqrt(c2),
                    rescale_grad=1 / batch_size,
                )  # fmt: skip

    def host_moments(self, like: Sequence[numpy.ndarray]) -> list[numpy.ndarray]:
        """The first replica's running means, then variances, shaped as `like`."""
        replicas = (a[0] for a in (*self.means, *self.variances))
        return [cut(replica, value.shape) for replica, value in zip(replicas, like)]

    def set_moments(self, moments: Sequence[numpy.ndarray], num_steps: int) -> None:
        """Give every replica what :meth:`host_moments` returned."""
        for replicas, value in zip((*self.means, *self.variances), moments):
            for replica in replicas:
                replica[:] = np.array(pad(value, replica.shape), ctx=replica.ctx)
        self.num_steps = num_steps


class Nets:
    """Both networks and their Adams on the devices, built from a state."""

    def __init__(
        self, state: TrainingState, devices: Sequence[mx.Context], lr: float
    ) -> None:
        check_contexts(devices)
        self.D = build(Discriminator(DEVICE_CHANNELS), state.params_D, devices)
        self.G = build(Generator(), state.params_G, devices)
        self.adam_D, self.adam_G = (
            Adam(list(net.collect_params().values()), lr) for net in (self.D, self.G)
        )
        self.adam_D.set_moments(state.moments_D, state.num_steps)
        self.adam_G.set_moments(state.moments_G, state.num_steps)

    def update(self, state: TrainingState) -> None:
        """Copy the first device's parameters and moments into the state."""
        state.params_D = host_params(self.D, like=state.params_D)
        state.params_G = host_params(self.G, like=state.params_G)
        state.moments_D = self.adam_D.host_moments(like=state.moments_D)
        state.moments_G = self.adam_G.host_moments(like=state.moments_G)
        state.num_steps = self.adam_G.num_steps


class StepSums(NamedTuple):
    """What a step measures on each shard (n_k faces), not yet waited for.

    `d_losses` are sums over 2 n_k faces, `g_losses` over n_k; `opinions` are (2,), the
    sums of D(x) and of D(G(z)).
    """

    d_losses: list[np.ndarray]
    g_losses: list[np.ndarray]
    opinions: list[np.ndarray]


def step(
    X_shards: Sequence[np.ndarray],
    z_shards: Sequence[np.ndarray],
    nets: Nets,
    *,
    micro_batch_size: int | None = None,
    synchronised: bool = False,
) -> StepSums:
    """Update both networks on one batch: faces (n_k, 3, 24, 24), noise (n_k, 16, 3, 3).

    The fakes are made once and serve both updates, as in the CryptoPunks notebook. With
    a `micro_batch_size` (faces per device and round) only one round's activations are
    in memory at a time, and the fakes are made again for the second update, by the same
    generator. The result is that of the whole batch, except that BatchNorm sees one
    round at a time.
    """
    X_shards = [X for X in X_shards if len(X)]  # there may be more devices than faces
    z_shards = [z for z in z_shards if len(z)]
    if micro_batch_size is None or micro_batch_size >= max(map(len, X_shards)):
        with autograd.record():
            fakes = generate(nets.G, z_shards, synchronised)
        d_losses, opinions = update_D([(X_shards, fakes)], nets.D, nets.adam_D)
        return StepSums(d_losses, update_G([fakes], nets.D, nets.adam_G), opinions)

    def rounds_of_fakes(mode):
        for z_round in _rounds(z_shards, micro_batch_size):
            with mode():
                fakes = generate(nets.G, z_round, synchronised)
            yield fakes

    X_rounds = _rounds(X_shards, micro_batch_size)
    rounds = zip(X_rounds, rounds_of_fakes(autograd.train_mode))
    d_losses, opinions = update_D(rounds, nets.D, nets.adam_D)
    g_losses = update_G(rounds_of_fakes(autograd.record), nets.D, nets.adam_G)
    return StepSums(d_losses, g_losses, opinions)


def _rounds(shards: Sequence[np.ndarray], size: int) -> list[list[np.ndarray]]:
    """The shards `size` rows at a time, as long as any of them has rows."""
    return [
        [shard[start : start + size] for shard in shards if len(shard) > start]
        for start in range(0, max(map(len, shards)), size)
    ]


def update_D(
    rounds: Iterable[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]],
    net_D: Discriminator,
    adam: Adam,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """One Adam step of the discriminator: real faces towards 1, fakes towards 0.

    `rounds` are micro-batches, whose gradients add up, of (X_shards, fakes): one array
    (n_k, 3, 24, 24) per device in each. Without micro-batches there is one round. The
    fakes are detached: no gradient reaches the generator. The loss is the mean over
    real and fake faces, as in the CryptoPunks notebook. Returns the `d_losses` and
    `opinions` of :class:`StepSums`, without waiting for them.
    """
    adam.zero_grad()
    loss_sums, opinions, n = [], [], 0
    for X_shards, fakes in rounds:
        labels = [np.ones((2 * len(X), 1), ctx=X.ctx) for X in X_shards]
        for y in labels:
            y[len(y) // 2 :] = 0  # the fakes
        with autograd.record():
            # One call for both; the notebook makes two, and joins the results.
            faces = [np.concatenate([X, f.detach()]) for X, f in zip(X_shards, fakes)]
            scores = [net_D(x) for x in faces]
            losses = [_bce(s, y) for s, y in zip(scores, labels)]
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

    `rounds` are micro-batches of fakes, one array (n_k, 3, 24, 24) per device, made
    within ``autograd.record()``. Returns the `g_losses` of :class:`StepSums`, without
    waiting for them.
    """
    adam.zero_grad()
    loss_sums, n = [], 0
    for fakes in rounds:
        # The chain rule by hand: first the gradient of the loss by each pixel, without
        # gradients of the discriminator; then back through the generator.
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

"""Adam, the same step on every replica, after an all-reduce of the gradients.

Source: Kingma and Ba, "Adam" (2015); the rule is PyTorch's ``torch.optim.Adam``, which
adds epsilon after correcting the bias. (MXNet's own adds it before, which gives epsilon
a hundred times more weight in the first steps.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from d2lpar._mxnet import gluon, mx, np
from d2lpar.parallel import allreduce

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Adam for parameters that have a replica on each device.

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


def pad(value: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """A host array enlarged to `shape` with zeros."""
    return numpy.pad(value, [(0, n - m) for n, m in zip(shape, value.shape)])


def cut(array: np.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """The part of a larger array that :func:`pad` was given, on the host."""
    return array.asnumpy()[tuple(slice(n) for n in shape)].copy()

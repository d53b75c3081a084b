"""What is fast on GPUs: starting a small operation takes longer than computing it.

So there are fewer of them, each of which computes what many small ones do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from d2lpar._mxnet import autograd, gluon, gluon_block, mx, np, npx
from d2lpar.buckets import views

# Images per GPU from which a bias is faster as a weight channel, from scratch, where
# the form costs Python a call for each operation.
BIAS_AS_WEIGHT_FROM = {"gpu": 1024}


def flatten(
    parameters: Sequence[gluon.Parameter],
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Make Gluon's parameters views of one flat array per device.

    Returns the flat values and gradients. It is for GPUs only: on CPUs oneDNN reorders
    a convolution's weights in place.
    """
    values = [
        np.concatenate([replica.reshape(-1) for replica in replicas])
        for replicas in zip(*(p.list_data() for p in parameters))
    ]
    grads = [np.zeros_like(flat) for flat in values]
    shapes = [p.shape for p in parameters]
    data = [views(flat, shapes) for flat in values]
    gradients = [views(flat, shapes) for flat in grads]
    for k, p in enumerate(parameters):
        p._data = [of_one[k] for of_one in data]
        p._grad = [of_one[k] for of_one in gradients]
        autograd.mark_variables(p._data, p._grad)
    return values, grads


class BucketTrainer:
    """Train as Gluon's Trainer with plain SGD: one all-reduce, one update per replica.

    `net` must be initialized, and on GPUs: its parameters become :func:`flatten`'s.
    """

    def __init__(self, net: gluon.Block, lr: float) -> None:
        self._lr = lr
        params = net.collect_params().values()
        self._params = [p for p in params if p.grad_req != "null"]  # Gluon's name
        values, grads = flatten(self._params)
        self._values = [flat.as_nd_ndarray() for flat in values]
        self._grads = [flat.as_nd_ndarray() for flat in grads]
        self._kvstore = mx.kv.create("device")  # not through the host
        self._kvstore.init(0, self._grads[0])

    def set_learning_rate(self, lr: float) -> None:
        """Take later steps with this learning rate."""
        self._lr = lr

    def allreduce_grads(self) -> None:
        """Sum the gradients over the devices."""
        if len(self._grads) > 1:
            self._kvstore.pushpull(0, self._grads)

    def step(self, batch_size: int) -> None:
        """Sum the gradients over the devices, and update every replica alike."""
        self.allreduce_grads()
        for values, grads in zip(self._values, self._grads):
            mx.nd.sgd_update(
                values, grads, lr=self._lr, rescale_grad=1 / batch_size, out=values
            )


def convolve(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Convolve X (n, i, h, w) with W (o, i, k, k) and add b (o,); without padding."""
    shape = {"kernel": W.shape[2:], "num_filter": W.shape[0]}
    if X.shape[0] >= BIAS_AS_WEIGHT_FROM.get(X.ctx.device_type, 2**63):
        rest = (0, W.shape[2] - 1)
        taps = np.pad(b.reshape((-1, 1, 1, 1)), ((0, 0), (0, 0), rest, rest))
        X, W = bias_as_weight(np, X, W, taps)
        return npx.convolution(data=X, weight=W, no_bias=True, **shape)
    return npx.convolution(data=X, weight=W, bias=b, **shape)


def bias_as_weight(F, X, W, taps):
    """Return images and weights whose convolution is that of X and W plus b.

    The images get a channel of ones, the weights a channel `taps` (o, 1, k, k): zeros
    with b (o,) in a corner. benchmarks/SPEED.md has what this gains.
    """
    ones = F.ones_like(X[:, :1])
    return F.concatenate([X, ones], axis=1), F.concatenate([W, taps], axis=1)


def bias_as_weight_from() -> int:
    """Return the images per GPU from which a bias is faster as a weight, in Gluon."""
    in_graphs = os.environ.get("MXNET_ENABLE_CUDA_GRAPHS", "0") not in ("", "0")
    return 256 if in_graphs else 384


@gluon_block
class BiasAsWeightConv2D(gluon.nn.Conv2D):
    """Gluon's convolution, computed by :func:`bias_as_weight`."""

    def compute(self, F, x, weight, bias):
        (kernel, _), num_filter = self._kwargs["kernel"], self._kwargs["num_filter"]
        # Not np.pad, which reads its widths from host memory: gone when CUDA replays a
        # graph.
        rest = F.np.zeros_like(weight[:, :1]).reshape((num_filter, kernel**2))
        row = F.np.concatenate([bias.reshape((num_filter, 1)), rest[:, 1:]], axis=1)
        taps = row.reshape((num_filter, 1, kernel, kernel))
        x, weight = bias_as_weight(F.np, x, weight, taps)
        shape = {"kernel": (kernel, kernel), "num_filter": num_filter}
        return self.act(F.npx.convolution(x, weight, no_bias=True, **shape))

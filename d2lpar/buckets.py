"""One all-reduce for all gradients: a replica in two flat arrays.

Source: Li et al., "PyTorch Distributed" (2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy

from d2lpar._mxnet import autograd, mx, np
from d2lpar.parallel import allreduce, distinct
from d2lpar.step_checks import as_params, check_rate


def views(flat: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return the parts of a flat array as arrays of these shapes, in its memory."""
    parts, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        parts.append(flat[start:stop].reshape_view(shape))
        start = stop
    return parts


class Bucket(list):
    """Hold a replica's parameters and gradients as views of two flat arrays.

    The flat arrays are `values` and `grads`, on one device. Do not call ``attach_grad``
    on a parameter: it would allocate another gradient.
    """

    def __init__(self, params: Sequence[numpy.ndarray], device: mx.Context) -> None:
        if len(distinct(params)) < len(params):
            raise ValueError("Bucket: a parameter is listed twice: use get_params")
        arrays = as_params(params)
        flat = numpy.concatenate([numpy.ravel(a) for a in arrays])
        self.values = np.array(flat, dtype=flat.dtype, ctx=device)
        self.grads = np.zeros_like(self.values)
        shapes = [a.shape for a in arrays]
        super().__init__(views(self.values, shapes))
        autograd.mark_variables(self, views(self.grads, shapes))

    def copies(self) -> list[np.ndarray]:
        """Return copies, which oneDNN may reorder in place; it cannot reorder views."""
        return [p.copy() for p in self]


def allreduce_buckets(device_params: Sequence[Bucket]) -> None:
    """Sum the gradients of all replicas, in place, by one all-reduce."""
    allreduce([bucket.grads for bucket in device_params])


def update_bucket(bucket: Bucket, lr: float, batch_size: int) -> None:
    """Take the step of :func:`d2lpar.parallel.sgd` on a whole replica at once."""
    check_rate(lr)
    bucket.values -= lr / batch_size * bucket.grads


# Arguments of :func:`d2lpar.parallel.train_batch` for replicas that are buckets.
BUCKETS: dict[str, Callable] = {"reduce": allreduce_buckets, "update": update_bucket}

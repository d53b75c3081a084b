"""One all-reduce for all gradients: a replica in two flat arrays.

The book sums the gradients array by array, which is easy to read. But every all-reduce
has a fixed cost: eight of them for LeNet take 0.6 ms on two H200s, and one of as many
bytes 0.08 ms. Here the parameters of a replica are views of one flat array and their
gradients views of another, so that one all-reduce and one update do the work of eight.
The numbers stay the same to the bit.

Source: gradient buckets, as in Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training" (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from d2lpar._mxnet import autograd, mx, np
from d2lpar.parallel import allreduce


class Bucket(list):
    """A replica's parameters, each a view of `values`, with gradients in `grads`.

    `values` and `grads` are flat arrays (number of parameters,) on one device. Do not
    call ``attach_grad`` on the parameters: it would give them other gradients.
    """

    def __init__(self, params: Sequence[numpy.ndarray], device: mx.Context) -> None:
        flat = numpy.concatenate([numpy.ravel(p) for p in params])
        self.values = np.array(flat, dtype=flat.dtype, ctx=device)
        self.grads = np.zeros_like(self.values)
        stops = numpy.cumsum([p.size for p in params]).tolist()
        variables, gradients = (
            [
                array[stop - p.size : stop].reshape_view(p.shape)
                for p, stop in zip(params, stops)
            ]
            for array in (self.values, self.grads)
        )
        autograd.mark_variables(variables, gradients)
        super().__init__(variables)


def allreduce_buckets(device_params: Sequence[Bucket]) -> None:
    """Sum the gradients of all replicas, in place, by one all-reduce."""
    allreduce([bucket.grads for bucket in device_params])


def update_bucket(bucket: Bucket, lr: float, batch_size: int) -> None:
    """Minibatch SGD on a whole replica at once; see :func:`d2lpar.parallel.sgd`."""
    bucket.values -= lr / batch_size * bucket.grads


# What :func:`d2lpar.parallel.train_batch` takes for replicas that are buckets.
BUCKETS: dict[str, Callable] = {"reduce": allreduce_buckets, "update": update_bucket}

"""What a GPU does in one call: sum all gradients, update all parameters, start a group.

Starting a small operation on a GPU takes longer than computing it, so
:mod:`d2lpar.parallel` calls these functions where the replicas are on GPUs. They
compute the same numbers as its loops over the parameters.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence

import numpy

from d2lpar._mxnet import mx, np

# MXNet's engine waits for a GPU after each operation that is pushed to it.
OPERATIONS_AT_ONCE = 100
MAX_AT_ONCE = 45  # arrays that one kernel of MXNet's updates


def pushed_together(device: mx.Context) -> contextlib.AbstractContextManager:
    """Push operations of a GPU to MXNet's engine in groups within this context.

    Two H200s that train from scratch with batches of 256 gain a quarter of the time.
    A compiled network gains nothing, and neither does a CPU context.
    """
    if device.device_type == "gpu":
        return mx.engine.bulk(OPERATIONS_AT_ONCE)
    return contextlib.nullcontext()


def on_gpu_in_float32(params: Sequence[np.ndarray]) -> bool:
    """Return whether one operation on all `params` is faster than one on each.

    On a CPU context grouping gains nothing.
    """
    on_gpu = params[0].ctx.device_type == "gpu"
    return on_gpu and all(p.dtype == numpy.float32 for p in params)


def allreduce(grads: Sequence[Sequence[np.ndarray]]) -> None:
    """Replace ``grads[k]``, the gradients of replica k, by their sums over all k.

    One call of a kvstore sums them. Raises ValueError if the replicas differ in shapes.
    """
    shapes = {tuple(g.shape for g in of_one) for of_one in grads}
    if len(shapes) != 1:
        raise ValueError(f"allreduce: expected replicas of the same shapes: {shapes}")
    devices = tuple(of_one[0].ctx for of_one in grads)
    keys, store = _kvstore(shapes.pop(), devices, threading.get_ident())
    store.pushpull(keys, list(map(list, zip(*grads))))


@functools.lru_cache(maxsize=8)
def _kvstore(shapes: tuple, devices: tuple, thread: int) -> tuple:
    """Make a kvstore that sums arrays of these shapes on GPUs; return keys and store.

    One per thread: its buffers hold a sum until all devices have copied it.
    """
    keys, store = list(range(len(shapes))), mx.kv.create("device")
    store.init(keys, [np.zeros(shape, ctx=devices[0]) for shape in shapes])
    return keys, store


def sgd(params: Sequence[np.ndarray], lr: float) -> None:
    """Subtract ``lr * p.grad`` from all `params` on one device, by one operation."""
    for first in range(0, len(params), MAX_AT_ONCE):
        some = [p.as_nd_ndarray() for p in params[first : first + MAX_AT_ONCE]]
        mx.nd.multi_sgd_update(
            *(array for p in some for array in (p, p.grad)),
            lrs=[lr] * len(some),
            wds=[0] * len(some),
            num_weights=len(some),
            out=some,
        )

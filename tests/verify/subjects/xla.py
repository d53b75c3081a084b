"""What the JAX programs share: data, a network, and devices that XLA makes of a CPU."""

import functools
import os

DTYPE = os.environ.get("D2LPAR_DTYPE", "float32")
os.environ["JAX_ENABLE_X64"] = str(DTYPE == "float64")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy
from jax import lax
from jax import numpy as jnp

__all__ = ["jax", "jnp", "lax"]


def init(seed):
    rng = numpy.random.default_rng(seed)
    params = [rng.normal(0, 0.5, shape) for shape in ((6, 8), (8,), (8, 3), (3,))]
    return [p.astype(DTYPE) for p in params]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype(DTYPE), rng.integers(0, 3, n, "int32")


def losses(params, X, y):
    W1, b1, W2, b2 = params
    scores = jax.nn.log_softmax(jax.nn.relu(X @ W1 + b1) @ W2 + b2)
    return -jnp.take_along_axis(scores, y[:, None], axis=1)[:, 0]


def mean_loss(params, X, y):
    return losses(params, X, y).mean()


def update(params, grads, lr):
    return [p - lr * g for p, g in zip(params, grads)]


def shards(a, num_devices):
    """With a leading axis for the devices, as pmap takes it."""
    return a.reshape(num_devices, -1, *a.shape[1:])


@functools.cache
def pmapped(function, num_devices):
    return jax.pmap(
        function,
        axis_name="devices",
        in_axes=(None, 0, 0, None),
        devices=jax.devices()[:num_devices],
    )

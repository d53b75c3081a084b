"""Steps of JAX on devices that XLA makes of a CPU, by the variable D2LPAR_PROGRAM.

Each program is right, or has one mistake; evidence.md says which.
"""

import os

PROGRAM = os.environ.get("D2LPAR_PROGRAM", "pmap")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import functools

import jax
import numpy
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

EVEN = PROGRAM not in ("masked", "padded")


def init(seed):
    rng = numpy.random.default_rng(seed)
    shapes = ((6, 8), (8,), (8, 3), (3,))
    return [rng.normal(0, 0.5, shape).astype("float32") for shape in shapes]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype("float32"), rng.integers(0, 3, n, "int32")


def losses(params, X, y):
    W1, b1, W2, b2 = params
    scores = jax.nn.relu(X @ W1 + b1) @ W2 + b2
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1)[:, 0]


def gradient(params, X, y, mask):
    """One device's part of the global gradient, for its rows."""
    n = len(X) * lax.axis_size("devices")
    if PROGRAM == "grad_of_psum":  # inside pmap it is N times that of the own loss
        total = jax.grad(lambda p: lax.psum(losses(p, X, y).sum(), "devices") / n)
        return lax.psum(total(params), "devices")
    if PROGRAM == "masked":
        own = jax.grad(lambda p: (losses(p, X, y) * mask).sum())(params)
        total, count = lax.psum((own, mask.sum()), "devices")
        return [g / count for g in total]
    return lax.pmean(jax.grad(lambda p: losses(p, X, y).mean())(params), "devices")


@functools.cache
def gradients(num_devices):
    """The compiled gradient, with a leading axis for the devices."""
    devices = jax.devices()[:num_devices]
    return jax.pmap(gradient, "devices", in_axes=(None, 0, 0, 0), devices=devices)


@jax.jit
def sharded_step(params, X, y, lr):
    grads = jax.grad(lambda p: losses(p, X, y).mean())(params)
    return [p - lr * g for p, g in zip(params, grads)]


def step(params, X, y, num_devices, lr, steps=1):
    n, more = len(X), -len(X) % num_devices
    if PROGRAM == "sharded":  # one program over a mesh, and XLA sums
        mesh = Mesh(jax.devices()[:num_devices], "devices")
        X, y = jax.device_put((X, y), NamedSharding(mesh, PartitionSpec("devices")))
        params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    else:
        mask = (numpy.arange(n + more) < n).astype("float32")
        X, y = (numpy.pad(a, [(0, more)] + [(0, 0)] * (a.ndim - 1)) for a in (X, y))
        data = [a.reshape(num_devices, -1, *a.shape[1:]) for a in (X, y, mask)]
    for _ in range(steps):
        if PROGRAM == "sharded":
            params = sharded_step(params, X, y, lr)
        else:
            grads = gradients(num_devices)(params, *data)
            params = [p - lr * g[0] for p, g in zip(params, grads)]
    return params

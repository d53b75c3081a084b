"""Steps of JAX on devices that XLA makes of a CPU, by the variable D2LPAR_PROGRAM.

Each program is right, or has one mistake; programs.py says which.
"""

import functools
import os

PROGRAM = os.environ.get("D2LPAR_PROGRAM", "pmap")
DTYPE = os.environ.get("D2LPAR_DTYPE", "float32")
os.environ["JAX_ENABLE_X64"] = str(DTYPE == "float64")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

EVEN = PROGRAM not in ("masked", "padded", "padded_size")
captured = {}  # the batches of compiled steps


def init(seed):
    rng = numpy.random.default_rng(seed)
    shapes = (
        ((6, 8), (8, 3)) if PROGRAM == "batch_norm" else ((6, 8), (8,), (8, 3), (3,))
    )
    return [rng.normal(0, 0.5, shape).astype(DTYPE) for shape in shapes]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype(DTYPE), rng.integers(0, 3, n, "int32")


def losses(params, X, y):
    if PROGRAM == "batch_norm":  # of the global batch, by pmean
        h = X @ params[0]
        mean = lax.pmean(h.mean(0), "devices")
        variance = lax.pmean(((h - mean) ** 2).mean(0), "devices")
        scores = jnp.tanh((h - mean) / jnp.sqrt(variance + 1e-5)) @ params[1]
    else:
        W1, b1, W2, b2 = params
        scores = jax.nn.relu(X @ W1 + b1) @ W2 + b2
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1)[:, 0]


def gradient(params, X, y, mask, clip_norm):
    """One device's part of the global gradient, for its rows."""
    n = len(X) * lax.axis_size("devices")
    if PROGRAM == "grad_of_psum":  # inside pmap it is N times that of the own loss
        total = jax.grad(lambda p: lax.psum(losses(p, X, y).sum(), "devices") / n)
        return clipped(lax.psum(total(params), "devices"), clip_norm)
    if PROGRAM == "masked":
        own = jax.grad(lambda p: (losses(p, X, y) * mask).sum())(params)
        total, count = lax.psum((own, mask.sum()), "devices")
        return clipped([g / count for g in total], clip_norm)
    weight = mask if PROGRAM == "padded_size" else 1.0
    grads = jax.grad(lambda p: (losses(p, X, y) * weight).mean())(params)
    if PROGRAM == "clips_first":
        grads = clipped(grads, clip_norm)
    grads = lax.pmean(grads, "devices")
    return grads if PROGRAM == "clips_first" else clipped(grads, clip_norm)


def clipped(grads, clip_norm):
    norm = jnp.sqrt(sum((g**2).sum() for g in grads))
    return [g * jnp.minimum(1, clip_norm / norm) for g in grads]


@functools.cache
def gradients(num_devices):
    """The compiled gradient, with a leading axis for the devices."""
    devices = jax.devices()[:num_devices]
    axes = (None, 0, 0, 0, None)
    return jax.pmap(gradient, "devices", in_axes=axes, devices=devices)


@jax.jit
def sharded_step(params, X, y, lr):
    grads = jax.grad(lambda p: losses(p, X, y).mean())(params)
    return [p - lr * g for p, g in zip(params, grads)]


def step(params, X, y, num_devices, lr, steps=1, clip_norm=None):
    if PROGRAM == "sharded":  # one program over a mesh, and XLA sums
        if clip_norm is not None:
            raise NotImplementedError("it does not clip")
        mesh = Mesh(jax.devices()[:num_devices], "devices")
        X, y = jax.device_put((X, y), NamedSharding(mesh, PartitionSpec("devices")))
        params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        for _ in range(steps):
            params = sharded_step(params, X, y, lr)
        return params
    if PROGRAM == "captured_batch" and num_devices > 1:
        X, y = captured.setdefault((num_devices, len(X)), (X, y))
    n, more = len(X), -len(X) % num_devices
    mask = (numpy.arange(n + more) < n).astype(DTYPE)
    X, y = (numpy.pad(a, [(0, more)] + [(0, 0)] * (a.ndim - 1)) for a in (X, y))
    data = [a.reshape(num_devices, -1, *a.shape[1:]) for a in (X, y, mask)]
    limit = numpy.inf if clip_norm is None else clip_norm
    late = [g[0] for g in gradients(num_devices)(params, *data, limit)]
    for _ in range(steps):
        before = params
        params = [p - lr * g for p, g in zip(params, late)]
        at = before if PROGRAM == "late_gradient" and num_devices > 1 else params
        late = [g[0] for g in gradients(num_devices)(at, *data, limit)]
    return params

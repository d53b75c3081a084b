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

EVEN = True


def init(seed):
    rng = numpy.random.default_rng(seed)
    return [rng.normal(0, 0.5, n).astype("float32") for n in ((6, 8), (8,), (8, 3))]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype("float32"), rng.integers(0, 3, n, "int32")


def loss(params, X, y):
    W1, b1, W2 = params
    scores = jax.nn.log_softmax(jax.nn.relu(X @ W1 + b1) @ W2)
    return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()


def gradient(params, X, y):
    """The global gradient, of one device's rows."""
    if PROGRAM == "grad_of_psum":  # inside pmap it is N times that of the own loss
        own = jax.grad(lambda p: lax.pmean(loss(p, X, y), "devices"))(params)
        return lax.psum(own, "devices")
    return lax.pmean(jax.grad(loss)(params, X, y), "devices")


@functools.cache
def gradients(num_devices):
    devices = jax.devices()[:num_devices]
    return jax.pmap(gradient, "devices", in_axes=(None, 0, 0), devices=devices)


def step(params, X, y, num_devices, lr, steps=1):
    for _ in range(steps):
        if PROGRAM == "sharded":  # one program over a mesh, and XLA sums
            mesh = Mesh(jax.devices()[:num_devices], "devices")
            rows = NamedSharding(mesh, PartitionSpec("devices"))
            grads = jax.jit(jax.grad(loss))(params, *jax.device_put((X, y), rows))
        else:
            data = [a.reshape(num_devices, -1, *a.shape[1:]) for a in (X, y)]
            grads = [g[0] for g in gradients(num_devices)(params, *data)]
        params = [
            numpy.asarray(p) - lr * numpy.asarray(g) for p, g in zip(params, grads)
        ]
    return params

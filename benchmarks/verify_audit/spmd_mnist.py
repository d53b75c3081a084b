"""jax-ml/jax, examples/spmd_mnist_classifier_fromscratch.py: `train_step`.

PUBLIC=CLONE_OF_JAX d2lpar verify spmd_mnist.py --even
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_ENABLE_X64"] = "True"
import jax
import numpy
from jax.sharding import AxisType, NamedSharding, PartitionSpec

sys.path.insert(0, os.path.join(os.environ["PUBLIC"], "examples"))
import spmd_mnist_classifier_fromscratch as public


def init(seed):
    pairs = public.init_random_params(0.5, [6, 8, 3], numpy.random.RandomState(seed))
    return [a.astype("float64") for pair in pairs for a in pair]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return rng.normal(size=(n, 6)), numpy.eye(3)[y]


def step(params, X, y, num_devices, lr):
    if vars(public).get("step_size") != lr:  # it is read when the step is compiled
        public.step_size = lr
        public.train_step.clear_cache()
    devices = jax.devices()[:num_devices]
    mesh = jax.make_mesh(
        (num_devices,), ("batch",), (AxisType.Explicit,), devices=devices
    )
    data = jax.device_put((X, y), NamedSharding(mesh, PartitionSpec("batch")))
    pairs = list(zip(params[::2], params[1::2]))
    pairs = jax.device_put(pairs, NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh):
        return [a for pair in public.train_step(pairs, data) for a in pair]

"""google/flax, examples/imagenet/train.py: `train_step` under pmap, a small network.

PUBLIC=CLONE_OF_FLAX d2lpar verify flax_imagenet.py --even
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_ENABLE_X64"] = "True"
import jax
import numpy
import optax
from flax.training import checkpoints as checkpoints
from small import absent
from small import batch as batch

absent("clu", "ml_collections", "tensorflow", "tensorflow_datasets", "input_pipeline")
absent("models")
sys.path.insert(0, os.path.join(os.environ["PUBLIC"], "examples", "imagenet"))
import train as public


def init(seed):
    rng = numpy.random.default_rng(seed)
    return [rng.normal(0, 0.5, shape) for shape in ((6, 8), (8, 1000))]


def apply(variables, X, mutable):
    W1, W2 = variables["params"].values()
    return jax.numpy.tanh(X @ W1) @ W2, {"batch_stats": {}}


def step(params, X, y, num_devices, lr, steps=1):
    words = {"apply_fn": apply, "batch_stats": {}, "dynamic_scale": None}
    state = public.TrainState.create(
        params=dict(zip("ab", params)), tx=optax.sgd(lr), **words
    )
    devices = jax.devices()[:num_devices]
    state = jax.tree.map(lambda a: numpy.stack([a] * num_devices), state)
    data = {"image": X, "label": y}
    data = {k: a.reshape(num_devices, -1, *a.shape[1:]) for k, a in data.items()}
    run = jax.pmap(lambda s, d: public.train_step(s, d, lambda k: lr), "batch",
                   devices=devices)  # fmt: skip
    for _ in range(steps):
        state, _ = run(state, data)
    return [a[0] for a in state.params.values()]

"""d2l's ResNet-18 in JAX, one compiled step, on one device or several.

    python benchmarks/peers/resnet18_jax.py --channels 4 --n-train 512 --data sample
    python benchmarks/peers/resnet18_jax.py --device cuda --num-devices 2

The network of chapter multiple_gpus_concise. A batch is (devices, images of each), and
`vmap` over the first axis gives batch normalisation the statistics of one device's
shard, as the others have it; XLA sums the gradients. Convolutions are channels last.
Prints a JSON line per epoch. `benchmarks/resnet18.py` runs it.
"""

import functools
import time

import jax
import job
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

STRIDES = [1, 1, 2, 1, 2, 1, 2, 1]  # of the eight blocks


def initial(channels, seed):
    """Parameters in MXNet's order and layouts, and running means and variances."""
    rng, params, stats = np.random.default_rng(seed), [], []

    def conv(inputs, outputs, kernel):
        shape = (outputs, inputs, kernel, kernel)
        params.append(rng.normal(0, 0.01, shape).astype(np.float32))
        params.append(np.zeros(outputs, np.float32))

    def norm(width):
        params.extend([np.ones(width, np.float32), np.zeros(width, np.float32)])
        stats.append((np.zeros(width, np.float32), np.ones(width, np.float32)))

    conv(1, channels, 3)
    norm(channels)
    inputs = channels
    for k, strides in enumerate(STRIDES):
        outputs = channels * 2 ** (k // 2)
        for width in (inputs, outputs):
            conv(width, outputs, 3)
            norm(outputs)
        if strides > 1:
            conv(inputs, outputs, 1)
        inputs = outputs
    params.append(rng.normal(0, 0.01, (10, inputs)).astype(np.float32))
    params.append(np.zeros(10, np.float32))
    return params, stats


def resnet18(params, stats, X, training):
    """Scores of images (n, 28, 28, 1), and the running statistics after them."""
    rest, running, new = iter(params), iter(stats), []

    def conv(h, strides=1):
        W, b = next(rest), next(rest)
        pad = (W.shape[2] // 2,) * 2
        layouts = ("NHWC", "OIHW", "NHWC")
        return b + lax.conv_general_dilated(
            h, W, (strides, strides), (pad, pad), dimension_numbers=layouts
        )

    def norm(h):
        gamma, beta, (mean, var) = next(rest), next(rest), next(running)
        if training:
            kept, (mean, var) = (mean, var), (h.mean((0, 1, 2)), h.var((0, 1, 2)))
            new.append([0.9 * a + 0.1 * b for a, b in zip(kept, (mean, var))])
        return gamma * (h - mean) * lax.rsqrt(var + 1e-5) + beta

    h = jax.nn.relu(norm(conv(X)))
    for strides in STRIDES:
        x, h = h, jax.nn.relu(norm(conv(h, strides)))
        h = norm(conv(h))
        h = jax.nn.relu(h + (conv(x, strides) if strides > 1 else x))
    W, b = rest
    return h.mean((1, 2)) @ W.T + b, new


def mean_loss(params, stats, X, y):
    scores, stats = resnet18(params, stats, X, training=True)
    scores = jax.nn.log_softmax(scores)
    return -jnp.take_along_axis(scores, y[:, None], axis=1).mean(), stats


def loss_of_shards(params, stats, X, y):
    shards = jax.vmap(mean_loss, in_axes=(None, None, 0, 0))
    losses, stats = shards(params, stats, X, y)
    return losses.mean(), jax.tree.map(lambda s: s[0], stats)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_batch(params, stats, X, y, index, lr):
    """One step on the samples `index` (devices, images); the loss before it."""
    with_stats = jax.value_and_grad(loss_of_shards, has_aux=True)
    (loss, stats), grads = with_stats(params, stats, X[index], y[index])
    return [p - lr * g for p, g in zip(params, grads)], stats, loss


@jax.jit
def hits(params, stats, X, y):
    scores, _ = resnet18(params, stats, X, training=False)
    return (scores.argmax(1) == y).sum()


def main() -> None:
    args = job.parse(job.resnet_parser(__doc__))
    n, size = args.num_devices, args.global_batch_size
    if args.device == "cpu":
        jax.config.update("jax_num_cpu_devices", n)
    jax.config.update("jax_platforms", args.device)
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
    mesh = jax.make_mesh(
        (n,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n]
    )
    on_all, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("devices"))
    X, y, X_test, y_test = job.data(args)
    X, X_test = (a[..., None].astype(np.float32) / 255 for a in (X, X_test))
    X, y = jax.device_put((X, y.astype(np.int32)), on_all)
    params, stats = jax.device_put(initial(args.channels, args.seed), on_all)
    if args.check:
        first = job.first_steps_of_resnet(args.check, n)
        jax.config.update("jax_enable_x64", True)
        to_64 = functools.partial(jax.tree.map, lambda a: a.astype(jnp.float64))
        _, narrow = initial(len(first.check[0]), args.seed)  # it shows the same
        state = to_64(jax.device_put((first.check, narrow), on_all))
        images, losses = to_64(X), []
        for index in first.index:
            index = jax.device_put(index.reshape(n, -1), split)
            *state, loss = train_batch(*state, images, y, index, first.lr)
            losses.append(float(loss))
        jax.config.update("jax_enable_x64", False)
        job.refuse(job.disagreement(losses, first, job.RELATIVE_RESNET))
    for epoch in range(args.num_epochs):
        jax.block_until_ready(params)
        start = time.perf_counter()
        order = np.random.default_rng([args.seed, epoch + 1]).permutation(len(y))
        for k in range(0, len(y) - size + 1, size):
            index = jax.device_put(order[k : k + size].reshape(n, -1), split)
            params, stats, _ = train_batch(params, stats, X, y, index, args.lr)
        jax.block_until_ready(params)
        seconds = time.perf_counter() - start
        right = sum(
            int(hits(params, stats, X_test[k : k + 500], y_test[k : k + 500]))
            for k in range(0, len(y_test), 500)
        )
        done = len(y) // size * size
        acc = right / len(y_test)
        job.print_epoch(epoch + 1, seconds, done, acc, jax=jax.__version__)


if __name__ == "__main__":
    main()

"""The same LeNet, data and recipe in JAX, compiled, on one device or several.

    python benchmarks/peers/jax_loop.py --threads 2 --num-epochs 3
    python benchmarks/peers/jax_loop.py --num-devices 2 --form scan

One call per step ("step"), or one per epoch, in which `lax.scan` takes the steps of all
full batches ("scan").

Data stay on the devices, each batch is one gather within the step, and XLA sums the
gradients, because the batch is split over the devices and the parameters are not.
Convolutions are channels last. Prints a JSON line per epoch.
"""

import functools
import os
import time

import jax
import job
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

SHAPES = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,)]
SHAPES += [(128, 10), (10,)]


def lenet(params, X):
    """Scores of images `X` (n, 28, 28, 1); `params` are in the book's layouts."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params

    def layer(h, W, b):
        as_stored = ("NHWC", "OIHW", "NHWC")
        h = lax.conv_general_dilated(h, W, (1, 1), "VALID", dimension_numbers=as_stored)
        window = (1, 2, 2, 1)
        h = jax.nn.relu(h + b)
        return lax.reduce_window(h, 0.0, lax.add, window, window, "VALID") / 4

    h = layer(layer(X, W1, b1), W2, b2)
    h = h.transpose(0, 3, 1, 2).reshape(len(h), -1)  # the book flattens channels first
    return jax.nn.relu(h @ W3 + b3) @ W4 + b4


def mean_loss(params, X, y):
    scores = jax.nn.log_softmax(lenet(params, X))
    return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()


@functools.partial(jax.jit, donate_argnums=0)
def train_batch(params, X, y, index, lr):
    """One step on the samples `index`; the new parameters and the loss before it."""
    loss, grads = jax.value_and_grad(mean_loss)(params, X[index], y[index])
    return [p - lr * g for p, g in zip(params, grads)], loss


@functools.partial(jax.jit, donate_argnums=0)
def train_batches(params, X, y, batches, lr):
    """A step for each row of `batches`; the new parameters and the losses before."""
    return lax.scan(
        lambda params, index: train_batch(params, X, y, index, lr), params, batches
    )


@jax.jit
def hits(params, X, y):
    return (lenet(params, X).argmax(1) == y).sum()


def check_division(args, samples):
    """Refuse batches that the devices do not divide: JAX cannot split them."""
    for size in {args.global_batch_size, samples % args.global_batch_size}:
        if size % args.num_devices:
            job.refuse(
                f"a batch of {size} samples cannot be split over {args.num_devices} "
                "devices in JAX: change --global-batch-size or --n-train"
            )


def main() -> None:
    parser = job.lenet_parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--num-devices", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", choices=("step", "scan"), default="step")
    args = job.parse(parser)
    if args.device == "cpu":
        # XLA starts a thread for each core that the process may use.
        cores = sorted(os.sched_getaffinity(0))[: args.threads]
        os.sched_setaffinity(0, cores)
        jax.config.update("jax_num_cpu_devices", args.num_devices)
    jax.config.update("jax_platforms", args.device)
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
    mesh = jax.make_mesh(
        (args.num_devices,), ("devices",), axis_types=(AxisType.Auto,),
        devices=jax.devices()[: args.num_devices],
    )  # fmt: skip
    on_all, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("devices"))
    split_rows = NamedSharding(mesh, P(None, "devices"))

    X, y, X_test, y_test = job.data(args)
    check_division(args, len(y))
    X, X_test = (a[..., None].astype(np.float32) / 255 for a in (X, X_test))
    X, y = jax.device_put((X, y.astype(np.int32)), on_all)
    tests = [
        jax.device_put((X_test[i : i + 1000], y_test[i : i + 1000]), on_all)
        for i in range(0, len(y_test), 1000)
    ]
    rng = np.random.default_rng(args.seed)
    params = [
        rng.normal(0, 0.01 if len(shape) > 1 else 0, shape).astype(np.float32)
        for shape in SHAPES
    ]
    if args.check:
        first = job.first_steps(args.check)
        params, losses = jax.device_put(first.check, on_all), []
        if args.form == "scan":
            batches = jax.device_put(first.index, split_rows)
            _, losses = train_batches(params, X, y, batches, first.lr)
            losses = [float(loss) for loss in losses]
        else:
            for index in first.index:
                index = jax.device_put(index, split)
                params, loss = train_batch(params, X, y, index, first.lr)
                losses.append(float(loss))
        job.refuse(job.disagreement(losses, first))
        params = first.params

    params, size = jax.device_put(params, on_all), args.global_batch_size
    names = [f"{d.device_kind} {d.id}" for d in mesh.devices.flat]
    for epoch in range(args.num_epochs):
        jax.block_until_ready(params)
        start = time.perf_counter()
        order = np.random.default_rng([args.seed, epoch + 1]).permutation(len(y))
        done = 0
        if args.form == "scan":
            done = len(y) // size * size
            batches = jax.device_put(order[:done].reshape(-1, size), split_rows)
            params, _ = train_batches(params, X, y, batches, args.lr)
        for k in range(done, len(y), size):
            index = jax.device_put(order[k : k + size], split)
            params, _ = train_batch(params, X, y, index, args.lr)
        jax.block_until_ready(params)
        seconds = time.perf_counter() - start
        job.refuse(job.divergence(epoch + 1, map(np.asarray, params), args.lr))
        right = float(sum(hits(params, *test) for test in tests))
        job.print_epoch(
            epoch + 1, seconds, len(y), right / len(y_test), devices=names,
            jax=jax.__version__,
        )  # fmt: skip


if __name__ == "__main__":
    main()

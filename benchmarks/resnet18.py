"""ResNet-18 of chapter multiple_gpus_concise: seconds per epoch, and test accuracy.

    D2LPAR_DATA=... python benchmarks/resnet18.py --devices gpu:2
    python benchmarks/resnet18.py --devices gpu:2 --peers ddp,jax --first-steps FILE
    python benchmarks/resnet18.py --channels 4 --images 512 --epochs 2 --data sample

One device trains with the book's batch of 256 and learning rate of 0.1; two train with
512 and 0.2, as in the book, and with 256 and 0.1, as one does; four with 1,024 and 0.4,
and with 256 and 0.1. The classes are the chapter's own. The clock stops before the
test, a round is a seed, and the first epoch warms up. Writes resnet18.jsonl to
runs/benchmarks, and prints the medians. Source: the book, section "Concise
Implementation for Multiple GPUs".
"""

from __future__ import annotations

import argparse
import ast
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import arms
import numpy

from d2lpar import datasets
from d2lpar.machine import builds
from d2lpar.records import atomic
from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import ArmSample, Run, group
from d2lpar.text import number, plain_table

CHAPTER = Path(__file__).parents[1] / "chapters" / "multiple_gpus_concise.py"


def network_of_chapter() -> Callable:
    """The chapter's function resnet18, without what its other cells do."""
    from d2lpar import gluon, npx

    cells = ast.parse(CHAPTER.read_text(encoding="utf-8"))
    names = ("Residual", "resnet18")
    body = [node for node in cells.body if getattr(node, "name", "") in names]
    found = {"gluon": gluon, "npx": npx}
    exec(compile(ast.Module(body, []), str(CHAPTER), "exec"), found)
    return found["resnet18"]


def epochs(
    devices: str,
    num_devices: int,
    batch_size: int,
    lr: float,
    channels: int,
    data: str,
    images: int,
    num_epochs: int,
    seed: int,
) -> Iterator[dict]:
    """What each epoch of one training measured."""
    from d2lpar import autograd, gluon, mx, np, npx
    from d2lpar import devices as contexts_of

    contexts = contexts_of.parse(devices)[:num_devices]
    source = datasets.load(data, n_train=images)
    X, X_test = (
        np.array(datasets.to_float(x), ctx=contexts[0])
        for x in (source.X_train, source.X_test)
    )
    y = np.array(source.y_train, dtype="float32", ctx=contexts[0])
    mx.random.seed(seed)
    net = network_of_chapter()(channels)
    net.initialize(init=mx.init.Normal(sigma=0.01), ctx=contexts)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": lr}, update_on_kvstore=False
    )
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    rng = numpy.random.default_rng(seed)
    for epoch in range(1, num_epochs + 1):
        order = np.array(rng.permutation(len(y)), dtype="int32", ctx=contexts[0])
        npx.waitall()
        start = time.perf_counter()
        for i in range(0, len(y) - batch_size + 1, batch_size):
            batch = order[i : i + batch_size]
            X_shards, y_shards = (
                gluon.utils.split_and_load(x.take(batch, axis=0), contexts)
                for x in (X, y)
            )
            with autograd.record():
                losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
            for l in losses:
                l.backward()
            trainer.step(batch_size)
        npx.waitall()
        seconds = time.perf_counter() - start
        trained = len(y) // batch_size * batch_size
        right = sum(
            int((net(X_test[i : i + 500]).argmax(axis=1).asnumpy() == labels).sum())
            for i in range(0, len(X_test), 500)
            for labels in (source.y_test[i : i + 500],)
        )
        yield {
            "epoch": epoch,
            "seconds": seconds,
            "samples_per_sec": trained / seconds,
            "test_acc": right / len(X_test),
        }


def first_steps(data: str, channels: int, batch_size: int) -> dict[str, numpy.ndarray]:
    """Our first steps on CPU contexts in float64, for the peers to repeat.

    All parameters are moved a little: where a channel is constant and its shift is 0,
    rounding decides whether ReLU lets it pass, and the third losses differ by 4e-4.

    "check.0", "check.1", ... float32, in the order of the network, are where these
    steps start, of learning rate "lr", on the samples "index" (steps, batch_size),
    int64. "losses.1", "losses.2" and "losses.4", float64, are the mean losses before
    each step on as many contexts: batch normalisation sees one context's images.

    In float32 the second loss differs from PyTorch's by 0.1 %: rounding decides for a
    few activations near 0 whether ReLU lets them pass.
    """
    from d2lpar import autograd, gluon, mx, np

    source = datasets.load(data)
    order = numpy.random.default_rng(0).permutation(len(source.y_train))
    index = numpy.resize(order, (3, batch_size))
    found = {"index": index, "lr": numpy.array(0.05)}
    for n in (1, 2, 4):
        contexts = [mx.cpu(k) for k in range(n)]
        mx.random.seed(0)
        net = network_of_chapter()(channels)
        net.initialize(init=mx.init.Normal(sigma=0.05), ctx=contexts)
        net(np.zeros((2, 1, 28, 28)))  # infers the shapes
        net.cast("float64")
        learned = [p for p in net.collect_params().values() if p.grad_req != "null"]
        for k, parameter in enumerate(learned):
            moved = parameter.data(contexts[0]).asnumpy()
            moved += numpy.random.default_rng(k).normal(0, 0.05, moved.shape)
            start = found.setdefault(f"check.{k}", moved.astype("float32"))
            parameter.set_data(np.array(start, dtype="float64"))
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore="device",
            update_on_kvstore=False,
        )  # fmt: skip
        loss, means = gluon.loss.SoftmaxCrossEntropyLoss(), []
        for rows in index:
            shards = [
                gluon.utils.split_and_load(np.array(x, dtype="float64"), contexts)
                for x in (source.X_train[rows][:, None] / 255, source.y_train[rows])
            ]
            with autograd.record():
                losses = [loss(net(X), y) for X, y in zip(*shards)]
            for l in losses:
                l.backward()
            trainer.step(batch_size)
            means.append(numpy.mean([float(l.mean()) for l in losses]))
        found[f"losses.{n}"] = numpy.array(means)
    return found


def write_first_steps(path: str, **settings) -> dict:
    """Write :func:`first_steps` to a file; return the losses."""
    arrays = first_steps(**settings)
    with atomic.replacing(Path(path)) as tmp:
        numpy.savez(tmp, **arrays)
    return {n: arrays[f"losses.{n}"].tolist() for n in (1, 2, 4)}


PEERS = {"ddp": "PyTorch DDP", "jax": "JAX"}


def arms_of(args: argparse.Namespace, seed: int) -> list[arms.Arm]:
    kind, _, count = args.devices.partition(":")
    word = "context" if kind == "cpu" else "GPU"
    every = []
    recipes = [(1, 256, 0.1), (2, 256, 0.1), (2, 512, 0.2)]
    recipes += [(4, 256, 0.1), (4, 1024, 0.4)]
    for n, batch_size, lr in recipes:
        if n > int(count) or str(n) not in args.num_devices.split(","):
            continue
        name = f"{n} {word}{'s' * (n > 1)}, batch {batch_size}, lr {lr:g}"
        if args.mxnet:
            every.append(arms.ours(
                name, 1, "resnet18:epochs", devices=args.devices, num_devices=n,
                batch_size=batch_size, lr=lr, channels=args.channels, data=args.data,
                images=args.images, num_epochs=args.epochs, seed=seed,
            ))  # fmt: skip
        for peer in filter(None, args.peers.split(",")):
            job = {
                "device": "cpu" if kind == "cpu" else "cuda", "num_devices": n,
                "global_batch_size": batch_size, "lr": lr, "channels": args.channels,
                "data": args.data, "n_train": args.images, "seed": seed,
                "num_epochs": args.epochs, "check": args.first_steps,
            }  # fmt: skip
            named = f"{PEERS[peer]}, {name}"
            every.append(arms.peer(named, f"resnet18_{peer}.py", job, {}))
    return every


def table(run: Run) -> str:
    """A row per arm: seconds and images per second after the first epochs, accuracy."""
    rows, samples = [], run.lines_of(ArmSample)
    last = max(sample.epoch for sample in samples)
    for arm, lines in group(samples, lambda sample: sample.arm).items():
        timed = [line for line in lines if not line.warm_up]
        seconds = summarize([line.seconds for line in timed])
        rate = summarize([line.samples_per_sec for line in timed])
        accs = [f"{line.test_acc:.3f}" for line in lines if line.epoch == last]
        quartiles = f"{number(seconds.least)}-{number(seconds.most)}"
        cells = [number(seconds.median), quartiles, str(seconds.n)]
        rows.append([arm, *cells, f"{rate.median:,.0f}", ", ".join(accs)])
    columns = ["training", "s/epoch", "range", "n", "images/s", "accuracy"]
    return plain_table(columns, rows, names=1)


def main() -> None:
    parser = arms.parser(__doc__, rounds=1)
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--num-devices", default="1,2,4")
    parser.add_argument("--channels", type=int, default=64, help="the book has 64")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--peers", default="", help="some of ddp,jax")
    parser.add_argument(
        "--first-steps",
        default="",
        help="of write_first_steps, for the peers to repeat",
    )
    args = parser.parse_args()
    args.mxnet = bool(builds.installed_builds())
    if args.first_steps:
        args.first_steps = str(Path(args.first_steps).resolve())
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        arms.share_what_jax_compiles(folder)
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """Time the rows, write the record, and print its table."""
    every, lines = arms.measure_seeds(
        lambda seed: arms_of(args, seed), range(args.rounds)
    )
    data = datasets.load(args.data, n_train=args.images)
    kind, _, count = args.devices.partition(":")
    run = arms.record(
        args.out / "resnet18.jsonl",
        every,
        lines,
        work=f"an epoch of ResNet-18 of {args.channels} channels",
        dataset=data.name,
        dataset_sha256=data.sha256,
        settings={"n_train": args.images, "num_epochs": args.epochs},
        **(arms.gpu_fields(range(int(count)), every) if kind == "gpu" else {}),
        first_losses_checked=bool(args.first_steps),
    )
    print(table(run))


if __name__ == "__main__":
    main()

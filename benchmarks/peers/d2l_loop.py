"""d2l's functions of "Training on Multiple GPUs" in a loop on host NumPy batches.

    python benchmarks/peers/d2l_loop.py --devices cpu:2 --data sample

The functions of book.py and the loop's `npx.waitall()` after each batch, with the
default environment. `--devices gpu:2` takes GPUs as the book does, `cpu:2` takes CPU
contexts instead. Batches are cut before the clock starts. Needs MXNet, but not d2l.
Prints a JSON line per pass over the batches with the mean seconds of a step.
`benchmarks/own_loop.py` runs it beside ours.
"""

import json
import time

import job  # before mxnet
import numpy
from book import get_params, train_batch
from mxnet import context, np, npx  # after book, which prepares NumPy for it

from d2lpar import datasets


def timed_passes(params, devices, batches, passes, lr):
    device_params = [get_params(params, d) for d in devices]
    for _ in range(passes):
        npx.waitall()
        start = time.perf_counter()
        for X, y in batches:
            train_batch(X, y, device_params, devices, lr)
            npx.waitall()
        yield (time.perf_counter() - start) / len(batches)


def check(first, devices, data):
    """Take our first steps, on host batches, too."""
    start = [np.array(p) for p in first.check]
    device_params = [get_params(start, d) for d in devices]
    means = []
    for rows in first.index:
        X, y = datasets.to_float(data.X_train[rows]), data.y_train[rows].astype("int32")
        losses = train_batch(X, y, device_params, devices, first.lr)
        means.append(sum(float(l.sum()) for l in losses) / len(rows))
    job.refuse(job.disagreement(means, first))


def main() -> None:
    parser = job.parser(__doc__)
    parser.add_argument("--devices", default="cpu:1", help="cpu:1, gpu:2, ...")
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=20, help="batches per pass")
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument(
        "--data", choices=("fashion-mnist", "sample"), default="fashion-mnist"
    )
    args = job.parse(parser)
    kind, count = args.devices.split(":")
    if kind == "gpu":
        job.check_count(int(count), context.num_gpus(), "MXNet")
    devices = [context.Context(kind, k) for k in range(int(count))]
    data = datasets.load(args.data)
    rows = numpy.resize(
        numpy.random.default_rng(0).permutation(len(data.y_train)),
        (args.steps, args.global_batch_size),
    )
    batches = [
        (datasets.to_float(data.X_train[index]), data.y_train[index].astype("int32"))
        for index in rows
    ]
    params = [
        np.random.normal(scale=0.01, size=shape) if len(shape) > 1 else np.zeros(shape)
        for shape in (
            (20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,),
            (800, 128), (128,), (128, 10), (10,),
        )
    ]  # fmt: skip
    if args.check:
        first = job.first_steps(args.check)
        check(first, devices, data)
        params = [np.array(p) for p in first.params]
    passes = timed_passes(params, devices, batches, args.passes, args.lr)
    for seconds in passes:
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()

"""d2l's functions of "Training on Multiple GPUs" in a loop on host NumPy batches.

    python peers/d2l_loop.py --devices cpu:2 --data sample

The functions of that section and those that it takes from earlier ones
(`d2l.split_batch`, `d2l.sgd`), from d2l 1.0.3, and the loop's `npx.waitall()` after
each batch, with the default environment; nothing is tuned. `--devices gpu:2` takes
GPUs as the book does, `cpu:2` takes CPU contexts in their place. Batches are cut before
the clock starts. Needs MXNet, but not d2l. Prints a JSON line per pass over the batches
with the mean seconds of a step. `benchmarks/own_loop.py` runs it beside ours.
"""

import json
import time

import job  # before mxnet
import numpy

from d2lpar import datasets
from d2lpar._numpy_names import restore_numpy_names, write_numbers_plainly

restore_numpy_names()

import mxnet  # noqa: E402
from mxnet import autograd, gluon, np, npx  # noqa: E402

write_numbers_plainly()
npx.set_np()


# Sections 23.8 and 13.5 of the book.
def sgd(params, lr, batch_size):
    for param in params:
        param[:] = param - lr * param.grad / batch_size


def split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    return (
        gluon.utils.split_and_load(X, devices),
        gluon.utils.split_and_load(y, devices),
    )


# The section itself.
def lenet(X, params):
    h1_conv = npx.convolution(
        data=X, weight=params[0], bias=params[1], kernel=(3, 3), num_filter=20
    )
    h1_activation = npx.relu(h1_conv)
    h1 = npx.pooling(data=h1_activation, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2_conv = npx.convolution(
        data=h1, weight=params[2], bias=params[3], kernel=(5, 5), num_filter=50
    )
    h2_activation = npx.relu(h2_conv)
    h2 = npx.pooling(data=h2_activation, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = h2.reshape(h2.shape[0], -1)
    h3_linear = np.dot(h2, params[4]) + params[5]
    h3 = npx.relu(h3_linear)
    return np.dot(h3, params[6]) + params[7]


loss = gluon.loss.SoftmaxCrossEntropyLoss()


def get_params(params, device):
    new_params = [p.copyto(device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        data[0].copyto(data[i])


def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        losses = [
            loss(lenet(X_shard, device_W), y_shard)
            for X_shard, y_shard, device_W in zip(X_shards, y_shards, device_params)
        ]
    for l in losses:
        l.backward()
    for i in range(len(device_params[0])):
        allreduce([device_params[c][i].grad for c in range(len(devices))])
    for param in device_params:
        sgd(param, lr, X.shape[0])
    return losses  # not in the book: the check compares them with ours


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
        job.check_count(int(count), mxnet.context.num_gpus(), "MXNet")
    devices = [mxnet.Context(kind, k) for k in range(int(count))]
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

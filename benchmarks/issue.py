"""Ways for Python to issue a step from scratch on several devices, and their seconds.

    D2LPAR_DATA=... python benchmarks/issue.py --devices gpu:2    # at most 4 minutes
    python benchmarks/issue.py --data sample --steps 3 --passes 2 --rounds 1   # tiny

`train_batch` issues a step phase by phase: the forward pass of every device, then every
backward pass. The other forms compute the same step. They issue each device's work in
turn, or in one Python thread per device; they write sizes as constants and do not ask
arrays for their shapes; or they keep the images as float32 on the device. The last
form does all of it, in threads. A process first takes 20 steps, after which its
parameters must have the bits of `train_batch`'s: "error" is the largest difference.
Then it makes `--passes` over `--steps` batches, of which the first warms up. A pass has
two times per step: until Python has issued all of them, and until the devices have
finished. Writes issue.jsonl to runs/benchmarks, and prints the seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import arms
import numpy

from d2lpar import datasets
from d2lpar.errors import RunError
from d2lpar.machine.host import usable_cores

LR, CHECKED = 0.02, 20
PHASES = "train_batch"
FORMS = {
    PHASES: {},
    "each device in turn": {"issue": "in turn"},
    "a thread per device": {"issue": "threads"},
    "sizes as constants": {"constants": True},
    "float32 images": {"float_images": True},
    "threads, constants, float32": {
        "issue": "threads", "constants": True, "float_images": True,
    },
}  # fmt: skip


def lenet_of_constants(X, params):
    """LeNet whose sizes are constants, and no attributes of arrays."""
    from d2lpar._mxnet import np, npx

    W1, b1, W2, b2, W3, b3, W4, b4 = params
    pool = {"pool_type": "avg", "kernel": (2, 2), "stride": (2, 2)}

    def dense(X, W, b, outputs):
        if on_gpu:
            return np.dot(X, W) + b
        return npx.fully_connected(X, W.T, b, num_hidden=outputs, no_bias=False)

    on_gpu = X.ctx.device_type == "gpu"
    h = npx.convolution(X, W1, b1, kernel=(3, 3), num_filter=20)
    h = npx.pooling(npx.activation(h, act_type="relu"), **pool)
    h = npx.convolution(h, W2, b2, kernel=(5, 5), num_filter=50)
    h = npx.pooling(npx.activation(h, act_type="relu"), **pool)
    h = dense(h.reshape((-1, 800)), W3, b3, 128)
    return dense(npx.activation(h, act_type="relu"), W4, b4, 10)


def step_in_parts(pool, net: Callable, X, y, replicas, devices, lr: float) -> None:
    """Take `train_batch`'s step device by device, in the threads of `pool` if any."""
    from d2lpar import split_batch
    from d2lpar._mxnet import autograd
    from d2lpar.buckets import allreduce_buckets, update_bucket
    from d2lpar.parallel import pushed_together, softmax_cross_entropy

    def gradients(X_k, y_k, params) -> None:
        with pushed_together(devices[0]):
            with autograd.record():
                loss = softmax_cross_entropy(net(X_k, params), y_k)
            loss.backward()

    parts = (*split_batch(X, y, devices), replicas)
    list((pool.map if pool else map)(gradients, *parts))
    with pushed_together(devices[0]):
        allreduce_buckets(replicas)
        for replica in replicas:
            update_bucket(replica, lr, len(X))


def passes(
    devices: str, data: str, global_batch_size: int, steps: int, num_passes: int,
    expected: str, issue: str = "phases", constants: bool = False,
    float_images: bool = False,
) -> Iterator[dict]:  # fmt: skip
    """Two lines per pass: seconds per step to issue it, and until it has finished.

    The parameters after the first steps are written to the file `expected`, or compared
    with those in it: "error".
    """
    from d2lpar import book_lenet, init_lenet, train_batch
    from d2lpar import devices as places
    from d2lpar._mxnet import np, npx
    from d2lpar.buckets import BUCKETS, Bucket

    contexts = places.parse(devices)
    places.enable_peer_access(contexts)
    images = datasets.load(data)
    X = np.array(images.X_train, dtype="uint8", ctx=contexts[0])
    y = np.array(images.y_train, dtype="uint8", ctx=contexts[0])
    if float_images:
        X = datasets.to_float(X)
    order = numpy.resize(
        numpy.random.default_rng(0).permutation(len(y)),
        (max(steps, CHECKED), global_batch_size),
    )
    order = [np.array(k, dtype="int32", ctx=contexts[0]) for k in order]
    net = lenet_of_constants if constants else book_lenet.lenet
    # MXNet keeps for each thread whether it has NumPy's semantics.
    pool = ThreadPoolExecutor(len(contexts), initializer=npx.set_np)
    step = partial(step_in_parts, pool if issue == "threads" else None, net)
    if issue == "phases":
        step = partial(train_batch, net=net, **BUCKETS)

    def train(replicas, count: int) -> None:
        for index in order[:count]:
            batch = X.take(index, axis=0, mode="clip")
            if not float_images:
                batch = datasets.to_float(batch)
            labels = y.take(index, axis=0, mode="clip")
            step(batch, labels, replicas, contexts, LR)

    replicas = [Bucket(init_lenet(0.1), context) for context in contexts]
    train(replicas, CHECKED)
    values = replicas[-1].values.asnumpy()
    if not Path(expected).exists():
        numpy.save(expected, values)
    error = float(abs(values - numpy.load(expected)).max())
    for _ in range(num_passes):
        npx.waitall()
        begin = time.perf_counter()
        train(replicas, steps)
        issued = time.perf_counter() - begin
        npx.waitall()
        finished = time.perf_counter() - begin
        yield {"work": "Python issues", "seconds": issued / steps, "error": error}
        yield {"work": "a step", "seconds": finished / steps, "error": error}


def main() -> None:
    parser = arms.parser(__doc__, rounds=5)
    parser.add_argument("--devices", default=f"cpu:{usable_cores()}")
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200, help="batches per pass")
    parser.add_argument("--passes", type=int, default=4, help="the first warms up")
    parser.add_argument("--data", default="fashion-mnist")
    args = parser.parse_args()
    kind, _, count = args.devices.partition(":")
    threads = max(1, usable_cores() // int(count))
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        timed = [
            arms.ours(
                name, threads, "issue:passes", devices=args.devices, data=args.data,
                global_batch_size=args.global_batch_size, steps=args.steps,
                num_passes=args.passes, expected=f"{folder}/expected.npy", **form,
            )
            for name, form in FORMS.items()
        ]  # fmt: skip
        lines = arms.measure(timed, args.rounds, warm_up=2)
    absent = [line.why_not for line in lines if hasattr(line, "why_not")]
    if len(absent) == len(lines):
        raise RunError(f"nothing could be measured: {absent[0]}")
    run = arms.record(
        args.out / "issue.jsonl",
        timed,
        lines,
        work=f"a step from scratch, {args.global_batch_size:,} images, {args.devices}",
        settings={"global_batch_size": args.global_batch_size, "steps": args.steps},
        **(arms.gpu_fields(range(int(count)), timed) if kind == "gpu" else {}),
    )
    print(arms.table(run))
    other = {
        line.arm: line.error for line in lines if getattr(line, "error", 0)
    }  # of 20 steps
    for name, error in other.items():
        print(f"{name}: other bits than {PHASES}, by {error:.1e}")
    if not other:
        print(f"all forms have the bits of {PHASES} after {CHECKED} steps")


if __name__ == "__main__":
    main()

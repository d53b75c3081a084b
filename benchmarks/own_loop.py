"""A reader's own loop with our four functions, beside d2l's: seconds per step.

    D2LPAR_DATA=... python benchmarks/own_loop.py --devices cpu:2 --rounds 3
    python benchmarks/own_loop.py --data sample --steps 2 --passes 2 --rounds 1   # tiny

The reader writes the book's network in np and npx, takes get_params and train_batch
from d2lpar as they are, and passes batches as NumPy arrays. d2l's loop
(benchmarks/peers/d2l_loop.py) trains the same network on the same batches, in the
environment that Python finds; both first repeat the same first steps. Once on all of
`--devices`, once on one of them, with as many threads in all (CPU contexts). d2l's loop
waits after each batch, as the book prints it; the reader's does so in one arm and not
in the other. Every process makes `--passes` over `--steps` batches, of which the first
warms up. Writes own_loop.jsonl and .png to runs/benchmarks, and prints the seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import arms
import numpy

from d2lpar import datasets
from d2lpar.errors import RunError
from d2lpar.machine.host import usable_cores

LR = 0.02
CLOSE = 1e-4  # relative: the losses of our first steps, in another order of summation
D2L, READER = "d2l's functions", "d2lpar's functions"
NEVER = "d2lpar's, no waiting"


def reader_loop(
    devices: str, data: str, global_batch_size: int, steps: int, passes: int,
    check: str, waiting: bool,
) -> Iterator[dict]:  # fmt: skip
    """Mean seconds of a step in each pass over `steps` batches; the reader's program.

    `waiting` calls npx.waitall() after each batch, as the book's loop does. Raises
    RunError unless the first steps of the file `check` have the same losses here.
    """
    from d2lpar import devices as places
    from d2lpar import get_params, train_batch
    from d2lpar._mxnet import gluon, np, npx

    def net(X, params):
        h1 = npx.convolution(X, params[0], params[1], kernel=(3, 3), num_filter=20)
        h1 = npx.relu(h1)
        h1 = npx.pooling(h1, pool_type="avg", kernel=(2, 2), stride=(2, 2))
        h2 = npx.convolution(h1, params[2], params[3], kernel=(5, 5), num_filter=50)
        h2 = npx.relu(h2)
        h2 = npx.pooling(h2, pool_type="avg", kernel=(2, 2), stride=(2, 2))
        h2 = h2.reshape(h2.shape[0], -1)
        h3 = npx.relu(np.dot(h2, params[4]) + params[5])
        return np.dot(h3, params[6]) + params[7]

    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    contexts = places.parse(devices)
    places.enable_peer_access(contexts)
    images = datasets.load(data)

    def batch(index):
        X = datasets.to_float(images.X_train[index])
        return X, images.y_train[index].astype("int32")

    with numpy.load(check) as file:
        first = dict(file)
    start = [first[f"check.{k}"] for k in range(8)]
    replicas = [get_params(start, context) for context in contexts]
    for index, ours in zip(first["index"], first["losses"]):
        X, y = batch(index)
        losses = train_batch(
            X, y, replicas, contexts, float(first["lr"]), net=net, loss=loss
        )
        mean = sum(float(l.sum()) for l in losses) / len(y)
        if not abs(mean - ours) <= CLOSE * ours:
            raise RunError(f"the reader's loss is {mean:.6f}, ours {ours:.6f}")

    rows = numpy.resize(
        numpy.random.default_rng(0).permutation(len(images.y_train)),
        (steps, global_batch_size),
    )
    batches = [batch(index) for index in rows]
    start = [first[f"params.{k}"] for k in range(8)]
    replicas = [get_params(start, context) for context in contexts]
    for _ in range(passes):
        npx.waitall()
        begin = time.perf_counter()
        for X, y in batches:
            train_batch(X, y, replicas, contexts, LR, net=net, loss=loss)
            if waiting:
                npx.waitall()
        npx.waitall()
        yield {"seconds": (time.perf_counter() - begin) / steps}


def arms_of(
    kind: str, count: int, check: str, sizes: dict, cores: int
) -> Iterator[arms.Arm]:
    """Each on all devices and on one, with the same threads in all.

    The reader has only what importing d2lpar sets: not the runner's environment.
    """
    for n in dict.fromkeys((1, count)):
        threads = max(1, cores // n) if kind == "cpu" else 1
        work = work_on(kind, n, threads)
        job = {"devices": f"{kind}:{n}", "check": check, **sizes}
        environment = {"OMP_NUM_THREADS": str(threads)} if kind == "cpu" else {}
        for name, waiting in ((READER, True), (NEVER, False)):
            call = "own_loop:reader_loop"
            own = {**job, "waiting": waiting}
            yield arms.Arm(name, call, own, environment, work=work)
        peer = arms.peer(D2L, "d2l_loop.py", {**job, "lr": LR}, environment)
        yield peer._replace(work=work)


def work_on(kind: str, n: int, threads: int) -> str:
    if kind == "gpu":
        return "1 GPU" if n == 1 else f"{n} GPUs"
    each = f"{threads} thread{'s' if threads > 1 else ''}"
    return f"1 context, {each}" if n == 1 else f"{n} contexts, {each} each"


def main() -> None:
    parser = arms.parser(__doc__, rounds=3)
    parser.add_argument("--devices", help="cpu:2, gpu:2; by default a context per core")
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20, help="batches per pass")
    parser.add_argument("--passes", type=int, default=4, help="the first warms up")
    parser.add_argument("--data", default="fashion-mnist")
    args = parser.parse_args()
    cores = usable_cores()
    kind, _, count = (args.devices or f"cpu:{cores}").partition(":")
    with tempfile.TemporaryDirectory() as folder:
        check = str(Path(folder) / "first_steps.npz")
        arms.answer(
            "first_steps:write_first_steps", path=check, seed=0,
            data={"name": args.data}, global_batch_size=args.global_batch_size,
        )  # fmt: skip
        sizes = {
            "global_batch_size": args.global_batch_size,
            "steps": args.steps,
            "passes": args.passes,
            "data": args.data,
        }
        timed = list(arms_of(kind, int(count), check, sizes, cores))
        lines = arms.measure(timed, args.rounds)
    work = f"a step of a reader's own loop, {args.global_batch_size:,} images"
    fields = {}
    if kind == "gpu":
        fields = arms.gpu_fields(range(int(count)), timed)
    path = args.out / "own_loop.jsonl"
    run = arms.record(path, timed, lines, work=work, **fields)
    arms.show(run)


if __name__ == "__main__":
    main()

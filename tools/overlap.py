"""How many gradients are summed before the backward pass has ended, by MXNet's profile.

    python tools/overlap.py
    MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN=1 python tools/overlap.py

Chapter 5's LeNet on two CPU contexts, steps of 512 images. MXNet joins up to 15
operators to a bulk, whose results are there when all of it has been computed: in a
backward pass these are the gradients, whose sum waits for them.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from d2lpar import autograd, devices, get_params, gluon, init_lenet, mx, np, npx
from d2lpar import train_batch as by_hand

BATCH, STEPS = 512, 9
TWO = devices.parse("cpu:2")
SUMS = {"by hand": "_npi_add"}  # the others: a kvstore's
loss = gluon.loss.SoftmaxCrossEntropyLoss()


def gluon_step(X: np.ndarray, y: np.ndarray, **how: bool) -> Callable[[], None]:
    """A step of chapter 5; `how` are arguments of hybridize."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(20, kernel_size=3, activation="relu", in_channels=1),
        gluon.nn.AvgPool2D(pool_size=2, strides=2),
        gluon.nn.Conv2D(50, kernel_size=5, activation="relu", in_channels=20),
        gluon.nn.AvgPool2D(pool_size=2, strides=2),
        gluon.nn.Dense(128, activation="relu", in_units=800),
        gluon.nn.Dense(10, in_units=128),
    )
    net.initialize(ctx=TWO)
    net.hybridize(**how)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", kvstore="local", update_on_kvstore=False
    )

    def step() -> None:
        X_shards = gluon.utils.split_and_load(X, TWO)
        y_shards = gluon.utils.split_and_load(y, TWO)
        with autograd.record():
            losses = [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]
        for l in losses:
            l.backward()
        trainer.step(len(X))

    return step


def operators(trace: Path) -> Iterator[tuple[str, float, float]]:
    """Name, beginning and end of each operator, in microseconds."""
    events = json.loads(trace.read_bytes())["traceEvents"]
    begins, ends = ([e for e in events if e["ph"] == phase] for phase in "BE")
    for begin, end in zip(begins, ends):
        yield begin["name"], begin["ts"], end["ts"]


def main() -> None:
    X = np.random.uniform(size=(BATCH, 1, 28, 28))
    y = np.arange(BATCH) % 10
    replicas = [get_params(init_lenet(), device) for device in TWO]
    steps = {
        "by hand": lambda: by_hand(X, y, replicas, TWO, 0.01),
        "Gluon, not hybridized": gluon_step(X, y, active=False),
        "Gluon, a graph": gluon_step(X, y),
        "Gluon, a static graph": gluon_step(X, y, static_alloc=True, static_shape=True),
    }
    for step in steps.values():
        for _ in range(3):
            step()
    npx.waitall()
    spans = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        mx.profiler.set_config(
            profile_imperative=True, profile_symbolic=True, filename=str(trace)
        )
        mx.profiler.set_state("run")
        for name, step in steps.items():
            for _ in range(STEPS):
                begin = 1e6 * time.time()
                step()
                npx.waitall()
                spans.append((name, begin, 1e6 * time.time()))
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        profile = list(operators(trace))
    early: dict[str, Counter] = {name: Counter() for name in steps}
    for name, begin, end in spans:
        inside = [o for o in profile if begin <= o[1] <= end]
        sums = [o[1] for o in inside if o[0] == SUMS.get(name, "KVStoreReduce")]
        # Bulks of a millisecond and more: the shorter ones belong to the loss.
        backward = max(
            o[2]
            for o in inside
            if ("_backward" in o[0] or o[0] == "ImperativeBulk") and o[2] - o[1] > 1e3
        )
        early[name][sum(t < backward for t in sums), len(sums)] += 1
    for name, counts in early.items():
        text = ", ".join(
            f"{a} of {n} in {times} steps" for (a, n), times in sorted(counts.items())
        )
        print(f"{name}: sums that begin before the backward pass has ended: {text}")


if __name__ == "__main__":
    main()

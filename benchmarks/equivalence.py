"""How far two devices' parameters are from one device's, step by step.

    D2LPAR_DATA=... python benchmarks/equivalence.py --rounds 3
    python benchmarks/equivalence.py --data sample --batch-size 64 --steps 20   # tiny

LeNet from scratch on Fashion-MNIST, batches of 256, as in the book, at learning rates
of 0.02 and 0.2 (the book's), and at 0.2 in float64. Two devices take the same batches
as one and add the same gradients in another order. The distance is that of all
parameters in the 2-norm, relative to their norm. A round is a seed. Writes
equivalence.jsonl to runs/benchmarks, and prints the distances after the last step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import arms
import numpy

from d2lpar import datasets
from d2lpar.records.kinds import ArmSample, group
from d2lpar.records.rule import summarize

SHOWN = "125"  # steps whose distance is recorded, in each decade


def distances(
    lr: float, dtype: str, data: str, batch_size: int, num_steps: int, seed: int
) -> Iterator[dict]:
    """The relative distance of two devices' parameters from one's after some steps."""
    from d2lpar import devices, get_params, init_lenet, npx, train_batch

    one, two = devices.parse("cpu:1"), devices.parse("cpu:2")
    first = [p.astype(dtype) for p in init_lenet(seed=seed)]
    trained = {n: [get_params(first, d) for d in on] for n, on in ((1, one), (2, two))}
    source = datasets.load(data)
    X, y = datasets.to_float(source.X_train).astype(dtype), source.y_train
    rng, order, start = numpy.random.default_rng(seed), [], time.perf_counter()
    for step in range(1, num_steps + 1):
        if len(order) < batch_size:
            order = rng.permutation(len(y))
        batch, order = order[:batch_size], order[batch_size:]
        for n, on in ((1, one), (2, two)):
            train_batch(X[batch], y[batch], trained[n], on, lr)
        first, *others = str(step)
        if step == num_steps or (first in SHOWN and not any(map(int, others))):
            npx.waitall()
            a, b = (
                numpy.concatenate([p.asnumpy().ravel() for p in trained[n][0]])
                for n in (1, 2)
            )
            error = float(numpy.linalg.norm(b - a) / numpy.linalg.norm(a))
            seconds = time.perf_counter() - start
            yield {"steps": step, "error": error, "seconds": seconds}


def main() -> None:
    parser = arms.parser(__doc__, rounds=3)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=705, help="[default: 3 epochs]")
    args = parser.parse_args()

    def arms_of(seed: int) -> list[arms.Arm]:
        return [
            arms.ours(
                f"lr {lr}, {dtype}", 1, "equivalence:distances", lr=lr, dtype=dtype,
                data=args.data, batch_size=args.batch_size, num_steps=args.steps,
                seed=seed,
            )
            for lr, dtype in ((0.02, "float32"), (0.2, "float32"), (0.2, "float64"))
        ]  # fmt: skip

    every, lines = arms.measure_seeds(arms_of, range(args.rounds), warm_up=0)
    data = datasets.load(args.data)
    run = arms.record(
        args.out / "equivalence.jsonl",
        every,
        lines,
        work="LeNet on two contexts and on one, one thread each",
        dataset=data.name,
        dataset_sha256=data.sha256,
        settings={"global_batch_size": args.batch_size, "num_steps": args.steps},
        note="seconds: those of both trainings until this step",
    )
    last = [x for x in run.lines if getattr(x, "steps", None) == args.steps]
    for arm, same in group(last, lambda line: line.arm).items():
        found = summarize([line.error for line in same if isinstance(line, ArmSample)])
        print(f"{arm}: {found.median:.1e} after {args.steps} steps, n = {found.n}")


if __name__ == "__main__":
    main()

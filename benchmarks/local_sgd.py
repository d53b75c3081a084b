"""Local SGD: bytes sent, and test accuracy, by the steps between two averages.

    D2LPAR_DATA=... python benchmarks/local_sgd.py --seeds 0,1,2,3,4
    python benchmarks/local_sgd.py --data sample --images 128 --epochs 1   # tiny

LeNet on two contexts of one thread each: 12,800 images of Fashion-MNIST, batches of 64,
three epochs. The devices average their parameters after every 1, 4, 16, 64 steps, or
once per epoch; some also take DiLoCo's outer step with momentum. A round of the record
is a seed. Writes local_sgd.jsonl to runs/benchmarks, and prints the medians over the
seeds. The accuracy is measured; other work may disturb the times.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

import arms
import msgspec

from d2lpar import datasets
from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import ArmSample, Run, group
from d2lpar.text import byte_size, plain_table

BATCH, LR = 64, 0.1
OUTER = (0.7, 0.9)  # DiLoCo's learning rate and Nesterov momentum


def epochs(
    data: str, images: int, num_epochs: int, seed: int, **averaging
) -> Iterator[dict]:
    """What each epoch of one training measured, and the bytes sent until its end."""
    from d2lpar import local_sgd

    sent = 0
    for epoch in local_sgd.train(
        devices="cpu:2",
        data=datasets.load(data, n_train=images),
        num_epochs=num_epochs,
        global_batch_size=BATCH,
        lr=LR,
        seed=seed,
        **averaging,
    ):
        sent += epoch.wire_bytes or 0
        yield {**msgspec.structs.asdict(epoch), "wire_bytes": sent}


def arms_of(args: argparse.Namespace, seed: int) -> list[arms.Arm]:
    per_epoch = args.images // BATCH
    words = {1: "every step", per_epoch: "every epoch"}
    ways = [(steps, None, "") for steps in (1, 4, 16, 64, per_epoch)]
    ways += [(steps, OUTER, ", outer momentum") for steps in (1, 16, 64, per_epoch)]
    return [
        arms.ours(
            words.get(steps, f"every {steps} steps") + how,
            1,
            "local_sgd:epochs",
            data=args.data,
            images=args.images,
            num_epochs=args.epochs,
            seed=seed,
            steps_between=steps,
            outer=outer,
        )
        for steps, outer, how in ways
        if steps <= per_epoch
    ]


def table(run: Run) -> str:
    """Bytes sent and accuracy of each arm after the last epoch, over the seeds."""
    rows, samples = [], run.lines_of(ArmSample)
    last = max(sample.epoch for sample in samples)
    ends = [sample for sample in samples if sample.epoch == last]
    for arm, lines in group(ends, lambda sample: sample.arm).items():
        sent = statistics.median(line.wire_bytes for line in lines)
        acc = summarize([line.test_acc for line in lines])
        cells = [f"{acc.median:.3f}", f"{acc.least:.3f}-{acc.most:.3f}", str(acc.n)]
        rows.append([arm, byte_size(sent), *cells])
    columns = ["averages", "bytes sent", "accuracy", "range", "n"]
    return plain_table(columns, rows, names=1)


def main() -> None:
    parser = arms.parser(__doc__, rounds=1)
    parser.add_argument("--seeds", default="0", help="a list such as 0,1,2")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--images", type=int, default=12_800)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    settings = {"lr": LR, "global_batch_size": BATCH, "num_epochs": args.epochs}
    settings.update(n_train=args.images, outer=list(OUTER))
    every, lines = arms.measure_seeds(
        lambda seed: arms_of(args, seed), map(int, args.seeds.split(",")), warm_up=0
    )
    data = datasets.load(args.data, n_train=args.images)
    run = arms.record(
        args.out / "local_sgd.jsonl",
        every,
        lines,
        work="an epoch of local SGD, LeNet on two one-thread contexts",
        dataset=data.name,
        dataset_sha256=data.sha256,
        settings=settings,
    )
    print(table(run))


if __name__ == "__main__":
    main()

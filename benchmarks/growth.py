"""Does a sample cost the same, however many there are? Seconds per 60,000 samples.

    python benchmarks/growth.py --rounds 2

LeNet, concise and from scratch, batch 256, a one-thread context per core, on 2,000,
20,000 and 200,000 images (the sample, repeated). The first epoch of a process warms up;
30, 3 and 1 more are timed. Writes growth.jsonl and .png to runs/benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import arms
import numpy

from d2lpar import datasets
from d2lpar.machine.host import usable_cores

SIZES = (2_000, 20_000, 200_000)
PER = 60_000  # samples


def epochs(training: str, size: int, num_devices: int) -> Iterator[dict]:
    """Seconds for PER samples in each epoch of a training on `size` images."""
    from d2lpar import lenet, lenet_concise

    sample = datasets.load("sample")
    data = replace(
        sample,
        X_train=numpy.resize(sample.X_train, (size, 28, 28)),
        y_train=numpy.resize(sample.y_train, size),
    )
    trainings = {"from scratch": lenet.train, "concise": lenet_concise.train}
    trained = trainings[training](
        devices=f"cpu:{num_devices}", data=data, global_batch_size=256, lr=0.2,
        num_epochs=1 + max(1, PER // size),
    )  # fmt: skip
    for epoch in trained:
        yield {"seconds": PER / epoch.samples_per_sec}


def main() -> None:
    args = arms.parser(__doc__, rounds=2).parse_args()
    n, trainings = usable_cores(), ("concise", "from scratch")
    timed = [
        arms.ours(
            f"{training}, {size:,} images", 1, "growth:epochs",
            training=training, size=size, num_devices=n,
        )
        for training in trainings
        for size in SIZES
    ]  # fmt: skip
    lines = arms.measure(timed, args.rounds)
    work = f"{PER:,} images of LeNet, out of so many, on {n} one-thread contexts"
    arms.show(arms.record(args.out / "growth.jsonl", timed, lines, work=work))


if __name__ == "__main__":
    main()

"""Does a sample cost the same, however many there are? Seconds per 60,000 samples.

    python benchmarks/growth.py --rounds 2

Concise and from-scratch LeNet, batch 256, one thread a context, as many contexts as
cores, on 6,000, 60,000 and 600,000 generated images, in fresh processes in turn. The
first epoch of each process warms up; of 6,000 ten more are timed, of the others one.
Writes growth.jsonl, .png and .svg to figures/benchmarks, and prints the largest
deviation from the cost at 60,000.
"""

import argparse
import statistics
from pathlib import Path

from d2lpar.figures import bars
from d2lpar.machine import cores
from d2lpar.runs import in_turn

SIZES = (6_000, 60_000, 600_000)
TRAIN = """
import importlib, json, sys
from d2lpar import datasets
module, n, samples, epochs = sys.argv[1], *map(int, sys.argv[2:])
train = importlib.import_module(f"d2lpar.{module}").train
data = datasets.load("synthetic", n_train=samples, n_test=1_000)
for epoch in train(n, devices=f"cpu:{n}", data=data, num_epochs=epochs,
                   global_batch_size=256, lr=0.2):
    print(json.dumps(dict(epoch=epoch.epoch, seconds=epoch.seconds * 60_000 / samples,
                          epoch_seconds=epoch.seconds)), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("figures/benchmarks"))
    args = parser.parse_args()

    n = cores.usable_cores()
    modules = {"concise": "lenet_concise", "from scratch": "lenet"}
    every = {
        f"{name}, {size:,} images": in_turn.ours(
            TRAIN, 1, module, n, size, 1 + max(1, 60_000 // size)
        )
        for name, module in modules.items()
        for size in SIZES
    }
    header = in_turn.header(
        "growth", f"60,000 images of LeNet, out of so many, on {n} one-thread contexts"
    )
    lines, seconds = in_turn.measure(every, args.rounds)
    bars.report(header, every, lines, seconds, args.out)
    for name in modules:
        cost = [
            statistics.median(seconds[f"{name}, {size:,} images"]) for size in SIZES
        ]
        worst = max((abs(c / cost[1] - 1) for c in cost), default=0.0)
        print(f"{name}: within {100 * worst:.1f} % of the cost at {SIZES[1]:,}")


if __name__ == "__main__":
    main()

"""Seconds per epoch of LeNet on Fashion-MNIST, ours and the peers', in one sitting.

    D2LPAR_DATA=... python benchmarks/lenet.py --rounds 2 --epochs 4

The first epoch of each process warms up and does not count. Writes lenet.jsonl (a
header with provenance, then a line an epoch), lenet.png and .svg to figures/benchmarks.
Needs d2l and PyTorch for their arms (pip install 'd2lpar[cpu,book,peers]').
"""

import argparse
from pathlib import Path

import interleaved

from d2lpar import devices

OURS = """
import json, sys
from d2lpar import datasets, {module}
data = datasets.load("fashion-mnist")
for r in {module}.train(devices="cpu:{n}", data=data, num_epochs=int(sys.argv[1])):
    print(json.dumps(dict(epoch=r.epoch, seconds=r.seconds, test_acc=r.test_acc,
                          eval_seconds=r.eval_seconds)), flush=True)
"""


def arms(cores: int, epochs: int) -> dict[str, interleaved.Arm]:
    """`cores` is the number of contexts and of threads on the "all cores" arms."""

    def ours(module: str, n: int, threads: int) -> interleaved.Arm:
        return interleaved.ours(OURS.format(module=module, n=n), threads, epochs)

    flag = f"--num-epochs={epochs}"
    return {
        "from scratch, 1 context, 1 thread": ours("lenet", 1, 1),
        f"from scratch, {cores} contexts, 1 thread each": ours("lenet", cores, 1),
        f"concise, 1 context, {cores} threads": ours("lenet_concise", 1, cores),
        f"concise, {cores} contexts, 1 thread each": ours("lenet_concise", cores, 1),
        f"PyTorch, plain loop, {cores} threads": interleaved.peer(
            "pytorch_loop.py", f"--threads={cores}", flag
        ),
        "d2l's notebook loop, as the book has it": interleaved.peer(
            "d2l_notebook.py", flag
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4, help="one more warms up")
    parser.add_argument("--out", type=Path, default=Path("figures/benchmarks"))
    args = parser.parse_args()

    every = arms(devices.usable_cores(), args.epochs + 1)
    header = interleaved.header(
        "lenet", "an epoch of LeNet, 60,000 images, batch 256, lr 0.2"
    )
    interleaved.report(
        header, every, *interleaved.measure(every, args.rounds), args.out
    )


if __name__ == "__main__":
    main()

"""Are trainings with --same-bits equal to the bit on 1 to 4 contexts, and at what cost?

    D2LPAR_DATA=... python benchmarks/same_bits.py --rounds 5
    python benchmarks/same_bits.py --preset book --rounds 5      # 60,000 images, hours
    python benchmarks/same_bits.py --times --rounds 5            # what it costs
    python benchmarks/same_bits.py --data sample --num-epochs 1 --rounds 1       # tiny

Without --times, LeNet is trained on each number of contexts, with each number of
threads per context; a round is a seed. Prints the SHA-256 of the last parameters of
each training; exits with status 1 where two of one seed and one number of threads
differ. Writes same_bits.jsonl, or same_bits-book.jsonl, or with -mxnet2 after it, to
runs/benchmarks.

With --times, epochs of 4,096 images are timed with and without, in processes that take
turns, in batches of 64, 256 and 2,048, on one context and on as many as there are
cores, one thread each. Writes same_bits_times.jsonl and .png.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import arms

from d2lpar import experiments
from d2lpar.machine.builds import mxnet_version
from d2lpar.machine.host import usable_cores
from d2lpar.records.kinds import ArmSample, Run
from d2lpar.text import plain_table, plural

WAYS = {"scratch": "from scratch", "concise": "in Gluon"}
BATCHES, IMAGES = (64, 256, 2_048), {"n_train": 4_096, "n_test": 1_000}


def epochs_of(
    way: str, contexts: int, data: str, sizes: dict, **settings
) -> Iterator[dict]:
    """Train LeNet on CPU contexts; a line per epoch, with its seconds and hash."""
    from msgspec.structs import asdict

    from d2lpar import datasets, lenet

    train = lenet.train if way == "scratch" else lenet.concise.train
    images = datasets.load(data, **sizes)
    for record in train(devices=f"cpu:{contexts}", data=images, **settings):
        yield asdict(record)


def hashed(args: argparse.Namespace) -> Run:
    """Train with the same bits on all contexts and threads; return the record."""
    settings = dict(experiments.get("multiple_gpus").presets[args.preset])
    sizes = settings.pop("data", {})
    settings.update(num_epochs=args.num_epochs or settings["num_epochs"])
    settings.update(same_bits=True)

    def arms_of(seed: int) -> list[arms.Arm]:
        return [
            arms.ours(
                f"{contexts} contexts", threads, "same_bits:epochs_of",
                work=f"{WAYS[way]}, {plural(threads, 'thread')} per context",
                way=way, contexts=contexts,
                data=args.data, sizes=sizes, seed=seed, **settings,
            )
            for way in args.ways.split(",")
            for threads in map(int, args.threads.split(","))
            for contexts in map(int, args.contexts.split(","))
        ]  # fmt: skip

    name = "same_bits" + "-book" * (args.preset == "book")
    name += "-mxnet2" * mxnet_version().startswith("2")
    lines: list = []
    for seed in range(args.rounds):
        every, more = arms.measure_seeds(arms_of, [seed], warm_up=0)
        lines += more
        run = arms.record(  # after each seed: all of them may take hours
            args.out / f"{name}.jsonl",
            every,
            lines,
            work=f"an epoch of LeNet, preset {args.preset}, same bits",
            settings={**settings, **sizes, "data": args.data},
        )
    return run


def last_hashes(run: Run) -> dict[tuple[str, int], set]:
    """Return how the trainings of each work and seed end; None for a missing one."""
    samples = run.lines_of(ArmSample)
    last = {(line.work, line.round, line.arm): line.params_sha256 for line in samples}
    arms_there = {line.arm for line in run.lines}
    keys = dict.fromkeys(key[:2] for key in last)
    return {key: {last.get((*key, arm)) for arm in arms_there} for key in keys}


def report(run: Run) -> bool:
    """Print the last hashes of each work and seed; return whether all are equal."""
    found = last_hashes(run)
    rows = []
    for (work, seed), hashes in found.items():
        words = ", ".join(sorted(str(one)[:12] for one in hashes))
        rows.append([work, str(seed), "yes" if len(hashes) == 1 else "NO", words])
    print(plain_table(["", "seed", "equal", "SHA-256"], rows, names=1))
    return bool(found) and all(len(hashes) == 1 for hashes in found.values())


def timed(args: argparse.Namespace) -> Run:
    """Time epochs with the same bits and without; return the record."""
    every = [
        arms.ours(
            "same bits" if same_bits else "usual", 1, "same_bits:epochs_of",
            work=f"{WAYS[way]}, batch {batch:,}, {plural(contexts, 'context')}",
            way=way, contexts=contexts, data=args.data, sizes=IMAGES,
            global_batch_size=batch, lr=0.01, num_epochs=args.num_epochs or 3,
            same_bits=same_bits,
        )
        for way in args.ways.split(",")
        for batch in BATCHES
        for contexts in sorted({1, usable_cores()})
        for same_bits in (False, True)
    ]  # fmt: skip
    lines = arms.measure(every, args.rounds)
    work = "an epoch of LeNet on 4,096 images"
    return arms.record(args.out / "same_bits_times.jsonl", every, lines, work=work)


def main() -> None:
    parser = arms.parser(__doc__, rounds=5)
    parser.add_argument("--times", action="store_true", help="measure the cost")
    parser.add_argument("--preset", default="quick", choices=("quick", "book"))
    parser.add_argument("--num-epochs", type=int, help="replaces the preset's")
    parser.add_argument("--contexts", default="1,2,3,4")
    parser.add_argument("--threads", default="1,2", help="per context")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--data", default="auto")
    args = parser.parse_args()
    if args.times:
        arms.show(timed(args))
    elif not report(hashed(args)):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Seconds of y = 2 x and of SGD's update: kernel, MXNet, NumPy, a loop in C.

    python benchmarks/kernels.py --rounds 3
    python benchmarks/kernels.py --devices gpu:1

Each arrangement of contexts and threads is measured in a fresh process, round after
round; within it the ways take turns (:mod:`d2lpar.kernels.times`), and every
answer is compared with NumPy's. Writes kernels.jsonl and .png to
runs/benchmarks, and prints the kernel's time beside that of the loop in C on the
same threads, which is the memory's limit.
"""

from __future__ import annotations

import os
import shlex
import statistics
from collections.abc import Iterator

import arms

from d2lpar import experiments
from d2lpar.machine.builds import cuda_devices
from d2lpar.machine.host import usable_cores
from d2lpar.text import plural

WORKS = {"x2": "y = 2 x", "update": "p -= step * grad"}
WAYS = ("loop in C", "kernel", "MXNet", "NumPy")


def timed_ways(arrangement: str, chosen: str, n: int, repeats: int) -> Iterator[dict]:
    """Time both works in every way, one line per sample."""
    from d2lpar import devices
    from d2lpar.kernels.times import times

    timed = times(devices.parse(chosen), n, repeats)
    for work, words in WORKS.items():
        for way in WAYS:
            for seconds in timed.get((work, way), []):
                name = f"{way}, {arrangement}"
                yield {"work": words, "arm": name, "seconds": seconds}


def main() -> None:
    parser = arms.parser(__doc__, rounds=3)
    parser.add_argument("--repeats", type=int, default=7, help="samples per round")
    parser.add_argument(
        "-n", type=int, default=50_000_000, help="float32 values on each context"
    )
    parser.add_argument("--devices", help="such as gpu:1; CPU contexts without it")
    args = parser.parse_args()

    from d2lpar.kernels.on_cpu import FLAGS, compiler

    cores, timed = usable_cores(), []
    arrangements = {}  # by name: devices, threads of each
    for n, threads in dict.fromkeys([(1, 1), (1, cores), (cores, 1)]):
        each = " each" if n > 1 else ""
        name = f"{plural(n, 'context')}, {plural(threads, 'thread')}{each}"
        arrangements[name] = f"cpu:{n}", threads
    gpus = []
    if args.devices:
        gpus = cuda_devices()[: int(args.devices.partition(":")[2])]
        arrangements = {plural(len(gpus), "GPU"): (args.devices, 1)}
    for name, (chosen, threads) in arrangements.items():
        timed.append(
            arms.ours(
                name,
                threads,
                f"{__file__}:timed_ways",
                arrangement=name,
                chosen=chosen,
                n=args.n,
                repeats=args.repeats,
            )
        )
    lines = arms.measure(timed, args.rounds, warm_up=0)
    command = shlex.join([*map(os.path.basename, compiler()), *FLAGS])
    note = (
        "The loop in C has as many threads as the kernel: its time is the memory's "
        "limit. NumPy works with one thread on one context's numbers. The update is "
        f"one pass in the kernel, two operators in MXNet. Compiler: {command}."
    )
    words = {"work": f"{args.n:,} float32 on each device", "note": note}
    words["on_gpus"] = [gpu.name for gpu in gpus]
    run = arms.record(args.out / "kernels.jsonl", timed, lines, **words)
    print(arms.table(run))
    experiments.draw([run], args.out, "kernels")
    medians = {
        (x.work, x.name): statistics.median(x.seconds) for x in arms.arm_times(run)
    }
    for work in WORKS.values():
        for arm in timed:
            loop = "MXNet" if gpus else "loop in C"
            kernel = medians[work, f"kernel, {arm.name}"]
            share = kernel / medians[work, f"{loop}, {arm.name}"]
            print(f"{work}, {arm.name}: kernel {share:.2f} of {loop}'s time")


if __name__ == "__main__":
    main()

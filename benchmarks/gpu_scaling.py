"""The map of when a second GPU pays, by PyTorch's peers: for GPUs MXNet cannot use.

    python benchmarks/gpu_scaling.py --num-devices 1,2,4 --check FIRST.npz
    d2lpar plot runs/gpu_scaling/*.jsonl

MXNet 1.9.1 has no code for GPUs of compute capability 9.0 and above. On those this runs
two scripts of benchmarks/peers/ on 1, 2, ... GPUs at each global batch, in fresh
processes in turn: ddp.py (DistributedDataParallel, NCCL) and d2l_pytorch.py (the book's
loop). It writes a scaling study's records: a step is the mean of an epoch of `--steps`
steps, the first epoch of a process warms up. FIRST.npz holds our first steps, which the
peers must repeat before they are timed; benchmarks/first_steps.py writes it where MXNet
is installed. Needs PyTorch, not MXNet.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shlex
import sys
from pathlib import Path

import arms

from d2lpar import __version__, datasets
from d2lpar.errors import RunError
from d2lpar.machine import host
from d2lpar.records import files, kinds
from d2lpar.records.kinds import StepRecord

SCRIPTS = {"ddp": "ddp.py", "d2l": "d2l_pytorch.py"}
NAMES = {"ddp": "PyTorch DistributedDataParallel", "d2l": "d2l's PyTorch loop"}
SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def step_seconds(
    peer: str, n: int, batch: int, args: argparse.Namespace
) -> tuple[int, list[float]]:
    """Steps per epoch, and the mean seconds of a step in each epoch but the first.

    Raises :class:`~d2lpar.errors.RunError` where the peer does not run.
    """
    job = {
        "num_devices": n,
        "global_batch_size": batch,
        "num_epochs": args.epochs + 1,
        "check": args.check,
    }
    if peer == "ddp":
        job["steps"] = args.steps
    _, *epochs = arms.run(arms.peer(peer, SCRIPTS[peer], job, {}))
    steps = epochs[0].get("steps", -(-60_000 // batch))  # d2l's loop takes every step
    return steps, [epoch["seconds"] / steps for epoch in epochs]


def header(peer: str, n: int, args: argparse.Namespace) -> kinds.Header:
    """Where a record comes from."""
    import torch

    data = datasets.load("fashion-mnist")
    commit, dirty = files.git_state()
    check = args.check and hashlib.sha256(Path(args.check).read_bytes()).hexdigest()
    return kinds.Header(
        chapter="gpu_scaling",
        preset="book",
        num_devices=n,
        device_kind="gpu",
        devices=[f"gpu({k}) {torch.cuda.get_device_name(k)}" for k in range(n)],
        threads_per_device=None,
        cores=host.usable_cores(),
        cpu_model=host.cpu_model(),
        dataset=data.name,
        dataset_sha256=data.sha256,
        synthetic=data.synthetic,
        seed=0,
        settings={
            **data.sizes,
            "implementation": NAMES[peer],
            "steps": args.steps,
            "first_losses_sha256": check,
        },
        variant=peer,
        command=shlex.join(["python", "benchmarks/gpu_scaling.py", *sys.argv[1:]]),
        versions={
            "d2lpar": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        git_commit=commit or args.commit,
        git_dirty=dirty,
        date=files.now(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-devices", default="1,2", help="counts, e.g. 1,2,4")
    parser.add_argument("--batch-sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--epochs", type=int, default=5, help="one more warms up")
    parser.add_argument("--steps", type=int, default=30, help="per epoch [ddp]")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", default="ddp,d2l", help="ddp, d2l or both")
    parser.add_argument("--check", help="our first steps, to repeat")
    parser.add_argument("--commit", help="of a copy without its repository")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_scaling"))
    args = parser.parse_args()

    counts = [int(n) for n in args.num_devices.split(",")]
    batches = [int(batch) for batch in args.batch_sizes.split(",")]
    for peer in args.peers.split(","):
        lines: dict[int, list[StepRecord]] = {}
        turns = [(r, b, n) for r in range(args.rounds) for b in batches for n in counts]
        for repeat, batch, n in turns:
            where = f"{SCRIPTS[peer]}, {n} devices, batch {batch}"
            try:
                steps, seconds = step_seconds(peer, n, batch, args)
            except RunError as error:
                print(f"{where}: {error}", file=sys.stderr)
                continue
            record = StepRecord(
                global_batch_size=batch,
                steps=steps,
                seconds=seconds,
                issue_seconds=[],
                repeat=repeat,
            )
            lines.setdefault(n, []).append(record)
            print(f"{where}: {1e3 * min(seconds):.3f} ms", flush=True)
        for n, records in lines.items():
            head = header(peer, n, args)
            path = args.out / f"{head.preset}-{files.run_name(head)}.jsonl"
            files.write(path, head, records)


if __name__ == "__main__":
    main()

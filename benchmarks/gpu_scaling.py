"""The map of when a second GPU pays, by PyTorch's peers: for GPUs MXNet cannot use.

    python benchmarks/gpu_scaling.py --num-devices 1,2,4 --check FIRST.npz
    d2lpar plot figures/gpu_scaling/*.jsonl

MXNet 1.9.1 has no code for GPUs of compute capability 9.0 and above. On those this runs
`peers/ddp.py` (DistributedDataParallel, NCCL) and `peers/d2l_pytorch.py` (the book's
loop) on 1, 2, ... GPUs at each global batch, in fresh processes in turn, and writes a
scaling study's records: a step is the mean of an epoch of `--steps` steps, the first
epoch of a process warms up. FIRST.npz are ours' first losses (`python -m
d2lpar.runs.reference_steps`), which the peers must agree with before they are timed. Needs
PyTorch, not MXNet.
"""

import argparse
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

from d2lpar import datasets
from d2lpar._version import __version__
from d2lpar.machine import cores
from d2lpar.records import files, kinds, provenance
from d2lpar.records.kinds import StepRecord

ROOT = Path(__file__).resolve().parents[1]
SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def epochs(script: str, n: int, batch: int, args: argparse.Namespace) -> list[dict]:
    """The lines of one process, warm-up left out; none where it did not run."""
    command = [sys.executable, str(ROOT / "peers" / script), f"--num-devices={n}"]
    command += [f"--global-batch-size={batch}", f"--num-epochs={args.epochs + 1}"]
    command += [f"--check={args.check}"] if args.check else []
    if script == "ddp.py":
        command.append(f"--steps={args.steps}")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(f"{script}, {n} devices, batch {batch}: {last}", file=sys.stderr)
        return []
    return [json.loads(line) for line in done.stdout.splitlines()][1:]


def header(variant: str, n: int, args: argparse.Namespace) -> kinds.Header:
    """Where a record comes from."""
    import torch

    data = datasets.load("fashion-mnist")
    commit, dirty = provenance.git_state()
    return kinds.Header(
        chapter="gpu_scaling",
        preset="book",
        num_devices=n,
        device_kind="gpu",
        devices=[f"gpu({k}) {torch.cuda.get_device_name(k)}" for k in range(n)],
        threads_per_device=None,
        cores=cores.usable_cores(),
        cpu_model=cores.cpu_model(),
        dataset=data.name,
        dataset_sha256=data.sha256,
        synthetic=data.synthetic,
        seed=0,
        settings={
            **data.sizes,
            "steps": args.steps,
            "first_losses_sha256": args.check
            and hashlib.sha256(Path(args.check).read_bytes()).hexdigest(),
        },
        variant=variant,
        command=shlex.join(["python", "benchmarks/gpu_scaling.py", *sys.argv[1:]]),
        versions={
            "d2lpar": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        git_commit=commit or args.commit,
        git_dirty=dirty,
        date=provenance.now(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-devices", default="1,2", help="counts, e.g. 1,2,4")
    parser.add_argument("--batch-sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--epochs", type=int, default=5, help="one more warms up")
    parser.add_argument("--steps", type=int, default=30, help="of an epoch [ddp]")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", default="ddp,d2l", help="ddp, d2l or both")
    parser.add_argument("--check", help="first losses to agree with")
    parser.add_argument("--commit", help="of a copy that is no checkout")
    parser.add_argument("--out", type=Path, default=Path("figures/gpu_scaling"))
    args = parser.parse_args()

    scripts = {"ddp": "ddp.py", "d2l": "d2l_pytorch.py"}
    lines: dict[tuple[str, int], list[StepRecord]] = {}
    counts = [int(n) for n in args.num_devices.split(",")]
    for peer in args.peers.split(","):
        for repeat in range(args.rounds):
            for batch in map(int, args.batch_sizes.split(",")):
                for n in counts:
                    found = epochs(scripts[peer], n, batch, args)
                    whole = -(-60_000 // batch)  # d2l's loop takes every step
                    steps = found[0].get("steps", whole) if found else 0
                    seconds = [epoch["seconds"] / steps for epoch in found]
                    if seconds:
                        line = StepRecord(batch, steps, seconds, [], repeat=repeat)
                        lines.setdefault((peer, n), []).append(line)
                        print(
                            peer, n, batch, f"{1e3 * min(seconds):.3f} ms", flush=True
                        )
    for (peer, n), steps in lines.items():
        head = header(peer, n, args)
        files.write(args.out / f"{files.run_name(head)}.jsonl", head, steps)


if __name__ == "__main__":
    main()

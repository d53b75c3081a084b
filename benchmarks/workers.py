"""Several workers through ps-lite on loopback against contexts of one process.

    D2LPAR_DATA=... python benchmarks/workers.py --rounds 2 --epochs 3

Seconds per epoch of concise LeNet, global batch 256 and 2,048, with as many one-thread
workers as cores, as many one-thread contexts in one process, and the latter with a
checkpoint every epoch; then the seconds that a restart after a kill costs beyond the
steps that are lost. Writes workers.jsonl, .png and .svg to figures/benchmarks.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from d2lpar.figures import bars
from d2lpar.machine import cores
from d2lpar.records import files
from d2lpar.runs import in_turn

ROOT = Path(__file__).parents[1]

RUN = """
import json, subprocess, sys, tempfile
from pathlib import Path
with tempfile.TemporaryDirectory() as out:
    words = [sys.executable, "-m", "d2lpar", *sys.argv[1:], "--out=" + out]
    done = subprocess.run(words, capture_output=True, text=True, cwd=out)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    (record,) = Path(out).glob("*/*.jsonl")
    for line in record.read_text().splitlines()[1:]:
        epoch = json.loads(line)
        # what an epoch takes with all that comes with it
        print(json.dumps(dict(seconds=epoch["seconds"], epoch=epoch["epoch"],
                              eval_seconds=epoch["eval_seconds"],
                              wire_bytes=epoch.get("wire_bytes"))))
"""
CHAPTER = "multiple_gpus_concise"


def arms(n: int, epochs: int, data: str) -> dict[str, in_turn.Arm]:
    every = {}
    for batch in (256, 2048):
        run = ["run", CHAPTER, "--preset=book", f"--data={data}",
               f"--num-epochs={epochs}", f"--global-batch-size={batch}"]  # fmt: skip
        one = [*run, f"--devices=cpu:{n}", f"--num-devices={n}"]
        launch = ["launch", f"--workers={n}", "--devices=cpu:1", "--", *run]
        words = {
            f"batch {batch}, 1 process, {n} contexts": one,
            f"batch {batch}, the same, checkpoint every epoch": [
                *one, "--checkpoint-every=1",
            ],
            f"batch {batch}, {n} workers": [*launch, f"--checkpoint-every={epochs}"],
        }  # fmt: skip
        every.update({k: in_turn.ours(RUN, 1, *v) for k, v in words.items()})
    return every


def checkpoint_seconds(rounds: int = 30) -> list[float]:
    """What writing a checkpoint of LeNet takes, each time."""
    from d2lpar import lenet
    from d2lpar.records import checkpoints

    state, samples = lenet.start(0), []
    header = files.read(next(Path("figures").glob(f"{CHAPTER}/*.jsonl"))).header
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for epoch in range(1, rounds + 1):
            state.epoch = epoch
            begin = time.perf_counter()
            content = checkpoints.Checkpoint(
                state.workload, state.tensors(), state.facts(), (header,)
            )
            checkpoints.save(Path(folder), content)
            samples.append(time.perf_counter() - begin)
    return samples


def restart_seconds(data: str, epochs: int = 6) -> dict[str, float]:
    """What a launch takes longer for a worker killed in its third epoch.

    `lost` are the seconds from the last checkpoint to the kill: steps made again.
    """
    took = {}
    for name in ("undisturbed", "killed"):
        out = Path(tempfile.mkdtemp())
        words = ["launch", "--workers=2", "--devices=cpu:1", "--", "run", CHAPTER,
                 f"--data={data}", f"--num-epochs={epochs}", "--checkpoint-every=1",
                 f"--out={out}"]  # fmt: skip
        begin = time.perf_counter()
        launcher = subprocess.Popen(
            [sys.executable, "-m", "d2lpar", *words],
            cwd=out, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        if name == "killed":
            while not (found := list(out.glob("*/[!.]*epoch000002.safetensors"))):
                time.sleep(0.005)
            time.sleep(0.5)
            took["lost"] = time.time() - found[0].stat().st_mtime
            _kill_worker(launcher.pid)
        if launcher.wait() != 0:
            sys.exit(f"the {name} launch ended with status {launcher.returncode}")
        took[name] = time.perf_counter() - begin
        shutil.rmtree(out)
    took["cost"] = took["killed"] - took["undisturbed"] - took["lost"]
    return took


def _kill_worker(launcher: int) -> None:
    for role in psutil.Process(launcher).children():
        if role.environ().get("D2LPAR_WORKER") == "1":
            role.kill()
            return
    sys.exit("there was no worker 1 to kill")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="one more warms up")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--out", type=Path, default=Path("figures/benchmarks"))
    args = parser.parse_args()

    n = cores.usable_cores()
    every = arms(n, args.epochs + 1, args.data)
    header = in_turn.header(
        "workers", f"an epoch of LeNet, 60,000 images, {n} one-thread devices in all"
    )
    lines, seconds = in_turn.measure(every, args.rounds)
    written = checkpoint_seconds()
    lines.append({"kind": "checkpoint", "seconds": written})
    restarts = [restart_seconds(args.data) for _ in range(args.rounds)]
    lines += [{"kind": "restart", **took} for took in restarts]
    bars.report(header, every, lines, seconds, args.out)
    for batch in (256, 2048):
        one, workers = (
            statistics.median(seconds[f"batch {batch}, {what}"])
            for what in (f"1 process, {n} contexts", f"{n} workers")
        )
        save = statistics.median(written) / one
        print(f"batch {batch}: workers reach {one / workers:.2f} of the throughput; "
              f"a checkpoint every epoch costs {100 * save:.2f} %")  # fmt: skip
    costs = ", ".join(f"{took['cost']:.1f}" for took in restarts)
    print(f"a restart costs, beyond the lost steps: {costs} s")
    print(json.dumps(restarts))


if __name__ == "__main__":
    main()

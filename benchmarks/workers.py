"""Several workers through ps-lite on loopback beside contexts of one process.

    D2LPAR_DATA=... python benchmarks/workers.py --rounds 2 --epochs 3

Seconds per epoch of concise LeNet, global batch 256 and 2,048, with as many one-thread
workers as cores, with as many one-thread contexts in one process, and with the latter
and a checkpoint every epoch; seconds to write a checkpoint; and what a restart after a
kill costs beyond the steps that are lost. Writes workers.jsonl and .png to
runs/benchmarks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import arms
import psutil

from d2lpar.errors import RunError
from d2lpar.machine.host import usable_cores
from d2lpar.records import files
from d2lpar.records.kinds import ArmSample

ROOT = Path(__file__).parents[1]
CHAPTER = "multiple_gpus_concise"
D2LPAR = [sys.executable, "-m", "d2lpar"]
WRITING, LAUNCH = "writing a checkpoint", "a launch of 2 workers, 6 epochs"
KILLED = "a worker killed in the third epoch"


def epochs_of(words: list[str]) -> Iterator[dict]:
    """Run a d2lpar command in an empty folder; one line per epoch of its record."""
    with tempfile.TemporaryDirectory() as out:
        command = [*D2LPAR, *words, f"--out={out}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=out)
        if done.returncode:
            raise RunError(done.stdout[-2000:] + done.stderr[-2000:])
        (path,) = Path(out).glob("*/*/*.jsonl")
        for epoch in files.read(path).epochs:
            yield {
                "seconds": epoch.seconds,
                "epoch": epoch.epoch,
                "eval_seconds": epoch.eval_seconds,
                "wire_bytes": epoch.wire_bytes,
            }


def arms_of(n: int, epochs: int, data: str) -> Iterator[arms.Arm]:
    for batch in (256, 2_048):
        run = f"run {CHAPTER} --preset=book --data={data} --num-epochs={epochs}"
        run = [*run.split(), f"--global-batch-size={batch}"]
        one = [*run, f"--devices=cpu:{n}", f"--num-devices={n}"]
        launch = ["launch", f"--workers={n}", "--devices=cpu:1", "--", *run]
        commands = {
            contexts(n): one,
            "the same, checkpoint every epoch": [*one, "--checkpoint-every=1"],
            f"{n} workers": [*launch, f"--checkpoint-every={epochs}"],
        }
        for name, words in commands.items():
            yield arms.ours(
                name,
                1,
                "workers:epochs_of",
                work=epoch_work(batch),
                words=words,
            )


def contexts(n: int) -> str:
    return f"1 process, {n} contexts"


def epoch_work(batch: int) -> str:
    return f"an epoch of 60,000 images, batch {batch:,}"


def checkpoint_seconds(rounds: int = 30) -> Iterator[ArmSample]:
    """Write a checkpoint of LeNet, again and again."""
    from d2lpar import lenet
    from d2lpar.records import checkpoints

    state = lenet.start(0)
    header = files.read(next(ROOT.glob(f"figures/{CHAPTER}/*.jsonl"))).header
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for epoch in range(1, rounds + 1):
            state.epoch = epoch
            begin = time.perf_counter()
            content = checkpoints.Checkpoint(
                state.workload, state.tensors(), state.facts(), (header,)
            )
            checkpoints.save(Path(folder), content)
            seconds = time.perf_counter() - begin
            yield ArmSample(arm="1 process", round=0, seconds=seconds, work=WRITING)


def restart_seconds(round_: int, data: str, epochs: int = 6) -> list[ArmSample]:
    """Launch two workers, undisturbed and with one killed in the third epoch.

    `lost` are the seconds from the last checkpoint to the kill, whose steps are made
    again; `cost` is what else the killed launch takes longer.
    """
    undisturbed, _ = launch(data, epochs, kill=False)
    killed, lost = launch(data, epochs, kill=True)
    cost = killed - undisturbed - lost
    same = {"round": round_, "work": LAUNCH}
    return [
        ArmSample(arm="undisturbed", seconds=undisturbed, **same),
        ArmSample(arm=KILLED, seconds=killed, lost=lost, cost=cost, **same),
    ]


def launch(data: str, epochs: int, kill: bool) -> tuple[float, float]:
    """Seconds that a launch takes, and those that a kill loses."""
    out, lost = Path(tempfile.mkdtemp()), 0.0
    run = f"run {CHAPTER} --data={data} --num-epochs={epochs} --checkpoint-every=1"
    words = ["launch", "--workers=2", "--devices=cpu:1", "--", *run.split()]
    begin = time.perf_counter()
    launcher = subprocess.Popen(
        [*D2LPAR, *words, f"--out={out}"],
        cwd=out,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    if kill:
        while not (found := list(out.glob("*/*/[!.]*epoch000002.safetensors"))):
            time.sleep(0.005)
        time.sleep(0.5)
        lost = time.time() - found[0].stat().st_mtime
        for process in psutil.Process(launcher.pid).children():
            if process.environ().get("D2LPAR_WORKER") == "1":
                process.kill()
                break
        else:
            sys.exit("there was no worker 1 to kill")
    if launcher.wait() != 0:
        sys.exit(f"the launch ended with status {launcher.returncode}")
    seconds = time.perf_counter() - begin
    shutil.rmtree(out)
    return seconds, lost


def main() -> None:
    parser = arms.parser(__doc__, rounds=2)
    parser.add_argument("--epochs", type=int, default=3, help="one more warms up")
    parser.add_argument("--data", default="fashion-mnist")
    args = parser.parse_args()

    n = usable_cores()
    timed = list(arms_of(n, args.epochs + 1, args.data))
    lines = [*arms.measure(timed, args.rounds), *checkpoint_seconds()]
    for round_ in range(args.rounds):
        lines += restart_seconds(round_, args.data)
    work = f"LeNet on {n} one-thread devices in all"
    run = arms.record(args.out / "workers.jsonl", timed, lines, work=work)
    arms.show(run)


if __name__ == "__main__":
    main()

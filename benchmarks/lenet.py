"""Seconds per epoch of LeNet on Fashion-MNIST, ours and the peers', in one sitting.

    D2LPAR_DATA=... python benchmarks/lenet.py --rounds 2 --epochs 4

Every arm runs in a fresh process, one after the other, round after round (A B C A B C),
so that a machine that drifts drifts for all. The first epoch of each process warms up
and does not count. Writes figures/benchmarks/lenet.jsonl (a header with provenance,
then a line an epoch) and lenet.png, lenet.svg. Needs d2l and PyTorch for their arms
(pip install 'd2lpar[cpu,book,peers]'); an arm that cannot run is a line that says so.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

from d2lpar import devices, records, timing

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / "peers"

OURS = """
import json, os, sys
from d2lpar import datasets, {module}
data = datasets.load("fashion-mnist")
for r in {module}.train(devices="cpu:{n}", data=data, num_epochs=int(sys.argv[1])):
    print(json.dumps(dict(epoch=r.epoch, seconds=r.seconds, test_acc=r.test_acc,
                          eval_seconds=r.eval_seconds)), flush=True)
"""


def arms(cores: int) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name of each arm: its command, and what it adds to the environment.

    `cores` is the number of contexts and of threads on the "all cores" arms.
    """
    from d2lpar.runner import KEEP_FREED_MEMORY

    def ours(module: str, n: int, threads: int):
        code = OURS.format(module=module, n=n)
        return [sys.executable, "-c", code], {
            **KEEP_FREED_MEMORY,
            "OMP_NUM_THREADS": str(threads),
        }

    return {
        "from scratch, 1 context, 1 thread": ours("lenet", 1, 1),
        f"from scratch, {cores} contexts, 1 thread each": ours("lenet", cores, 1),
        f"concise, 1 context, {cores} threads": ours("lenet_concise", 1, cores),
        f"concise, {cores} contexts, 1 thread each": ours("lenet_concise", cores, 1),
        f"PyTorch, plain loop, {cores} threads": (
            [sys.executable, str(PEERS / "pytorch_loop.py"), f"--threads={cores}"],
            {},
        ),
        "d2l's notebook loop, as the book has it": (
            [sys.executable, str(PEERS / "d2l_notebook.py")],
            {},
        ),
    }


def run_arm(command: list[str], environment: dict[str, str], epochs: int):
    """Epoch lines of one process, or the line that says why it did not run."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    env["PYTHONPATH"] = str(HERE.parent)
    epoch_flag = f"--num-epochs={epochs}" if "-c" not in command else str(epochs)
    done = subprocess.run(
        [*command, epoch_flag],
        env={**env, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [], f"did not run: {last}"
    return [json.loads(line) for line in done.stdout.splitlines()], None


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("d2lpar", "mxnet", "numpy", "torch", "d2l"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4, help="one more warms up")
    parser.add_argument("--out", type=Path, default=Path("figures/benchmarks"))
    args = parser.parse_args()

    cores = devices.usable_cores()
    commit, dirty = records.git_state()
    header = {
        "kind": "header",
        "benchmark": "lenet",
        "command": shlex.join(["python", "benchmarks/lenet.py", *sys.argv[1:]]),
        "dataset": "fashion-mnist, 60,000 training images, batch 256, lr 0.2",
        "cpu_model": devices.cpu_model(),
        "cores": cores,
        "versions": versions(),
        "git_commit": commit,
        "git_dirty": dirty,
        "date": records.now(),
    }
    lines, seconds = [], {}
    all_arms = arms(cores)
    with tqdm(total=args.rounds * len(all_arms), unit="process") as bar:
        for round_ in range(args.rounds):
            for arm, (command, environment) in all_arms.items():
                bar.set_description(arm)
                epochs, problem = run_arm(command, environment, args.epochs + 1)
                if problem:
                    lines.append({"kind": "absent", "arm": arm, "why": problem})
                for epoch in epochs:
                    line = {"kind": "epoch", "arm": arm, "round": round_, **epoch}
                    lines.append(line)
                    if epoch["epoch"] > 1:
                        seconds.setdefault(arm, []).append(epoch["seconds"])
                bar.update()

    args.out.mkdir(parents=True, exist_ok=True)
    with records.replacing(args.out / "lenet.jsonl") as tmp:
        tmp.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    summaries = {arm: timing.summarize(s) for arm, s in seconds.items()}
    for arm in all_arms:
        print(f"{arm:48}", summaries.get(arm, "not measured"), "s/epoch")
    draw(summaries, seconds, header, args.out)


def draw(summaries: dict, seconds: dict, header: dict, out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    names = list(summaries)
    medians = [summaries[name].median for name in names]
    spread = [
        [summaries[n].median - summaries[n].q1 for n in names],
        [summaries[n].q3 - summaries[n].median for n in names],
    ]
    colours = ["#0072b2" if "PyTorch" not in n and "d2l" not in n else "#999999"
               for n in names]  # fmt: skip
    axes.barh(names, medians, xerr=spread, color=colours, capsize=3)
    for row, name in enumerate(names):
        axes.plot(seconds[name], [row] * len(seconds[name]), "k.", markersize=3)
        text = f"{medians[row]:.1f} s (n={summaries[name].n})"
        axes.text(0.2, row, text, va="center", color="white", fontweight="bold")
    axes.invert_yaxis()
    axes.set_xlabel(
        "seconds of training per epoch (median and quartiles; dots: epochs)"
    )
    axes.set_title(
        "LeNet on Fashion-MNIST, batch 256: ours (blue) and the peers (grey)"
    )
    figure.text(
        0.5,
        -0.06,
        f"{header['cpu_model']}, {header['cores']} cores; MXNet "
        f"{header['versions']['mxnet']}, PyTorch {header['versions']['torch']}, d2l "
        f"{header['versions']['d2l']}; {header['date'][:10]}",
        ha="center",
        fontsize=8,
    )
    for ending in ("png", "svg"):
        with records.replacing(out / f"lenet.{ending}") as tmp:
            figure.savefig(tmp, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()

"""Arms of a benchmark in fresh processes, one after the other, round after round.

A B C A B C: a machine that drifts drifts for all. An arm is a command that prints a
JSON line, with its "seconds", for each thing that it timed; the first `warm_up` lines
of each process do not count. An arm that cannot run is a line that says so.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from d2lpar.machine import cores, cuda
from d2lpar.records import atomic, provenance

LIBRARIES = ("d2lpar", "mxnet", "numpy", "torch", "d2l")
EXTRAS = {"d2l": "book", "mxnet": "cpu", "torch": "peers", "torchvision": "peers"}


class Arm(NamedTuple):
    """A command, what it changes in the environment, and whether it is a peer's.

    A value of None takes a variable away.
    """

    command: list[str]
    environment: dict[str, str | None]
    is_peer: bool


def peers_folder() -> Path:
    """The peers' scripts: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    beside = package.parent / "peers"
    return beside if beside.is_dir() else package / "peers"


def ours(code: str, threads: int, *arguments: object) -> Arm:
    """Python code of ours, as the runner starts it: so many threads a context."""
    from d2lpar.runs.job import KEEP_FREED_MEMORY

    environment = {**KEEP_FREED_MEMORY, "OMP_NUM_THREADS": str(threads)}
    return Arm([sys.executable, "-c", code, *map(str, arguments)], environment, False)


def peer(script: str, *arguments: object, **environment: str | None) -> Arm:
    """A script in peers/, in its own default environment but for what is given."""
    command = [sys.executable, str(peers_folder() / script), *map(str, arguments)]
    return Arm(command, {"OMP_NUM_THREADS": None, **environment}, True)


def measure(arms: dict[str, Arm], rounds: int, warm_up: int = 1):
    """Lines for the record, and the seconds that count by arm."""
    lines, seconds = [], {}
    unit = {"unit": "process", "dynamic_ncols": True, "leave": False}
    with tqdm(total=rounds * len(arms), **unit) as bar:
        for round_ in range(rounds):
            for name, arm in arms.items():
                bar.set_description(name)
                samples, problem = run(arm)
                if problem:
                    lines.append({"kind": "absent", "arm": name, "why": problem})
                for number, sample in enumerate(samples):
                    lines.append(
                        {"kind": "sample", "arm": name, "round": round_, **sample}
                    )
                    if number >= warm_up:
                        seconds.setdefault(name, []).append(sample["seconds"])
                bar.update()
    return lines, seconds


def run(arm: Arm) -> tuple[list[dict], str | None]:
    """The lines that a process printed, or none and why it did not run."""
    environment = {**os.environ, **arm.environment}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep)
    environment = {k: v for k, v in environment.items() if v is not None}
    done = subprocess.run(
        arm.command, env=environment, capture_output=True, text=True, errors="replace"
    )
    if done.returncode != 0:
        return [], why_it_ended(done.returncode, done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines], None


def why_it_ended(code: int, stderr: str) -> str:
    """One clause for a process that did not end with status 0.

    >>> why_it_ended(1, "ModuleNotFoundError: No module named 'd2l'")
    "d2l is not installed: pip install 'd2lpar[book]'"
    >>> why_it_ended(2, "peers/ddp.py: 4 GPUs: PyTorch sees 1 here")
    '4 GPUs: PyTorch sees 1 here'
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # A peer's own words, before what PyTorch may add to them.
    told = [line for line in lines if re.match(r"\S*\.py: ", line)]
    last = (told or lines or [f"ended with status {code}"])[-1]
    absent = re.search(r"No module named '(\w+)'", last)
    if absent and absent[1] in EXTRAS:
        extra = EXTRAS[absent[1]]
        return f"{absent[1]} is not installed: pip install 'd2lpar[{extra}]'"
    # An exception's class, or the path of a script, says nothing to a reader.
    return re.sub(r"^(\S*\.py|[\w.]*(Error|Exception)): ", "", last)


def header(benchmark: str, work: str, command: str | None = None) -> dict:
    """Where the record comes from; `command` is by default the benchmark's script."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    commit, dirty = provenance.git_state()
    script = shlex.join(["python", f"benchmarks/{benchmark}.py", *sys.argv[1:]])
    return {
        "kind": "header",
        "benchmark": benchmark,
        "command": command or script,
        "work": work,
        "cpu_model": cores.cpu_model(),
        "cores": cores.usable_cores(),
        "gpus": [gpu.name for gpu in cuda.cuda_devices()],
        "versions": versions,
        "git_commit": commit,
        "git_dirty": dirty,
        "date": provenance.now(),
    }


def write(header: dict, lines: list[dict], out: Path) -> None:
    """The record: <benchmark>.jsonl in the folder `out`, atomically."""
    with atomic.replacing(out / f"{header['benchmark']}.jsonl") as tmp:
        tmp.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))


def absent(lines: list[dict]) -> dict[str, str]:
    """Why arms did not run, by arm."""
    return {line["arm"]: line["why"] for line in lines if line["kind"] == "absent"}

"""Arms of a benchmark in fresh processes, one after the other, round after round.

The order is A B C A B C: if the machine drifts, it drifts for every arm. An arm is a
command that prints one JSON line with "seconds" for each thing it times. An arm that
cannot run says why: it prints {"error": ...} and exits with status 2, or it crashes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from d2lpar.errors import D2lparError, RunError
from d2lpar.machine import cores, cuda
from d2lpar.machine.mxnet_builds import mxnet_version
from d2lpar.records import files, provenance
from d2lpar.records.kinds import ArmAbsent, ArmSample, BenchmarkHeader, Run
from d2lpar.runs.job import KEEP_FREED_MEMORY, environment

LIBRARIES = ("d2lpar", "mxnet", "numpy", "torch", "d2l")
EXTRAS = {"d2l": "book", "mxnet": "cpu", "torch": "peers", "torchvision": "peers"}


class Arm(NamedTuple):
    """A command, its changes to the environment (None unsets), and whether it is ours.

    `work` is what it does, where a benchmark's arms do several things.
    """

    name: str
    command: list[str]
    environment: Mapping[str, str | None]
    is_peer: bool = False
    work: str = ""


def peers_folder() -> Path:
    """The peers' scripts: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    beside = package.parent / "peers"
    return beside if beside.is_dir() else package / "peers"


def ours(name: str, threads: int, *words: object, work: str = "") -> Arm:
    """Python on `words`, in the environment that the runner gives a context."""
    changes = {**KEEP_FREED_MEMORY, "OMP_NUM_THREADS": str(threads)}
    return Arm(name, [sys.executable, *map(str, words)], changes, work=work)


def peer(name: str, script: str, *words: object, **environment: str | None) -> Arm:
    """A script in peers/, in the default environment but for `environment`."""
    command = [sys.executable, str(peers_folder() / script), *map(str, words)]
    return Arm(name, command, {"OMP_NUM_THREADS": None, **environment}, is_peer=True)


def measure(
    arms: Sequence[Arm], rounds: int, warm_up: int = 1
) -> list[ArmSample | ArmAbsent]:
    """Run every arm once per round; the record's lines.

    The first `warm_up` samples of each process are marked as such. A process that times
    several arms or works names them in its lines, and warms up unrecorded.
    """
    lines: list[ArmSample | ArmAbsent] = []
    turns = [(round_, arm) for round_ in range(rounds) for arm in arms]
    bar = tqdm(turns, unit="process", dynamic_ncols=True, leave=False)
    for round_, arm in bar:
        bar.set_description(arm.name)
        try:
            printed = run(arm)
            if not printed:
                raise RunError("printed no times")
        except RunError as error:
            lines.append(ArmAbsent(arm.name, round_, str(error), arm.work))
            continue
        for number, values in enumerate(printed):
            name, work = values.pop("arm", arm.name), values.pop("work", arm.work)
            how = (values.pop("seconds"), work, number < warm_up, values)
            lines.append(ArmSample(name, round_, *how))
    return lines


def run(arm: Arm) -> list[dict]:
    """The lines that an arm's process prints.

    Raises :class:`RunError` with why it did not end with status 0, in one clause.
    """
    text = {"capture_output": True, "text": True, "errors": "replace"}
    changes = {**exact_float32(), **arm.environment}
    done = subprocess.run(arm.command, env=environment(changes), **text)
    # MXNet's C++ side may print, too.
    lines = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    errors = [line["error"] for line in lines if set(line) == {"error"}]
    if done.returncode != 0:
        raise RunError(errors[0] if errors else crash(done.returncode, done.stderr))
    return lines


def exact_float32() -> dict[str, str]:
    """The variable that keeps GPUs from TF32 in all arms, unless the user has set it.

    Ours compute exactly float32, so the peers must: PyTorch's convolutions would not.
    """
    return {"NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", "0")}


def crash(status: int, stderr: str) -> str:
    """One clause for a process that crashed: the last line of its traceback.

    >>> crash(1, "ModuleNotFoundError: No module named 'd2l'")
    "d2l is not installed: pip install 'd2lpar[book]'"
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = lines[-1] if lines else f"ended with status {status}"
    absent = re.search(r"No module named '(\w+)'", last)
    if absent and absent[1] in EXTRAS:
        extra = EXTRAS[absent[1]]
        return f"{absent[1]} is not installed: pip install 'd2lpar[{extra}]'"
    # The exception's class says nothing to a reader.
    return re.sub(r"^[\w.]*(Error|Exception): ", "", last)


def tell(lines: Iterable[dict]) -> None:
    """In an arm's process: print the lines, or why there are none."""
    try:
        for line in lines:
            print(json.dumps(line), flush=True)
    except D2lparError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(2)


def parser(about: str, rounds: int) -> argparse.ArgumentParser:
    """The flags that all benchmarks have.

    `--arm` marks one of the benchmark's own processes: `args.arm` are its settings.
    """
    flags = argparse.ArgumentParser(description=about.split("\n")[0])
    flags.add_argument("--rounds", type=int, default=rounds)
    flags.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    flags.add_argument("--arm", type=json.loads, help=argparse.SUPPRESS)
    return flags


def itself(
    name: str, script: str, threads: int, work: str = "", **settings: object
) -> Arm:
    """A process of the benchmark `script` itself, with these settings."""
    return ours(name, threads, script, "--arm", json.dumps(settings), work=work)


def record(
    path: Path,
    arms: Iterable[Arm],
    lines: Iterable[ArmSample | ArmAbsent],
    *,
    work: str,
    command: str = "",
    **fields,
) -> Run:
    """Write a benchmark's record; return what it holds.

    `work` and `fields` are those of its header; the `command` is by default that of the
    benchmark's script.
    """
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            is_mxnet = name == "mxnet"
            versions[name] = mxnet_version() if is_mxnet else metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    commit, dirty = provenance.git_state()
    script = f"benchmarks/{path.stem}.py"
    header = BenchmarkHeader(
        benchmark=path.stem,
        work=work,
        command=command or shlex.join(["python", script, *sys.argv[1:]]),
        cpu_model=cores.cpu_model(),
        cores=cores.usable_cores(),
        versions=versions,
        git_commit=commit,
        git_dirty=dirty,
        date=provenance.now(),
        peers=list(dict.fromkeys(arm.name for arm in arms if arm.is_peer)),
        gpus=[gpu.name for gpu in cuda.cuda_devices()],
        **fields,
    )
    run = Run(header, tuple(lines), path)
    files.write(path, header, run.lines)
    return run

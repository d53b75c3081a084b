"""Arms of a benchmark in fresh processes, one after the other, round after round.

An *arm* is one of the programs that a benchmark times. The order is A B C, C B A: if
the machine drifts, it drifts for every arm. An arm reads its job as a line of JSON, and
answers a line of JSON with "seconds" for each thing it times, or {"error": why} if it
cannot run; ours are functions, which :mod:`d2lpar.process` calls. Loads no MXNet in
this process.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from d2lpar import __version__, process
from d2lpar.errors import RunError
from d2lpar.machine import builds, host
from d2lpar.machine.builds import mxnet_version
from d2lpar.machine.gpus import cuda_devices
from d2lpar.records import files
from d2lpar.records.arms import arm_times
from d2lpar.records.kinds import ArmAbsent, ArmSample, BenchmarkHeader, Run
from d2lpar.runs.plan import KEEP_FREED_MEMORY
from d2lpar.text import plain_table

PEERS = Path(__file__).parent / "peers"
LIBRARIES = ("numpy", "torch", "jax", "d2l")
# JAX and MXNet 1.9.1 share an environment from Python 3.13 on; else this Python has it.
PYTHON_WITH_JAX = os.environ.get("D2LPAR_JAX_PYTHON", sys.executable)
EXTRAS = {"d2l": "book", "mxnet": "cpu", "torch": "peers", "torchvision": "peers"}


class Arm(NamedTuple):
    """A program and its job, changes of its environment, and whether it is a peer.

    `call` is "module:function", or a command, for which None unsets a variable. `work`
    is what it does, where arms do several things.
    """

    name: str
    call: str | list[str]
    job: dict[str, Any]
    environment: Mapping[str, str | None]
    is_peer: bool = False
    work: str = ""


def ours(name: str, threads: int, call: str, *, work: str = "", **job: Any) -> Arm:
    """A function of ours, in the environment that the runner gives a context."""
    changes = {**KEEP_FREED_MEMORY, "OMP_NUM_THREADS": str(threads)}
    return Arm(name, call, job, changes, work=work)


def peer(
    name: str, script: str, job: dict[str, Any], environment: Mapping[str, str | None]
) -> Arm:
    """A script in peers/, in the default environment but for `environment`."""
    python = PYTHON_WITH_JAX if "jax" in script else sys.executable
    call = [python, str(PEERS / script), "--job"]
    return Arm(name, call, job, {"OMP_NUM_THREADS": None, **environment}, is_peer=True)


def version_in(python: str, library: str) -> str:
    """The version of a library that another Python has; raises :class:`RunError`."""
    code = f"from importlib.metadata import version; print(version({library!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"{python} has no {library}")
    return done.stdout.strip()


def measure(
    arms: Sequence[Arm], rounds: int, warm_up: int = 1
) -> list[ArmSample | ArmAbsent]:
    """Run every arm once per round; return the record's lines.

    The first `warm_up` samples of each process are marked as such. A process may name
    several arms or works in its lines.
    """
    lines: list[ArmSample | ArmAbsent] = []
    turns = [(k, arm) for k in range(rounds) for arm in arms[:: (-1) ** k]]
    for k, (round_, arm) in enumerate(turns, 1):
        print(f"process {k} of {len(turns)}: {arm.name}", file=sys.stderr)
        try:
            answers = run(arm)
            if not answers:
                raise RunError("printed no times")
        except RunError as error:
            lines.append(
                ArmAbsent(arm=arm.name, round=round_, why_not=str(error), work=arm.work)
            )
            continue
        lines += [
            sample(arm, round_, number < warm_up, answer)
            for number, answer in enumerate(answers)
        ]
    return lines


def measure_seeds(
    arms_of: Callable[[int], Sequence[Arm]], seeds: Iterable[int], warm_up: int = 1
) -> tuple[list[Arm], list[ArmSample | ArmAbsent]]:
    """Run the arms of each seed, a round; return the last ones, and all lines."""
    arms: Sequence[Arm] = []
    lines: list[ArmSample | ArmAbsent] = []
    for seed in seeds:
        arms = arms_of(seed)
        for line in measure(arms, rounds=1, warm_up=warm_up):
            lines.append(msgspec.structs.replace(line, round=seed))
    return list(arms), lines


def sample(arm: Arm, round_: int, warm_up: bool, answer: dict) -> ArmSample:
    """Convert an answer to a line of the record, dropping fields it does not know."""
    known = {k: v for k, v in answer.items() if k in ArmSample.__struct_fields__}
    same_for_all = {"arm": arm.name, "work": arm.work, "warm_up": warm_up}
    return msgspec.convert({**same_for_all, **known, "round": round_}, ArmSample)


def run(arm: Arm) -> list[dict]:
    """What an arm's process answers; raises :class:`RunError` where it fails."""
    changes = {**exact_float32(), **arm.environment}
    if isinstance(arm.call, str):
        return list(process.results(arm.call, arm.job, environment=changes))
    variables = {**os.environ, **changes}
    done = subprocess.run(
        arm.call,
        input=json.dumps(arm.job) + "\n",
        capture_output=True,
        text=True,
        env={name: value for name, value in variables.items() if value is not None},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answers = [json.loads(line) for line in lines]
    if answers and "error" in answers[-1] and len(answers[-1]) == 1:
        raise RunError(answers[-1]["error"])
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        absent = re.search(r"No module named '(\w+)'", last)
        if absent and absent[1] in EXTRAS:
            last = f"{absent[1]} is not installed: pip install '.[{EXTRAS[absent[1]]}]'"
        raise RunError(last)
    return answers


def answer(call: str, **job: Any) -> dict:
    """The last answer of a function of ours in a fresh process."""
    return run(ours("", 1, call, **job))[-1]


def share_what_jax_compiles(folder: str) -> None:
    """Let JAX's processes compile once."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/jax")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def exact_float32() -> dict[str, str]:
    """Keep the GPUs of all arms from TF32, as ours are, unless the user has set it."""
    return {"NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", "0")}


def parser(about: str, rounds: int | None) -> argparse.ArgumentParser:
    """The flags that all benchmarks have."""
    flags = argparse.ArgumentParser(description=about.split("\n")[0])
    flags.add_argument("--rounds", type=int, default=rounds)
    flags.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    return flags


def record(
    path: Path,
    arms: Iterable[Arm],
    lines: Iterable[ArmSample | ArmAbsent],
    *,
    work: str,
    **fields,
) -> Run:
    """Write a benchmark's record, with these fields in its header; return it."""
    versions = {"python": platform.python_version(), "d2lpar": __version__}
    versions["mxnet"] = mxnet_version()
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    if PYTHON_WITH_JAX != sys.executable:
        versions["jax"] = version_in(PYTHON_WITH_JAX, "jax")
    commit, dirty = files.git_state()
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    header = BenchmarkHeader(
        benchmark=path.stem,
        work=work,
        command=shlex.join(["python", script, *sys.argv[1:]]),
        cpu_model=host.cpu_model(),
        cores=host.usable_cores(),
        versions=versions,
        git_commit=commit,
        git_dirty=dirty,
        date=files.now(),
        peers=list(dict.fromkeys(arm.name for arm in arms if arm.is_peer)),
        gpus=[gpu.name for gpu in cuda_devices()],
        **fields,
    )
    run = Run(header, tuple(lines), path)
    files.write(path, header, run.lines)
    return run


def show(run: Run) -> None:
    """Print a record's table, and draw its picture beside it."""
    print(f"{table(run)}\n{run.path}")
    try:
        import figure  # matplotlib is slow to import
    except ModuleNotFoundError as error:  # a machine with GPUs may lack it
        print(f"no picture: {error}; benchmarks/figure.py draws it elsewhere")
    else:
        figure.draw(run)


def gpu_names(devices: str) -> list[str]:
    """The names of the GPUs in "gpu:2", of which there are none in "cpu:2"."""
    kind, _, count = devices.partition(":")
    gpus = cuda_devices() if kind == "gpu" else []
    return [gpu.name for gpu in gpus[: int(count)]]


def gpu_fields(ids: Sequence[int], timed: Sequence[Arm]) -> dict[str, Any]:
    """Return the header's fields on these GPUs: names, and what our arms had there."""
    gpus = cuda_devices()
    devices = f"gpu:{','.join(map(str, ids))},"
    builds_of_ours = []
    for environment in {str(arm.environment): arm.environment for arm in timed
                        if not arm.is_peer}.values():  # fmt: skip
        asked = ours("", 1, "arms:gpu_build", devices=devices)
        try:
            builds_of_ours += run(asked._replace(environment=environment))
        except RunError:
            tf32 = exact_float32()["NVIDIA_TF32_OVERRIDE"] != "0"
            builds_of_ours.append({"tf32": tf32})
    first, *others = builds_of_ours or [{}]  # a fact in which arms differ is left out
    build = {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}
    return {"on_gpus": [gpus[i].name for i in ids], "gpu_build": build}


def gpu_build(devices: str) -> dict:
    """MXNet's build and settings on these GPUs, for a record."""
    from d2lpar._mxnet import mx
    from d2lpar.devices import enable_peer_access, parse

    gpus = parse(devices)
    enable_peer_access(gpus)
    return builds.gpu_build([gpu.device_id for gpu in gpus], mx.base._LIB)


def table(run: Run) -> str:
    """Median, range and number of samples of every arm, as plain text."""
    rows, absent = [], []
    for arm in arm_times(run):
        if arm.seconds:
            s = arm.summary
            cells = [f"{s.median:.3g}", f"{s.least:.3g}-{s.most:.3g}", str(s.n)]
            rows.append([arm.work, arm.name, *cells])
        else:
            absent.append(f"{arm.name}: not measured: {arm.why_not}")
    columns = ["work", "arm", "seconds", "range", "n"]
    if not any(row[0] for row in rows):
        columns, rows = columns[1:], [row[1:] for row in rows]
    return "\n".join([plain_table(columns, rows, names=len(columns) - 3), *absent])

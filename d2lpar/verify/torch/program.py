"""Judge a whole PyTorch program: its first steps on N processes against one."""

from __future__ import annotations

import json
import os
import pickle
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
from numpy.linalg import norm

from d2lpar.errors import RunError
from d2lpar.verify import Check, summary

ROOT = Path(__file__).resolve().parents[3]
STEPS = 3


def judge_program(
    command: str, num_devices=2, replaced: str = "", *, timeout=300.0
) -> list[Check]:
    """Run a script on one process and twice on several; the last check is a summary.

    `command` is what one process runs, such as "train.py --batch-size 64"; `replaced`
    has the arguments that several processes have instead, such as "--batch-size 32".
    No line of the script changes: it ends after three steps of its optimizer. Raises
    RunError if a run ends before its first step, or takes more than `timeout` seconds.
    """
    one_command = shlex.split(command)
    if one_command[0] in ("python", "python3", "torchrun"):
        one_command = one_command[1:]
    many_command = with_arguments(one_command, shlex.split(replaced))
    with Runs(timeout) as runs:
        many = runs.recorded("many", many_command, num_devices)
        again = runs.recorded("again", many_command, num_devices)
        one = runs.recorded("one", one_command, 1)[0]
        checks = check_rows(one, many)
        if checks[0].verdict == "skipped":
            try:
                calls = one["calls_before"][0], many[0]["calls_before"][0]
                how = {"replay": "many", "split": calls[0] == num_devices * calls[1]}
                one = runs.recorded("replayed", one_command, 1, **how)[0]
            except RunError as error:
                line = f"{checks[0].line}, but it cannot take them: {error}"
                checks = [Check("rows", "unjudged", line)]
                return [*checks, summary(checks)]
    checks += check_program(one, many, again)
    return [*checks, summary(checks)]


def with_arguments(command: list[str], replaced: list[str]) -> list[str]:
    """Return a command whose options have the values of the same ones in `replaced`."""
    command = list(command)
    while replaced:
        option, *replaced = replaced
        name, equals, _ = option.partition("=")
        takes = (
            []
            if equals or not replaced or replaced[0][:2] == "--"
            else [replaced.pop(0)]
        )
        at = [k for k, word in enumerate(command) if word.partition("=")[0] == name]
        if not at:
            command += [option, *takes]
        elif "=" in command[at[0]]:
            command[at[0]] = "=".join([option, *takes])
        else:
            command[at[0] : at[0] + 1 + len(takes)] = [option, *takes]
    return command


class Runs:
    """A process that has imported PyTorch, and forks those of each run."""

    def __init__(self, timeout: float):
        self.timeout = timeout

    def __enter__(self) -> Runs:
        """Start it."""
        self.scratch = tempfile.TemporaryDirectory(prefix="d2lpar-")
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.server = subprocess.Popen(
            [sys.executable, "-m", "d2lpar.verify.torch.prelude"],
            env={
                "OMP_NUM_THREADS": "1",
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        return self

    def __exit__(self, *_) -> None:
        """End it, and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()
        self.scratch.cleanup()

    def recorded(
        self, name: str, command, processes: int, replay="", split=False
    ) -> list[dict]:
        """Return what each process of a run recorded. Raises RunError if it failed."""
        folder = Path(self.scratch.name, name)
        folder.mkdir()
        run = {"folder": str(folder), "processes": processes, "command": command}
        run |= {"steps": STEPS, "replay": replay and str(folder.with_name(replay))}
        run["split"] = split
        pipes: Any = (self.server.stdin, self.server.stdout)
        with suppress(BrokenPipeError):
            print(json.dumps(run), file=pipes[0], flush=True)
        if not select.select([pipes[1]], [], [], self.timeout)[0]:
            raise RunError(f"{processes} processes: no answer in {self.timeout:g} s")
        pipes[1].readline()
        if len(list(folder.iterdir())) < processes:
            texts = Path(self.scratch.name).glob(f"{name}.*.txt")
            printed = [line for path in texts for line in path.read_text().splitlines()]
            errors = [
                line for line in printed if re.match(r"[\w.]*(Error|Exception)\b", line)
            ]
            last = (errors or printed or ["it printed nothing"])[-1][:300]
            started = f"{processes} process{'es' * (processes > 1)}"
            raise RunError(f"{started}: no step of an optimizer: {last.strip()}")
        files = [folder / str(rank) for rank in range(processes)]
        return [pickle.loads(file.read_bytes()) for file in files]


def check_rows(one: dict, many: list[dict]) -> list[Check]:
    """Compare the rows of the first step: equal, repeated, or drawn by each process."""

    def rows(file):
        calls = file["calls"][: file["calls_before"][0]]
        shape = calls[0][0].shape[1:]  # a loss has calls of its own, with labels
        firsts = [leaves[0] for leaves in calls if leaves[0].shape[1:] == shape]
        return Counter(row.tobytes() for first in firsts for row in first)

    def data(*files):  # labels and noise, too
        return {
            row.tobytes()
            for file in files
            for leaves in file["calls"][: file["calls_before"][0]]
            for leaf in leaves
            for row in leaf
        }

    own = [rows(file) for file in many]
    total: Counter = sum(own, Counter())
    N = len(many)
    sizes = sum(total.values()), sum(rows(one).values())
    if N > 1 and all(counter == own[0] for counter in own):
        line = "each process gets the same rows: is a DistributedSampler missing?"
        return [Check("rows", "wrong", line, "same rows")]
    if total == rows(one) and data(*many) <= data(one):
        return [Check("rows", "right", f"{sizes[0]} in the first step")]
    more = sizes[0] - sizes[1]
    if total != rows(one) and set(total) <= set(rows(one)) and abs(more) < N:
        mistake = "dropped rows" if more < 0 else "repeated rows"
        line = f"{sizes[0]} on {N} processes, {sizes[1]} on one: {mistake}"
        return [Check("rows", "wrong", line, mistake)]
    line = f"{N} processes draw other rows than one"
    return [Check("rows", "skipped", f"{line}: one process gets theirs instead")]


def check_program(one: dict, many: list[dict], again: list[dict]) -> list[Check]:
    """Compare starts, two equal runs, replicas, learning rates, gradients and moves."""
    N, first = len(many), many[0]
    starts = [file["params"][0] for file in (one, *many)]
    if any(start.shape != starts[0].shape for start in starts):
        line = "processes hold parts of the parameters, which only FSDP2 can gather"
        return [Check("the start", "unjudged", line)]
    if not all(numpy.isfinite(start).all() for start in starts):
        return [Check("the start", "unjudged", "its parameters are not finite")]
    apart = max(norm(start - starts[0]) / norm(starts[0]) for start in starts)
    if apart > 1e-6:
        line = f"{apart:.0e} apart: is a seed set, for any number of processes?"
        return [Check("the start", "unjudged", line)]
    checks = [Check("the start", "right", "equal on one process and on several")]
    flags = set().union(*(file["flags"] for file in (one, *many)))
    # What is inexact in the program itself: threads, or a GPU's order of sums.
    noise = max(
        norm(a - b) / (norm(a) or 1) for a, b in zip(first["grads"], again[0]["grads"])
    )
    if noise > 0.01:
        line = (
            f"gradients of two equal runs on {N} are {noise:.0e} apart: is a seed set?"
        )
        return [*checks, Check("two equal runs", "unjudged", line)]
    checks.append(Check("two equal runs", "right", f"{noise:.0e} apart"))
    ends = [file["params"][-1] for file in many]
    moved = norm(ends[0] - starts[0]) or 1
    apart = max(norm(end - ends[0]) / moved for end in ends)
    verdict = "wrong" if apart > 1e-6 else "right"
    line = f"{apart:.0e} of their way apart after {len(first['grads'])} steps"
    line += ": is the wrapped module called?" * (verdict == "wrong")
    checks.append(
        Check("replicas", verdict, line, "apart" if verdict == "wrong" else "")
    )
    limit = 10 * noise + (2e-2 if "16 bits" in flags else 1e-4)
    for k, (g, ref) in enumerate(zip(first["grads"], one["grads"])):
        far, factor = norm(g - ref) / (norm(ref) or 1), g @ ref / ((ref @ ref) or 1)
        steps = [file["params"][k + 1] - file["params"][k] for file in (first, one)]
        way = norm(steps[0]) / (norm(steps[1]) or numpy.nan)
        line = f"gradients {far:.1e} apart; {N} move {way:.4f} times as far as 1"
        what = f"step {k + 1}"
        if any(
            check.verdict == "wrong" for check in checks if check.what != "replicas"
        ):
            verdict, mistake = "skipped", ""
            line += ", after what is wrong above"
        elif not ref.any() or not steps[1].any():
            verdict, mistake = "unjudged", ""
            line += ": one process moves no parameter"
        elif far <= limit * 10 ** min(k, 2):
            verdict, mistake = "right", ""
        else:
            mistake, why = name_of(g, ref, factor, N, flags)
            verdict = "unjudged" if mistake == "another algorithm" else "wrong"
            line += f": {why}"
        checks.append(Check(what, verdict, line, mistake))
        if k == 0:
            checks.append(check_rate(one, many))
    return checks


def check_rate(one: dict, many: list[dict]) -> Check:
    """Compare the learning rates of the first step."""
    what, rates, own = "the learning rate", many[0]["lr"][0], one["lr"][0]
    if rates == own:
        return Check(what, "right", "equal")
    ratio = rates[0] / (own[0] or numpy.nan)
    line = (
        f"{ratio:g} times as large on {len(many)} processes, for the same global batch"
    )
    return Check(what, "wrong", line, "N times")


def name_of(g, ref, factor: float, N: int, flags) -> tuple[str, str]:
    """Return the mistake that makes the gradient `g` of `ref`, and a clause."""
    rest = norm(g - factor * ref) / norm(g)
    if rest < 1e-3 or rest < 2e-2 and "16 bits" in flags:
        if abs(factor / N - 1) < 0.01:
            return "N times", "sums are taken for means"
        if abs(factor * N - 1) < 0.01:
            return "divided by N", f"it is divided by {N} once too often"
        return "factor", f"the gradient is {factor:.4g} times as long"
    if "BatchNorm" in flags:
        why = "each process's BatchNorm has a mean and variance of its own (Chapter 10)"
        return "another algorithm", why
    return "", "no factor explains it: write a STEP.py to get a name (verify.md)"

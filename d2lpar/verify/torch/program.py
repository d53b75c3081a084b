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
    if one_command[0] != "-m" and not Path(one_command[0]).is_file():
        line = f"{one_command[0]!r} is no file: let --run begin with the script"
        raise RunError(f'{line} and its arguments, as in "train.py --batch-size 64"')
    with Runs(timeout) as runs:
        many = runs.recorded("many", many_command, num_devices)
        again = runs.recorded("again", many_command, num_devices)
        (one,) = runs.recorded("one", one_command, 1, follow="many")
        rows = check_rows(one[0], [file[0] for file in many])
        files = many[0][0], one[0]
        each, alone = (sum(map(len, calls_of(file, 0))) for file in files)
        if rows.verdict != "right" and each:
            if rows.verdict == "skipped":
                rows = rows._replace(line=f"{rows.line}; one process gets theirs")
            how = {"each": each, "split": alone == num_devices * each}
            try:
                (one,) = runs.recorded("replayed", one_command, 1, "many", **how)
            except RunError as error:
                verdict = "unjudged" if rows.verdict == "skipped" else "wrong"
                line = f"{rows.line}, but it cannot take them: {error}"
                rows = Check("rows", verdict, line, rows.mistake)
                return [rows, summary([rows])]
    checks = [rows]
    for k, own in enumerate(zip(one, *many, *again)):
        name = f"optimizer {k + 1}: " * (k > 0)
        its_many, its_again = own[1 : num_devices + 1], own[num_devices + 1 :]
        for check in check_program(own[0], its_many, its_again, rows):
            checks.append(check._replace(what=name + check.what))
    return [*checks, summary(checks)]


def with_arguments(command: list[str], replaced: list[str]) -> list[str]:
    """Return a command whose options have the values of the same ones in `replaced`."""
    command = list(command)
    while replaced:
        option, *replaced = replaced
        name, equals, _ = option.partition("=")
        has_value = not equals and replaced and replaced[0][:2] != "--"
        takes = [replaced.pop(0)] if has_value else []
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
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": ":".join(path)},
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
        self, name: str, command, processes: int, follow="", each=0, split=False
    ) -> list[list[dict]]:
        """Return what each process recorded of each optimizer of a run.

        One process starts its steps where those of the run `follow` do, and gets their
        data, `each` tensors in a step. Raises RunError if the run failed.
        """
        folder = Path(self.scratch.name, name)
        folder.mkdir()
        follow = follow and str(folder.with_name(follow))
        run = {"folder": str(folder), "processes": processes, "command": command}
        run |= {"steps": STEPS, "follow": follow, "each": each, "split": split}
        pipes: Any = (self.server.stdin, self.server.stdout)
        with suppress(BrokenPipeError):
            print(json.dumps(run), file=pipes[0], flush=True)
        started = f"{processes} process{'es' * (processes > 1)}"
        if not select.select([pipes[1]], [], [], self.timeout)[0]:
            line = f"{started}: no answer in {self.timeout:g} s: raise --timeout"
            raise RunError(f"{line}, or look for a collective that only some call")
        pipes[1].readline()
        if len(list(folder.iterdir())) < processes:
            texts = Path(self.scratch.name).glob(f"{name}.*.txt")
            printed = [line for path in texts for line in path.read_text().splitlines()]
            errors = [
                line for line in printed if re.match(r"[\w.]*(Error|Exception)\b", line)
            ]
            last = (errors or printed or ["it printed nothing"])[-1][:300]
            raise RunError(f"{started}: no step of an optimizer: {last.strip()}")
        files = [folder / str(rank) for rank in range(processes)]
        return [pickle.loads(file.read_bytes()) for file in files]


def calls_of(file: dict, k: int) -> list:
    """Return the tensors of each call in a step."""
    ends = [0, *file["calls_before"]]
    return file["calls"][ends[k] : ends[k + 1]]


def check_rows(one: dict, many: list[dict]) -> Check:
    """Compare the rows of each step: equal, repeated, or drawn by each process."""

    def key(row):  # without its padding, whose length depends on the other rows
        return numpy.trim_zeros(numpy.where(row == -100, 0, row).ravel()).tobytes()

    def kind(leaf):  # a loss has calls of its own, with labels
        return leaf.shape[1:] if leaf.dtype.kind == "f" else leaf.ndim

    def rows(file, k):
        firsts = [leaves[0] for leaves in calls_of(file, k)]
        firsts = [leaf for leaf in firsts if kind(leaf) == kind(firsts[0])]
        return Counter(key(row) for first in firsts for row in first)

    def data(files, k):  # labels and noise, too
        leaves = [leaf for file in files for call in calls_of(file, k) for leaf in call]
        return {key(row) for leaf in leaves for row in leaf}

    N, size, seen = len(many), 0, set[bytes]()
    for k in range(min(len(file["calls_before"]) for file in (one, *many))):
        own, single = [rows(file, k) for file in many], rows(one, k)
        total: Counter = sum(own, Counter())
        sizes = sum(total.values()), sum(single.values())
        size = size or sizes[0]
        seen |= {*single}
        if N > 1 and total and all(counter == own[0] for counter in own):
            line = "each process gets the same rows: is a DistributedSampler missing"
            line += ", or init_process_group?"
            return Check("rows", "wrong", line, "same rows")
        if single and total == single and data(many, k) <= data([one], k):
            continue
        if not total and not single:
            line = "not seen, because no module or loss of PyTorch gets them"
            return Check("rows", "skipped", line)
        line = f"{sizes[0]} in step {k + 1} on {N} processes, {sizes[1]} on one"
        # A sampler may repeat rows of earlier steps to fill the last one.
        known = {*single} if sizes[0] == sizes[1] else seen
        if total != single and {*total} <= known and abs(sizes[0] - sizes[1]) < N:
            mistake = "dropped rows" if sizes[0] < sizes[1] else "repeated rows"
            return Check("rows", "wrong", f"{line}: {mistake}", mistake)
        if sizes[0] == sizes[1]:
            line = f"{N} processes draw other rows than one"
        is_larger = 0 < sizes[0] == N * sizes[1]
        return Check("rows", "skipped", line, "larger batch" if is_larger else "")
    return Check("rows", "right", f"{size} in the first step")


def check_program(one: dict, many, again, rows: Check) -> list[Check]:
    """Compare starts, two equal runs, replicas, learning rates, gradients and moves."""
    N, first = len(many), many[0]
    starts = [file["params"][0] for file in (*many, one)]
    if any(start.shape != starts[0].shape for start in starts):
        line = "processes hold parts of the parameters, which only FSDP2 can gather"
        return [Check("the start", "unjudged", line)]
    if not all(numpy.isfinite(start).all() for start in starts):
        return [Check("the start", "unjudged", "its parameters are not finite")]
    far = [norm(start - starts[0]) / (norm(starts[0]) or 1) for start in starts]
    if max(far[:-1]) > 1e-6:
        line = f"processes are {max(far):.0e} apart: broadcast the parameters of one"
        return [Check("the start", "wrong", line, "apart")]
    if far[-1] > 1e-6:
        line = f"{far[-1]:.0e} apart: is a seed set, for any number of processes?"
        return [Check("the start", "unjudged", line)]
    checks = [Check("the start", "right", "equal on one process and on several")]
    flags = set().union(*(file["flags"] for file in (one, *many)))
    # What is inexact in the program itself: threads, or a GPU's order of sums.
    pairs = zip(first["grads"], again[0]["grads"])
    noise = max(norm(a - b) / (norm(a) or 1) for a, b in pairs)
    if noise > 0.01:
        line = f"gradients are {noise:.0e} apart: is a seed set?"
        return [*checks, Check("two equal runs", "unjudged", line)]
    checks.append(Check("two equal runs", "right", f"{noise:.0e} apart"))
    ends = [file["params"][-1] for file in many]
    moved = norm(ends[0] - starts[0]) or 1
    apart = max(norm(end - ends[0]) / moved for end in ends)
    line = f"{apart:.0e} of their way apart after {len(first['grads'])} steps"
    if apart > 1e-6:
        line += ": is the wrapped module called, and the last piece not in no_sync?"
        return [*checks, Check("replicas", "wrong", line, "apart")]
    rate = check_rate(one, many, rows.mistake == "larger batch")
    checks += [Check("replicas", "right", line), rate]
    if in_16_bits(one["grads"][0]):  # a hook may send float16 for one process, too
        flags.add("16 bits")
    limit = 10 * noise + (2e-2 if "16 bits" in flags else 1e-4)
    for k, (g, ref) in enumerate(zip(first["grads"], one["grads"])):
        verdict, mistake = "right", ""
        moves = [norm(file["moves"][k]) for file in (first, one)]
        if not ref.any() or not moves[1]:
            line = "one process moves no parameter: does the optimizer hold the model's"
            line += ", and is zero_grad called before backward?"
            return [*checks, Check(f"step {k + 1}", "unjudged", line)]
        off, way = norm(g - ref) / norm(ref), moves[0] / moves[1]
        line = f"gradients {off:.1e} apart; {N} move {way:.4f} times as far as 1"
        if off > limit:
            verdict, mistake, why = name_of(k, one, many, flags, rows)
            line += f": {why}"
        elif rate.verdict == "right" and abs(way - 1) > max(5e-3, limit):
            verdict = "wrong"
            line += ": is weight decay or momentum equal on one process?"
        checks.append(Check(f"step {k + 1}", verdict, line, mistake))
    return checks


def check_rate(one: dict, many: list[dict], is_larger_batch: bool) -> Check:
    """Compare the learning rates of all steps."""
    what, N = "the learning rate", len(many)
    for k, (rates, own) in enumerate(zip(many[0]["lr"], one["lr"])):
        if not numpy.allclose(rates, own, 1e-6, 0):
            ratio = rates[0] / (own[0] or numpy.nan)
            line = f"{ratio:g} times as large on {N} processes in step {k + 1}"
            if is_larger_batch and abs(ratio / N - 1) < 1e-6:
                return Check(what, "skipped", f"{line}, and so is the batch")
            line += ", for the same global batch"
            return Check(what, "wrong", line, "N times" if not k else "")
    return Check(what, "right", "equal")


def in_16_bits(gradient) -> bool:
    """Return whether all its numbers were float16 or bfloat16."""
    return not (gradient.astype("float32").view("uint32") & 0x1FFF).any()


def name_of(k: int, one: dict, many, flags, rows: Check) -> tuple[str, str, str]:
    """Return the verdict over a wrong gradient of step k, its mistake, and a clause."""
    g, ref, N = many[0]["grads"][k], one["grads"][k], len(many)
    factor = g @ ref / (ref @ ref)
    rest = norm(g - factor * ref)
    limit = 2e-2 if "16 bits" in flags else 1e-3
    if rest < limit * norm(g) and 4 * rest < norm(g - ref):
        if abs(factor / N - 1) < 0.01:
            return "wrong", "N times", "sums are taken for means"
        if abs(factor * N - 1) < 0.01:
            return "wrong", "divided by N", f"it is divided by {N} once too often"
        return "wrong", "factor", f"the gradient is {factor:.4g} times as long"
    if in_16_bits(g) and not in_16_bits(ref):
        return "wrong", "half precision", "gradients are summed in 16 bits"
    if "BatchNorm" in flags:
        why = "each process's BatchNorm has a mean and variance of its own (Chapter 4)"
        return "unjudged", "another algorithm", why
    if "random numbers" in flags:
        return "unjudged", "", "the model draws random numbers: switch them off"
    if rows.verdict == "skipped" and "loss" not in flags:
        why = "one process keeps its own labels: compute the loss by one of PyTorch's"
        return "unjudged", "", why
    leaves = [[leaf for call in calls_of(f, k) for leaf in call] for f in many]
    valid = [sum((a >= 0).sum() for a in own if (a == -100).any()) for own in leaves]
    if len({*valid}) > 1:
        counts = ", ".join(map(str, valid))
        why = f"does each process divide by its own number of labels ({counts})?"
        return "wrong", "mean of means of tokens", why
    why = "no factor explains it: write a STEP.py to get a name (verify.md)"
    return "wrong", "", why

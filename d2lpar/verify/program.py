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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy
from numpy.linalg import norm

from d2lpar.errors import RunError
from d2lpar.verify import Check, summary

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3


def judge_program(
    command: str, num_devices=2, replaced: str | None = None, *, timeout=300.0
) -> list[Check]:
    """Run a script on several processes and on one; the last check is a summary.

    `command` is what one process runs, such as "train.py --batch-size 64"; `replaced`
    has the arguments that several processes have instead, such as "--batch-size 32":
    they follow the command, since the last value of an option counts. No line of the
    script changes: it ends after three steps of its optimizer. Raises RunError if a run
    ends before its first step, or takes more than `timeout` seconds.
    """
    N = num_devices
    one_command, words = words_of(command, "--run"), words_of(replaced or "", "--with")
    if one_command[:1] in (["python"], ["python3"], ["torchrun"]):
        one_command = one_command[1:]
    script = (one_command or [""])[0]
    if not Path(script).is_file():
        line = f"{script!r} is no file: let --run begin with the script"
        raise RunError(f'{line} and its arguments, as in "train.py --batch-size 64"')
    with prelude(timeout) as run:
        many = run("many", one_command + words, N)
        (one,) = run("one", one_command, 1, follow="many")
        rows = check_rows(one[0], [file[0] for file in many])
        if rows.mistake == "larger batch" and replaced is None:
            line = f"{rows.line}: the global batch grew. Name --with, the arguments of"
            line += ' several processes, as in --with "--batch-size 32"; or --with ""'
            rows = Check("rows", "unjudged", line, rows.mistake)
            return [rows, summary([rows])]
        each, alone = (sum(map(len, calls_of(f[0], 0))) for f in (many[0], one))
        if rows.verdict != "right" and each:
            if rows.verdict == "skipped":
                rows = rows._replace(line=f"{rows.line}; one process gets theirs")
            how = {"each": each, "split": alone == N * each}
            try:
                (one,) = run("replayed", one_command, 1, follow="many", **how)
            except RunError as error:
                verdict = "unjudged" if rows.verdict == "skipped" else "wrong"
                line = f"{rows.line}, but it cannot take them: {error}"
                rows = Check("rows", verdict, line, rows.mistake)
                return [rows, summary([rows])]
    checks = [rows]
    for k, (own, *others) in enumerate(zip(one, *many)):
        name = f"optimizer {k + 1}: " * (k > 0)
        for check in check_program(own, others, rows):
            checks.append(check._replace(what=name + check.what))
    return [*checks, summary(checks)]


def words_of(text: str, flag: str) -> list[str]:
    """Split a command into words. Raises RunError for open quotes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise RunError(f"{flag} {text!r}: {error}") from None


@contextmanager
def prelude(timeout: float) -> Iterator[Callable]:
    """Start a process that has imported PyTorch; yield the function that runs scripts.

    All that it has started ends with the block.
    """
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as scratch:
        server = subprocess.Popen(
            [sys.executable, "-m", "d2lpar.verify.prelude"],
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": ":".join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        try:
            yield partial(recorded, server, Path(scratch), timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def recorded(
    server, scratch: Path, timeout: float, name: str, command, processes: int, **how
) -> list[list[dict]]:
    """Return what each process recorded of each optimizer of a run.

    One process starts its steps where those of the run `follow` do, and gets their
    data, `each` tensors in a step. Raises RunError if the run failed.
    """
    folder = scratch / name
    folder.mkdir()
    run = {"folder": str(folder), "processes": processes, "command": command}
    run |= {"steps": STEPS, "follow": "", "each": 0, "split": False, **how}
    run["follow"] = run["follow"] and str(scratch / run["follow"])
    with suppress(BrokenPipeError):
        print(json.dumps(run), file=server.stdin, flush=True)
    started = f"{processes} process{'es' * (processes > 1)}"
    if not select.select([server.stdout], [], [], timeout)[0]:
        line = f"{started}: no answer in {timeout:g} s: raise --timeout"
        raise RunError(f"{line}, or look for a collective that only some call")
    server.stdout.readline()
    if len(list(folder.iterdir())) < processes:
        texts = [path.read_text() for path in scratch.glob(f"{name}.*.txt")]
        printed = "\n".join(texts).strip().splitlines() or ["nothing"]
        errors = [x for x in printed if re.match(r"[\w.]*(Error|Exception)\b", x)]
        line = f"{started}: no step of an optimizer of PyTorch: "
        line += errors[-1].strip()[:300] if errors else "does this command train, at "
        if not errors:
            line += f"least a batch on each process? It printed {printed[-1][:100]!r}"
        raise RunError(line)
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


def check_program(one: dict, many: list[dict], rows: Check) -> list[Check]:
    """Compare starts, replicas, learning rates, gradients and moves."""
    N, first = len(many), many[0]
    starts = [file["params"][0] for file in (*many, one)]
    if any(start.shape != starts[0].shape for start in starts):
        line = "processes hold parts of the parameters, which only FSDP2 can gather"
        return [Check("the start", "unjudged", line)]
    if not all(numpy.isfinite(start).all() for start in starts):
        return [Check("the start", "unjudged", "its parameters are not finite")]
    far = [apart(start, starts[0]) for start in starts]
    if max(far[:-1]) > 1e-6:
        line = f"processes are {max(far):.0e} apart: broadcast the parameters of one"
        return [Check("the start", "wrong", line, "apart")]
    if far[-1] > 1e-6:
        line = f"{far[-1]:.0e} apart: is a seed set, for any number of processes?"
        return [Check("the start", "unjudged", line)]
    checks = [Check("the start", "right", "equal on one process and on several")]
    replicas = check_replicas(many)
    if replicas.verdict == "wrong":
        return [*checks, replicas]
    rate = Check("the learning rate", "right", "equal")
    for k, (rates, own) in enumerate(zip(first["lr"], one["lr"])):
        if rate.verdict == "right" and not numpy.allclose(rates, own, 1e-6, 0):
            line = f"{rates[0] / (own[0] or numpy.nan):g} times as large on {N} "
            line += f"processes in step {k + 1}, for the same global batch"
            rate = Check(rate.what, "wrong", line, "N times" if not k else "")
    checks += [replicas, rate]
    flags = set().union(*(file["flags"] for file in (one, *many)))
    if in_16_bits(one["grads"][0]):  # a hook may send float16 for one process, too
        flags.add("16 bits")
    limit = 2e-2 if "16 bits" in flags else 1e-4
    for k, (g, ref) in enumerate(zip(first["grads"], one["grads"])):
        verdict, mistake = "right", ""
        moves = [norm(file["moves"][k]) for file in (first, one)]
        if not ref.any() or not moves[1]:
            line = "one process moves no parameter: does the optimizer hold the model's"
            line += ", and is zero_grad called before backward?"
            return [*checks, Check(f"step {k + 1}", "unjudged", line)]
        off, way = apart(g, ref), moves[0] / moves[1]
        line = f"gradients {off:.1e} apart; {N} move {way:.4f} times as far as 1"
        if not off <= limit:
            verdict, mistake, why = name_of(k, one, many, flags, rows)
            line += f": {why}"
        elif rate.verdict == "right" and abs(way - 1) > max(5e-3, limit):
            verdict = "wrong"
            line += ": is weight decay or momentum equal on one process?"
        checks.append(Check(f"step {k + 1}", verdict, line, mistake))
    return checks


def apart(a, b) -> float:
    """Return the distance of two vectors, relative to the second."""
    return float(norm(a - b) / (norm(b) or 1))


def where(file: dict, far) -> str:
    """Return ", in NAMES" of the parameters with some elements of `far`, or ""."""
    ends = numpy.cumsum([size for _, size in file["names"]])
    parts = zip(file["names"], numpy.split(far, ends))
    names = [name for (name, _), part in parts if part.any()]
    more = f" and {len(names) - 3} more" * (len(names) > 3)
    everywhere = len(names) == len(file["names"])
    return "" if everywhere else f", in {', '.join(names[:3])}{more}"


def check_replicas(many: list[dict]) -> Check:
    """Compare the parameters of all processes after each step."""
    first = many[0]
    for k, (start, end) in enumerate(zip(first["params"], first["params"][1:])):
        limit = 1e-6 * (norm(end - start) or 1)
        other = max(many, key=lambda file: norm(file["params"][k + 1] - end))
        far = abs(other["params"][k + 1] - end)
        if norm(far) > limit:
            line = f"apart from step {k + 1} on{where(first, far > far.max() * 1e-6)}"
            if max(apart(file["grads"][k], first["grads"][k]) for file in many) < 1e-6:
                line += ". Gradients are equal, so the optimizers differ: does one "
                line += "process have a rate, a scheduler or a momentum of its own?"
            else:
                line += ". Gradients differ: is the wrapped module called, kept until "
                line += "backward, the last piece not in no_sync, and clipping on all?"
            return Check("replicas", "wrong", line, "apart")
    return Check("replicas", "right", f"equal after {len(first['grads'])} steps")


def in_16_bits(gradient) -> bool:
    """Return whether all its numbers were float16 or bfloat16."""
    return not (gradient.astype("float32").view("uint32") & 0x1FFF).any()


def name_of(k: int, one: dict, many, flags, rows: Check) -> tuple[str, str, str]:
    """Return the verdict over a wrong gradient of step k, its mistake, and a clause."""
    g, ref, N = many[0]["grads"][k], one["grads"][k], len(many)
    limit = 2e-2 if "16 bits" in flags else 1e-3
    far = ~(abs(g - ref) <= limit * abs(ref).max())
    factor = g[far] @ ref[far] / ((ref[far] @ ref[far]) or numpy.nan)
    rest = norm((g - factor * ref)[far])
    if rest < limit * norm(g) and 4 * rest < norm(g - ref):
        place = where(one, far)
        if abs(factor / N - 1) < 0.01:
            return "wrong", "N times", f"sums are taken for means{place}"
        if abs(factor * N - 1) < 0.01:
            return "wrong", "divided by N", f"divided by {N} once too often{place}"
        return "wrong", "factor", f"gradients are {factor:.4f} times as long{place}"
    if not numpy.isfinite(g).all():
        return "wrong", "not finite", "they are nan or infinite on several processes"
    if in_16_bits(g) and not in_16_bits(ref):
        return "wrong", "half precision", "gradients are summed in 16 bits"
    if "BatchNorm" in flags:
        why = "each process's BatchNorm has a mean and variance of its own"
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
        return "wrong", "own tokens", why
    why = (
        f"no factor explains it{where(one, far)}: a STEP.py may get a name (verify.md)"
    )
    return "wrong", "", why

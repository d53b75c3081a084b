"""Judge a whole PyTorch program: its first steps on N processes against one."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy
from numpy.linalg import norm

from d2lpar.errors import RunError
from d2lpar.verify import Check, summary


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
    words, others = words_of(command, "--run"), words_of(replaced or "", "--with")
    if words[:1] in (["python"], ["python3"], ["torchrun"]):
        words = words[1:]
    script = (words or [""])[0]
    if not Path(script).is_file():
        line = f"{script!r} is no file: let --run begin with the script"
        raise RunError(f'{line} and its arguments, as in "train.py --batch-size 64"')
    many = run(words + others, N, N, timeout)
    how = (words, 1, N, timeout, many[0][0])  # which starts its steps where many do
    one = run(*how)
    rows = check_rows(one[0][0], [steps for steps, _ in many])
    if rows.mistake == "larger batch" and replaced is None:
        line = f"{rows.line}: the global batch grew. Name --with, the arguments of"
        line += ' several processes, as in --with "--batch-size 32"; or --with ""'
        rows = Check("rows", "unjudged", line, rows.mistake)
        return [rows, summary([rows])]
    if rows.verdict != "right" and tensors(many[0][0][0]):
        verdict = "unjudged" if rows.verdict == "skipped" else "wrong"
        line = f"{rows.line}, but it cannot take them: "
        if rows.verdict == "skipped":
            rows = rows._replace(line=f"{rows.line}; one process gets theirs")
        try:
            one = run(*how, replay(one[0][0], [steps for steps, _ in many]))
        except RunError as error:
            rows = Check("rows", verdict, f"{line}{error}", rows.mistake)
            return [rows, summary([rows])]
    flags = set().union(*(own for _, own in (*one, *many)))
    checks = [rows]
    for k in sorted({step.optimizer for step in one[0][0]}):
        own, *theirs = (
            [step for step in steps if step.optimizer == k]
            for steps, _ in (*one, *many)
        )
        for check in check_program(own, theirs, flags, rows):
            name = f"optimizer {k + 1}: " * (k > 0)
            checks.append(check._replace(what=name + check.what))
    return [*checks, summary(checks)]


def words_of(text: str, flag: str) -> list[str]:
    """Split a command into words. Raises RunError for open quotes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise RunError(f"{flag} {text!r}: {error}") from None


def run(command, processes: int, N: int, timeout, follow=(), replay=()) -> list:
    """Return the steps that each process recorded, and flags. Raises RunError."""
    try:
        from d2lpar.verify import record, torch  # not NumPy alone
    except ModuleNotFoundError as error:
        raise RunError(f"--run: {error}") from None
    started = f"{processes} process{'es' * (processes > 1)}"
    with tempfile.TemporaryFile() as output:
        how = (record.run_script, N, command, output, follow, replay)
        group = torch.Group(processes, *how)
        try:
            return group.answers(timeout)
        except TimeoutError:
            line = f"{started}: no answer in {timeout:g} s: raise --timeout"
            line += ", or look for a collective that only some call"
        except EOFError:
            output.seek(0)
            printed = output.read().decode(errors="replace").strip().splitlines()
            errors = [x for x in printed if re.match(r"[\w.]*(Error|Exception)\b", x)]
            line = f"{started}: no step of an optimizer of PyTorch: "
            if errors:
                line += errors[-1].strip()[:300]
            else:
                line += "does this command train, at least a batch on each process? It "
                line += f"printed {(printed or ['nothing'])[-1][:100]!r}"
        finally:
            group.kill()
        raise RunError(line)


def tensors(step) -> list:
    """Return the tensors that all calls before a step got."""
    return list(chain(*step.calls))


def replay(one: list, many: list[list]) -> list:
    """Return what one process gets, tensor by tensor, so that its rows are all rows."""
    given: list = []
    for own, *theirs in zip(one, *many):
        parts = [tensors(step) for step in theirs]
        if len(tensors(own)) == sum(map(len, parts)):  # it takes them piece by piece
            given += chain(*parts)
            continue
        for k, news in enumerate(zip(*parts)):
            leaves = (*news, *tensors(own)[k : k + 1])
            # Equal ones are not of the rows, such as class weights.
            are_equal = all(numpy.array_equal(leaf, news[0]) for leaf in leaves)
            given.append(None if are_equal else numpy.concatenate(news))
    return given


def check_rows(one: list, many: list[list]) -> Check:
    """Compare the rows of each step: equal, repeated, or drawn by each process."""

    def key(row):  # without its padding, whose length depends on the other rows
        return numpy.trim_zeros(numpy.where(row == -100, 0, row).ravel()).tobytes()

    def kind(leaf):  # a loss has calls of its own, with labels
        return leaf.shape[1:] if leaf.dtype.kind == "f" else leaf.ndim

    def rows(step):
        firsts = [leaves[0] for leaves in step.calls]
        firsts = [leaf for leaf in firsts if kind(leaf) == kind(firsts[0])]
        return Counter(key(row) for first in firsts for row in first)

    def data(steps):  # labels and noise, too
        return {key(row) for step in steps for leaf in tensors(step) for row in leaf}

    N, size, seen = len(many), 0, set[bytes]()
    for k, (alone, *theirs) in enumerate(zip(one, *many)):
        own, single = [rows(step) for step in theirs], rows(alone)
        total: Counter = sum(own, Counter())
        sizes = sum(total.values()), sum(single.values())
        size = size or sizes[0]
        seen |= {*single}
        if N > 1 and total and all(counter == own[0] for counter in own):
            line = "each process gets the same rows: is a DistributedSampler missing"
            line += ", or init_process_group?"
            return Check("rows", "wrong", line, "same rows")
        if total == single and data(theirs) <= data([alone]):
            continue
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
    if not size:
        line = "not seen, because no module or loss of PyTorch gets them"
        return Check("rows", "skipped", line)
    return Check("rows", "right", f"{size} in the first step")


def check_program(one: list, many: list[list], flags: set, rows: Check) -> list[Check]:
    """Compare starts, replicas, learning rates, gradients and moves."""
    N, first = len(many), many[0]
    starts = [steps[0].start for steps in (*many, one)]
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
    checks.append(check_replicas(many))
    if checks[-1].verdict == "wrong":
        return checks
    rate = Check("the learning rate", "right", "equal")
    for k, (own, alone) in enumerate(zip(first, one)):
        if not numpy.allclose(own.rates, alone.rates, 1e-6, 0):
            line = f"{own.rates[0] / (alone.rates[0] or numpy.nan):g} times as large on"
            line += f" {N} processes in step {k + 1}, for the same global batch"
            rate = Check(rate.what, "wrong", line, "N times" if not k else "")
            break
    checks.append(rate)
    if in_16_bits(one[0].grads):  # a hook may send float16 for one process, too
        flags = flags | {"16 bits"}
    limit = 2e-2 if "16 bits" in flags else 1e-4
    for k, (alone, *theirs) in enumerate(zip(one, *many)):
        own, verdict, mistake = theirs[0], "right", ""
        move = norm(alone.end - alone.start)
        if not alone.grads.any() or not move:
            line = "one process moves no parameter: does the optimizer hold the model's"
            line += ", and is zero_grad called before backward?"
            return [*checks, Check(f"step {k + 1}", "unjudged", line)]
        off, way = apart(own.grads, alone.grads), norm(own.end - own.start) / move
        line = f"gradients {off:.1e} apart; {N} move {way:.4f} times as far as 1"
        if not off <= limit:
            verdict, mistake, why = name_of(alone, theirs, flags, rows)
            line += f": {why}"
        elif rate.verdict == "right" and abs(way - 1) > max(5e-3, limit):
            verdict = "wrong"
            line += ": is weight decay or momentum equal on one process?"
        checks.append(Check(f"step {k + 1}", verdict, line, mistake))
    return checks


def apart(a, b) -> float:
    """Return the distance of two vectors, relative to the second."""
    return float(norm(a - b) / (norm(b) or 1))


def where(step, far) -> str:
    """Return ", in NAMES" of the parameters with some elements of `far`, or ""."""
    ends = numpy.cumsum([size for _, size in step.names])
    parts = zip(step.names, numpy.split(far, ends))
    names = [name for (name, _), part in parts if part.any()]
    more = f" and {len(names) - 3} more" * (len(names) > 3)
    everywhere = len(names) == len(step.names)
    return "" if everywhere else f", in {', '.join(names[:3])}{more}"


def check_replicas(many: list[list]) -> Check:
    """Compare the parameters of all processes after each step."""
    for k, (first, *others) in enumerate(zip(*many)):
        limit = 1e-6 * (norm(first.end - first.start) or 1)
        far = abs(
            max(others, key=lambda own: norm(own.end - first.end)).end - first.end
        )
        if norm(far) > limit:
            line = f"apart from step {k + 1} on{where(first, far > far.max() * 1e-6)}"
            if max(apart(own.grads, first.grads) for own in others) < 1e-6:
                line += ". Gradients are equal, so the optimizers differ: does one "
                line += "process have a rate, a scheduler or a momentum of its own?"
            else:
                line += ". Gradients differ: is the wrapped module called, kept until "
                line += "backward, the last piece not in no_sync, and clipping on all?"
            return Check("replicas", "wrong", line, "apart")
    return Check("replicas", "right", f"equal after {len(many[0])} steps")


def in_16_bits(gradient) -> bool:
    """Return whether all its numbers were float16 or bfloat16."""
    return not (gradient.astype("float32").view("uint32") & 0x1FFF).any()


def name_of(one, many: list, flags: set, rows: Check) -> tuple[str, str, str]:
    """Return the verdict over a wrong gradient of a step, its mistake, and a clause."""
    g, ref, N = many[0].grads, one.grads, len(many)
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
    valid = [
        sum((leaf >= 0).sum() for leaf in tensors(own) if (leaf == -100).any())
        for own in many
    ]
    if len({*valid}) > 1:
        counts = ", ".join(map(str, valid))
        why = f"does each process divide by its own number of labels ({counts})?"
        return "wrong", "own tokens", why
    why = (
        f"no factor explains it{where(one, far)}: a STEP.py may get a name (verify.md)"
    )
    return "wrong", "", why

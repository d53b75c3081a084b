"""Judge a whole PyTorch program: its first steps on N processes against one."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections import Counter
from itertools import chain
from math import isclose, nan
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
    script changes: it ends after three steps of an optimizer. Raises RunError if a run
    ends before its first step, or takes more than `timeout` seconds.
    """
    try:
        words, others = shlex.split(command), shlex.split(replaced or "")
    except ValueError as error:
        raise RunError(f"--run {command!r}, --with {replaced!r}: {error}") from None
    if not Path(*words[:1]).is_file():
        line = f"{''.join(words[:1])!r} is no file: let --run begin with the script"
        raise RunError(f'{line} and its arguments, as in "train.py --batch-size 64"')
    many = run(words + others, num_devices, num_devices, timeout)
    how = (words, 1, num_devices, timeout, [step.end for step in many[0]])
    [one] = run(*how)
    rows = check_rows(one, many)
    try:
        if rows.mistake == "larger batch" and replaced is None:
            line = "the global batch grew. Name --with, the arguments of several"
            raise RunError(f'{line} processes, as in "--batch-size 32"; or --with ""')
        if rows.verdict != "right" and one[0].data:
            groups = chain(*map(joined, one, *many))
            [one] = run(*how, [numpy.concatenate(group) for group in groups])
    except (RunError, ValueError) as error:  # of rows that do not fit together
        verdict = rows.verdict.replace("skipped", "unjudged")
        rows = rows._replace(verdict=verdict, line=f"{rows.line}: {error}")
        return [rows, summary([rows])]
    checks = [rows, *check_program(one, many, rows)]
    return [*checks, summary(checks)]


def run(command, processes: int, N: int, timeout, follow=(), replay=()) -> list:
    """Return the steps that each process recorded. Raises RunError."""
    try:
        from d2lpar.verify import record, torch  # not NumPy alone
    except ModuleNotFoundError as error:
        raise RunError(f"--run: {error}") from None
    with tempfile.TemporaryFile() as output:
        how = (record.run_script, N, command, output, follow, replay)
        group = torch.Group(processes, *how)
        try:
            return group.answers(timeout)
        except TimeoutError:
            line = f"no answer in {timeout:g} s: raise --timeout, or look for a "
            line += "collective that only some call"
        except EOFError:
            output.seek(0)
            text = output.read().decode(errors="replace")
            said = re.findall(r"^(?!Traceback|SystemExit(?:: \d+)?$)\S.*", text, re.M)
            last = ([x for x in said if "Error" in x] or said or ["nothing"])[-1][:300]
            line = "no three steps of an optimizer of PyTorch. Does this command "
            line += f"train, a batch on each process? It printed {last!r}"
        finally:
            group.kill()
        raise RunError(f"{processes} process{'es' * (processes > 1)}: {line}")


def joined(alone, *theirs) -> list[list]:
    """Return for each tensor that one process gets in a step, those it stands for."""
    parts = [step.data for step in theirs]
    if len(alone.data) == sum(map(len, parts)):  # one takes them piece by piece
        return [[leaf] for leaf in chain(*parts)]
    return [  # equal ones are not of the rows, such as class weights
        [old] if all(numpy.array_equal(old, new) for new in news) else news
        for old, *news in zip(alone.data, *parts)
    ]


def check_rows(one: list, many: list[list]) -> Check:
    """Compare the rows of each step: equal, repeated, or drawn by each process."""

    def rows(leaves):  # without their padding, whose length depends on other rows
        flat = (numpy.where(x == -100, 0, x).ravel() for leaf in leaves for x in leaf)
        return Counter(numpy.trim_zeros(row).tobytes() for row in flat)

    N, seen = len(many), set[bytes]()
    for k, (alone, *theirs) in enumerate(zip(one, *many)):
        groups = joined(alone, *theirs)
        total, single = rows(chain(*groups)), rows(alone.data)
        seen |= {*single}
        if total == single:
            continue
        size, rest = sum(map(len, chain(*groups[:1]))), sum(map(len, alone.data[:1]))
        firsts = [rows(step.data[:1]) for step in theirs]
        # A sampler may repeat rows of earlier steps to fill the last one.
        known = {*single} if size == rest else seen
        is_known = {*total} <= known and abs(size - rest) < N
        table = (
            (firsts == [firsts[0]] * N, "wrong", "same rows",
             ": is a DistributedSampler missing, or init_process_group?"),
            (is_known and size < rest, "wrong", "dropped rows", ""),
            (is_known, "wrong", "repeated rows", ""),
            (size == N * rest, "skipped", "larger batch", ""),
            (True, "skipped", "other rows", ""),
        )  # fmt: skip
        _, verdict, mistake, why = next(row for row in table if row[0])
        line = f"{mistake} in step {k + 1}: {size} on {N} processes, {rest} on one{why}"
        return Check("rows", verdict, line, mistake)
    if not seen:
        return Check("rows", "skipped", "no module or loss of PyTorch gets them")
    return Check("rows", "right", "the same on one process and on several")


def check_program(one: list, many: list[list], rows: Check) -> list[Check]:
    """Compare the steps of all processes in turn, up to one that is wrong."""
    checks: list[Check] = []
    for k, (alone, *theirs) in enumerate(zip(one, *many)):
        name = f" of optimizer {alone.optimizer + 1}" * (alone.optimizer > 0)
        checks.append(check_step(f"step {k + 1}{name}", alone, theirs, rows))
        if checks[-1].verdict == "wrong" or checks[-1].mistake == "no seed":
            break
    return checks


def apart(a, b) -> float:
    """Return the distance of two vectors, relative to the second."""
    return float(norm(a - b) / (norm(b) or 1))


def where(step, far) -> str:
    """Return ", in NAMES" of the parameters with some elements of `far`, or ""."""
    ends = numpy.cumsum([size for _, size in step.names])
    parts = zip(step.names, numpy.split(far, ends))
    names = [name for (name, _), part in parts if part.any()]
    if len(names) == len(step.names):
        return ""
    return f", in {', '.join(names[:3])}" + " and others" * (len(names) > 3)


def in_16_bits(gradient) -> bool:
    """Return whether all its numbers were float16 or bfloat16."""
    return not (gradient.astype("float32").view("uint32") & 0x1FFF).any()


def check_step(what: str, one, many: list, rows: Check) -> Check:
    """Compare a step: the first row of a table that holds is its check."""
    N, first, flags = len(many), many[0], many[0].flags
    if any(own.start.shape != one.start.shape for own in many):
        return Check(
            what, "unjudged", "processes hold parts of parameters, not by FSDP2"
        )
    finite = [numpy.isfinite([x.start, x.grads, x.end]).all() for x in (one, *many)]
    g, ref, move = first.grads, one.grads, norm(one.end - one.start)
    begin = max(apart(own.start, first.start) for own in many)
    seed = apart(first.start, one.start)
    gap = numpy.max([abs(own.end - first.end) for own in many], axis=0)
    are_apart = norm(gap) > 1e-6 * (norm(first.end - first.start) or 1)
    have_own = max(apart(own.grads, g) for own in many) > 1e-6
    part = f"replicas are apart from here on{where(one, gap > gap.max() * 1e-6)}"
    rates = [a / b if b else 1 + a for a, b in zip(first.rates, one.rates)]
    rate = max(rates, key=lambda rate: abs(rate - 1))
    off, way = apart(g, ref), norm(first.end - first.start) / (move or 1)
    said = f"gradients {off:.1e} apart; {N} move {way:.4f} times as far as 1"
    # A hook may send 16 bits for one process, too.
    limit = 2e-2 if "16 bits" in flags or in_16_bits(ref) else 1e-4
    far = ~(abs(g - ref) <= limit * abs(ref).max())
    factor = g[far] @ ref[far] / ((ref[far] @ ref[far]) or nan)
    rest, place = norm((g - factor * ref)[far]), where(one, far)
    is_factor = rest < limit * norm(g) and 4 * rest < norm(g - ref)
    padded = [[leaf for leaf in own.data if (leaf == -100).any()] for own in many]
    labels = tuple(sum(int((leaf >= 0).sum()) for leaf in own) for own in padded)
    table = (
        (not finite[0], "unjudged", "", "one process has nan or infinite numbers"),
        (not all(finite), "wrong", "not finite", f"{N} have nan or infinite numbers"),
        (begin > 1e-6, "wrong", "apart",
         f"processes start {begin:.0e} apart: broadcast the parameters of one"),
        (seed > 1e-6, "unjudged", "no seed",
         f"one starts {seed:.0e} apart: is a seed set, for any number of processes?"),
        (are_apart and have_own, "wrong", "apart",
         f"{part}. Gradients differ: is the wrapped module called, kept until "
         "backward, the last piece not in no_sync, and clipping on all?"),
        (are_apart, "wrong", "apart",
         f"{part}. Gradients are equal, so the optimizers differ: does one process "
         "have a rate, a scheduler or a momentum of its own?"),
        (abs(rate - 1) > 1e-6, "wrong", "N times" if isclose(rate, N) else "",
         f"the learning rate is {rate:g} times as large on {N} processes"),
        (not ref.any() or not move, "unjudged", "",
         "one moves nothing: has the optimizer all, and is zero_grad before backward?"),
        (off <= limit and abs(way - 1) <= max(5e-3, limit), "right", "", said),
        (off <= limit, "wrong", "", f"{said}: is weight decay or momentum equal on 1?"),
        (is_factor and isclose(factor, N, rel_tol=0.01), "wrong", "N times",
         f"sums are taken for means{place}"),
        (is_factor and isclose(factor, 1 / N, rel_tol=0.01), "wrong", "divided by N",
         f"gradients are divided by {N} once too often{place}"),
        (is_factor, "wrong", "factor", f"gradients {factor:.4f} times as long{place}"),
        (in_16_bits(g) and not in_16_bits(ref), "wrong", "half precision",
         f"{said}: they are summed in 16 bits"),
        (any("BatchNorm" in flag for flag in flags), "unjudged", "another algorithm",
         f"{said}: each process's BatchNorm has a mean and variance of its own"),
        ("random numbers" in flags, "unjudged", "random numbers",
         f"{said}: the model draws random numbers; switch them off"),
        (rows.verdict == "skipped" and "loss" not in flags, "unjudged", "own labels",
         f"{said}: one keeps its own labels; compute the loss by one of PyTorch's"),
        (len({*labels}) > 1, "wrong", "own tokens",
         f"{said}: does each process divide by its own number of labels {labels}?"),
        (True, "wrong", "",
         f"{said}: no factor explains it{place}; a STEP.py may get a name (verify.md)"),
    )  # fmt: skip
    _, verdict, mistake, line = next(row for row in table if row[0])
    return Check(what, verdict, line, mistake)

"""What known mistakes make of a step. The sentences for them are in sentences.tsv."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations

import numpy
from numpy.linalg import lstsq, norm

from d2lpar.errors import RunError
from d2lpar.verify.bench import LR, SENTENCES, Bench

OF_UNEVEN = "mean of means", "dropped rows", "repeated rows", "padding", "padded size"


def predict(bench: Bench, n: int, right, words: dict, shards, order) -> dict:
    """Return what each mistake makes of n samples: by device, or by way to make it.

    `shards` has each device's rows, and `order` all rows as they are dealt out.
    """

    def mean(rows, start=None):  # the update of one device
        with suppress(RunError):  # BatchNorm may want two samples
            return bench.recall(rows, start) if len(rows) else 0 * right
        return 0 * right if bench.form == "weighted" else numpy.nan * right

    def part(rows, after=None):  # of the mean over n, after an update
        start = None if after is None else bench.start + after
        return bench.share(rows, range(n)) * mean(rows, start)

    def clip(update, by=None):  # as if `by` were to be clipped
        by = update if by is None else by
        return update * min(1, words["clip_norm"] * LR / (norm(by) or 1))

    N, rows, extra = bench.N, [*range(n)], -n % bench.N
    whole = mean(rows)
    own, parts = [mean(shard) for shard in shards], [part(shard) for shard in shards]
    A = words.get("accumulate", 1)
    pieces = [numpy.array_split(shard, A) for shard in shards]
    if "steps" in words and "clip_norm" in words:
        first = clip(whole)
        return {"not clipped": [first + mean(rows, bench.start + first)]}
    if "steps" in words and A == 1:
        late = whole + part(shards[0], whole) + sum(parts[1:])
        ahead = late - sum(parts[1:]) + sum(map(part, shards[1:], parts[1:]))
        return {
            "old gradient": [2 * whole],
            "stale replica": [late, ahead],
            "another algorithm": [sum(parts) + sum(map(part, shards, own))],
            "stale gradient": [right + k * whole for k in range(1, N + 1)],
        }
    if "clip_norm" in words:
        weighted, of_parts = sum(map(clip, parts, own)), sum(map(clip, parts))
        shares = [bench.share(shard, range(n)) for shard in shards]
        # The gradients so far of each device, or of all of them, clipped after a piece.
        apart, synced, whole_pieces = [0 * whole] * N, 0 * whole, 0 * whole
        for a in range(A):
            of_a = [part(p[a]) for p in pieces]
            apart = [
                clip(g) + new / (share or 1)
                for g, new, share in zip(apart, of_a, shares)
            ]
            synced = clip(synced + sum(of_a))
            whole_pieces = whole_pieces + clip(A * sum(of_a)) / A
        local = sum(s * g for s, g in zip(shares, apart))
        each = sum(
            s * clip(A * part(q) / (s or 1)) for s, p in zip(shares, pieces) for q in p
        )
        of_pieces = [local, clip(local), synced, whole_pieces, each / A, clip(each / A)]
        return {
            "not clipped": [whole],
            "clipped sum": [clip(whole, n * whole)],
            "norm twice": [clip(whole, N**0.5 * whole)],
            "clipped first": [weighted, of_parts, sum(map(clip, own)) / N],
            "own norm": [clip(whole, by) for by in own + parts],
            **({"clipped pieces": of_pieces} if A > 1 else {}),
        }
    known = {}
    if A > 1:
        sums, last = [sum(map(mean, p)) for p in pieces], [part(p[-1]) for p in pieces]
        weighted = sum(bench.share(s, rows) * total for s, total in zip(shards, sums))
        together = sum(mean([row for p in pieces for row in p[a]]) for a in range(A))
        known = {
            "sum of pieces": [sum(sums) / N, weighted, together],
            "mean of pieces": [sum(sums) / N / A, weighted / A, together / A],
            "one piece": [sum(last), A * sum(last)],
            "piece not summed": [whole - sum(last) + N * p for p in last],
        }
    if "steps" in words:
        late = {"stale gradient": [right + k * whole for k in range(1, N + 1)]}
        return {**late, "old gradient": [2 * whole]}
    left = bench.share(range(bench.small_batch), range(n)) * mean(
        range(bench.small_batch)
    )
    even = order[: n // N * N]
    ends: list[list] = [[], order[:extra], order[n - extra :]]
    by_rows = sum(len(shard) / n * update for shard, update in zip(shards, own))
    means, other = [sum(own) / min(n, N), sum(own) / N], [by_rows]
    if bench.form != "other":  # then no other algorithm is needed to explain it
        means, other = means + other, []
    stale = {}
    if (before := bench.other) is not bench:
        with suppress(RunError):
            moved = bench.recall(rows, before.start)
            stale["stale parameters"] = [moved, moved + before.start - bench.start]
            sizes = n, bench.even_batch
            stale["stale batch"] = [before.recall(range(m), bench.start) for m in sizes]
    return {
        **known,
        **stale,
        "another algorithm": other,
        "dropped rows": [mean(even), part(even)],
        "repeated rows": [mean(order + more) for more in ends],
        "padding": [mean(rows + extra * [bench.even_batch + 1])],
        "padded size": [n / (n + extra) * whole],
        "sum of means": [sum(own)],
        "N times": [N * whole, n / max(1, n // N) * whole],
        "divided by N": [whole / N],
        "not divided": [n * whole],
        "divided twice": [whole / n],
        "mean of sums": [n / N * whole],
        "no step": [0 * whole],
        "mean of means": means,
        "one device": own + [N * p for p in parts],
        "lost sum": [u / N for u in own] + parts,
        "missing device": [whole - p for p in parts],
        "device twice": [whole + p for p in parts],
        "idle device" if n < N else "stale gradient": [
            right + k * left for k in range(1, N + 1)
        ],
    }


def dealt(bench: Bench, n: int) -> Iterator[tuple[list, list]]:
    """Yield ways to deal rows out: those of each device, and all in that order."""
    N, rows = bench.N, list(range(n))
    if function := getattr(bench.module, "rows", None):
        with suppress(RunError):
            shards = [[int(k) for k in own] for own in bench.call(function, n, N)]
            yield shards, sum(shards, [])
    yield [list(own) for own in numpy.array_split(rows, N)], rows
    yield [rows[k::N] for k in range(N)], rows
    yield (
        [list(own) for own in numpy.split(rows, [n // N * k for k in range(1, N)])],
        rows,
    )
    if torch := sys.modules.get("torch"):  # its DistributedSampler, which shuffles
        with suppress(Exception):
            generator = torch.Generator().manual_seed(0)
            order = torch.randperm(n, generator=generator, device="cpu").tolist()
            yield [order[k::N] for k in range(N)], order


def explain(
    bench: Bench, n: int, words: dict, is_even: bool, known: dict[str, str]
) -> tuple[str, str]:
    """Return the mistake that explains a wrong step of n samples, and a line.

    If several do, one of the `known` mistakes of other checks is taken.
    """
    sizes = [n] if n < bench.N else [bench.small_batch + 1, bench.small_batch, n]
    sizes = [size for size in sizes if size % bench.N == 0 or not is_even]
    cases = list(wrong_steps(bench, sizes, words))
    cases = cases or list(wrong_steps(bench, sizes[-1:], words, bench.other))
    if not cases:
        return "unsteady", SENTENCES["unsteady"]
    for n, got, ref in cases:
        wrong = bench.differing(got, ref)
        if found := named(bench, n, words, got, ref, wrong, known):
            break
    else:
        n, got, ref = next(wrong_steps(bench, range(1, n + 1), words), cases[0])
        wrong = bench.differing(got, ref)
        off = abs(got - ref).max() / abs(ref).max()
        found = ("", SENTENCES[""].format(off=off, n=n))
        wrong = wrong[:1]
    name, sentence = found
    if len(wrong) < sum(ref[part].any() for part in bench.parts):
        sentence = f"parameter {', '.join(map(str, wrong))}: {sentence}"
    return name, sentence


def wrong_steps(bench: Bench, sizes, words: dict, before=None) -> Iterator[tuple]:
    """Yield the batch sizes whose step is wrong, that step, and the right one.

    The call before each has a small batch, or that of another bench.
    """
    for n in sizes:
        with suppress(RunError):  # this step does not take every size
            if before:
                before.several(range(n), **words)
            else:
                bench.several(range(bench.small_batch))
            got, ref = bench.both(range(n), **words)
            scale = LR / words.get("lr", LR)
            got, ref = got * scale, ref * scale
            if bench.differing(got, ref):
                yield n, got, ref


def named(bench: Bench, n, words, got, ref, wrong, known) -> tuple[str, str] | None:
    """Return the mistake that makes `got` of the right step `ref`, and its sentence."""
    N, at = bench.N, numpy.concatenate([bench.parts[k] for k in wrong])
    tol = 3 * bench.tolerance(ref)[at] / abs(ref).max()  # of an update's length

    def is_near(update):
        scale = max(abs(update).max(), abs(ref).max())
        return bool((abs(got - update)[at] <= tol * scale).all())

    def say(name, **values):
        return name, SENTENCES[name].format(**{"n": n, "N": N, **values})

    if not ref[at].any():
        return say("frozen")
    if not numpy.isfinite(got).all():
        return say("not finite")
    if name := stale(bench, n):
        return say(name)
    near: dict[str, int] = {}
    for shards, order in dealt(bench, n):
        for name, updates in predict(bench, n, ref, words, shards, order).items():
            close = [k for k, update in enumerate(updates) if is_near(update)]
            if close:
                near.setdefault(name, close[0] % N)
    for name in [*(near.keys() & known.keys()), *near][:1]:
        if name in OF_UNEVEN and bench.form != "weighted":
            with suppress(RunError):
                if bench.differing(*bench.both(range(bench.small_batch))):
                    return say("another algorithm") if name == "mean of means" else None
        k = near[name]
        if name in ("mean of means", "mean of pieces") and bench.form == "weighted":
            name += " of tokens"
        return say(name, k=k)
    ends = [(bench.start + ref)[bench.parts[k]] for k in wrong]
    if any(numpy.array_equal(a, b) for a, b in combinations(ends, 2)):
        return say("untied")
    again = bench.several(range(n), **words) * LR / words.get("lr", LR)
    if bench.differing(again, got):
        return say("unequal on several")
    if abs(got - ref)[at].max() < 2**-5 * abs(ref[at]).max():
        with suppress(RunError):
            for name, delta in (
                ("half precision", 2.0**-14),
                ("single precision", 1e-7),
            ):
                if bench.is_rough(delta, N) and not bench.is_rough(delta, 1):
                    return say(name)
    if is_near((c := got[at] @ ref[at] / (ref[at] @ ref[at])) * ref):
        return say("factor", c=c)
    if bench.form != "other" and not words.keys() - {"accumulate", "lr"}:
        if constant := constant_apart(bench, n, words, got, ref, at):
            return say(constant[0], c=constant[1])
        if unequal := unequal_rows(bench, n, got, ref):
            return say(unequal[0], **unequal[1])
    elif not words and averages_shuffled_shards(bench):
        return say("another algorithm")
    return None


def stale(bench: Bench, n: int) -> str:
    """Return what several devices do not take from a call: "stale batch", or ""."""
    rows, other = range(n), bench.other

    def same(a, b):
        return norm(a - b) <= 1e-6 * norm(b)

    with suppress(RunError):
        ref, here = bench.recall(rows), bench.several(rows)
        if here.any() and same(other.several(rows, bench.start), here):
            if not same(other.recall(rows, bench.start), ref):
                return "stale batch"
        moved, way = bench.several(rows, other.start), other.start - bench.start
        if here.any() and (same(moved, here) or same(moved + way, here)):
            return (
                "" if same(bench.recall(rows, other.start), ref) else "stale parameters"
            )
    return ""


def constant_apart(bench: Bench, n, words, got, ref, at) -> tuple[str, float] | None:
    """Compare the differences of two batches, which no weight decay changes."""
    before = bench.other
    tol = 6 * bench.tolerance(ref)[at]
    with suppress(RunError):
        got = (got - before.several(range(n), bench.start, **words))[at]
        ref = (ref - before.recall(range(n), bench.start))[at]
        known = {"N times": bench.N, "divided by N": 1 / bench.N, "constant part": 1}
        fit = got @ ref / ((ref @ ref) or 1)
        for name, c in {**known, "factor": fit}.items():
            if (abs(got - c * ref) <= tol * max(1, c)).all():
                return name, c
    return None


def unequal_rows(bench: Bench, n, got, ref) -> tuple[str, dict] | None:
    """Fit a step by the steps of single rows: how much does each row count?"""
    N, chosen, columns = bench.N, [], []
    for row in [*range(n), bench.even_batch + 1]:
        with suppress(RunError):  # a row without a token
            if (update := bench.recall([row])).any():
                columns.append(update)
                chosen.append(row)
    basis, limit = numpy.array(columns).T, 3 * norm(bench.tolerance(ref))
    if (
        n > bench.small_batch + 1
        or len(columns) < 2
        or basis.shape[0] <= basis.shape[1]
    ):
        return None
    right, found = (lstsq(basis, u, rcond=None)[0] for u in (ref, got))
    if norm(basis @ right - ref) > limit or norm(basis @ found - got) > limit:
        return None
    if chosen[-1] >= n:  # the row of zeros
        if abs(found[-1]) > 0.01 / n and abs(right[-1]) < 0.001 / n:
            return "padding", {}
        chosen, right, found = chosen[:-1], right[:-1], found[:-1]
    if (abs(right) < 0.01 / n).any():
        return None
    counts = found / right
    for count in sorted(counts):  # equal but for rounding
        counts[abs(counts - count) < 0.01 * abs(count)] = count
    values = sorted(set(counts))
    if values[-1] - values[0] < 0.02:
        return None
    gone = [row for row, count in zip(chosen, counts) if abs(count) < 0.02]
    weights = [right[counts == value].sum() * value * N for value in values]
    if gone and len(gone) * N == n * (N - 1):  # whichever rows its shard has
        kept = [row for row in chosen if row not in gone]
        return "one device", {"k": f"(rows {', '.join(map(str, kept))})"}
    if gone:
        return "missing rows", {"rows": ", ".join(map(str, gone))}
    if len(values) == 2 and abs(values[1] / values[0] - 2) < 0.05 and n % N:
        return "repeated rows", {}
    if (
        all(abs(weight - round(weight)) < 0.05 for weight in weights)
        and len(values) > 1
    ):
        return "mean of means" + " of tokens" * (bench.form == "weighted"), {}
    return "unequal rows", {"least": values[0], "most": values[-1]}


def averages_shuffled_shards(bench: Bench) -> bool:
    """Return whether two devices average their own steps, whichever rows they have."""
    with suppress(RunError):
        got = bench.several(range(4), N=2)
        tol = 3 * bench.tolerance(got)
        for k in (1, 2, 3):  # the row that is with row 0
            rest = [row for row in (1, 2, 3) if row != k]
            mean = (bench.recall([0, k]) + bench.recall(rest)) / 2
            if (abs(got - mean) <= tol).all():
                return True
    return False

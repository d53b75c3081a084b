"""The rule by which something is faster, against SciPy, simulations and records."""

import re
from pathlib import Path

import numpy
import pytest
from support import simulated_rule
from support.factories import training
from support.simulated_rule import told

from d2lpar.records import arms, files
from d2lpar.records.measurements import seconds_per_epoch
from d2lpar.records.rule import (
    NOTHING,
    compare,
    compare_all,
    in_turns,
    intervals,
    of_turns,
    phrase,
    summarize,
    t_quantile,
)

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "figures"


def test_the_quantiles_and_the_interval_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 4, 7, 15, 60):
        for share in (0.1, 0.05, 0.05 / 13, 1e-3):
            right = stats.t.ppf(1 - share / 2, freedom)
            assert t_quantile(share, freedom) == pytest.approx(right, rel=1e-6)
    a, b = numpy.random.default_rng(0).lognormal(0, 0.1, (2, 6))
    logs = numpy.log(a / b)
    low, high = stats.t.interval(0.95, 5, logs.mean(), logs.std(ddof=1) / numpy.sqrt(6))
    found = compare(of_turns(a), of_turns(b))
    assert numpy.log([found.low, found.high]) == pytest.approx([low, high])
    test = stats.ttest_1samp(logs, 0)
    assert found.is_told == (test.pvalue < 0.05)
    upper = stats.ttest_1samp(abs(logs.mean()) + logs - logs.mean(),
                              numpy.log(found.within), alternative="less")  # fmt: skip
    assert upper.pvalue == pytest.approx(0.05)  # one of the two one-sided tests


def test_noise_that_a_turn_shares_cancels():
    mood = numpy.array([1.0, 1.6, 0.7, 1.2])
    found = compare(of_turns(1.3 * mood), of_turns(mood))
    assert found.is_told and found.ratio == pytest.approx(1.3)
    apart = compare(of_turns(1.3 * mood), of_turns(mood[::-1]))
    assert apart.verdict == "not told"


@pytest.mark.parametrize("times, factor", [(4, 1.3), (0, 1.3), (4, 1.0), (0, 1.0)])
def test_without_four_turns_nothing_is_told(times, factor):
    """Neither of single runs, however far apart, nor of runs that were not in turn."""
    of_b = {f"turn {k}": [1.0, 1.01] for k in range(3)}
    few = compare(in_turns({k: [factor, factor] for k in of_b}), in_turns(of_b))
    strangers = compare(
        in_turns({(1, k): [factor] * 9 for k in range(times)} or {0: [factor]}),
        in_turns({(2, k): [1.0, 1.0] for k in range(9)}),
    )
    for found in (few, strangers):
        assert found.verdict == "not told" and found.turns < 4
        assert found.cell.endswith("?")
        assert found.ratio == pytest.approx(factor, rel=0.01)
    assert few.low == pytest.approx(factor / 1.01) and few.high == factor


def test_what_has_no_turns_has_an_answer_too():
    a = of_turns([2.0, 2.2, 2.1, 2.0])
    assert compare(a, NOTHING).cell == "-"
    assert "one epoch, not timed" in phrase("b", NOTHING, "a", a)
    # By far not within 15 %, and the interval is wide.
    assert (
        "in this run b took 3.07 times as long as a (6.30 and 2.00-2.20 s)"
        in phrase("b", summarize([6.3]), "a", a)
    )


def test_the_tables_in_the_docs_are_the_simulations_and_hold_the_level():
    text = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    (table,) = re.findall("```\n( +2 turns.*?)\n```", text, re.DOTALL)
    rows = {x[0]: x[1:] for x in (re.split(" {2,}", x) for x in table.split("\n"))}
    for kind in simulated_rule.NOISE:
        alarms, power = map(float, rows[kind][1].split("/"))
        logs = simulated_rule.ratios(kind, 4)
        assert 100 * told(logs).mean() == pytest.approx(alarms, abs=0.8)
        assert 100 * told(logs + numpy.log(1.3)).mean() == pytest.approx(power, abs=1.5)
        assert alarms <= 5.5
    for spreads in simulated_rule.SPREADS.values():
        logs = simulated_rule.study(spreads, 4)
        assert told(logs).any(axis=0).mean() <= 0.06
        assert told(logs + numpy.log(1.3))[6].mean() >= 0.83


def test_the_study_is_judged_as_the_simulation_is():
    logs = [0.1 * numpy.random.default_rng(k).normal(size=(5, 1)) for k in range(3)]
    ones = of_turns([1.0] * 5)
    pairs = [(of_turns(numpy.exp(of[:, 0])), ones) for of in logs]
    for found, (mean, half) in zip(compare_all(pairs), intervals(logs, 0.05)):
        assert numpy.log(found.high) == pytest.approx((mean + half)[0])
    missing = [pairs[0], (NOTHING, ones), pairs[2]]
    alone = compare_all([pairs[0], pairs[2]])
    assert compare_all(missing)[::2] == alone  # what has no turns needs no allowance


def test_records_took_turns_if_one_sweep_made_them(tmp_path):
    def runs(turns):
        found = []
        for n, seconds in ((1, 2.0), (2, 1.0)):
            times = 9.0, seconds, 1.1 * seconds
            run = training(n, times, 4, recipe="quick", turns=turns)
            path = tmp_path / f"cpu{n}.jsonl"
            files.write(path, run.header, run.lines)
            found.append(files.read(path))
        return found

    one, two = map(seconds_per_epoch, runs([1, 2]))
    found = compare(one, two)
    assert found.is_told and found.turns == 4 and found.ratio == pytest.approx(2)
    alone = map(seconds_per_epoch, runs([]))
    assert compare(*alone).turns == 0
    runs([1, 2])
    one = seconds_per_epoch(files.read(tmp_path / "cpu1.jsonl"))
    kept = (tmp_path / "cpu2.jsonl").rename(tmp_path / "cpu2.of-2026-01-02.jsonl")
    assert compare(one, seconds_per_epoch(files.read(kept))).turns == 0


def test_arms_of_one_benchmark_took_turns():
    """Of the committed records of four rounds, and of no two records."""
    (one, *_), (other, *_) = (
        arms.arm_times(files.read(FIGURES / "benchmarks" / f"{name}.jsonl"))
        for name in ("kernels", "same_bits_times")
    )
    assert compare(one.summary, one.summary).turns == 4
    assert compare(one.summary, other.summary).turns == 0

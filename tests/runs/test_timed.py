"""What records timed, as CSV: medians over processes, ranges and verdicts."""

import csv
import io
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.factories import benchmark_header, header, point, training

from d2lpar.records import files
from d2lpar.records.kinds import ArmSample, Run
from d2lpar.runs import timed

COMMITTED = Path(__file__).parents[2] / "figures"


def of_processes(n, *medians):
    """A training repeated in processes; each has a warm-up and two epochs."""
    fields = {"recipe": "book", "turns": [1, 2]}
    run = training(n, (9.0, -0.5, 0.5), repeats=len(medians), **fields)
    lines = [
        replace(line, seconds=medians[line.repeat] + line.seconds) for line in run.lines
    ]
    return Run(run.header, tuple(lines), run.path)


SLOW, FAST = of_processes(1, 4.0, 4.1, 4.2, 4.3), of_processes(2, 2.0, 2.1, 2.1, 2.2)


def parsed(runs):
    return list(csv.DictReader(io.StringIO(timed.as_csv(runs))))


def test_the_median_is_that_of_the_processes_medians():
    one, two = parsed([SLOW, FAST])
    assert float(one["median"]) == pytest.approx(4.15)
    assert (float(one["least"]), float(one["most"])) == pytest.approx((4.0, 4.3))
    assert (one["turns"], one["samples"]) == ("4", "8")  # no warm-ups
    assert (one["verdict"], one["times_as_fast"]) == ("", "")
    assert two["verdict"] == "faster"
    assert float(two["times_as_fast"]) == pytest.approx(1.98, abs=0.02)
    low, high = (float(two[f"times_as_fast_{end}"]) for end in ("low", "high"))
    assert 1.8 < low < float(two["times_as_fast"]) < high < 2.2
    named = [one[name] for name in ("unit", "work", "recipe")]
    assert named == ["s/epoch", "multiple_gpus", "book"]
    assert one["test_accuracy"] == "0.6000000000000001"


def test_rows_are_judged_whatever_the_order_of_the_records():
    fast, slow = parsed([FAST, SLOW])
    assert (fast["devices"], fast["verdict"], slow["verdict"]) == ("2", "faster", "")
    _, other = parsed([SLOW, of_processes(2, 3.9, 4.1, 4.2, 4.4)])
    assert (other["verdict"], other["times_as_fast"][:4]) == ("same", "1.00")
    _, other = parsed([SLOW, of_processes(2, 3.9, 1.1, 4.2, 9.4)])
    assert (other["verdict"], other["times_as_fast"][:4]) == ("not told", "1.14")
    # Of another recipe: beside nothing.
    alone = Run(training(2, recipe="quick").header, FAST.lines, FAST.path)
    assert [row["verdict"] for row in parsed([SLOW, alone])] == ["", ""]


def test_solvers_and_benchmarks_have_rows_too():
    lines = [point(9, 1, seconds=s, repeat=k) for k, s in enumerate((2.0, 3.0, 4.0))]
    head = header(1, chapter="least_squares", variant="cgls")
    (row,) = parsed([Run(head, tuple(lines), SLOW.path)])
    assert (row["median"], row["unit"], row["work"]) == ("3.0", "s", "cgls")
    arms = [ArmSample(arm="ours", round=k, seconds=s) for k, s in enumerate((1.0, 2.0))]
    (row,) = parsed([Run(benchmark_header(), tuple(arms), SLOW.path)])
    assert (row["median"], row["unit"], row["turns"]) == ("1.5", "s for a layer", "2")


def test_solves_that_do_not_converge_are_compared_with_nothing():
    """The records beside them show it."""
    folder = COMMITTED / "least_squares"
    verdicts = {"averaging-as-published-cpu": [], "normal-cpu": []}
    paths = sorted(folder.glob("*.jsonl"))
    for path, row in zip(paths, parsed([files.read(path) for path in paths])):
        for method, found in verdicts.items():
            if method in path.name:
                found.append(row["verdict"])
    assert verdicts == {
        "averaging-as-published-cpu": ["not converged", "not converged"],
        "normal-cpu": ["", "faster"],
    }

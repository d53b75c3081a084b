"""A benchmark's arms: which samples count, and the table of the results."""

from d2lpar.records.arms import arm_times, table
from d2lpar.records.kinds import ArmAbsent, ArmSample, BenchmarkHeader, Run

HEADER = BenchmarkHeader(
    benchmark="test",
    work="a test",
    command="python test.py",
    cpu_model="CPU",
    cores=2,
    versions={"python": "3.11.7", "numpy": "1.23.5"},
    git_commit=None,
    git_dirty=None,
    date="2026-01-01T00:00:00+00:00",
    peers=["2 threads"],
)


def record(*lines):
    return Run(HEADER, lines)


def test_arms_are_grouped_by_what_they_do_and_warm_ups_do_not_count():
    run = record(
        ArmSample("ours", 0, 9.0, "small", warm_up=True),
        ArmSample("ours", 0, 1.0, "small"),
        ArmSample("ours", 0, 5.0, "large"),
        ArmSample("2 threads", 0, 2.0, "small"),
        ArmSample("ours", 1, 3.0, "small"),
    )
    found = [(arm.work, arm.name, arm.seconds, arm.is_peer) for arm in arm_times(run)]
    assert found == [
        ("small", "ours", [1.0, 3.0], False),
        ("small", "2 threads", [2.0], True),
        ("large", "ours", [5.0], False),
    ]
    assert table(run) == (
        "work   arm        seconds  quartiles  n\n"
        "small  ours             2    1.5-2.5  2\n"
        "small  2 threads        2        2-2  1\n"
        "large  ours             5        5-5  1"
    )


def test_an_arm_without_samples_says_why():
    run = record(
        ArmAbsent("a", 0, "no GPU"),
        ArmSample("b", 0, 1.0, warm_up=True),
        ArmAbsent("c", 0, "no GPU"),
        ArmSample("c", 1, 1.0),
    )
    assert [(arm.name, arm.why_not) for arm in arm_times(run)] == [
        ("a", "no GPU"),
        ("b", "only warmed up"),
        ("c", ""),
    ]
    assert table(run) == (
        "arm  seconds  quartiles  n\n"
        "c          1        1-1  1\n"
        "a: not measured: no GPU\n"
        "b: not measured: only warmed up"
    )

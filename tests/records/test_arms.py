"""A benchmark's arms: which samples count, and the table of the results."""

from support.factories import benchmark_header

from d2lpar.records.arms import arm_times, table
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run


def sample(arm, seconds, work="", warm_up=False):
    return ArmSample(arm=arm, round=0, seconds=seconds, work=work, warm_up=warm_up)


def test_arms_are_grouped_by_what_they_do_and_warm_ups_do_not_count():
    lines = (
        sample("ours", 9.0, "small", warm_up=True),
        sample("ours", 1.0, "small"),
        sample("ours", 5.0, "large"),
        sample("theirs", 2.0, "small"),
        sample("ours", 3.0, "small"),
        ArmAbsent(arm="theirs", round=0, why_not="no GPU", work="large"),
    )
    arms = arm_times(Run(benchmark_header(peers=["theirs"]), lines))
    assert [(a.work, a.name, a.seconds, a.is_peer, a.why_not) for a in arms] == [
        ("small", "ours", [1.0, 3.0], False, ""),
        ("small", "theirs", [2.0], True, ""),
        ("large", "ours", [5.0], False, ""),
        ("large", "theirs", [], True, "no GPU"),
    ]


def test_the_table_has_a_row_per_arm_and_says_what_was_not_measured():
    lines = (
        sample("ours", 1.0),
        sample("ours", 3.0),
        ArmAbsent(arm="theirs", round=0, why_not="no GPU"),
    )
    *rows, absent = table(Run(benchmark_header(), lines)).splitlines()
    assert rows[1].split() == ["ours", "2", "1.5-2.5", "2"]
    assert absent == "theirs: not measured: no GPU"

"""A benchmark's arms: the turns of their processes, their record, table and picture."""

import sys
from types import SimpleNamespace

import arms
import figure
from support.drawn import medians, words
from support.factories import benchmark_header

from d2lpar.records import files
from d2lpar.records.arms import arm_times
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run


def program(name, text):
    return arms.Arm(name, [sys.executable, "-S", "-c", text], {}, {}, name == "B")


def says(folder, letter):
    """An arm that notes its turn and prints a warm-up and two samples."""
    text = f"""
import json
with open({str(folder / "turns")!r}, "a") as f:
    f.write({letter!r})
for seconds in (9.0, 1.0, 3.0):
    print(json.dumps({{"seconds": seconds, "steps": 4, "unknown": 1}}))
"""
    return program(letter, text)


def test_arms_take_turns_and_what_cannot_run_says_why(tmp_path):
    refuses = """print('{"error": "step 1: the loss is 2.5"}'); raise SystemExit(2)"""
    timed = [
        says(tmp_path, "A"),
        says(tmp_path, "B"),
        program("C", refuses),
        program("D", "import d2l.no"),
        program("E", "import sys; sys.exit('stopped')"),
        program("F", ""),
    ]
    lines = arms.measure(timed, rounds=3)
    assert (tmp_path / "turns").read_text() == "ABBAAB"
    path = tmp_path / "test.jsonl"
    run = arms.record(path, timed, lines, work="nothing")
    assert files.read(path) == run
    a, b, *others = arm_times(run)
    assert a.seconds == b.seconds == [1.0, 3.0] * 3  # the first of each warms up
    assert (a.is_peer, b.is_peer) == (False, True)
    assert [sample.round for sample in a.samples] == [0, 0, 1, 1, 2, 2]
    c, d, e, f = (arm.why_not for arm in others)
    assert c == "step 1: the loss is 2.5"
    assert d == "d2l is not installed: pip install '.[book]'"
    assert "stopped" in e and f == "printed no times"


def sample(arm, seconds, work="", warm_up=False):
    return ArmSample(arm=arm, round=0, seconds=seconds, work=work, warm_up=warm_up)


def test_arms_are_grouped_by_what_they_do_and_warm_ups_do_not_count():
    """In a table, and in a picture with a panel per work."""
    lines = (
        sample("ours", 9.0, "small", warm_up=True),
        sample("ours", 1.0, "small"),
        sample("ours", 5.0, "large"),
        sample("theirs", 2.5, "small"),
        sample("ours", 3.0, "small"),
        ArmAbsent(arm="theirs", round=0, why_not="no GPU", work="large"),
    )
    run = Run(benchmark_header(peers=["theirs"]), lines)
    found = [(a.work, a.name, a.seconds, a.is_peer, a.why_not) for a in arm_times(run)]
    assert found == [
        ("small", "ours", [1.0, 3.0], False, ""),
        ("small", "theirs", [2.5], True, ""),
        ("large", "ours", [5.0], False, ""),
        ("large", "theirs", [], True, "no GPU"),
    ]
    *rows, absent = arms.table(run).splitlines()
    assert rows[1].split() == ["small", "ours", "2", "1-3", "2"]
    assert absent == "theirs: not measured: no GPU"
    picture = figure.drawn(run)
    assert [medians(axes) for axes in picture.axes] == [[2.0, 2.5], [5.0]]
    assert any("no GPU" in text for text in words(picture))


def test_a_header_says_what_our_arms_had_on_gpus(monkeypatch):
    """The parent's variable said no graphs of arms that ran with them."""
    name = "MXNET_ENABLE_CUDA_GRAPHS"

    def run(arm):
        return [{"cuda_graphs": arm.environment[name] == "1", "driver": "1"}]

    gpus = [SimpleNamespace(name="A GPU")]
    monkeypatch.setattr(arms, "run", run)
    monkeypatch.setattr(arms, "cuda_devices", lambda: gpus)
    with_graphs, without = (
        arms.Arm("ours", "module:work", {}, {name: value}) for value in "10"
    )
    peer = without._replace(is_peer=True)
    fields = arms.gpu_fields([0], [peer, with_graphs])
    assert fields["gpu_build"] == {"cuda_graphs": True, "driver": "1"}
    assert fields["on_gpus"] == ["A GPU"]
    both = arms.gpu_fields([0], [with_graphs, without])
    assert both["gpu_build"] == {"driver": "1"}

"""Rows of precisions as a table and as a picture; no MXNet."""

import msgspec
import pytest
from support.drawn import words
from support.factories import header

from d2lpar.errors import RecordError
from d2lpar.low_precision import figure
from d2lpar.low_precision.result import baseline, merged, result
from d2lpar.records.kinds import PrecisionRecord, Run


def row(precision, weights="trained", **fields):
    return PrecisionRecord(
        precision=precision, weights=weights, per_device_batch_size=200, **fields
    )


def measured(precision, weights="trained", acc=0.8, speed=1e4):
    return row(
        precision, weights, test_acc=acc, agreement=0.98, images_per_sec=speed,
        images_per_sec_q1=0.9 * speed, images_per_sec_q3=1.1 * speed, n=5,
        weight_bytes=516_272,
    )  # fmt: skip


ROWS = [
    measured("float32"),
    row("float16", why_not="MXNet: FP16 gemm not implemented!"),
    measured("int8-none", acc=0.79, speed=2e4),
    measured("int8-none", "stretched", acc=0.55, speed=2e4),
    measured("int8-none", "equalised", speed=2e4),
]


def run_of(rows):
    return Run(header(chapter="low_precision"), tuple(rows))


def test_the_table_has_every_row_and_why_not():
    found = result([run_of(ROWS)])
    lines = str(found.table).splitlines()
    assert lines[1].split()[1:3] == ["float32", "0.8000"]
    assert lines[2].split()[1:3] == ["float16", "-"]
    assert lines[3].split() == [
        *("trained", "int8-none", "0.7900", "0.9800", "20,000", "18,000-22,000"),
        *("2.00?", "516,272"),
    ]
    assert found.further[0].endswith("FP16 gemm not implemented!")


def test_repeats_become_one_row():
    second = msgspec.structs.replace(
        ROWS[0], images_per_sec=3e4, images_per_sec_q1=2e4, images_per_sec_q3=4e4
    )
    (both,) = merged([ROWS[0], second])
    assert (both.images_per_sec, both.n) == (2e4, 10)
    assert (both.images_per_sec_q1, both.images_per_sec_q3) == (9e3, 4e4)
    (refused,) = merged([ROWS[0], row("float32", why_not="crashed")])
    assert not refused.supported and baseline([refused]) is None


def test_a_precision_is_compared_by_the_rule_of_all():
    rows = [
        msgspec.structs.replace(measured(name, speed=speed), repeat=repeat)
        for repeat in range(4)
        for name, speed in (("float32", 100.0), ("bfloat16", 200.0 + repeat))
    ]
    found = result([run_of(rows)])
    assert "2.0 times as fast" in found.sentences[0]
    assert [row[6] for row in found.table.rows] == ["1", "2.01"]


def test_points_lost_stand_against_the_speed_over_float32():
    drawn = figure.pictures([run_of(ROWS)])["cpu1-precision"]
    (axes,) = drawn.axes
    trained, stretched, equalised = axes.lines
    assert list(trained.get_xdata()) == pytest.approx([0, 1])  # points from float32
    assert list(trained.get_ydata()) == pytest.approx([1, 2])
    assert list(stretched.get_xdata()) == pytest.approx([25])
    assert list(equalised.get_xdata()) == pytest.approx([0])
    assert "not supported here: float16" in " ".join(words(drawn))
    assert "int8-none: 2.0\u00d7" in words(drawn)
    assert axes.lines[1].get_label() == "one channel stretched: at most 25.0 points"
    with pytest.raises(RecordError, match="no measured float32"):
        figure.pictures([run_of(ROWS[1:2])])

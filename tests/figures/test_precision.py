"""Rows of precisions as a table and as a picture; no MXNet."""

import dataclasses

import pytest

from d2lpar.errors import RecordError
from d2lpar.figures import precision
from d2lpar.records import precision_table
from d2lpar.records.kinds import Header, PrecisionRecord, Run
from d2lpar.records.precision_table import merged, table

ROWS = [
    PrecisionRecord(
        "float32", "trained", 200, "", 0.8, 1.0, 1e4, 9e3, 1.1e4, 5, 516_272
    ),
    PrecisionRecord("float16", "trained", 200, "MXNet: FP16 gemm not implemented!"),
    PrecisionRecord(
        *("int8-none", "trained", 200, "", 0.79, 0.98, 2e4, 1.9e4, 2.1e4, 5, 204_850),
        {"_contrib_requantize": 9.0, "_sg_mkldnn_conv": 5.0, "amp_cast": 0.001},
    ),
    *(
        PrecisionRecord(
            "int8-none", weights, 200, "", acc, 0.6, 2e4, 1.9e4, 2.1e4, 5, 204_850
        )
        for weights, acc in (("stretched", 0.55), ("equalised", 0.8))
    ),
]


def test_the_table_says_all_of_it():
    text = table(ROWS)
    assert "not supported: MXNet: FP16 gemm not implemented!" in text
    lines = text.splitlines()
    assert [line.split()[1:3] for line in lines[1:3]] == [
        ["float32", "0.8000"],
        ["float16", "-"],
    ]
    assert lines[3].split() == [
        *("trained", "int8-none", "0.7900", "0.9800", "20,000", "19,000-21,000"),
        *("2.00x", "204,850"),
    ]
    assert "int8-none: _contrib_requantize 9.00, _sg_mkldnn_conv 5.00" in text
    assert "amp_cast" not in text
    assert max(map(len, lines)) <= precision_table.WIDTH


def test_repeats_become_one_row():
    second = dataclasses.replace(
        ROWS[0], images_per_sec=3e4, images_per_sec_q1=2e4, images_per_sec_q3=4e4
    )
    (row,) = merged([ROWS[0], second])
    assert (row.images_per_sec, row.n) == (2e4, 10)
    assert (row.images_per_sec_q1, row.images_per_sec_q3) == (9e3, 4e4)
    (row,) = merged([ROWS[0], dataclasses.replace(ROWS[0], why_not="crashes")])
    assert not row.supported


def run_of(rows):
    header = Header(
        chapter="low_precision",
        preset="quick",
        num_devices=1,
        device_kind="cpu",
        devices=["cpu(0)"],
        threads_per_device=1,
        cores=2,
        cpu_model="A CPU",
        dataset="synthetic-fashion",
        dataset_sha256="",
        synthetic=True,
        seed=0,
        settings={"n_train": 500, "n_test": 100, "global_batch_size": 64, "lr": 0.2},
        command="",
        versions={"mxnet": "1.9.1"},
        git_commit=None,
        git_dirty=None,
        date="2024-01-01T00:00:00+00:00",
    )
    return Run(header, tuple(rows))


@pytest.mark.parametrize("rows", [ROWS, ROWS[:2]])
def test_the_picture_and_the_text(rows, tmp_path):
    paths = precision.draw([run_of(rows)], tmp_path, "quick")
    assert [path.name for path in paths] == [
        "quick-synthetic-cpu1-precision.png",
        "quick-synthetic-cpu1-precision.svg",
        *(["quick-synthetic-cpu1-layers.png", "quick-synthetic-cpu1-layers.svg"]
          if len(rows) > 2 else []),
        "quick-results.txt",
    ]  # fmt: skip
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    svg = " ".join(paths[1].read_text().split())
    assert "10,000 images/s in float32" in svg
    assert "float16" in svg  # which is not supported here
    # 0.79 instead of 0.8, 25 points lost with an outlier
    assert ("int8-none is 2 times as fast as float32" in svg) == (len(rows) > 2)
    assert ("int8-none: 25.0" in svg) == (len(rows) > 2)
    text = paths[-1].read_text()
    assert table(rows) in text and "A CPU" in text and "SYNTHETIC" in text


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(RecordError, match="no measured precision"):
        precision.draw([run_of(ROWS[1:2])], tmp_path, "quick")
    assert list(tmp_path.iterdir()) == []

"""compare: ratios of known timings, and every way in which two runs can differ."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from d2lpar.errors import RecordError
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import EpochRecord, Header, Run


def make_run(num_devices=1, seconds=(9.0, 2.0, 1.8, 2.2), repeats=1, **fields):
    """A run whose epochs took `seconds`; the first is the warm-up."""
    header = {
        "chapter": "multiple_gpus",
        "preset": "book",
        "num_devices": num_devices,
        "device_kind": "cpu",
        "devices": [f"cpu({i}) (1 thread of 2 cores)" for i in range(num_devices)],
        "threads_per_device": 1,
        "cores": 2,
        "cpu_model": "Some CPU",
        "dataset": "fashion-mnist",
        "dataset_sha256": "a" * 64,
        "synthetic": False,
        "seed": 0,
        "settings": {"global_batch_size": 256, "lr": 0.2, "n_train": 60_000},
        "command": "d2lpar run multiple_gpus",
        "versions": {"mxnet": "1.9.1", "numpy": "1.26.4"},
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "date": "2026-01-02T03:04:05+00:00",
        **fields,
    }
    epochs = tuple(
        EpochRecord(
            epoch=k,
            seconds=s,
            samples_per_sec=60_000 / s if s else 0.0,
            train_loss=1 / k,
            test_acc=0.2 * k,
            repeat=repeat,
        )
        for repeat in range(repeats)
        for k, s in enumerate(seconds, 1)
    )
    return Run(Header(**header), epochs, Path(f"figures/book-cpu{num_devices}.jsonl"))


ONE = make_run(1)
TWO = make_run(2, seconds=(7.0, 1.25, 1.25, 1.25))


def test_speedup_and_efficiency_of_known_timings():
    c = comparison.compare(ONE, TWO)
    assert (c.a.seconds.median, c.a.seconds.q1, c.a.seconds.q3) == (2.0, 1.9, 2.1)
    assert c.a.seconds.n == c.b.seconds.n == 3  # the warm-ups, 9 and 7 s, are left out
    assert c.speedup == pytest.approx(1.6)
    assert c.spread == pytest.approx((1.9 / 1.25, 2.1 / 1.25))
    assert c.efficiency == pytest.approx(0.8)
    assert c.a.samples_per_sec == pytest.approx(30_000)
    assert c.b.samples_per_sec == pytest.approx(48_000)
    assert c.a.test_acc == c.b.test_acc == pytest.approx(0.8)
    assert c.differences == []


def test_efficiency_is_that_of_the_run_with_more_devices():
    c = comparison.compare(TWO, ONE)
    assert c.speedup == pytest.approx(0.625)
    assert c.efficiency == pytest.approx(0.8)


@pytest.mark.parametrize(
    "other", [make_run(1), make_run(2, device_kind="gpu", devices=["gpu(0)", "gpu(1)"])]
)
def test_no_efficiency_without_a_scaling(other):
    assert comparison.compare(ONE, other).efficiency is None


def test_final_accuracy_is_the_median_of_the_repeats_that_got_there():
    run = make_run(1, repeats=3)
    accuracies = iter((0.7, 0.9, 0.6))
    epochs = [
        replace(e, test_acc=next(accuracies)) if e.epoch == 4 else e for e in run.epochs
    ]
    assert comparison.final_accuracy(replace(run, lines=tuple(epochs))) == 0.7
    assert comparison.final_accuracy(replace(run, lines=tuple(epochs[:-1]))) == 0.8


def test_different_data_is_compared_by_throughput():
    few = make_run(1, seconds=(1.0, 1.0, 1.0, 1.0), dataset_sha256="b" * 64)
    few = replace(
        few, lines=tuple(replace(e, samples_per_sec=15_000) for e in few.epochs)
    )
    c = comparison.compare(ONE, few)  # 60,000 samples in 2 s; 15,000 in 1 s
    assert c.speedup == pytest.approx(0.5)
    assert c.spread == pytest.approx((0.475, 0.525))
    assert c.differences == ["data set hash: aaaaaaaaaaaa and bbbbbbbbbbbb"]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("chapter", "gan", "chapter: multiple_gpus and gan"),
        ("preset", "quick", "preset: book and quick"),
        ("seed", 3, "seed: 0 and 3"),
        ("cpu_model", "Other CPU", "CPU: Some CPU and Other CPU"),
        ("cores", 8, "cores: 2 and 8"),
        ("dataset", "synthetic", "data set: fashion-mnist and synthetic"),
        ("synthetic", True, "synthetic data: no and yes"),
        ("threads_per_device", 2, "threads per device: 1 and 2"),
        (
            "settings",
            {"global_batch_size": 256, "lr": 0.1, "n_train": 60_000},
            "lr: 0.2 and 0.1",
        ),
        (
            "settings",
            {"global_batch_size": 256, "lr": 0.2, "n_train": 60_000, "momentum": None},
            "momentum: not recorded and not set",
        ),
        (
            "versions",
            {"mxnet": "1.9.1", "numpy": "1.22.0"},
            "numpy version: 1.26.4 and 1.22.0",
        ),
        ("extra", {"host": "b"}, "host: not recorded and b"),
    ],
)
def test_what_differs_is_listed_with_both_values(field, value, sentence):
    other = make_run(1, **{field: value})
    assert comparison.compare(ONE, other).differences == [sentence]


@pytest.mark.parametrize(
    "fields",
    [
        {"date": "2027-01-01T00:00:00+00:00"},
        {"command": "d2lpar run all"},
        {"settings": {**ONE.header.settings, "num_devices": 9, "devices": "cpu:9"}},
    ],
)
def test_what_says_nothing_is_not_listed(fields):
    assert comparison.compare(ONE, make_run(1, **fields)).differences == []


def test_the_commit_is_listed_unless_it_is_what_is_compared():
    fields = {"git_commit": "f" * 40, "git_dirty": True}
    assert comparison.compare(ONE, make_run(1, **fields)).differences == []
    assert comparison.compare(ONE, make_run(2, **fields)).differences == [
        "code: commit 0123456 and commit fffffff with local changes"
    ]


def test_gpu_models_are_listed_and_device_numbers_are_not():
    def gpu(name, number):
        fields = {"device_kind": "gpu", "threads_per_device": None}
        return make_run(1, devices=[f"gpu({number}) {name}"], **fields)

    assert (
        comparison.compare(gpu("NVIDIA T4", 0), gpu("NVIDIA T4", 1)).differences == []
    )
    c = comparison.compare(gpu("NVIDIA T4", 0), gpu("NVIDIA A10", 0))
    assert c.differences == ["GPUs: NVIDIA T4 and NVIDIA A10"]
    c = comparison.compare(ONE, gpu("NVIDIA T4", 0))
    assert c.differences == ["device kind: cpu and gpu"]


def test_labels_tell_the_runs_apart():
    c = comparison.compare(ONE, TWO)
    assert c.a.label == "1 device: cpu(0) (1 thread of 2 cores)"
    assert c.b.label == "2 devices: cpu(0)-cpu(1) (1 thread each of 2 cores)"
    c = comparison.compare(ONE, make_run(1, seed=3))
    assert (c.a.label, c.b.label) == ("seed 0", "seed 3")
    c = comparison.compare(ONE, make_run(1, git_commit="f" * 40))
    assert (c.a.label, c.b.label) == ("commit 0123456", "commit fffffff")
    c = comparison.compare(ONE, replace(ONE, path=Path("later.jsonl")))
    assert (c.a.label, c.b.label) == ("book-cpu1.jsonl", "later.jsonl")
    c = comparison.compare(ONE, ONE)
    assert (c.a.label, c.b.label) == ("first", "second")


def test_device_labels():
    gpus = {"device_kind": "gpu", "threads_per_device": None}
    t4s = make_run(2, devices=["gpu(0) NVIDIA T4", "gpu(3) NVIDIA T4"], **gpus)
    assert wording.devices(t4s.header) == "2 devices: gpu(0), gpu(3) NVIDIA T4"
    mixed = make_run(2, devices=["gpu(0) NVIDIA T4", "gpu(1) NVIDIA A10"], **gpus)
    assert wording.devices(mixed.header).endswith(
        "gpu(0)-gpu(1) NVIDIA T4 + NVIDIA A10"
    )
    unset = make_run(1, threads_per_device=None, cores=1)
    assert wording.devices(unset.header) == "1 device: cpu(0) (threads unset of 1 core)"


def test_scaling_against_the_smallest_count():
    four, two = (
        make_run(4, seconds=(9.0, 1.25, 1.25)),
        make_run(2, seconds=(9.0, 2.0, 2.0)),
    )
    base, other = comparison.scaling([four, two])
    assert (base.num_devices, base.speedup, base.spread) == (2, 1.0, (1.0, 1.0))
    assert (other.num_devices, other.ideal) == (4, 2.0)
    assert other.speedup == pytest.approx(1.6)
    assert other.efficiency == pytest.approx(0.8)
    assert other.efficiency_spread == pytest.approx((0.8, 0.8))


def test_a_run_without_usable_epochs_is_named():
    empty = replace(ONE, lines=(), path=Path("figures/killed.jsonl"))
    for pair in ((empty, ONE), (ONE, empty)):
        with pytest.raises(RecordError, match=r"killed\.jsonl.*no epochs"):
            comparison.compare(*pair)
    for seconds in (0.0, float("nan"), float("inf")):
        with pytest.raises(RecordError, match=r"book-cpu1\.jsonl: epoch 1 took"):
            comparison.compare(make_run(1, seconds=(seconds,)), ONE)


def test_table():
    other = make_run(2, seconds=(7.0, 1.25, 1.25, 1.25), threads_per_device=2)
    assert comparison.comparison_table(comparison.compare(ONE, other)) == "\n".join(
        [
            "a  1 device: cpu(0) (1 thread of 2 cores)  [figures/book-cpu1.jsonl]",
            "b  2 devices: cpu(0)-cpu(1) (2 threads each of 2 cores)  "
            "[figures/book-cpu2.jsonl]",
            "",
            "                              a          b",
            "devices                       1          2",
            "sec/epoch, median          2.00       1.25",
            "sec/epoch, quartiles  1.90-2.10  1.25-1.25",
            "epochs timed                  3          3",
            "samples/s, median        30,000     48,000",
            "final test accuracy      0.8000     0.8000",
            "",
            "speedup of b over a  1.60 (1.52-1.68)",
            "parallel efficiency  80%",
            "differences:",
            "  threads per device: 1 and 2",
        ]
    )
    assert comparison.comparison_table(comparison.compare(ONE, ONE)).endswith(
        "speedup of b over a  1.00 (0.90-1.11)\nno other differences"
    )


def test_rows_suit_json_and_csv():
    c = comparison.compare(ONE, make_run(2, seconds=(7.0, 1.25, 1.25), seed=1, cores=4))
    rows = comparison.comparison_rows(c)
    assert [row["run"] for row in rows] == ["a", "b"]
    assert rows[0].keys() == rows[1].keys()
    assert rows[0]["speedup"] == 1.0 and rows[1]["speedup"] == pytest.approx(1.6)
    assert rows[0]["parallel_efficiency"] is None
    assert rows[1]["parallel_efficiency"] == pytest.approx(0.8)
    assert rows[1]["differences"] == "cores: 2 and 4; seed: 0 and 1"
    assert (rows[0]["sec_per_epoch"], rows[0]["n"]) == (2.0, 3)
    assert json.loads(json.dumps(rows)) == rows
    json.dumps(asdict(c))  # nothing in it that JSON cannot hold
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    assert len(list(csv.reader(io.StringIO(text.getvalue())))) == 3

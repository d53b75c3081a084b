"""compare: ratios of known timings, and every way in which two runs can differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed
from support.drawn import medians
from support.factories import gan_epoch, training

from d2lpar.cli import compare as words
from d2lpar.cli.compare import compare
from d2lpar.errors import RecordError
from d2lpar.figures import labels
from d2lpar.lenet.figure import compared
from d2lpar.records import comparison
from d2lpar.records.kinds import FrameRecord

ONE = training(1)
TWO = training(2, seconds=(7.0, 1.25, 1.25, 1.25))


def test_speedup_and_efficiency_of_known_timings():
    c = compare(ONE, TWO)
    assert (c.a.seconds.median, c.a.seconds.q1, c.a.seconds.q3) == (2.0, 1.9, 2.1)
    assert c.a.seconds.n == c.b.seconds.n == 3  # the warm-ups, 9 and 7 s, are left out
    assert c.speedup == pytest.approx(1.6)
    assert c.spread == pytest.approx((1.9 / 1.25, 2.1 / 1.25))
    assert c.efficiency == pytest.approx(0.8)
    assert c.b.samples_per_sec == pytest.approx(48_000)
    assert c.a.test_acc == c.b.test_acc == pytest.approx(0.8)
    assert c.differences == []


def test_efficiency_is_that_of_the_run_with_more_devices_of_the_same_kind():
    c = compare(TWO, ONE)
    assert c.speedup == pytest.approx(0.625)
    assert c.efficiency == pytest.approx(0.8)
    gpus = training(2, device_kind="gpu", devices=["gpu(0)", "gpu(1)"])
    assert compare(ONE, ONE).efficiency is compare(ONE, gpus).efficiency is None


def test_final_accuracy_is_the_median_of_the_repeats_that_got_there():
    run = training(1, repeats=3)
    accuracies = iter((0.7, 0.9, 0.6))
    epochs = [
        changed(e, test_acc=next(accuracies)) if e.epoch == 4 else e for e in run.epochs
    ]
    assert comparison.final_accuracy(replace(run, lines=tuple(epochs))) == 0.7
    assert comparison.final_accuracy(replace(run, lines=tuple(epochs[:-1]))) == 0.8


def test_different_data_is_compared_by_throughput():
    few = training(1, seconds=(1.0, 1.0, 1.0, 1.0), dataset_sha256="b" * 64)
    few = replace(
        few, lines=tuple(changed(e, samples_per_sec=15_000) for e in few.epochs)
    )
    c = compare(ONE, few)  # 60,000 samples in 2 s; 15,000 in 1 s
    assert c.speedup == pytest.approx(0.5)
    assert c.spread == pytest.approx((0.475, 0.525))
    assert c.differences == ["data set hash: aaaaaaaaaaaa and bbbbbbbbbbbb"]


def test_what_differs_is_listed_with_both_values():
    settings = {**ONE.header.settings, "lr": 0.1, "momentum": None}
    other = training(
        1, preset="quick", seed=3, cpu_model="Other CPU", synthetic=True,
        settings=settings, versions={"mxnet": "2.0"},
    )  # fmt: skip
    assert compare(ONE, other).differences == [
        "preset: book and quick",
        "CPU: Some CPU and Other CPU",
        "synthetic data: no and yes",
        "seed: 0 and 3",
        "lr: 0.2 and 0.1",
        "mxnet version: 1.9.1 and 2.0",
        "momentum: not recorded and not set",
    ]


def test_the_commit_is_listed_unless_it_is_what_is_compared():
    fields = {"git_commit": "f" * 40, "git_dirty": True}
    c = compare(ONE, training(1, **fields))
    assert c.differences == [] and c.b.label.startswith("commit fffffff")
    assert compare(ONE, training(2, **fields)).differences == [
        "code: commit 0123456 and commit fffffff with local changes"
    ]


def test_gpu_models_are_listed_and_device_numbers_are_not():
    def gpu(name, number):
        fields = {"device_kind": "gpu", "threads_per_device": None}
        return training(1, devices=[f"gpu({number}) {name}"], **fields)

    assert compare(gpu("NVIDIA T4", 0), gpu("NVIDIA T4", 1)).differences == []
    c = compare(gpu("NVIDIA T4", 0), gpu("NVIDIA A10", 0))
    assert c.differences == ["GPUs: NVIDIA T4 and NVIDIA A10"]


def test_labels_tell_the_runs_apart():
    c = compare(ONE, TWO)
    assert c.a.label == "1 device: cpu(0) (1 thread of 2 cores)"
    assert c.b.label == "2 devices: cpu(0), cpu(1) (1 thread each of 2 cores)"
    c = compare(ONE, training(1, seed=3))
    assert (c.a.label, c.b.label) == ("seed 0", "seed 3")
    c = compare(ONE, ONE)
    assert (c.a.label, c.b.label) == ("first", "second")


def test_device_labels():
    gpus = {"device_kind": "gpu", "threads_per_device": None}
    t4s = training(2, devices=["gpu(0) NVIDIA T4", "gpu(3) NVIDIA T4"], **gpus)
    assert labels.devices(t4s.header) == "2 devices: gpu(0), gpu(3) NVIDIA T4"
    mixed = training(2, devices=["gpu(0) NVIDIA T4", "gpu(1) NVIDIA A10"], **gpus)
    assert labels.devices(mixed.header).endswith(
        "gpu(0), gpu(1) NVIDIA T4 + NVIDIA A10"
    )


def test_a_run_without_usable_epochs_is_named():
    empty = replace(ONE, lines=(), path=Path("figures/killed.jsonl"))
    for pair in ((empty, ONE), (ONE, empty)):
        with pytest.raises(RecordError, match=r"killed\.jsonl.*no epochs"):
            compare(*pair)


def test_the_table_holds_the_numbers_of_both_sides():
    other = training(2, seconds=(7.0, 1.25, 1.25, 1.25), threads_per_device=2)
    text = words.comparison_table(compare(ONE, other))
    rows = {line[:20].strip(): line[20:].split() for line in text.splitlines()}
    assert rows["sec/epoch, median"] == ["2.00", "1.25"]
    assert rows["epochs timed"] == ["3", "3"]
    assert rows["speedup of b over a"] == ["1.60", "(1.52-1.68)"]
    assert rows["parallel efficiency"] == ["80%"]
    assert text.endswith("differences:\n  threads per device: 1 and 2")
    assert words.comparison_table(compare(ONE, ONE)).endswith("no other differences")


def test_both_runs_are_drawn():
    picture = compared(ONE, TWO, compare(ONE, TWO))
    _, seconds = picture.axes
    assert medians(seconds) == [2.0, 1.25]
    assert "1.60" in picture.metadata["Title"]
    measures = {"frechet": 3.0, "density": 1.0, "coverage": 0.5, "distinct": 0.5}
    frame = FrameRecord(epoch=1, fixed="", **measures)
    gan = replace(ONE, lines=(frame, gan_epoch(1), gan_epoch(2)))
    left, _ = compared(gan, gan, compare(gan, gan)).axes
    assert [list(line.get_ydata()) for line in left.lines] == [[3.0]] * 2

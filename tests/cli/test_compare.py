"""compare: ratios of known timings, and what else differs."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed
from support.factories import gan_epoch, training

from d2lpar.cli.compare import compare, in_words
from d2lpar.errors import RecordError
from d2lpar.records import comparison

ONE = training(1)
TWO = training(2, seconds=(7.0, 1.25, 1.25, 1.25))


def test_both_sides_and_the_ratio_of_known_timings():
    found = compare(ONE, TWO)
    seconds = {"median": 2.0, "q1": 1.9, "q3": 2.1, "n": 3}  # without the warm-up
    assert found["a"]["seconds_per_epoch"] == pytest.approx(seconds)
    assert found["b"]["samples_per_sec"] == pytest.approx(48_000)
    assert found["a"]["test_acc"] == found["b"]["test_acc"] == pytest.approx(0.8)
    assert found["speedup"] == pytest.approx(1.6)
    assert found["answer"] == "b is 1.6 times as fast as a"
    assert found["differences"] == {}


def test_there_is_no_ratio_where_it_cannot_be_told():
    few = training(2, seconds=(7.0, 1.25, 1.25))
    for other, answer in ((few, "too few"), (ONE, "quartiles overlap")):
        found = compare(ONE, other)
        assert found["speedup"] is None and answer in found["answer"]


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
    found = compare(ONE, few)  # 60,000 samples in 2 s; 15,000 in 1 s
    assert found["speedup"] == pytest.approx(0.5)
    assert list(found["differences"]) == ["dataset_sha256"]


def test_what_differs_is_listed_with_both_values():
    settings = {**ONE.header.settings, "lr": 0.1, "momentum": None}
    other = training(
        1, preset="quick", cpu_model="Other CPU", settings=settings,
        versions={"mxnet": "2.0"}, git_commit="f" * 40,
    )  # fmt: skip
    found = compare(ONE, other)
    assert found["differences"] == {
        "preset": ["book", "quick"],
        "cpu_model": ["Some CPU", "Other CPU"],
        "git_commit": [ONE.header.git_commit, "f" * 40],
        "lr": [0.2, 0.1],
        "mxnet version": ["1.9.1", "2.0"],
    }
    assert "\n  lr: 0.2 and 0.1\n" in in_words(found)
    assert in_words(compare(ONE, ONE)).endswith("no other differences")


def test_a_run_without_usable_epochs_is_named():
    empty = replace(ONE, lines=(), path=Path("figures/killed.jsonl"))
    for pair in ((empty, ONE), (ONE, empty)):
        with pytest.raises(RecordError, match=r"killed\.jsonl.*no epochs"):
            compare(*pair)


def test_a_gan_is_compared_by_its_faces_and_with_gans_alone():
    gan = replace(ONE, lines=tuple(gan_epoch(k) for k in (1, 2)))
    assert compare(gan, gan)["a"]["frechet"] is None
    assert "last frechet" in in_words(compare(gan, gan))
    with pytest.raises(RecordError, match="only one of them is a GAN"):
        compare(ONE, gan)


def test_the_table_holds_the_numbers_of_both_sides():
    text = in_words(compare(ONE, TWO))
    rows = [line.split() for line in text.splitlines()]
    assert ["s/epoch", "2.00", "1.25"] in rows
    assert ["epochs", "timed", "3", "3"] in rows

"""compare: ratios of known timings, and what else differs."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed
from support.factories import gan_epoch, training

from d2lpar.cli.compare import compare
from d2lpar.errors import RecordError
from d2lpar.records import measurements

ONE = training(1, seconds=(9.0, 2.0, 1.8, 2.2, 2.0))
TWO = training(2, seconds=(7.0, 1.25, 1.25, 1.25, 1.25))


def test_the_table_holds_the_numbers_of_both_sides_and_their_ratio():
    text = compare(ONE, TWO)
    rows = [line.split() for line in text.splitlines()]
    assert ["s/epoch", "2.00", "1.25"] in rows  # without the warm-up
    assert ["epochs", "timed", "4", "4"] in rows
    assert ["samples/s", "30,000", "48,000"] in rows
    assert ["test_acc,", "epoch", "5", "1.0000", "1.0000"] in rows
    said = "In these runs record b took 0.62 times as long as record a "
    said += "(0.0208-0.0208 and\n0.0300-0.0367 s per 1,000 samples); whether"
    assert said in text
    assert text.endswith("no other differences")


def test_two_records_of_one_sweep_are_compared_by_the_rule():
    sweep = {"recipe": "book", "turns": [1, 2], "repeats": 4}
    one, two = training(1, **sweep), training(2, (7.0, 1.0, 0.9, 1.1), **sweep)
    text = compare(one, two)
    assert "Record b is 2.0 times as fast as record a (2.0 to 2.0)." in text


def test_a_warm_up_is_no_measurement():
    text = compare(ONE, training(2, (9.0,), repeats=3))
    rows = [line.split() for line in text.splitlines()]
    assert ["s/epoch", "2.00", "-"] in rows and ["samples/s", "30,000", "-"] in rows
    assert "(one epoch, not timed)" in text


def test_final_accuracy_is_the_median_of_the_repeats_that_got_there():
    run = training(1, repeats=3)
    lines = list(run.lines)
    for k, accuracy in ((3, 0.9), (7, 0.7), (11, 0.6)):
        lines[k] = changed(lines[k], test_acc=accuracy)
    changed_run = replace(run, lines=tuple(lines))
    assert measurements.at_the_end(changed_run) == 0.7
    assert "epoch 4     0.7000     0.8000" in compare(changed_run, run)
    assert measurements.at_the_end(replace(run, lines=tuple(lines[:-1]))) == 0.8


def test_different_data_is_compared_by_throughput_and_what_differs_is_listed():
    settings = {**ONE.header.settings, "lr": 0.1}
    other = {"cpu_model": "Other CPU", "versions": {"mxnet": "2.0"}}
    few = training(1, (1.0,) * 5, settings=settings, **other)
    lines = tuple(changed(e, samples_per_sec=15_000) for e in few.epochs)
    text = compare(ONE, replace(few, lines=lines))  # 60,000 in 2 s; 15,000 in 1 s
    assert "In these runs record b took 2.00 times as long as record a" in text
    assert text.partition("differences:\n")[2].splitlines() == [
        "  cpu_model: Some CPU and Other CPU",
        "  lr: 0.2 and 0.1",
        "  mxnet version: 1.9.1 and 2.0",
    ]


def test_a_run_without_epochs_is_named():
    empty = replace(ONE, lines=(), path=Path("figures/killed.jsonl"))
    for pair in ((empty, ONE), (ONE, empty)):
        with pytest.raises(RecordError, match=r"killed\.jsonl.*no epochs"):
            compare(*pair)


def test_a_gan_is_compared_by_its_faces_and_with_gans_alone():
    gan = replace(ONE, lines=tuple(gan_epoch(k) for k in (1, 2)))
    assert "frechet, epoch 0" in compare(gan, gan)
    with pytest.raises(RecordError, match="only one of them is a GAN"):
        compare(ONE, gan)

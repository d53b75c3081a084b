"""The list of kinds: each can be written and read, drawn, and put into words."""

import dataclasses
from importlib import import_module

import pytest

from d2lpar.records import files, kinds
from d2lpar.records.kinds import (
    KINDS,
    AllReduceRecord,
    EpochRecord,
    FrameRecord,
    GanEpochRecord,
    Header,
    PointRecord,
    PrecisionRecord,
    Run,
    ScaledEpoch,
    StepRecord,
    TimingRecord,
)

VALUES = {
    **{"str": "a", "bool": True, "Settings": {"a": 1}, "dict[str,": {"a": "1"}},
    **dict.fromkeys(("Whole", "Number"), 1),
    **dict.fromkeys(("Real", "Amount", "Positive", "Share"), 0.5),
    **{"Name": "a", "Date": "2024-01-31", "DeviceKind": "cpu", "Weights": "trained"},
    **{"Picture": "iVBORw0KGgo=", "list[str]": ["a"], "list[Whole]": [1]},
}
# What a line needs besides, to contradict nothing in itself.
BESIDES = {
    PrecisionRecord: {"precision": "int8-none", "why_not": "not on this CPU"},
    ScaledEpoch: {"why_not": "diverged"},
}


def some(kind, **values):
    """A line of a kind, its required fields filled in by their types."""
    required = {
        field.name: VALUES.get(field.type.partition(" ")[0], [0.5])
        for field in dataclasses.fields(kind)
        if field.default is field.default_factory is dataclasses.MISSING
    }
    return kind(**{**required, **values})


def summary(*lines):
    return Run(some(Header), lines).summary()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_kind_is_read_as_it_was_written(kind):
    line = some(kind, extra={"more": [1]}, **BESIDES.get(kind, {}))
    assert files.from_line(files.to_line(line)) == line


def test_names_are_distinct():
    assert len({kind.kind for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_kind_has_a_module_that_draws_it_or_accompanies_others(kind):
    if kind.drawn_by:
        assert callable(import_module(f"d2lpar.figures.{kind.drawn_by}").draw)
    else:
        assert Run(some(Header), (some(kind),)).main_kind is None


def test_progress_shows_what_matters():
    epoch = some(EpochRecord, train_loss=0.25, test_acc=0.875, samples_per_sec=6543.2)
    shown = {"loss": "0.250", "acc": "0.875", "samples_per_sec": "6,543"}
    assert epoch.progress() == shown
    step = some(StepRecord, global_batch_size=256, seconds=[0.1, 0.3, 0.2])
    assert step.progress() == {"batch": "256", "step": "200 ms"}
    timing = some(TimingRecord, operation="x2", library="NumPy", form="plain")
    assert timing.progress() == {"x2": "NumPy, plain: 500 ms"}
    assert some(FrameRecord).progress() == {}
    assert not FrameRecord.counts_as_progress and EpochRecord.counts_as_progress


def test_a_training_is_summed_up_by_its_last_epoch_and_its_times():
    seconds = (9.0, 2.0, 4.0)
    epochs = [
        some(EpochRecord, epoch=k, seconds=s, test_acc=k / 4)
        for k, s in enumerate(seconds, 1)
    ]
    assert summary(*epochs) == "test acc: 0.75, 3.00 (2.50-3.50, n=2) sec/epoch"


def test_a_gan_is_summed_up_by_its_quality():
    epoch = some(GanEpochRecord, seconds=2.0)
    assert summary(epoch) == "2.00 (2.00-2.00, n=1) sec/epoch"
    frames = [some(FrameRecord, quality=q) for q in (0.5, 0.25)]
    assert summary(epoch, *frames) == (
        "quality 0.500 to 0.250, 2.00 (2.00-2.00, n=1) sec/epoch"
    )


def test_precisions_are_summed_up_where_they_were_measured():
    def precision(name, speed, **values):
        values = {"weights": "trained", "test_acc": 0.75, **values}
        return some(PrecisionRecord, precision=name, images_per_sec=speed, **values)

    lines = (
        precision("float32", 1_000.0),
        precision("float32", 3_000.0, repeat=1),
        precision("float32", 9.0, weights="stretched"),
        precision("float16", None, why_not="this CPU has no float16"),
        some(EpochRecord),
    )
    assert summary(*lines) == "float32 0.750, 2,000 images/s"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([AllReduceRecord, ScaledEpoch, StepRecord], StepRecord),
        ([EpochRecord, PrecisionRecord], PrecisionRecord),
        ([FrameRecord, GanEpochRecord], GanEpochRecord),
        ([PointRecord], PointRecord),
        ([FrameRecord], None),
        ([], None),
    ],
)
def test_the_main_kind_is_the_first_in_the_list(lines, kind):
    assert Run(some(Header), tuple(map(some, lines))).main_kind is kind


def test_a_record_without_results_has_no_summary():
    assert summary() == summary(some(FrameRecord)) == ""


def test_a_step_may_take_no_measurable_time_without_python():
    """As on many small devices, where the difference of two times is noise."""
    step = kinds.StepRecord(
        global_batch_size=8,
        steps=1,
        seconds=[0.1],
        issue_seconds=[0.1],
        parts=dict.fromkeys(kinds.PARTS, 0.0),
        without_overlap=[0.1],
        without_python=[0.0],
    )
    assert files.from_line(files.to_line(step)) == step

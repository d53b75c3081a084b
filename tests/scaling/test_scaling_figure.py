"""Scaling records as studies, as text and as pictures."""

import math

import factories
import msgspec
import pytest

from d2lpar.records.kinds import PARTS, AllReduceRecord, Run, ScaledEpoch, StepRecord
from d2lpar.scaling import figure
from d2lpar.scaling.model import studies


def header(n, variant="concise", implementation="concise"):
    settings = {"implementation": implementation}
    return factories.header(n, chapter="scaling", variant=variant, settings=settings)


def step(batch, n, seconds, parts=None):
    return StepRecord(
        global_batch_size=batch, steps=4, seconds=seconds, issue_seconds=[5e-3],
        parts=parts or {}, num_devices=n,
    )  # fmt: skip


def all_reduce(variant, arrays, num_bytes, **others):
    return AllReduceRecord(
        variant=variant, num_arrays=arrays, num_bytes=num_bytes, num_devices=2, **others
    )


def epoch(n, number, **others):
    return ScaledEpoch(
        global_batch_size=64 * n, epoch=number, lr=0.1, num_devices=n, **others
    )


BATCHES = (2, 4, 8, 16, 32, 128)


@pytest.fixture
def run():
    """On each device 2 ms + 0.3 ms a sample + an all-reduce of 1 ms; Python needs 5 ms.

    Two cores are shared by two devices and Python.
    """
    lines = []
    for n in (1, 2):
        for batch in BATCHES:
            device = 2e-3 + 3e-4 * batch / n + 1e-3 * (n - 1)
            seconds = max(n * 5e-3, device, n * (5e-3 + device) / 2)
            parts = dict.fromkeys(PARTS, 1e-3) if batch == 32 else {}
            lines.append(step(batch, n, [seconds] * 3, parts=parts))
        for e in (1, 2):
            measured = {"seconds": 2.0 / n, "train_loss": 1.0, "test_acc": 0.4 * e}
            lines.append(epoch(n, e, **measured))
    for arrays, num_bytes in ((1, 4096), (1, 2**20), (1, 100_000), (8, 100_000)):
        seconds = [arrays * 1e-4 + num_bytes * 2e-9]
        for variant in ("kvstore local", "book"):
            lines.append(all_reduce(variant, arrays, num_bytes, seconds=seconds))
    lines.append(all_reduce("kvstore nccl", 1, 4096, why_not="compile with NCCL"))
    return Run(header(2), tuple(lines))


def apart(run):
    """The same measured by one run per device count."""
    runs = []
    for n in (1, 2):
        lines = (x for x in run.lines if x.num_devices == n)
        alone = (msgspec.structs.replace(x, num_devices=0) for x in lines)
        runs.append(Run(header(n), tuple(alone)))
    return runs


def test_the_model_is_recovered(run):
    (study,) = studies([run])
    assert study.counts == [1, 2] and study.batches == list(BATCHES)
    expected = {"issue": 5e-3, "fixed": 2e-3, "per_sample": 3e-4, "exchange": 1e-3}
    expected["cores"] = 2
    assert vars(study.model) == pytest.approx(expected)
    for n in (1, 2):
        assert study.errors_of(n) == pytest.approx(dict.fromkeys(BATCHES, 0), abs=1e-9)
    # 10 ms of Python for two; 5 + 3 + 0.15 B of the cores against 2 + 0.3 B: 40
    assert study.model.break_even(2) == pytest.approx(40)
    assert study.speedups_of(2)[128] == pytest.approx(40.4 / 27.2)
    assert 32 < study.break_even(2) < 128


def test_a_prediction_that_fails_is_reported(run):
    """Steps on two that take half as long again as the model says."""
    lines = [
        msgspec.structs.replace(x, seconds=[1.5 * s for s in x.seconds])
        if isinstance(x, StepRecord) and x.num_devices == 2 and x.global_batch_size < 32
        else x
        for x in run.lines
    ]
    slower = Run(run.header, tuple(lines))
    (study,) = studies([slower])
    assert study.errors_of(2)[2] == pytest.approx(1 / 1.5 - 1)
    missed = "33 % (median), 33 % at most"
    _, below = figure.pictures([slower])["steps-concise"].axes
    assert below.lines[1].get_ydata()[0] == pytest.approx(-100 / 3)
    text = " ".join(figure.results([slower]).split())
    assert f"It misses 2 contexts (predicted) by {missed}." in text


def test_gpus_leave_the_cores_to_python(run):
    head = msgspec.structs.replace(header(2), device_kind="gpu")
    lines = [
        msgspec.structs.replace(x, variant="kvstore device")
        if isinstance(x, AllReduceRecord) and x.variant == "kvstore local"
        else x
        for x in run.lines
    ]
    (study,) = studies([Run(head, tuple(lines))])
    assert math.isinf(study.model.cores)
    assert study.model.exchange == pytest.approx(1e-3)
    assert "cores" not in figure.formula(study)


def test_from_scratch_reduces_one_array(run):
    head = header(2, "scratch", "from scratch")
    (study,) = studies([Run(head, run.lines)])
    assert (study.name, study.variant) == ("from scratch", "scratch")
    assert study.model.exchange == pytest.approx(1e-4 + 100_000 * 2e-9)


def test_several_devices_without_an_all_reduce_have_no_model(run):
    steps = run.of(StepRecord)
    (study,) = studies([Run(header(2, "ddp"), steps)])
    assert study.model is None
    alone = tuple(line for line in steps if line.num_devices == 1)
    (study,) = studies([Run(header(1), alone)])
    assert study.model.fixed == pytest.approx(2e-3)
    untold = tuple(msgspec.structs.replace(x, issue_seconds=[]) for x in alone)
    (study,) = studies([Run(header(1), untold)])
    assert study.model is None


def test_one_run_on_several_counts_is_read_like_several_runs(run):
    (one,), (several,) = studies([run]), studies(apart(run))
    assert one.steps == several.steps and one.model == several.model
    assert sorted(figure.results([run])) == sorted(figure.results(apart(run)))


def test_a_speedup_is_of_neighbouring_samples():
    """While the machine is half as fast both are, and their ratio stays."""
    one = step(8, 1, [4.0, 8.0, 8.0, 4.2, 4.1])
    two = step(8, 2, [2.0, 4.0, 4.0, 4.0, 2.1])
    run = Run(header(2), (one, two))
    (study,) = studies([run])
    assert study.speedups_of(2) == {8: pytest.approx(2, rel=0.03)}
    (study,) = studies(apart(run))
    assert study.speedups_of(2) == {8: pytest.approx(4.2 / 4.0)}


def test_pictures_and_text(run, tmp_path):
    names = {"speedup", "steps-concise", "parts", "all-reduce", "accuracy-concise"}
    assert set(figure.pictures([run])) == names
    text = [" ".join(line.split()) for line in figure.results([run]).splitlines()]
    # 5 + 2 + 19.2 + 1 ms on two, 40.4 on one
    said = "27.2 27.2-27.2, n=3 speedup 1.49, model 27.2 (+0 %)"
    assert f"concise: step, batch 128 2 {said}" in text
    assert "concise: epoch 2, batch 128, lr 0.1 2 1,000 test accuracy 0.8000" in text
    assert "all-reduce: book, 8 arrays, 100,000 B 2 1.00" in text
    maps = Run(run.header, tuple(x for x in run.of(StepRecord) if not x.parts))
    drawn = {path.name for path in figure.draw([maps], tmp_path, "quick")}
    assert {"quick-speedup.png", "quick-results.txt"} <= drawn


def test_speedups_are_drawn_with_every_pair(run):
    (axes,) = figure.pictures([run])["speedup"].axes
    *pairs, medians, one = axes.lines
    (study,) = studies([run])
    assert list(medians.get_ydata()) == list(study.speedups_of(2).values())
    assert list(medians.get_xdata()) == list(BATCHES)
    assert [len(dots.get_xdata()) for dots in pairs] == [3] * len(BATCHES)
    assert set(one.get_ydata()) == {1}


def test_an_update_is_not_told_from_its_all_reduce(run):
    (axes,) = figure.pictures([run])["parts"].axes
    widths = [bars[1].get_width() for bars in axes.containers]  # of two contexts
    assert widths == pytest.approx([1, 1, 1, 2])


def test_an_all_reduce_is_drawn_in_bytes_per_second_of_the_bus(run):
    (axes,) = figure.pictures([run])["all-reduce"].axes
    whole = [c.lines[0] for c in axes.containers if len(c.lines[0].get_xdata()) > 1]
    assert [list(line.get_xdata()) for line in whole] == [[4096, 100_000, 2**20]] * 2
    assert whole[0].get_ydata()[0] == pytest.approx(4096 / (1e-4 + 4096 * 2e-9) / 1e9)
    hollow = [c for c in axes.containers if len(c.lines[0].get_xdata()) == 1]
    assert len(hollow) == 2  # of eight arrays


def test_one_device_alone_whose_training_diverged(run):
    lines = [line for line in run.lines if line.num_devices == 1]
    lines.append(epoch(1, 3, why_not="diverged"))
    run = Run(header(1), tuple(lines))
    assert set(figure.pictures([run])) == {"steps-concise", "parts", "accuracy-concise"}
    assert "diverged" in figure.results([run])

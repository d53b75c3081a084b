"""Steps taken apart, variants of all-reduce, and a study's lines and pictures."""

import dataclasses

import numpy
import pytest
from PIL import Image

from d2lpar import datasets, devices, lenet, lenet_concise, networks
from d2lpar._mxnet import mx, np
from d2lpar.errors import RecordError, SettingError
from d2lpar.figures import scaling as figures_scaling
from d2lpar.parallel import get_params, train_batch
from d2lpar.records import files, kinds, scaling_table
from d2lpar.records.kinds import PARTS, AllReduceRecord, ScaledEpoch, StepRecord
from d2lpar.studies import allreduce_variants, scaling, step_parts

DATA = datasets.load("synthetic", n_train=64, n_test=20)


def batch(size=13):
    X = datasets.to_float(DATA.X_train[:size])
    return np.array(X), np.array(DATA.y_train[:size], dtype="uint8")


@pytest.mark.parametrize("finish_backward", (False, True))
@pytest.mark.parametrize("n", (1, 2, 3))
def test_a_step_taken_apart_is_a_step_from_scratch(n, finish_backward):
    chosen, params = devices.parse(f"cpu:{n}"), networks.init_lenet(0.1)
    replicas = [get_params(params, device) for device in chosen]
    apart = step_parts.from_scratch(chosen, params, lr=0.1)
    for _ in range(2):
        train_batch(*batch(), replicas, chosen, lr=0.1)
        apart(*batch(), finish_backward=finish_backward)
    for mine, theirs in zip(apart.replicas, replicas):
        for p, q in zip(mine, theirs):
            assert (p.asnumpy() == q.asnumpy()).all()


@pytest.mark.parametrize("n", (1, 2, 3))
def test_a_step_taken_apart_is_a_step_of_gluon(n):
    chosen, params = devices.parse(f"cpu:{n}"), networks.init_lenet(0.1)
    net, trainer, loss = lenet_concise.build(params, chosen, 0.1)
    apart = step_parts.concise(chosen, params, lr=0.1)
    for _ in range(2):
        lenet_concise.train_batch(*batch(), net, chosen, trainer, loss=loss)
        apart(*batch())
    whole = [p.list_data() for p in net.collect_params().values()]
    for p, q in zip(zip(*apart.replicas), whole):
        for mine, theirs in zip(p, q):
            assert (mine.asnumpy() == theirs.asnumpy()).all()


@pytest.mark.parametrize("make", scaling.STEP.values())
def test_a_step_ends_after_the_named_part(make):
    step = make(devices.parse("cpu:2"), networks.init_lenet(0.1), 0.1)
    before = [p.asnumpy() for p in step.replicas[0]]
    for part in PARTS[:-1]:
        step(*batch(), upto=part)
    assert all((p.asnumpy() == q).all() for p, q in zip(step.replicas[0], before))
    grads = [[p.grad.asnumpy() for p in replica] for replica in step.replicas]
    for mine, other in zip(*grads):
        assert (mine == other).all()  # the last one ended with the all-reduce
        assert numpy.abs(mine).max() > 0


@pytest.mark.parametrize("shapes", ([(5,)], [(1,)], [(20, 3), (7,), (2, 2, 2)]))
@pytest.mark.parametrize("n", (2, 3, 4, 5, 8))
@pytest.mark.parametrize("name", allreduce_variants.VARIANTS)
def test_every_variant_sums(name, n, shapes):
    if name == "kvstore nccl":
        with pytest.raises(mx.base.MXNetError, match="NCCL"):
            allreduce_variants.VARIANTS[name]()
        return
    rng = numpy.random.default_rng(0)
    host = [
        [rng.integers(0, 99, s).astype("float32") for s in shapes] for _ in range(n)
    ]
    data = [
        [np.array(a, ctx=mx.cpu(k)) for a in arrays] for k, arrays in enumerate(host)
    ]
    allreduce_variants.VARIANTS[name]()(data)
    for position in range(len(shapes)):
        total = numpy.sum([arrays[position] for arrays in host], axis=0)
        for k in range(n):
            assert data[k][position].ctx == mx.cpu(k)
            assert (data[k][position].asnumpy() == total).all()


def test_variants_are_measured_or_say_why_not():
    records = list(
        allreduce_variants.measure(devices.parse("cpu:2"), (4096,), repeats=2)
    )
    sizes = {(r.num_arrays, r.num_bytes) for r in records}
    assert sizes == {(1, 4096), (1, 516_272), (8, 516_272)}
    for record in records:
        if record.variant == "kvstore nccl":
            assert "NCCL" in record.why_not and record.seconds == []
        else:
            assert len(record.seconds) == 2 and min(record.seconds) > 0


def study(n, **settings):
    common = {"samples": 2, "seconds": 0.01, "turns": 2, "parts_at": (8,)}
    common |= {"batch_sizes": (2, 8)}
    return list(scaling.train(devices=f"cpu:{n}", data=DATA, **{**common, **settings}))


@pytest.mark.parametrize("implementation", scaling.TRAIN)
def test_the_lines_of_a_study(implementation):
    lines = study(
        2,
        implementation=implementation,
        all_reduce_sizes=(4096,),
        per_device_batch_sizes=(8,),
        num_epochs=2,
        base_batch=8,
        warmup=1,
    )
    steps = [line for line in lines if isinstance(line, StepRecord)]
    assert [(s.global_batch_size, s.num_devices) for s in steps] == [(2, 2), (8, 2)]
    assert steps[0].parts == {}
    assert tuple(steps[1].parts) == PARTS
    assert min(steps[1].parts.values()) >= 0
    for s in steps:
        assert len(s.seconds) == len(s.issue_seconds) == 2
        assert all(0 < i <= t for i, t in zip(s.issue_seconds, s.seconds))
    assert len(steps[1].without_overlap) == len(steps[1].without_python) == 2
    epochs = [line for line in lines if isinstance(line, ScaledEpoch)]
    assert [(e.global_batch_size, e.epoch, e.lr) for e in epochs] == [
        (16, 1, 0.2), (16, 2, 0.4),
    ]  # fmt: skip
    assert any(isinstance(line, AllReduceRecord) for line in lines)
    assert [files.from_line(files.to_line(line)) for line in lines] == lines


def test_device_counts_take_turns(monkeypatch):
    """Drift must not pass for a speedup: samples on one and on two are neighbours."""
    sampled, sample = [], step_parts.sample

    def noting(step, batches, steps, *args, **kwargs):
        if steps == 7:  # not a warm-up, nor a search for how many
            sampled.append(len(step.devices))
        return sample(step, batches, steps, *args, **kwargs)

    monkeypatch.setattr(step_parts, "sample", noting)
    monkeypatch.setattr(step_parts, "steps_per_sample", lambda *_: 7)
    lines = study(
        2,
        device_counts=(1, 2),
        samples=3,
        parts_at=(),
        all_reduce_sizes=(4096,),
        per_device_batch_sizes=(8,),
        num_epochs=1,
    )
    assert sampled == [1, 2] * 6  # three passes over two batches
    assert all(files.from_line(files.to_line(line)) == line for line in lines)
    steps = [line for line in lines if isinstance(line, StepRecord)]
    assert [(s.global_batch_size, s.num_devices, len(s.seconds)) for s in steps] == [
        (2, 1, 3), (2, 2, 3), (8, 1, 3), (8, 2, 3),
    ]  # fmt: skip
    reduces = [line for line in lines if isinstance(line, AllReduceRecord)]
    assert {r.num_devices for r in reduces} == {2}
    epochs = [line for line in lines if isinstance(line, ScaledEpoch)]
    assert [(e.num_devices, e.global_batch_size) for e in epochs] == [(1, 8), (2, 16)]


def test_more_devices_than_there_are_are_refused():
    with pytest.raises(SettingError, match="device-counts 3"):
        study(2, device_counts=(1, 3))


def test_parts_are_differences_within_a_turn():
    """A machine half as fast in some turns does not make a part of the difference."""
    ends = dict(zip(PARTS, (1.0, 4.0, 8.0, 8.5, 9.0)))
    slow = {name: 2 * end for name, end in ends.items()}
    disturbed = dict(zip(PARTS, (1.0, 4.0, 50.0, 60.0, 99.0)))
    assert step_parts.parts([ends]) == dict(zip(PARTS, (1.0, 3.0, 4.0, 0.5, 0.5)))
    found = step_parts.parts([ends, slow, ends, slow, ends, slow, slow, disturbed])
    assert sum(found.values()) == pytest.approx((9 + 18 * 3) / 4)
    assert found["all-reduce"] / found["forward"] == pytest.approx(0.5 / 3)
    below_noise = dict(zip(PARTS, (1.0, 4.0, 8.0, 7.9, 8.1)))
    found = step_parts.parts([below_noise])
    assert found["all-reduce"] == 0 and sum(found.values()) == pytest.approx(8.1)


@pytest.mark.parametrize("n", (1, 2))
def test_one_device_has_no_all_reduce_to_time(n, monkeypatch):
    step = step_parts.from_scratch(
        devices.parse(f"cpu:{n}"), networks.init_lenet(0.1), 0.1
    )
    timed = []

    def sample(step, batches, steps, upto):
        timed.append(upto)
        return step_parts.Seconds(len(timed), 0.0)

    monkeypatch.setattr(step_parts, "sample", sample)
    turn = step_parts.turn(step, iter([]), 1)
    assert tuple(turn) == PARTS
    assert ("all-reduce" in timed) == (n > 1)
    assert (step_parts.parts([turn])["all-reduce"] == 0) == (n == 1)


@pytest.mark.parametrize(
    ("implementation", "train"),
    [("concise", lenet_concise.train), ("from scratch", lenet.train)],
)
def test_weak_scaling_trains_what_the_workload_trains(implementation, train):
    """Its steps to warm up change nothing; the short last batch is trained on, too."""
    records = study(
        1, implementation=implementation, batch_sizes=(), parts_at=(),
        per_device_batch_sizes=(24,), num_epochs=2, base_batch=24,
    )  # fmt: skip
    epochs = train(
        1, devices="cpu:1", data=DATA, global_batch_size=24, lr=0.2, num_epochs=2
    )
    for record, epoch in zip(records, epochs):
        assert record.test_acc == epoch.test_acc
        assert record.train_loss == pytest.approx(epoch.train_loss, rel=1e-6)
    assert len(records) == 2


def test_weak_scaling_builds_a_network_once_per_batch(monkeypatch):
    built, build = [], lenet_concise.build
    monkeypatch.setattr(lenet_concise, "build", lambda *a: built.append(a) or build(*a))
    study(2, batch_sizes=(), parts_at=(), per_device_batch_sizes=(8, 16), num_epochs=3)
    assert len(built) == 2


def test_samples_last_as_long_as_they_are_asked_to(monkeypatch):
    """Also those of steps of a millisecond, of which more than 16 are needed."""
    millisecond = step_parts.Seconds(1e-3, 1e-4)
    monkeypatch.setattr(step_parts, "sample", lambda *_: millisecond)
    assert step_parts.steps_per_sample(None, None, 0.3) == 300


@pytest.mark.parametrize("upto", ["split and copy", "update"])
def test_python_waits_for_steps_that_are_too_far_behind(upto):
    waited = []

    class Result:
        def __init__(self, number):
            self.number = number

        def wait_to_read(self):
            waited.append(self.number)

    def step(number, y, upto, finish_backward):
        result = [None, Result(number)]
        return ([], result) if upto == "split and copy" else result

    batches = ((number, None) for number in range(100))
    seconds = step_parts.sample(step, batches, 20, upto)
    assert waited == [0, 1, 2, 3]  # 16 are in flight
    assert 0 < seconds.issue and 0 < seconds.step


def test_a_delayed_step_stays_finite_and_holds_the_batches_back(monkeypatch):
    """A product of many matrices must not overflow: 0 times infinity is no 0."""
    chosen = devices.parse("cpu:2")
    step = step_parts.from_scratch(chosen, networks.init_lenet(0.1), 0.1)
    X, y = batch(16)
    order, held = np.arange(16, dtype="int32"), []

    def batches():
        while True:
            held.append(order.copy())
            yield X.take(order, axis=0), y

    seconds, run = 1e-3, step_parts._seconds
    monkeypatch.setattr(
        step_parts, "sample", lambda *_: step_parts.Seconds(seconds, seconds)
    )
    monkeypatch.setattr(step_parts, "_seconds", lambda work: run(work) and 2e-4)
    assert step_parts.without_python(step, batches(), order, 2) > 0  # 20 products
    for replica in step.replicas:
        assert all(numpy.isfinite(p.asnumpy()).all() for p in replica)
    assert len(held) == 2
    assert all((mine.asnumpy() == numpy.arange(16)).all() for mine in held)


def test_a_diverged_training_says_so_and_ends():
    lines = study(
        1, batch_sizes=(), parts_at=(), per_device_batch_sizes=(8,), num_epochs=5,
        base_lr=1e4, base_batch=8,
    )  # fmt: skip
    assert "diverged" in lines[-1].why_not
    assert len(lines) < 5


def test_settings_out_of_range_are_refused():
    with pytest.raises(SettingError, match="65"):
        study(1, batch_sizes=(65,))
    with pytest.raises(SettingError, match="gluon"):
        study(1, implementation="gluon")


def header(n):
    return kinds.Header(
        chapter="scaling", preset="quick", num_devices=n, device_kind="cpu",
        devices=[f"cpu({k}) (1 thread of 2 cores)" for k in range(n)],
        threads_per_device=1, cores=2, cpu_model="A CPU", dataset="synthetic-fashion",
        dataset_sha256="0" * 64, synthetic=True, seed=0, settings={"n_train": 64},
        command="d2lpar run scaling", versions={"mxnet": "1.9.1"}, git_commit=None,
        git_dirty=None, date="2026-11-21T00:00:00+00:00", variant="concise",
    )  # fmt: skip


@pytest.fixture
def runs():
    """Steps of N x 2 ms + 0.3 ms a sample of the shard + 1 ms of all-reduce on two."""
    made = []
    for n in (1, 2):
        steps = tuple(
            StepRecord(
                b, 4, [2e-3 * n + 3e-4 * b / n + 1e-3 * (n - 1)] * 3, [1e-3] * 3,
                dict.fromkeys(PARTS, 1e-3) if b == 32 else {},
                [0.01] if b == 32 else [], [0.008] if b == 32 else [],
            )
            for b in (2, 4, 8, 32, 128)
        )  # fmt: skip
        reduces = tuple(
            AllReduceRecord(
                "kvstore local", arrays, size, [arrays * 1e-4 + size * 2e-9]
            )
            for arrays, size in ((1, 4096), (1, 2**20), (8, 100_000))
        ) + (AllReduceRecord("kvstore nccl", 1, 4096, why_not="compile with NCCL"),)
        epochs = tuple(
            ScaledEpoch(64 * n, e, 0.1, 2.0 / n, 1.0, 0.4 * e) for e in (1, 2)
        )
        made.append(kinds.Run(header(n), (*steps, *(reduces * (n > 1)), *epochs)))
    return made


def test_the_model_is_recovered_and_predicts_unseen_steps(runs):
    (measured,) = scaling_table.studies(runs)
    assert measured.counts == [1, 2] and measured.predicted == [4, 8, 16]
    for model in (measured.model, measured.held_out):
        assert model.fixed == pytest.approx(2e-3)
        assert model.per_sample == pytest.approx(3e-4)
        assert model.all_reduce_seconds(2) == pytest.approx(1e-3)
    # (2, B) is as fast as (1, B) where 0.15 ms x B are the 2 + 1 ms more
    assert measured.model.break_even(2) == pytest.approx(3 / 0.15)
    assert measured.speedups_of(2)[128] == pytest.approx(40.4 / 24.2)


def test_one_run_on_several_counts_is_read_like_several_runs(runs, tmp_path):
    lines = [
        dataclasses.replace(line, num_devices=run.header.num_devices)
        for run in runs
        for line in run.lines
    ]
    together = [kinds.Run(runs[1].header, tuple(lines))]
    (one,), (several,) = map(scaling_table.studies, (together, runs))
    assert one.steps == several.steps and one.model == several.model
    text = scaling_table.results(together).partition("Hardware:")[0]
    assert text == scaling_table.results(runs).partition("Hardware:")[0]
    assert figures_scaling.draw(together, tmp_path, "quick")


def test_a_speedup_is_of_neighbouring_samples(runs):
    """While the machine is half as fast both are, and their ratio stays."""

    def steps(num_devices, seconds):
        return StepRecord(8, 1, seconds, [], num_devices=num_devices)

    one, two = steps(1, [4.0, 8.0, 8.0, 4.2, 4.1]), steps(2, [2.0, 4.0, 4.0, 4.0, 2.1])
    (study,) = scaling_table.studies([kinds.Run(runs[1].header, (one, two))])
    assert study.speedups_of(2) == {8: pytest.approx(2, rel=0.03)}
    apart = [
        kinds.Run(run.header, (dataclasses.replace(line, num_devices=0),))
        for run, line in zip(runs, (one, two))
    ]
    (study,) = scaling_table.studies(apart)
    assert study.speedups_of(2) == {8: pytest.approx(4.2 / 4.0)}


def test_a_line_on_more_devices_than_its_run_is_refused(runs, tmp_path):
    line = dataclasses.replace(runs[0].lines[0], num_devices=2)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(files.to_line(x) + "\n" for x in (runs[0].header, line)))
    with pytest.raises(RecordError, match="num_devices 2 in a run on 1"):
        files.read(path)


def test_a_model_that_misses_two_devices_predicts_no_more(runs, tmp_path):
    one, two = runs
    slow = [
        dataclasses.replace(line, seconds=[2 * s for s in line.seconds])
        if isinstance(line, StepRecord)
        else line
        for line in two.lines
    ]
    runs = [one, dataclasses.replace(two, lines=tuple(slow))]
    (measured,) = scaling_table.studies(runs)
    assert measured.missed_by == pytest.approx(0.5)
    assert measured.predicted == []
    drawn = figures_scaling.draw(runs, tmp_path, "quick")
    title = Image.open(next(p for p in drawn if p.name == "quick-steps-concise.png"))
    assert title.info["Title"] == (
        "Fitted to 1 context, the model misses the steps of 2 by 50% (median)"
    )


def test_from_scratch_reduces_one_array(runs):
    named = [
        dataclasses.replace(
            run,
            header=dataclasses.replace(run.header, variant="scratch"),
            lines=tuple(
                dataclasses.replace(line, variant="book")
                if isinstance(line, AllReduceRecord) and not line.why_not
                else line
                for line in run.lines
            ),
        )
        for run in runs
    ]
    (measured,) = scaling_table.studies(named)
    assert measured.model.all_reduce_seconds(2) == pytest.approx(1e-4 + 100_000 * 2e-9)


def test_the_table_has_every_section(runs):
    text = scaling_table.results(runs)
    for words in ("2 devices pay from a batch of", "PREDICTED", "0.0% at worst",
                  "compile with NCCL", "no overlap", "seconds to 0.75"):  # fmt: skip
        assert words in text


def test_the_pictures_are_drawn(runs, tmp_path):
    drawn = figures_scaling.draw(runs, tmp_path, "quick")
    names = {path.name for path in drawn if path.suffix == ".png"}
    assert names == {
        f"quick-{name}.png"
        for name in ("map-concise", "steps-concise", "parts", "all-reduce",
                     "accuracy-concise")
    }  # fmt: skip
    assert all(path.stat().st_size > 0 for path in drawn)


def test_one_device_alone_has_no_map(runs, tmp_path):
    drawn = figures_scaling.draw(runs[:1], tmp_path, "quick")
    assert not any("map" in path.name for path in drawn)


def test_a_run_whose_training_diverged_is_drawn(runs, tmp_path):
    died = ScaledEpoch(64, 2, 0.1, 1.0, why_not="training diverged")
    lines = (*runs[0].of(StepRecord), runs[0].of(ScaledEpoch)[0], died)
    run = dataclasses.replace(runs[0], lines=lines)
    assert figures_scaling.draw([run, runs[1]], tmp_path, "quick")
    assert "diverged" in scaling_table.results([run, runs[1]])

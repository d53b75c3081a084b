"""Steps taken apart, variants of all-reduce, and the lines of a study."""

import numpy
import pytest

from d2lpar import buckets, datasets, devices, lenet
from d2lpar._mxnet import mx, np
from d2lpar.epochs import on_device
from d2lpar.errors import SettingError
from d2lpar.lenet import concise as lenet_concise
from d2lpar.lenet import network
from d2lpar.on_gpus import BucketTrainer
from d2lpar.padding import unpadded
from d2lpar.records import files
from d2lpar.records.kinds import PARTS, AllReduceRecord, StepRecord
from d2lpar.scaling import allreduce, measure, step

rng = numpy.random.default_rng(0)
DATA = datasets.ImageData(
    rng.integers(0, 256, (64, 28, 28), dtype="uint8"),
    rng.integers(0, 10, 64, dtype="uint8"),
    rng.integers(0, 256, (20, 28, 28), dtype="uint8"),
    rng.integers(0, 10, 20, dtype="uint8"),
    name="noise",
)


def new_training(make, num_devices, params=None, lr=0.1):
    """A training of the study on DATA, and orders of its rows on the devices."""
    chosen = devices.parse(f"cpu:{num_devices}")
    train_set = DATA.X_train, DATA.y_train
    copies = [on_device(train_set, device) for device in chosen]
    params = lenet.init_lenet() if params is None else params
    rng = numpy.random.default_rng([0, 1])  # the first epoch's with seed 0
    order = rng.permutation(64).astype("int32")
    orders = [np.array(order, dtype="int32", ctx=device) for device in chosen]
    return make(params, chosen, 24 // num_devices, copies, lr), orders


def params_of(training):
    """The parameters as host arrays."""
    if isinstance(training, step.FromScratch):
        return unpadded(training.replicas[0])
    return network.get_host_params(training.net)


def replicas_of(training):
    if isinstance(training, step.FromScratch):
        return training.replicas
    return list(zip(*(p.list_data() for p in training.net.collect_params().values())))


@pytest.mark.parametrize("n", (1, 20))
@pytest.mark.parametrize(
    ("make", "train"),
    [(step.Concise, lenet_concise.train), (step.FromScratch, lenet.train)],
)
def test_the_studys_steps_leave_the_trainings_parameters(make, train, n):
    """To the bit, after an epoch whose last batch is short and leaves devices idle."""
    state = lenet.start(seed=0, scale=0.1)
    training, orders = new_training(make, n, state.params, 0.2)
    recipe = {"global_batch_size": 24, "lr": 0.2, "num_epochs": 1}
    (epoch,) = train(devices=f"cpu:{n}", data=DATA, state=state, **recipe)
    losses = []
    for batch in training.batches(orders, 24):
        losses += training.step(batch)
    assert sum(float(l.sum()) for l in losses) / 64 == epoch.train_loss
    for ours, expected in zip(params_of(training), state.params):
        assert (ours == expected).all()


@pytest.mark.parametrize("make", step.IMPLEMENTATIONS.values())
def test_a_step_ends_after_the_named_part(make):
    """Only the whole step updates; after the all-reduce all gradients are the sum."""
    training, orders = new_training(make, 2, lenet.init_lenet(0.1))
    before = params_of(training)
    batch = next(training.batches(orders, 13))

    def gradients():
        return [[p.grad.asnumpy() for p in ps] for ps in replicas_of(training)]

    shards = training.step(batch, "split and copy")
    assert [len(shard) for shard in shards[-2:]] == [7, 6]
    losses = training.step(batch, "forward")
    assert [l.size for l in losses] == [7, 6]
    assert all((grad == 0).all() for grads in gradients() for grad in grads)
    training.step(batch, "backward")
    apart = gradients()
    training.step(batch, "all-reduce")
    for summed in gradients():
        for own, other, total in zip(*apart, summed):
            numpy.testing.assert_allclose(own + other, total, rtol=1e-5, atol=1e-6)
    assert all((p == q).all() for p, q in zip(before, params_of(training)))
    training.step(batch, "update")
    assert any((p != q).any() for p, q in zip(before, params_of(training)))


@pytest.mark.parametrize(
    ("make", "on_gpus"),
    [(step.FromScratch, False), (step.Concise, False), (step.Concise, True)],
)
def test_a_training_states_the_all_reduce_that_its_steps_take(
    make, on_gpus, monkeypatch
):
    """With the trainer for GPUs, too; it works on CPU contexts."""
    training, orders = new_training(make, 2)
    if on_gpus:
        training._trainer = BucketTrainer(training.net, 0.0)
    taken, pushpull = [], mx.kv.KVStore.pushpull

    def spy(store, *args, **kwargs):
        taken.append(f"kvstore {store.type}")
        return pushpull(store, *args, **kwargs)

    monkeypatch.setattr(mx.kv.KVStore, "pushpull", spy)
    monkeypatch.setattr(buckets, "allreduce", lambda arrays: taken.append("book"))
    training.step(next(training.batches(orders, 24)), "all-reduce")
    variant, num_arrays = training.all_reduce
    assert taken == [variant] * num_arrays


@pytest.mark.parametrize("make", step.IMPLEMENTATIONS.values())
def test_timed_batches_are_full(make):
    """An epoch of 64 has two batches of 24; the third is the next epoch's first."""
    training, orders = new_training(make, 2)
    batches = step.endless_batches(training, orders, 24)
    first, second, third = (training.step(next(batches), "split and copy")
                            for _ in range(3))  # fmt: skip
    assert [len(shards[-1]) for shards in (first, second, third)] == [12] * 3
    assert (first[-1].asnumpy() == third[-1].asnumpy()).all()
    assert (first[-1].asnumpy() != second[-1].asnumpy()).any()


@pytest.mark.parametrize("n", (3, 8))
@pytest.mark.parametrize("name", allreduce.VARIANTS)
def test_every_variant_sums(name, n):
    rng, all_reduce = numpy.random.default_rng(0), allreduce.VARIANTS[name]()
    for shape in ((20, 3), (1,), (7,), (2, 2, 2)):  # fewer rows than devices, too
        host = rng.integers(0, 99, (n, *shape)).astype("float32")
        data = [np.array(values, ctx=mx.cpu(k)) for k, values in enumerate(host)]
        all_reduce(data)
        for k, total in enumerate(data):
            assert total.ctx == mx.cpu(k)
            assert (total.asnumpy() == host.sum(axis=0)).all()


def study(n, **settings):
    common = {"samples": 2, "seconds": 0.01, "turns": 2, "parts_at": (8,)}
    common |= {"batch_sizes": (2, 8)}
    return list(measure.study(devices=f"cpu:{n}", data=DATA, **common | settings))


@pytest.mark.parametrize("implementation", step.IMPLEMENTATIONS)
def test_the_lines_of_a_study(implementation):
    lines = study(
        2,
        implementation=implementation,
        device_counts=(1, 2),
        all_reduce_sizes=(4096,),
    )
    steps = [line for line in lines if isinstance(line, StepRecord)]
    keys = [(s.global_batch_size, s.num_devices) for s in steps]
    assert keys == [(2, 1), (2, 2), (8, 1), (8, 2)]
    assert steps[0].parts == {}
    assert tuple(steps[3].parts) == PARTS
    assert steps[2].parts["all-reduce"] == 0  # on one device
    for s in steps:
        assert len(s.seconds) == len(s.issue_seconds) == 2
        assert all(0 < i <= t for i, t in zip(s.issue_seconds, s.seconds))
    reduces = [line for line in lines if isinstance(line, AllReduceRecord)]
    sizes = {(r.num_devices, r.num_arrays, r.num_bytes) for r in reduces}
    assert sizes == {(2, 1, 4096), (2, 1, 516_272), (2, 8, 516_272)}
    assert all(len(r.seconds) == 7 for r in reduces)
    (own,) = (r for r in reduces if r.in_steps)
    assert own.num_bytes == 516_272
    expected = {"from scratch": ("book", 1), "concise": ("kvstore local", 8)}
    assert (own.variant, own.num_arrays) == expected[implementation]
    assert [files.decode(files.to_line(line)) for line in lines] == lines


def test_device_counts_take_turns(monkeypatch):
    """Drift must not pass for a speedup: samples on one and on two are neighbours."""
    sampled = []

    def sample(training, batches, steps, upto="update"):
        if steps == 7:  # not a warm-up
            sampled.append(len(training.devices))
        return 0.01, 0.001

    monkeypatch.setattr(step, "sample", sample)
    lines = study(2, device_counts=(1, 2), samples=3, seconds=0.07, parts_at=())
    assert sampled == [1, 2, 1, 2, 2, 1, 2, 1, 1, 2, 1, 2]  # three passes, two batches
    assert [len(line.seconds) for line in lines] == [3] * 4


def test_parts_are_differences_within_a_turn():
    """A machine half as fast in some turns does not make a part of the difference."""
    ends = [1.0, 4.0, 8.0, 8.5, 9.0]
    slow, disturbed = [2 * end for end in ends], [1.0, 4.0, 50.0, 60.0, 99.0]
    assert step.parts([ends]) == dict(zip(PARTS, (1.0, 3.0, 4.0, 0.5, 0.5)))
    parts = step.parts([ends, slow, ends, slow, ends, slow, slow, disturbed])
    assert sum(parts.values()) == pytest.approx((9 + 18 * 3) / 4)
    assert parts["all-reduce"] / parts["forward"] == pytest.approx(0.5 / 3)
    parts = step.parts([[1.0, 4.0, 8.0, 7.9, 8.1]])
    assert parts["all-reduce"] == 0 and sum(parts.values()) == pytest.approx(8.1)


def test_settings_out_of_range_are_refused():
    for name, value in {"batch_sizes": (65,), "device_counts": (1, 3)}.items():
        with pytest.raises(SettingError):
            study(2, **{name: value})

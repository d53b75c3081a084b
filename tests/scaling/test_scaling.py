"""Steps taken apart, variants of all-reduce, and the lines of a study."""

import numpy
import pytest

from d2lpar import datasets, devices, lenet, lenet_concise, networks
from d2lpar._mxnet import mx, np
from d2lpar.errors import SettingError
from d2lpar.parallel import get_params, train_batch
from d2lpar.records import files
from d2lpar.records.kinds import PARTS, AllReduceRecord, ScaledEpoch, StepRecord
from d2lpar.scaling import allreduce, measure, step

rng = numpy.random.default_rng(0)
DATA = datasets.ImageData(
    rng.integers(0, 256, (64, 28, 28), dtype="uint8"),
    rng.integers(0, 10, 64, dtype="uint8"),
    rng.integers(0, 256, (20, 28, 28), dtype="uint8"),
    rng.integers(0, 10, 20, dtype="uint8"),
    name="noise",
)
BATCH = np.array(datasets.to_float(DATA.X_train[:13])), np.array(DATA.y_train[:13])


def replicas_in(net):
    """The parameters of a Gluon network by device."""
    return list(zip(*(p.list_data() for p in net.collect_params().values())))


def replicas_of(training):
    from_scratch = isinstance(training, step.FromScratch)
    return training.replicas if from_scratch else replicas_in(training.net)


@pytest.mark.parametrize("n", (1, 3))
@pytest.mark.parametrize("make", step.IMPLEMENTATIONS.values())
def test_two_steps_are_those_of_the_chapters(make, n):
    chosen, params = devices.parse(f"cpu:{n}"), networks.init_lenet(0.1)
    training = make(params, chosen, 4)
    channels = networks.device_channels("cpu")
    padded = networks.padded(params, channels)
    expected = [get_params(padded, device) for device in chosen]
    net, trainer, loss = lenet_concise.build(params, chosen, 0.1, channels=channels)
    for _ in range(2):
        training.step(*BATCH, 0.1)
        if make is step.FromScratch:
            train_batch(*BATCH, expected, chosen, lr=0.1)
        else:
            lenet_concise.train_batch(*BATCH, net, chosen, trainer, loss=loss)
            expected = replicas_in(net)
    for mine, theirs in zip(replicas_of(training), expected):
        for p, q in zip(mine, theirs):
            assert (p.asnumpy() == q.asnumpy()).all()


@pytest.mark.parametrize("make", step.IMPLEMENTATIONS.values())
def test_a_step_ends_after_the_named_part(make):
    """Only the whole step updates; after the all-reduce all gradients are the sum."""
    training = make(networks.init_lenet(0.1), devices.parse("cpu:2"), 4)
    before = training.params()

    def gradients():
        return [[p.grad.asnumpy() for p in ps] for ps in replicas_of(training)]

    _, y_shards = training.step(*BATCH, 0.1, "split and copy")
    assert [len(y) for y in y_shards] == [7, 6]
    losses = training.step(*BATCH, 0.1, "forward")
    assert [l.size for l in losses] == [7, 6]
    assert all((grad == 0).all() for grads in gradients() for grad in grads)
    training.step(*BATCH, 0.1, "backward")
    apart = gradients()
    training.step(*BATCH, 0.1, "all-reduce")
    for summed in gradients():
        for own, other, total in zip(*apart, summed):
            numpy.testing.assert_allclose(own + other, total, rtol=1e-5, atol=1e-6)
    assert all((p == q).all() for p, q in zip(before, training.params()))
    training.step(*BATCH, 0.1, "update")
    assert any((p != q).any() for p, q in zip(before, training.params()))


@pytest.mark.parametrize("n", (2, 3, 8))
@pytest.mark.parametrize("name", allreduce.VARIANTS)
def test_every_variant_sums(name, n):
    if name == "kvstore nccl":
        with pytest.raises(mx.base.MXNetError, match="NCCL"):
            allreduce.VARIANTS[name]()
        return
    rng = numpy.random.default_rng(0)
    shapes = [(20, 3), (1,), (7,), (2, 2, 2)]  # some with fewer rows than devices
    host = [
        [rng.integers(0, 99, s).astype("float32") for s in shapes] for _ in range(n)
    ]
    data = [[np.array(a, ctx=mx.cpu(k)) for a in host[k]] for k in range(n)]
    allreduce.VARIANTS[name]()(data)
    for position, total in enumerate(map(sum, zip(*host))):
        for k in range(n):
            assert data[k][position].ctx == mx.cpu(k)
            assert (data[k][position].asnumpy() == total).all()


def study(n, **settings):
    common = {"samples": 2, "seconds": 0.01, "turns": 2, "parts_at": (8,)}
    common |= {"batch_sizes": (2, 8)}
    return list(measure.measure(devices=f"cpu:{n}", data=DATA, **common | settings))


@pytest.mark.parametrize("implementation", step.IMPLEMENTATIONS)
def test_the_lines_of_a_study(implementation):
    lines = study(
        2,
        implementation=implementation,
        device_counts=(1, 2),
        all_reduce_sizes=(4096,),
        per_device_batch_sizes=(8,),
        num_epochs=2,
        base_batch=8,
        warmup=1,
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
    for r in reduces:
        is_nccl = r.variant == "kvstore nccl"
        assert ("NCCL" in r.why_not, len(r.seconds)) == (is_nccl, 0 if is_nccl else 7)
    epochs = [line for line in lines if isinstance(line, ScaledEpoch)]
    assert [(e.num_devices, e.global_batch_size, e.epoch, e.lr) for e in epochs] == [
        (1, 8, 1, 0.2), (1, 8, 2, 0.2), (2, 16, 1, 0.2), (2, 16, 2, 0.4),
    ]  # fmt: skip
    assert [files.from_line(files.to_line(line)) for line in lines] == lines


def test_device_counts_take_turns(monkeypatch):
    """Drift must not pass for a speedup: samples on one and on two are neighbours."""
    sampled = []

    def sample(training, batches, steps, upto="update"):
        if steps == 7:  # not a warm-up
            sampled.append(len(training.devices))
        return 0.01, 0.001

    monkeypatch.setattr(step, "sample", sample)
    lines = study(2, device_counts=(1, 2), samples=3, seconds=0.07, parts_at=())
    assert sampled == [1, 2] * 6  # three passes over two batches
    assert [len(line.seconds) for line in lines] == [3] * 4


def test_parts_are_differences_within_a_turn():
    """A machine half as fast in some turns does not make a part of the difference."""
    ends = dict(zip(PARTS, (1.0, 4.0, 8.0, 8.5, 9.0)))
    slow = {name: 2 * end for name, end in ends.items()}
    disturbed = dict(zip(PARTS, (1.0, 4.0, 50.0, 60.0, 99.0)))
    assert step.parts([ends]) == dict(zip(PARTS, (1.0, 3.0, 4.0, 0.5, 0.5)))
    parts = step.parts([ends, slow, ends, slow, ends, slow, slow, disturbed])
    assert sum(parts.values()) == pytest.approx((9 + 18 * 3) / 4)
    assert parts["all-reduce"] / parts["forward"] == pytest.approx(0.5 / 3)
    below_noise = dict(zip(PARTS, (1.0, 4.0, 8.0, 7.9, 8.1)))
    parts = step.parts([below_noise])
    assert parts["all-reduce"] == 0 and sum(parts.values()) == pytest.approx(8.1)


@pytest.mark.parametrize(
    ("implementation", "train"),
    [("concise", lenet_concise.train), ("from scratch", lenet.train)],
)
def test_weak_scaling_trains_what_the_chapters_train(implementation, train):
    """Its steps to warm up change nothing; the short last batch is trained on, too."""
    records = study(
        1, implementation=implementation, batch_sizes=(), parts_at=(),
        per_device_batch_sizes=(24,), num_epochs=2, base_batch=24,
    )  # fmt: skip
    recipe = {"global_batch_size": 24, "lr": 0.2, "num_epochs": 2}
    epochs = list(train(1, devices="cpu:1", data=DATA, **recipe))
    assert [r.test_acc for r in records] == [e.test_acc for e in epochs]
    losses = [e.train_loss for e in epochs]
    assert [r.train_loss for r in records] == pytest.approx(losses, rel=1e-6)


def test_python_waits_for_steps_that_are_too_far_behind():
    waited = []

    class Losses:
        def __init__(self, number):
            self.number = number

        def wait_to_read(self):
            waited.append(self.number)

    class Training:
        def step(self, number, y, lr, upto):
            return [None, Losses(number)]

    step.sample(Training(), ((number, None) for number in range(100)), 20)
    assert waited == [0, 1, 2, 3]  # 16 are in flight


def test_a_diverged_training_says_so_and_ends():
    lines = study(
        1, batch_sizes=(), parts_at=(), per_device_batch_sizes=(8,), num_epochs=5,
        base_lr=1e38, base_batch=8,
    )  # fmt: skip
    assert "diverged" in lines[-1].why_not
    assert len(lines) < 5


def test_settings_out_of_range_are_refused():
    settings = {
        "batch_sizes": (65,), "implementation": "gluon", "device_counts": (1, 3),
    }  # fmt: skip
    for name, value in settings.items():
        with pytest.raises(SettingError):
            study(2, **{name: value})

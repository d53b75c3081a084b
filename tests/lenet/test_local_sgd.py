"""Local SGD: with one step between averages it is data parallelism, up to rounding."""

import numpy
import pytest

from d2lpar import datasets, devices, lenet, local_sgd
from d2lpar.book_lenet import init_lenet
from d2lpar.buckets import Bucket
from d2lpar.errors import SettingError

SIZES = {"global_batch_size": 16, "lr": 0.05, "seed": 3}
PARAMETERS = sum(p.size for p in init_lenet())


@pytest.fixture(scope="module")
def data():
    return datasets.load("sample", n_train=64, n_test=100)


@pytest.fixture
def trained(monkeypatch):
    """The replicas that a training makes."""
    made = []

    class Kept(Bucket):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(local_sgd, "Bucket", Kept)
    return made


@pytest.mark.parametrize(
    ("on", "global_batch_size", "n_train"),
    [
        ("cpu:2", 16, 64),
        ("cpu:2", 5, 33),  # shards of 3 and 2
        ("cpu:3", 16, 34),  # the last batch has fewer images than devices
    ],
)
def test_one_step_between_averages_is_data_parallelism(
    trained, on, global_batch_size, n_train
):
    data = datasets.load("sample", n_train=n_train, n_test=100)
    # At a higher rate differences in the last bit grow within two epochs.
    sizes = {**SIZES, "global_batch_size": global_batch_size, "num_epochs": 2}
    sizes["lr"] = 0.02
    records = list(local_sgd.train(devices=on, data=data, **sizes))
    state = lenet.start(SIZES["seed"], scale=0.1)
    whole = list(lenet.train(devices="cpu:1", data=data, state=state, **sizes))
    for local, summed in zip(records, whole):
        assert local.train_loss == pytest.approx(summed.train_loss, rel=1e-5)
    for replica in trained:
        for p, expected in zip(replica, state.params):
            numpy.testing.assert_allclose(p.asnumpy(), expected, atol=1e-5)


def test_devices_that_never_talk_go_different_ways_and_end_at_their_mean(data, trained):
    (rare,) = local_sgd.train(devices="cpu:2", data=data, steps_between=99, **SIZES)
    seldom = trained[0].values.asnumpy()
    (often,) = local_sgd.train(devices="cpu:2", data=data, **SIZES)
    assert (seldom == trained[1].values.asnumpy()).all()  # averaged at the end
    assert abs(seldom - trained[2].values.asnumpy()).max() > 1e-4
    assert often.wire_bytes == 4 * rare.wire_bytes == 4 * 2 * 4 * PARAMETERS


def test_steps_are_counted_over_epochs_each_of_which_ends_in_an_average(data):
    records = local_sgd.train(
        devices="cpu:2", data=data, steps_between=3, num_epochs=3, **SIZES
    )
    # Steps 3, 4; 6, 8; 9, 12.
    assert [r.wire_bytes for r in records] == [2 * 8 * PARAMETERS] * 3


def test_the_outer_step_is_nesterovs():
    two = [Bucket(init_lenet(), device) for device in devices.parse("cpu:2")]
    averaging = local_sgd.Averaging(two, outer=(0.7, 0.9))
    start = two[0].values.asnumpy().astype("float64")
    velocity = numpy.zeros_like(start)
    for turn in (1, 2):
        for k, replica in enumerate(two):
            replica.values += 0.1 * (k + turn)
        averaging.average([8, 8])
        change = numpy.full_like(start, -0.1 * (turn + 0.5))
        velocity = 0.9 * velocity + change
        start -= 0.7 * (change + 0.9 * velocity)
        for replica in two:
            numpy.testing.assert_allclose(replica.values.asnumpy(), start, atol=1e-6)


@pytest.mark.parametrize(
    ("outer", "says"),
    [
        (0.7, r"outer 0.7: write \(learning rate, momentum\)"),
        ((0.7, "0.9"), "outer .*'0.9'"),
        ((0.7, 0.9, 1), "outer "),
        ((-0.7, 0.9), "lr -0.7"),
        ((0.7, 1), "momentum 1: write a number from 0 to below 1"),
        ((0.7, numpy.nan), "momentum nan"),
    ],
)
def test_an_outer_step_that_cannot_be_is_refused(data, outer, says):
    with pytest.raises(SettingError, match=says):
        next(local_sgd.train(devices="cpu:2", data=data, outer=outer, **SIZES))

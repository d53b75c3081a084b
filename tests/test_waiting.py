"""A step does not wait: Python issues it, and reads nothing that devices compute."""

import numpy
import pytest
from support.waiting import Held, WaitedError, waiting_forbidden

from d2lpar import gan, get_params, init_lenet, parallel, train_batch
from d2lpar._mxnet import np, npx
from d2lpar.lenet import concise
from d2lpar.records.kinds import PARTS
from d2lpar.scaling.step import FromScratch


def from_scratch(devices):
    replicas = [get_params(init_lenet(0.1), device) for device in devices]
    return lambda X, y: train_batch(X, y, replicas, devices, 0.1)


def in_gluon(devices):
    net, trainer, loss = concise.build(init_lenet(0.1), devices, 0.1)
    return lambda X, y: concise.train_batch(X, y, net, devices, trainer, loss=loss)


def in_buckets(devices):
    timed = FromScratch(init_lenet(0.1), devices, 3, [(None, None)], 0.1)
    return lambda X, y: [timed.step((X, y), upto) for upto in PARTS]


def in_gluon_by_rows(devices):
    net, trainer, loss = concise.build(init_lenet(0.1), devices, 0.1)
    losses_of = concise.ShardLosses(net, loss)
    orders = [np.arange(6, dtype="int32", ctx=device) for device in devices]

    def step(X, y):
        pixels = (255 * X[:, 0]).astype("uint8")
        copies = [(pixels.as_in_ctx(d), y.as_in_ctx(d)) for d in devices]
        shards = concise.row_shards(copies, orders, slice(0, 6))
        concise.train_shards(shards, losses_of, trainer, 6)

    return step


def of_a_gan(devices):
    nets = gan.Nets(gan.start(0, 8, "spectral"), devices, 1e-4)
    z = np.ones((6, *nets.G.z_shape), ctx=devices[0])

    def step(X, y):
        faces = np.concatenate([X[:, :, :24, :24]] * 3, axis=1)
        gan.step(*parallel.split_batch(faces, z, devices), nets)

    return step


STEPS = {
    "from scratch": from_scratch,
    "in Gluon": in_gluon,
    "in Gluon, by rows": in_gluon_by_rows,
    "in buckets, as it is timed": in_buckets,
    "of a GAN": of_a_gan,
    "sums": lambda devices: (
        lambda X, y: parallel.allreduce([X, X.as_in_ctx(devices[1])])
    ),
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_a_step_does_not_wait(make, contexts):
    """It reads no array, and returns while the copy of its images is held."""
    devices, held, rng = contexts(2), Held(), numpy.random.default_rng(0)
    step = make(devices)
    X = np.array(rng.random((6, 1, 28, 28), "float32"), ctx=devices[0])
    y = np.array(rng.integers(0, 10, 6), dtype="int32", ctx=devices[0])
    step(X, y)  # shapes are inferred, graphs compiled, all-reduces set up
    npx.waitall()
    with waiting_forbidden():
        step(held.copy(X), y)
    assert held.release()


def test_what_reads_an_array_is_noticed():
    X = np.ones((2, 3))
    for read in (
        lambda: numpy.ndim(X),
        lambda: numpy.isfinite(X),
        lambda: float(X.sum()),
        lambda: bool((X == 1).all()),
        lambda: np.array(numpy.ones(2)),
        lambda: X[0, 0].item(),
        X.asnumpy,
        X.wait_to_read,
        npx.waitall,
    ):
        with pytest.raises(WaitedError), waiting_forbidden():
            read()

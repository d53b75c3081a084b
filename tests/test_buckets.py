"""Replicas in flat arrays train to the bits of replicas of separate arrays."""

import numpy
import pytest

from d2lpar import devices
from d2lpar._mxnet import np
from d2lpar.book_lenet import init_lenet
from d2lpar.buckets import BUCKETS, Bucket, BucketTrainer
from d2lpar.lenet import concise
from d2lpar.parallel import get_params, train_batch


def batch(n):
    rng = numpy.random.default_rng(n)
    X = np.array(rng.random((n, 1, 28, 28), dtype="float32"))
    return X, np.array(rng.integers(0, 10, n))


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_buckets_train_to_the_same_bits(num_devices):
    contexts, host = devices.parse(f"cpu:{num_devices}"), init_lenet(0.1, seed=0)
    separate = [get_params(host, context) for context in contexts]
    buckets = [Bucket(host, context) for context in contexts]
    for n in (7, 16, 2):  # uneven shards, even ones, and an idle device
        expected = train_batch(*batch(n), separate, contexts, 0.1)
        losses = train_batch(*batch(n), buckets, contexts, 0.1, **BUCKETS)
        for l, other in zip(expected, losses):
            assert (l.asnumpy() == other.asnumpy()).all()
    for replica, bucket in zip(separate, buckets):
        for p, q in zip(replica, bucket):
            assert (p.asnumpy() == q.asnumpy()).all()
            assert (p.grad.asnumpy() == q.grad.asnumpy()).all()


def test_views_are_no_two_parameters():
    flat = numpy.arange(6.0)
    with pytest.raises(ValueError, match="two parameters are views"):
        Bucket([flat, flat.reshape(2, 3)], devices.parse("cpu:1")[0])


def gluon_steps(num_devices, make_trainer):
    """Losses, and every replica's parameters, after steps in training mode."""
    contexts = devices.parse(f"cpu:{num_devices}")
    net, trainer, loss = concise.build(init_lenet(0.1, 3), contexts, 0.02)
    trainer = make_trainer(net, contexts, trainer)
    losses = []
    for k, n in enumerate((7, 16, 2, 16)):  # uneven, even, and an idle device
        trainer.set_learning_rate(0.02 / (1 + k))
        parts = concise.train_batch(
            *(array.asnumpy() for array in batch(n)), net, contexts, trainer, loss=loss
        )
        losses += [l.asnumpy() for l in parts]
    params = list(net.collect_params().values())
    return losses, [[d.asnumpy() for d in p.list_data()] for p in params]


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_gluon_in_buckets_trains_as_its_trainer(num_devices):
    losses, ours = gluon_steps(
        num_devices, lambda net, contexts, _: BucketTrainer(net, 0.02)
    )
    expected, theirs = gluon_steps(num_devices, lambda net, contexts, trainer: trainer)
    for l, other in zip(losses, expected):
        numpy.testing.assert_allclose(l, other, rtol=1e-5)
    for replicas, others in zip(ours, theirs):
        for p, q in zip(replicas, others):
            if num_devices < 3:  # three are summed in another order
                assert (p == q).all()
            numpy.testing.assert_allclose(p, q, rtol=1e-4, atol=1e-6)
            assert (p == replicas[0]).all()

"""Replicas in flat arrays train to the bits of replicas of separate arrays."""

import numpy
import pytest

from d2lpar import devices, lenet_concise
from d2lpar._mxnet import autograd, gluon, np
from d2lpar.buckets import BUCKETS, Bucket, BucketTrainer, flatten
from d2lpar.networks import SHAPES, init_lenet
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


def test_a_bucket_is_a_copy_whose_parameters_are_views():
    host = init_lenet(0.1, seed=0)
    bucket = Bucket(host, devices.parse("cpu:1")[0])
    assert [p.shape for p in bucket] == list(SHAPES)
    bucket.values += 1
    for p, original in zip(bucket, host):
        assert (p.asnumpy() == original + 1).all()
    assert (host[1] == 0).all()


def gluon_steps(num_devices, make_trainer):
    """Losses, and every replica's parameters, after steps in training mode."""
    contexts = devices.parse(f"cpu:{num_devices}")
    net, trainer, loss = lenet_concise.build(init_lenet(0.1, 3), contexts, 0.02)
    trainer = make_trainer(net, contexts, trainer)
    losses = []
    for n in (7, 16, 2, 16):  # uneven shards, even ones, and an idle device
        parts = lenet_concise.train_batch(
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


def test_a_bucket_trainers_arrays_are_the_networks():
    contexts = devices.parse("cpu:2")
    net, _, _ = lenet_concise.build(init_lenet(0.1, 3), contexts, 0.02)
    params = list(net.collect_params().values())
    before = [p.list_data()[0].asnumpy() for p in params]
    trainer = BucketTrainer(net, lr=9)
    for p, value in zip(params, before):
        for k in range(2):
            assert (p.list_data()[k].asnumpy() == value).all()
            p.list_grad()[k][:] = 4 * k
    trainer.allreduce_grads()
    assert all((g.asnumpy() == 4).all() for p in params for g in p.list_grad())
    trainer.set_learning_rate(0.5)
    trainer.step(batch_size=2)  # sums again: 8 on both
    for p, value in zip(params, before):
        for data in p.list_data():
            numpy.testing.assert_allclose(data.asnumpy(), value - 2, rtol=1e-6)


def test_flat_gradients_add_up_over_micro_batches():
    contexts = devices.parse("cpu:2")
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(ctx=contexts)
    weights = [p.data(contexts[1]).asnumpy().ravel() for p in params_of(net)]
    values, grads = flatten(params_of(net), "add")
    assert [flat.ctx for flat in (*values, *grads)] == [*contexts, *contexts]
    assert (values[1].asnumpy() == numpy.concatenate(weights)).all()
    for _ in range(2):
        with autograd.record():
            total = net(np.ones((5, 4), ctx=contexts[1])).sum()
        total.backward()
    assert (grads[1].asnumpy() == 10).all() and (grads[0].asnumpy() == 0).all()


def params_of(net):
    return list(net.collect_params().values())

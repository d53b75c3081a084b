"""Replicas in flat arrays train to the bits of replicas of separate arrays."""

import numpy
import pytest

from d2lpar import devices
from d2lpar._mxnet import np
from d2lpar.buckets import BUCKETS, Bucket
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

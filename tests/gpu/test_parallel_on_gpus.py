"""On one and two GPUs the helpers, and steps of training, are those of a CPU."""

import functools

import numpy
import pytest

from d2lpar import book_lenet
from d2lpar._mxnet import autograd, mx, np, npx
from d2lpar.buckets import BUCKETS, Bucket
from d2lpar.lenet import concise as in_gluon
from d2lpar.parallel import allreduce, get_params, train_batch

pytestmark = pytest.mark.gpu

LR, STEPS = 0.02, 3
CLOSE = 1e-4  # relative, of float32 without TF32, in another order of summation
SIZES = [16, 7, 1]  # even; uneven; a GPU without a sample


def params():
    return book_lenet.init_lenet(scale=0.1, seed=3)


def batches(n):
    """Random images whose classes differ in brightness, so that there is a slope."""
    rng = numpy.random.default_rng(1)
    for _ in range(STEPS):
        y = rng.integers(0, 10, n).astype("int32")
        X = rng.random((n, 1, 28, 28)) * (1 + y[:, None, None, None]) / 10
        yield X.astype("float32"), y


def scratch(contexts, n, make=get_params, **options):
    replicas = [make(params(), context) for context in contexts]
    for X, y in batches(n):
        train_batch(X, y, replicas, contexts, LR, **options)
    return [[p.asnumpy() for p in replica] for replica in replicas]


def buckets(contexts, n):
    return scratch(contexts, n, Bucket, **BUCKETS)


def concise(contexts, n):
    net, trainer, loss = in_gluon.build(params(), contexts, LR)
    for X, y in batches(n):
        in_gluon.train_batch(X, y, net, contexts, trainer, loss=loss)
    data = [p.list_data() for p in net.collect_params().values()]
    hosts = [[replica.asnumpy() for replica in replicas] for replicas in data]
    return [
        [values[k].T if values[k].ndim == 2 else values[k] for values in hosts]
        for k in range(len(contexts))
    ]


def distance(a, b):
    """Relative distance of two lists of parameters, in the 2-norm over all of them."""
    a, b = (numpy.concatenate([p.ravel() for p in values]) for values in (a, b))
    return numpy.linalg.norm(a - b) / numpy.linalg.norm(b)


@functools.cache
def on_the_cpu(n):
    return scratch([mx.cpu(0)], n)[0]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("train", [scratch, buckets, concise])
def test_steps_on_gpus_are_those_of_a_cpu(train, n, gpus):
    replicas = train(gpus, n)
    assert distance(on_the_cpu(n), params()) > 1e-3  # the steps went somewhere
    assert distance(replicas[0], on_the_cpu(n)) < CLOSE
    for replica in replicas[1:]:
        for p, q in zip(replica, replicas[0]):
            numpy.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("n", [1, 1000, 10**6 + 3])
def test_allreduce_is_the_sum_to_the_bit(dtype, n, two_gpus):
    rng = numpy.random.default_rng(0)
    hosts = [(100 * rng.random(n)).astype(dtype) for _ in two_gpus]
    data = [np.array(h, dtype=dtype, ctx=g) for h, g in zip(hosts, two_gpus)]
    for _ in range(3):  # the sums of sums too: nothing starts before it may
        allreduce(data)
        hosts = [hosts[0] + hosts[1]] * 2
    for array, host, context in zip(data, hosts, two_gpus):
        assert array.ctx == context
        numpy.testing.assert_array_equal(array.asnumpy(), host)


def test_a_bias_as_a_weight_is_the_plain_convolution(gpu):
    """From that size on, the form that `convolve` takes: scores and all gradients."""
    rng = numpy.random.default_rng(0)
    shapes = (book_lenet.BIAS_AS_WEIGHT_FROM, 1, 12, 12), (4, 1, 3, 3), (4,)
    hosts = [rng.random(shape, dtype="float32") for shape in shapes]

    def plain(X, W, b):
        return npx.convolution(data=X, weight=W, bias=b, kernel=(3, 3), num_filter=4)

    results = []
    for convolution in (book_lenet.convolve, plain):
        arrays = get_params(hosts, gpu)
        with autograd.record():
            out = convolution(*arrays)
            loss = (out * out).sum()
        loss.backward()
        results.append([out.asnumpy(), *(a.grad.asnumpy() for a in arrays)])
    for ours, expected in zip(*results):
        assert distance([ours], [expected]) < CLOSE

"""On one and two GPUs the helpers, and steps of training, are those of a CPU."""

import functools

import numpy
import pytest
from support.steps import buckets, concise, distance, params_of, scratch

from d2lpar import book_lenet
from d2lpar._mxnet import autograd, mx, np, npx
from d2lpar.parallel import allreduce, get_params

pytestmark = pytest.mark.gpu

CLOSE = 1e-4  # relative, of float32 without TF32, in another order of summation
SIZES = [16, 7, 1]  # even; uneven; a GPU without a sample
STEPS = 3


@functools.cache
def on_the_cpu(n):
    return scratch([mx.cpu(0)], n, STEPS)[0]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("train", [scratch, buckets, concise])
def test_steps_on_gpus_are_those_of_a_cpu(train, n, gpus):
    replicas = train(gpus, n, STEPS)
    assert distance(on_the_cpu(n), params_of()) > 1e-3  # the steps went somewhere
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

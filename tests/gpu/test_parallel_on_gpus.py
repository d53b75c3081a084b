"""On one and two GPUs the helpers, and steps of training, are those of a CPU."""

import functools

import numpy
import pytest
from support.steps import buckets, concise, distance, params_of, scratch

from d2lpar import book_lenet
from d2lpar._mxnet import autograd, mx, np, npx
from d2lpar.parallel import allreduce, get_params, train_batch

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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parameters_that_are_one_number_take_numpys_steps(dtype, gpus):
    """MXNet's older operations, which GPUs call in float32, take () for no shape."""
    rng = numpy.random.default_rng(0)
    X, y = rng.normal(size=(5, 2)).astype(dtype), rng.normal(size=5).astype(dtype)
    params = [numpy.array(value, dtype) for value in ([0.5, -0.5], 0.5, 0.25)]
    replicas = [get_params(params, gpu) for gpu in gpus]

    def net(X, params):
        return np.dot(X, params[0]) * params[1] + params[2]

    def squared(y_hat, y):
        return (y_hat - y) ** 2

    for _ in range(STEPS):
        train_batch(X, y, replicas, gpus, 0.1, net=net, loss=squared)
        w, scale, shift = params
        slope = 2 * (X @ w * scale + shift - y) / len(y)
        grads = X.T @ slope * scale, (slope * (X @ w)).sum(), slope.sum()
        params = [p - 0.1 * grad for p, grad in zip(params, grads)]
    for replica in replicas:
        assert distance([p.asnumpy() for p in replica], params) < CLOSE


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

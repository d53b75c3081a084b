"""What we call of MXNet, by value: the same on MXNet 1.9.1 and 2, or named here.

A default that changes changes every result that rests on it, silently. So each operator
and method has a value that NumPy computes, with the arguments that we leave out left
out, and :data:`DIFFERENT` lists what the two versions do differently.
"""

import math

import numpy
import pytest

from d2lpar._mxnet import IS_MXNET_2, autograd, gluon, mx, np, npx

rng = numpy.random.default_rng(0)
A = rng.normal(size=(4, 3)).astype("float32")
W, B = rng.normal(size=(2, 3)).astype("float32"), numpy.ones(2, "float32")
IMAGES = rng.normal(size=(1, 1, 4, 4)).astype("float32")
KERNEL = rng.normal(size=(1, 1, 2, 2)).astype("float32")


def on(value, dtype="float32"):
    return np.array(value, dtype=dtype)


def convolved(stride=1):
    places = range(0, 3, stride)
    return [
        [(IMAGES[0, 0, i : i + 2, j : j + 2] * KERNEL[0, 0]).sum() for j in places]
        for i in places
    ]


def normalised(x, eps):
    return (x - x.mean(0)) / numpy.sqrt(x.var(0) + eps)


def trained(call):
    with autograd.train_mode():
        return call()


def log_softmax(x):
    return x - numpy.log(numpy.exp(x).sum(1, keepdims=True))


def of_nd(function, *arrays, **how):
    arrays = [mx.nd.array(a, dtype="float64") for a in arrays]
    found = function(*arrays, **how)
    return found[-1] if isinstance(found, (list, tuple)) else found


# By the name of what is called: the call, and the value.
SAME = {
    "zeros": (lambda: np.zeros((2, 1)), numpy.zeros((2, 1))),
    "ones": (lambda: np.ones(2), numpy.ones(2)),
    "arange": (lambda: np.arange(3), numpy.arange(3)),
    "full": (lambda: np.full((2,), 0.5), numpy.full(2, 0.5)),
    "ones_like": (lambda: np.ones_like(on(A)), numpy.ones_like(A)),
    "full_like": (lambda: np.full_like(on(A), 0.5), numpy.full_like(A, 0.5)),
    "concatenate": (lambda: np.concatenate([on(A), on(W)]), numpy.concatenate([A, W])),
    "split": (lambda: np.split(on(A), 2)[1], A[2:]),
    "pad": (lambda: np.pad(on(A), ((0, 1), (0, 0))), numpy.pad(A, ((0, 1), (0, 0)))),
    "expand_dims": (lambda: np.expand_dims(on(A), axis=1), A[:, None]),
    "take, clipped": (
        lambda: np.take(on(A), on([2, 0], "int32"), axis=0, mode="clip"),
        A[[2, 0]],
    ),
    "dot": (lambda: np.dot(on(A), on(W).T), A @ W.T),
    "sqrt": (lambda: np.sqrt(on([2.0])), [math.sqrt(2)]),
    "minimum": (lambda: np.minimum(1, on([2.0, 0.5])), [1, 0.5]),
    "sum, mean": (
        lambda: on(A).sum() + on(A).mean(axis=0)[0],
        A.sum() + A[:, 0].mean(),
    ),
    "argmax": (lambda: on(A).argmax(axis=1), A.argmax(1)),
    "pixels": (lambda: on([200], "uint8").astype("float32") / 255, [200 / 255]),
    "rows": (lambda: on(A)[1:3], A[1:3]),
    "equal": (lambda: (on([1.0, 2.0]) == on([1.0, 3.0])).sum(), 1),
    "fully_connected": (
        lambda: npx.fully_connected(on(A), on(W), on(B), num_hidden=2, no_bias=False),
        A @ W.T + B,
    ),
    "convolution": (
        lambda: npx.convolution(
            on(IMAGES), on(KERNEL), on([1.0]), kernel=(2, 2), num_filter=1
        ),
        numpy.array(convolved())[None, None] + 1,
    ),
    "average pooling": (
        lambda: npx.pooling(
            data=on(IMAGES), pool_type="avg", kernel=(2, 2), stride=(2, 2)
        ),
        IMAGES.reshape(1, 1, 2, 2, 2, 2).mean((3, 5)),
    ),
    "relu": (lambda: npx.activation(on(A), act_type="relu"), A.clip(0)),
    "relu of NaN": (lambda: npx.activation(on([math.nan]), act_type="relu"), [0]),
    "softrelu": (lambda: npx.activation(on(A), "softrelu"), numpy.log1p(numpy.exp(A))),
    "sigmoid": (lambda: npx.sigmoid(on(A)), 1 / (1 + numpy.exp(-A))),
    "batch_norm": (
        lambda: trained(
            lambda: npx.batch_norm(
                on(A),
                np.ones(3),
                np.zeros(3),
                np.zeros(3),
                np.ones(3),
                fix_gamma=False,
                eps=1e-5,
            )
        ),
        normalised(A, 1e-5),
    ),  # fmt: skip
    "BatchNorm": (
        lambda: trained(lambda: initialized(gluon.nn.BatchNorm(in_channels=3))(on(A))),
        normalised(A, 1e-5),
    ),
    "LeakyReLU": (
        lambda: gluon.nn.LeakyReLU(0.2)(on(A)),
        numpy.where(A > 0, A, 0.2 * A),
    ),
    "Conv2D": (
        lambda: constant(gluon.nn.Conv2D(1, 2, in_channels=1))(on(IMAGES)),
        [
            [
                [
                    [IMAGES[0, 0, i : i + 2, j : j + 2].sum() for j in range(3)]
                    for i in range(3)
                ]
            ]
        ],
    ),  # fmt: skip
    "Conv2DTranspose": (
        lambda: constant(gluon.nn.Conv2DTranspose(1, 2, in_channels=1))(
            on([[[[2.0]]]])
        ),
        numpy.full((1, 1, 2, 2), 2.0),
    ),
    "SoftmaxCrossEntropyLoss": (
        lambda: gluon.loss.SoftmaxCrossEntropyLoss()(on(A), on([0, 1, 2, 0], "int32")),
        -log_softmax(A)[range(4), [0, 1, 2, 0]],
    ),
    "its clipped labels": (
        lambda: gluon.loss.SoftmaxCrossEntropyLoss()(on(A), on([0, 1, 7, -2], "int32")),
        -log_softmax(A)[range(4), [0, 1, 2, 0]],
    ),
    "sgd_update": (
        lambda: mx.nd.sgd_update(
            mx.nd.ones(2), mx.nd.ones(2), lr=0.1, rescale_grad=0.5
        ),
        [0.95, 0.95],
    ),
    "gemm2": (
        lambda: of_nd(mx.nd.linalg.gemm2, A, A, transpose_a=True),
        A.astype("float64").T @ A,
    ),
    "syrk": (lambda: of_nd(mx.nd.linalg.syrk, A), A.astype("float64") @ A.T),
    "potrf": (
        lambda: of_nd(mx.nd.linalg.potrf, W @ W.T),
        numpy.linalg.cholesky(W @ W.T),
    ),
    "trsm": (
        lambda: of_nd(mx.nd.linalg.trsm, [[2.0, 0], [1, 4]], [[2.0], [9]]),
        [[1], [2]],
    ),
}


def initialized(block):
    block.initialize()
    return block


def constant(block):
    block.initialize(mx.init.One())
    return block


@pytest.mark.parametrize("name", SAME)
def test_the_value_is_numpys(name):
    call, value = SAME[name]
    numpy.testing.assert_allclose(call().asnumpy(), value, rtol=3e-5, atol=1e-6)


# The same call on MXNet 1.9.1 and 2: docs/newer-gpus.md tells users of both.
DIFFERENT = {
    "fully_connected ignores a bias unless no_bias=False": (
        lambda: float(
            npx.fully_connected(on([[1.0]]), on([[1.0]]), on([5.0]), num_hidden=1)
        ),
        (6.0, 1.0),
    ),
    "np.array of a NumPy array is float32": (
        lambda: str(numpy.dtype(np.array(numpy.zeros(1)).dtype)),
        ("float64", "float32"),
    ),
    "np.array of NumPy integers is float32": (
        lambda: str(numpy.dtype(np.array(numpy.zeros(1, "int32")).dtype)),
        ("int32", "float32"),
    ),
    "np.full of an integer is int64": (
        lambda: str(numpy.dtype(np.full((1,), 3).dtype)),
        ("float32", "int64"),
    ),
    "an integer array times a float is a float": (
        lambda: float((on([3], "int64") * 0.5)[0]),
        (0.0, 1.5),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_known(name):
    call, values = DIFFERENT[name]
    assert call() == values[IS_MXNET_2]

"""What we call of MXNet, by value: the same on MXNet 1.9.1 and 2, or named here.

A default that changes changes every result that rests on it, silently. :data:`SAME` has
what no other test computes beside MXNet 2: the GAN's layers, which are compared with
PyTorch's, and LeNet's loss. Arguments that we leave out are left out here, too.
:data:`DIFFERENT` lists what the two versions do differently.
"""

import math

import numpy
import pytest

from d2lpar._mxnet import IS_MXNET_2, autograd, gluon, mx, np, npx

rng = numpy.random.default_rng(0)
A = rng.normal(size=(4, 3)).astype("float32")
IMAGES = rng.normal(size=(1, 1, 4, 4)).astype("float32")


def on(value, dtype="float32"):
    return np.array(value, dtype=dtype)


def normalised(x, eps):
    return (x - x.mean(0)) / numpy.sqrt(x.var(0) + eps)


def batch_normed():
    with autograd.train_mode():
        return initialized(gluon.nn.BatchNorm(in_channels=3))(on(A))


def log_softmax(x):
    return x - numpy.log(numpy.exp(x).sum(1, keepdims=True))


# By the name of what is called: the call, and the value.
SAME = {
    "relu of NaN": (lambda: npx.activation(on([math.nan]), act_type="relu"), [0]),
    "softrelu": (lambda: npx.activation(on(A), "softrelu"), numpy.log1p(numpy.exp(A))),
    "sigmoid": (lambda: npx.sigmoid(on(A)), 1 / (1 + numpy.exp(-A))),
    "BatchNorm": (batch_normed, normalised(A, 1e-5)),
    "LeakyReLU": (
        lambda: gluon.nn.LeakyReLU(0.2)(on(A)),
        numpy.where(A > 0, A, 0.2 * A),
    ),
    "Conv2DTranspose": (
        lambda: constant(gluon.nn.Conv2DTranspose(1, 2, in_channels=1))(
            on([[[[2.0]]]])
        ),
        numpy.full((1, 1, 2, 2), 2.0),
    ),
    "SoftmaxCrossEntropyLoss clips labels": (
        lambda: gluon.loss.SoftmaxCrossEntropyLoss()(on(A), on([0, 1, 7, -2], "int32")),
        -log_softmax(A)[range(4), [0, 1, 2, 0]],
    ),
    "MaxPool2D": (
        lambda: gluon.nn.MaxPool2D(2, 2)(on(IMAGES)),
        IMAGES.reshape(1, 1, 2, 2, 2, 2).max((3, 5)),
    ),
    "adam_update": (lambda: after_adam(), [0.5 - 0.1 * 0.1 / (0.01**0.5 + 1e-8)]),
}


def initialized(block):
    block.initialize()
    return block


def constant(block):
    block.initialize(mx.init.One())
    return block


def after_adam():
    """A weight of 0.5 after the first step at 0.1, without the bias's correction."""
    weight, mean, var = mx.nd.full((1,), 0.5), mx.nd.zeros(1), mx.nd.zeros(1)
    mx.nd.adam_update(
        weight, mx.nd.ones(1), mean, var, lr=0.1, beta1=0.9, beta2=0.99, out=weight
    )
    return weight


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

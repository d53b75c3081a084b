"""What we call of MXNet, by value: the same on MXNet 1.9.1 and 2, or named here.

A default that changes changes every result that rests on it, silently. :data:`SAME` has
what no other test computes by NumPy. Arguments that we leave out are left out here,
too. :data:`DIFFERENT` lists what the two versions do differently.
"""

import math

import numpy
import pytest

from d2lpar._mxnet import IS_MXNET_2, gluon, np, npx

rng = numpy.random.default_rng(0)
A = rng.normal(size=(4, 3)).astype("float32")


def on(value, dtype="float32"):
    return np.array(value, dtype=dtype)


def log_softmax(x):
    return x - numpy.log(numpy.exp(x).sum(1, keepdims=True))


# By the name of what is called: the call, and the value.
SAME = {
    "relu of NaN": (lambda: npx.activation(on([math.nan]), act_type="relu"), [0]),
    "LeakyReLU": (
        lambda: gluon.nn.LeakyReLU(0.2)(on(A)),
        numpy.where(A > 0, A, 0.2 * A),
    ),
    "SoftmaxCrossEntropyLoss clips labels": (
        lambda: gluon.loss.SoftmaxCrossEntropyLoss()(on(A), on([0, 1, 7, -2], "int32")),
        -log_softmax(A)[range(4), [0, 1, 2, 0]],
    ),
}


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

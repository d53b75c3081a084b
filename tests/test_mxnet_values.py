"""What we call of MXNet, by value: the same on MXNet 1.9.1 and 2, or named here.

A default that changes changes every result that rests on it, silently. So each operator
and method has a value that NumPy computes, with the arguments that we leave out left
out, and :data:`DIFFERENT` lists what the two versions do differently.
"""

import ast
import math
import re
from pathlib import Path

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


def convolved(kernel):
    windows = numpy.lib.stride_tricks.sliding_window_view(IMAGES, (2, 2), (2, 3))
    return (windows * kernel).sum((4, 5))


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
        convolved(KERNEL[0, 0]) + 1,
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
        convolved(1),
    ),
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
    "Dense": (
        lambda: constant(gluon.nn.Dense(2, in_units=3))(on(A)),
        A.sum(1, keepdims=True).repeat(2, 1),
    ),
    "Dense, flattened": (
        lambda: constant(gluon.nn.Dense(1, in_units=16))(on(IMAGES)),
        [[IMAGES.sum()]],
    ),
    "Flatten": (lambda: gluon.nn.Flatten()(on(IMAGES)), IMAGES.reshape(1, 16)),
    "Activation": (lambda: gluon.nn.Activation("sigmoid")(on([0.0])), [0.5]),
    "AvgPool2D": (
        lambda: gluon.nn.AvgPool2D(2, 2)(on(IMAGES)),
        IMAGES.reshape(1, 1, 2, 2, 2, 2).mean((3, 5)),
    ),
    "MaxPool2D": (
        lambda: gluon.nn.MaxPool2D(2, 2)(on(IMAGES)),
        IMAGES.reshape(1, 1, 2, 2, 2, 2).max((3, 5)),
    ),
    "HybridSequential": (lambda: chain()(on(IMAGES)), IMAGES.reshape(1, 16)),
    "multiply": (lambda: np.multiply(on(A), 2, out=np.zeros_like(on(A))), 2 * A),
    "Trainer": (lambda: after_a_step(), [0.95]),
    "adam_update": (lambda: after_adam(), [0.5 - 0.1 * 0.1 / (0.01**0.5 + 1e-8)]),
    "multi_sgd_update": (lambda: after_sgd(mx.nd.ones(2)), [0.9, 0.9]),
    "reset_arrays": (lambda: emptied(mx.nd.ones(2)), [0, 0]),
    "concat": (lambda: of_nd(mx.nd.concat, A, W, dim=0), numpy.concatenate([A, W])),
    "from_numpy": (lambda: mx.nd.from_numpy(A.copy(), zero_copy=True), A),
    "extractdiag": (lambda: of_nd(mx.nd.linalg.extractdiag, W @ W.T), (W * W).sum(1)),
    "gelqf": (
        lambda: abs(of_nd(mx.nd.linalg.gelqf, W)),
        abs(numpy.linalg.qr(W.T.astype("float64"))[1].T),
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
    "gemm": (
        lambda: of_nd(mx.nd.linalg.gemm, A, A, A @ A.T, transpose_b=True, beta=-1),
        numpy.zeros((len(A), len(A))),
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


def chain():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Flatten())
    net.hybridize()
    return net


def after_a_step():
    """A weight of 1 after a step at 0.1 against the gradient 2, divided by 4."""
    weight = gluon.Parameter("weight", shape=(1,))
    weight.initialize(mx.init.One())
    trainer = gluon.Trainer({"weight": weight}, "sgd", {"learning_rate": 0.1})
    with autograd.record():
        loss = 2 * weight.data()
    loss.backward()
    trainer.step(4)
    return weight.data()


def after_sgd(weight):
    """A weight after a step at 0.1 against a gradient of ones."""
    how = {"lrs": [0.1], "wds": [0], "num_weights": 1, "out": [weight]}
    mx.nd.multi_sgd_update(weight, mx.nd.ones(2), **how)
    return weight


def after_adam():
    """A weight of 0.5 after the first step at 0.1, without the bias's correction."""
    weight, mean, var = mx.nd.full((1,), 0.5), mx.nd.zeros(1), mx.nd.zeros(1)
    mx.nd.adam_update(
        weight, mx.nd.ones(1), mean, var, lr=0.1, beta1=0.9, beta2=0.99, out=weight
    )
    return weight


def emptied(array):
    mx.nd.reset_arrays(array, num_arrays=1)
    return array


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


# What has no value of its own: it allocates, waits, records or names a type, or a test
# beside its user computes with it.
WITHOUT = """
    Block HybridBlock Loss Parameter SymbolBlock Trainer DataDesc NDArray ndarray
    array empty waitall from_numpy record pause train_mode is_training
    backward grad mark_variables np npx nn loss linalg random
""".split()


def test_all_that_the_package_calls_has_a_value():
    package = Path(__file__).parents[1] / "d2lpar"
    called = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value)
                if owner in ("np", "npx", "F.np", "F.npx", "gluon.nn", "gluon.loss",
                             "mx.nd", "mx.nd.linalg", "gluon", "autograd"):  # fmt: skip
                    called.add(node.attr)
    tested = Path(__file__).read_text("utf-8")
    words = set(re.findall(r"\w+", tested))
    assert called - words - {"__name__"} == set()

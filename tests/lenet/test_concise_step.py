"""`lenet_concise.train_batch` on nets that are not LeNet: right, or refused."""

import numpy
import pytest

from d2lpar import lenet_concise
from d2lpar._mxnet import gluon, mx, np
from d2lpar.on_gpus import BucketTrainer

CPUS = [mx.cpu(k) for k in range(4)]
SOFTMAX, L2 = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss()


class Switched(gluon.nn.HybridBlock):
    """A dense layer, and a second one that only some steps use."""

    def __init__(self):
        super().__init__()
        self.always = gluon.nn.Dense(3, in_units=4, use_bias=False)
        self.sometimes = gluon.nn.Dense(3, in_units=4, use_bias=False)
        self.uses_both = True

    def forward(self, X):
        out = self.always(X)
        return out + self.sometimes(X) if self.uses_both else out


def sgd(parameters, **options):
    rate = {"learning_rate": 0.1}
    return gluon.Trainer(parameters, "sgd", rate, update_on_kvstore=False, **options)


def values(net):
    return [
        [replica.asnumpy() for replica in p.list_data()]
        for p in net.collect_params().values()
    ]


@pytest.mark.parametrize("in_buckets", [False, True])
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_steps_are_numpys_where_a_layer_is_not_used(num_devices, grad_req, in_buckets):
    """The last batch has fewer samples than four devices."""
    net, chosen, rng = Switched(), CPUS[:num_devices], numpy.random.default_rng(0)
    net.initialize(mx.init.Constant(0.1), ctx=chosen)
    for p in net.collect_params().values():
        p.grad_req = grad_req
    trainer = BucketTrainer(net, 9.0) if in_buckets else sgd(net.collect_params())
    trainer.set_learning_rate(0.1)
    expected = numpy.full((2, 3, 4), 0.1)
    for k, n in enumerate((6, 7, 3)):
        X, y = rng.normal(size=(n, 4)), rng.normal(size=(n, 3))
        net.uses_both = k == 0
        batch = X.astype("float32"), y.astype("float32")
        lenet_concise.train_batch(*batch, net, chosen, trainer, loss=L2)
        used = 2 if k == 0 else 1
        slope = (X @ expected[:used].sum(0).T - y) / 3  # L2Loss halves a mean
        expected[:used] -= 0.1 / n * slope.T @ X
    for ours, theirs in zip(values(net), expected):
        for replica in ours:
            numpy.testing.assert_allclose(replica, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_devices", [1, 3])
@pytest.mark.parametrize(
    ("frozen", "in_buckets"), [(k, False) for k in range(4)] + [(1, True), (3, True)]
)
def test_each_parameter_is_frozen_in_turn(frozen, in_buckets, num_devices):
    """The others take NumPy's step; a weight is kept out of the trainer instead."""
    rng, chosen = numpy.random.default_rng(frozen), CPUS[:num_devices]
    shapes = (5, 4), (5,), (3, 5), (3,)
    W1, b1, W2, b2 = before = [rng.normal(size=shape) for shape in shapes]
    X, y = rng.normal(size=(7, 4)), rng.normal(size=(7, 3))
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation="relu"), gluon.nn.Dense(3))
    net.initialize(ctx=chosen)
    for device in chosen:
        net(np.ones((1, 4), ctx=device))
    params = list(net.collect_params().values())
    for p, value in zip(params, before):
        p.set_data(np.array(value.astype("float32")))
    batch = X.astype("float32"), y.astype("float32"), net, chosen
    if params[frozen].name.endswith("weight"):
        params[frozen].grad_req = "null"
        with pytest.raises(ValueError, match=f"{params[frozen].name} is frozen"):
            lenet_concise.train_batch(*batch, sgd(params), loss=L2)
        params[frozen].grad_req = "write"
        trainer = sgd([p for i, p in enumerate(params) if i != frozen])
    else:
        params[frozen].grad_req = "null"
        trainer = BucketTrainer(net, 0.1) if in_buckets else sgd(params)
    lenet_concise.train_batch(*batch, trainer, loss=L2)
    h = numpy.maximum(X @ W1.T + b1, 0)
    slope = (h @ W2.T + b2 - y) / 3
    back = slope @ W2 * (h > 0)
    gradients = back.T @ X, back.sum(0), slope.T @ h, slope.sum(0)
    for i, (replicas, value) in enumerate(zip(values(net), before)):
        expected = value if i == frozen else value - 0.1 / 7 * gradients[i]
        for replica in replicas:
            numpy.testing.assert_allclose(replica, expected, rtol=1e-5, atol=1e-6)


def test_a_net_without_shapes_takes_its_first_step():
    """Gluon infers them in the forward pass."""
    net = gluon.nn.Dense(3)
    net.initialize(ctx=CPUS[:2])
    X, y = numpy.ones((4, 4), "float32"), numpy.zeros(4, "int32")
    step = CPUS[:2], sgd(net.collect_params())
    losses = lenet_concise.train_batch(X, y, net, *step, loss=SOFTMAX)
    again = lenet_concise.train_batch(X, y, net, *step, loss=SOFTMAX)
    assert float(again[1].sum()) < float(losses[1].sum())


def test_what_parallel_refuses_is_refused_in_gluon():
    net, X, y = gluon.nn.Dense(3, in_units=4), numpy.ones((4, 4), "float32"), [0] * 4
    net.initialize(ctx=CPUS[:2])

    def refused(says, X, y, loss=SOFTMAX, devices=CPUS[:2], **options):
        call = X, numpy.array(y), net, devices, sgd(net.collect_params(), **options)
        with pytest.raises((TypeError, ValueError), match=says):
            lenet_concise.train_batch(*call, loss=loss)

    refused("one value per sample", X, y, lambda y_hat, y: SOFTMAX(y_hat, y).mean())
    refused("label 3: classes", X, [1, 2, 3, 1])
    refused("X is float64, the parameters are float32", X.astype(float), y)
    refused("list each context once", X, y, devices=CPUS[:1] * 2)
    refused("kvstore=None, which sums nothing", X, y, kvstore=None)

"""`lenet_concise.train_batch` on nets that are not LeNet: right, or refused."""

import numpy
import pytest

from d2lpar import lenet_concise
from d2lpar._mxnet import gluon, mx, npx
from d2lpar.buckets import BucketTrainer

CPUS = [mx.cpu(k) for k in range(4)]
L2 = gluon.loss.SoftmaxCrossEntropyLoss()


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


def made(net, contexts, trainer="gluon", grad_req="write"):
    net.initialize(mx.init.Constant(0.1), ctx=contexts)
    parameters = net.collect_params()
    for p in parameters.values():
        p.grad_req = grad_req if p.grad_req != "null" else "null"
    if trainer == "bucket":
        return BucketTrainer(net, 0.1)
    return gluon.Trainer(
        parameters, "sgd", {"learning_rate": 0.1}, update_on_kvstore=False
    )


def values(net):
    return [
        [replica.asnumpy() for replica in p.list_data()]
        for p in net.collect_params().values()
    ]


@pytest.mark.parametrize("trainer", ["gluon", "bucket"])
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("num_devices", [2, 4])
def test_n_devices_step_as_one_where_a_layer_is_not_used(
    num_devices, grad_req, trainer
):
    rng = numpy.random.default_rng(0)
    batches = [
        (rng.normal(size=(n, 4)).astype("float32"), rng.integers(0, 3, n))
        for n in (6, 7, 3)  # the last has fewer samples than four devices
    ]
    results = []
    for contexts in (CPUS[:1], CPUS[:num_devices]):
        net = Switched()
        step = made(net, contexts, trainer, grad_req)
        for k, (X, y) in enumerate(batches):
            net.uses_both = k == 0
            lenet_concise.train_batch(X, y, net, contexts, step, loss=L2)
        results.append(values(net))
    one, several = results
    for (expected,), replicas in zip(one, several):
        for replica in replicas:
            numpy.testing.assert_allclose(replica, expected, rtol=1e-5, atol=1e-7)


def test_running_averages_are_no_gradients():
    """A batch that is smaller than the number of devices."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=4), gluon.nn.BatchNorm(in_channels=3))
    step = made(net, CPUS[:3])
    for n in (7, 2):
        X, y = numpy.ones((n, 4), "float32"), numpy.zeros(n, "int32")
        lenet_concise.train_batch(X, y, net, CPUS[:3], step, loss=L2)
    npx.waitall()
    weights = values(net)[0]
    assert all((weight == weights[0]).all() for weight in weights)


def test_what_parallel_refuses_is_refused_in_gluon():
    net, X, y = gluon.nn.Dense(3, in_units=4), numpy.ones((4, 4), "float32"), [0] * 4
    step = made(net, CPUS[:2])

    def refused(says, X, y, loss=L2):
        with pytest.raises((TypeError, ValueError), match=says):
            lenet_concise.train_batch(X, numpy.array(y), net, CPUS[:2], step, loss=loss)

    refused("one value per sample", X, y, lambda y_hat, y: L2(y_hat, y).mean())
    refused("label 3: classes", X, [1, 2, 3, 1])
    refused("X is float64, the parameters are float32", X.astype(float), y)
    step._kvstore_params["kvstore"] = None
    refused("kvstore=None, which sums nothing", X, y)


@pytest.mark.parametrize("hybridized", [False, True])
def test_steps_in_float64_are_those_of_numpy(hybridized):
    rng = numpy.random.default_rng(0)
    X, y, w = rng.normal(size=(7, 4)), rng.normal(size=(7, 1)), rng.normal(size=(1, 4))
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(1, in_units=4, use_bias=False, dtype="float64"))
    step = made(net, CPUS[:3])
    if hybridized:
        net.hybridize()
    net[0].weight.set_data(mx.np.array(w, dtype="float64"))
    for _ in range(3):
        lenet_concise.train_batch(X, y, net, CPUS[:3], step, loss=gluon.loss.L2Loss())
        w = w - 0.1 / 7 * ((X @ w.T - y) * X).sum(axis=0)
    for replica in values(net)[0]:  # MXNet's optimizers keep the rate in float32
        numpy.testing.assert_allclose(replica, w, rtol=1e-6)

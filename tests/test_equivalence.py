"""N devices compute what one computes, and what others compute."""

import numpy
import pytest
from support.steps import LR, concise, distance, params_of, scratch, some_batches

from d2lpar import lenet
from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.parallel import get_params, split_batch

BATCH = 24


def cpus(n):
    return [mx.cpu(k) for k in range(n)]


@pytest.mark.parametrize("implementation", [scratch, concise])
@pytest.mark.parametrize(
    ("num_devices", "n"),
    [(1, BATCH), (2, BATCH), (3, 7), (5, 2)],  # even, uneven, with idle devices
)
def test_n_devices_equal_one(implementation, num_devices, n):
    replicas = implementation(cpus(num_devices), n, steps=10)
    assert distance(replicas[0], scratch(cpus(1), n, steps=10)[0]) < 1e-5
    for replica in replicas[1:]:
        for p, q in zip(replica, replicas[0]):
            assert (p == q).all()  # replicas are bit-equal among themselves


# Against PyTorch


def torch_step(torch, params, X, y):
    """Scores, loss and gradients of the same network in PyTorch, float64."""
    import torch.nn.functional as F

    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2)
    h = F.avg_pool2d(F.relu(F.conv2d(h, W2, b2)), 2).flatten(1)
    scores = F.relu(h @ W3 + b3) @ W4 + b4
    loss = F.cross_entropy(scores, y, reduction="none")
    return scores, loss, torch.autograd.grad(loss.sum(), params)


def as_torch(torch, arrays):
    return [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]


def test_forward_loss_and_every_gradient_equal_pytorchs(torch):
    ((X, y),) = some_batches(BATCH, 1, "float64")
    params = get_params(params_of("float64"), mx.cpu(0))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    with autograd.record():
        scores = lenet.lenet(np.array(X, dtype="float64"), params)
        losses = loss(scores, np.array(y, dtype="int32"))
    losses.backward()
    expected = torch_step(
        torch, as_torch(torch, params_of("float64")), torch.tensor(X),
        torch.tensor(y, dtype=torch.int64),
    )  # fmt: skip
    numpy.testing.assert_allclose(
        scores.asnumpy(), expected[0].detach().numpy(), rtol=1e-9, atol=1e-12
    )
    numpy.testing.assert_allclose(
        losses.asnumpy(), expected[1].detach().numpy(), rtol=1e-9
    )
    for p, grad in zip(params, expected[2]):
        numpy.testing.assert_allclose(
            p.grad.asnumpy(), grad.numpy(), rtol=1e-8, atol=1e-11
        )


@pytest.mark.parametrize(
    ("num_devices", "dtype", "tolerance"),
    [(3, "float64", 1e-10), (1, "float32", 1e-4)],
)
def test_20_steps_equal_pytorchs(torch, num_devices, dtype, tolerance):
    params = as_torch(torch, params_of("float64"))
    for X, y in some_batches(7, 20, dtype):
        _, _, grads = torch_step(
            torch, params, torch.tensor(X, dtype=torch.float64),
            torch.tensor(y, dtype=torch.int64),
        )  # fmt: skip
        with torch.no_grad():
            for p, grad in zip(params, grads):
                p -= LR / len(y) * grad
    ours = scratch(cpus(num_devices), 7, 20, dtype)[0]
    theirs = [p.detach().numpy() for p in params]
    assert distance(theirs, params_of()) > 0.005  # the steps went somewhere
    assert distance(ours, theirs) < tolerance


# Against the book


@pytest.fixture(scope="module")
def d2l():
    return pytest.importorskip("d2l.mxnet", reason="d2l is not installed (extra book)")


def test_split_batch_equals_the_books(d2l):
    X, y = np.arange(24).reshape((4, 6)), np.arange(4)
    devices = [mx.cpu(0), mx.cpu(1)]
    for ours, theirs in zip(split_batch(X, y, devices), d2l.split_batch(X, y, devices)):
        for a, b in zip(ours, theirs):
            assert a.ctx == b.ctx
            assert (a.asnumpy() == b.asnumpy()).all()

"""N devices compute what one computes, and what others compute."""

import functools

import numpy
import pytest
from support.steps import (
    LR,
    concise,
    distance,
    params_of,
    scratch,
    some_batches,
)

from d2lpar import assert_equal_replicas, get_params, lenet, train_batch
from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.buckets import BUCKETS, Bucket

CLOSE = 1e-4  # relative, of float32 without TF32, in another order of summation


def cpus(n):
    return [mx.cpu(k) for k in range(n)]


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_buckets_train_to_the_bits_of_separate_arrays(num_devices, contexts):
    chosen = contexts(num_devices)
    separate = [get_params(params_of(), context) for context in chosen]
    flat = [Bucket(params_of(), context) for context in chosen]
    for n in (7, 16, 2):  # uneven shards, even ones, and an idle device
        ((X, y),) = some_batches(n, 1)
        expected = train_batch(X, y, separate, chosen, 0.1)
        losses = train_batch(X, y, flat, chosen, 0.1, **BUCKETS)
        for l, other in zip(expected, losses):
            assert (l.asnumpy() == other.asnumpy()).all()
    assert_equal_replicas(separate)
    for replica, bucket in zip(separate, flat):
        for p, q in zip(replica, bucket):
            assert (p.asnumpy() == q.asnumpy()).all()
            assert (p.grad.asnumpy() == q.grad.asnumpy()).all()


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


@pytest.mark.parity
@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-8), ("float32", 2e-3)])
def test_forward_loss_and_every_gradient_equal_pytorchs(torch, dtype, rtol):
    """All gradients together, and that of each parameter alone."""
    ((X, y),) = some_batches(24, 1, "float64")
    expected = torch_step(
        torch, as_torch(torch, params_of("float64")), torch.tensor(X),
        torch.tensor(y, dtype=torch.int64),
    )  # fmt: skip
    expected_grads = [grad.numpy() for grad in expected[2]]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for wanted in (range(8), *([i] for i in range(8))):
        params = [np.array(p, dtype=dtype) for p in params_of(dtype)]
        for i in wanted:
            params[i].attach_grad()
        with autograd.record():
            scores = lenet.lenet(np.array(X, dtype=dtype), params)
            losses = loss(scores, np.array(y, dtype="int32"))
        losses.backward()
        for ours, theirs in (
            (scores, expected[0].detach().numpy()),
            (losses, expected[1].detach().numpy()),
            *((params[i].grad, expected_grads[i]) for i in wanted),
        ):
            atol = rtol * numpy.abs(theirs).max()
            numpy.testing.assert_allclose(ours.asnumpy(), theirs, rtol=0, atol=atol)


@pytest.mark.parity
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


@pytest.mark.parity
@pytest.mark.parametrize("implementation", [scratch, concise])
@pytest.mark.parametrize("n", [8, 7])
def test_steps_are_those_of_d2ls_train_batch(implementation, n):
    """Even shards by d2l's split; uneven ones by MXNet's, which d2l's refuses."""
    d2l = pytest.importorskip("d2l.mxnet", reason="d2l is not installed (extra book)")
    two = cpus(2)
    net, _, loss = lenet.concise.build(params_of(), two, LR)
    params = net.collect_params()
    trainer = gluon.Trainer(params, "sgd", {"learning_rate": LR})

    def split(X, y, devices):
        if len(X) % 2 == 0:
            return d2l.split_batch(X, y, devices)
        load = functools.partial(gluon.utils.split_and_load, even_split=False)
        return load(X, devices), load(y, devices)

    for X, y in some_batches(n, 10):
        batch = np.array(X), np.array(y, dtype="int32")
        d2l.train_batch_ch13(net, *batch, loss, trainer, two, split)
    theirs = lenet.network.get_host_params(net)
    assert distance(theirs, params_of()) > 1e-3
    assert distance(implementation(two, n, 10)[0], theirs) < 1e-5

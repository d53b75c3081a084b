"""N devices compute what one computes, and what others compute.

At lr 0.02: at 0.2 the recipe's first steps are chaotic in float32, and a difference in
the last bit grows a thousandfold in 20 steps; benchmarks/equivalence.py shows it.
"""

import numpy
import pytest

from d2lpar import init_lenet, lenet, lenet_concise
from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.parallel import get_params, split_batch, train_batch

LR = 0.02
BATCH = 24


def some_batches(n: int, steps: int, dtype: str = "float32", seed: int = 1):
    """Random images whose classes differ in brightness, so that there is a slope."""
    rng = numpy.random.default_rng(seed)
    for _ in range(steps):
        y = rng.integers(0, 10, n).astype("int32")
        X = rng.random((n, 1, 28, 28)) * (1 + y[:, None, None, None]) / 10
        yield X.astype(dtype), y


def params_of(dtype: str = "float32"):
    # Larger than the book's 0.01, so that every layer has a gradient from the start.
    return [p.astype(dtype) for p in init_lenet(scale=0.1, seed=3)]


def scratch(num_devices: int, n: int, steps: int, lr: float = LR, dtype="float32"):
    """Replicas after some steps, as host arrays: [device][parameter]."""
    devices = [mx.cpu(k) for k in range(num_devices)]
    replicas = [get_params(params_of(dtype), device) for device in devices]
    for X, y in some_batches(n, steps, dtype):
        train_batch(X, y, replicas, devices, lr)
    return [[p.asnumpy() for p in replica] for replica in replicas]


def concise(num_devices: int, n: int, steps: int, lr: float = LR):
    devices = [mx.cpu(k) for k in range(num_devices)]
    net, trainer, loss = lenet_concise.build(params_of(), devices, lr)
    for X, y in some_batches(n, steps):
        lenet_concise.train_batch(X, y, net, devices, trainer, loss=loss)
    per_param = [p.list_data() for p in net.collect_params().values()]
    return [
        [data[k].asnumpy().T if data[k].ndim == 2 else data[k].asnumpy()
         for data in per_param]
        for k in range(num_devices)
    ]  # fmt: skip


def distance(a, b) -> float:
    """Relative distance of two lists of parameters, in the 2-norm over all of them."""
    a, b = (numpy.concatenate([p.ravel() for p in params]) for params in (a, b))
    return numpy.linalg.norm(a - b) / numpy.linalg.norm(b)


@pytest.mark.parametrize("implementation", [scratch, concise])
@pytest.mark.parametrize(
    ("num_devices", "n"),
    [(1, BATCH), (2, BATCH), (3, 7), (5, 2)],  # even, uneven, with idle devices
)
def test_n_devices_equal_one(implementation, num_devices, n):
    replicas = implementation(num_devices, n, steps=10)
    assert distance(replicas[0], scratch(1, n, steps=10)[0]) < 1e-5
    for replica in replicas[1:]:
        for p, q in zip(replica, replicas[0]):
            assert (p == q).all()  # replicas are bit-equal among themselves


def test_in_float64_every_single_parameter_agrees():
    # In float32 a convolution's bias, a sum of 10,000 numbers that nearly cancel, may
    # differ by 1e-4 of itself between one device and eight: rounding, and here the
    # proof.
    one, eight = (scratch(n, BATCH, 5, dtype="float64")[0] for n in (1, 8))
    assert max(distance([p], [q]) for p, q in zip(eight, one)) < 1e-11


# Against PyTorch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed (extra peers)")


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
    ours = scratch(num_devices, 7, 20, dtype=dtype)[0]
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


def test_our_helpers_train_the_books_network(d2l):
    # d2l's own names and ours side by side, as in a notebook.
    net = lambda X, params: d2l.linreg(X, *params)  # noqa: E731
    true_w = np.array([2, -3.4])
    X, y = d2l.synthetic_data(true_w, 4.2, 100)
    devices = [mx.cpu(0), mx.cpu(1)]
    replicas = [get_params([np.zeros((2, 1)), np.zeros(1)], d) for d in devices]
    for _ in range(60):
        train_batch(X, y, replicas, devices, 0.5, net=net, loss=d2l.squared_loss)
    numpy.testing.assert_allclose(
        replicas[0][0].asnumpy()[:, 0], true_w.asnumpy(), atol=0.02
    )

"""The four functions: the book's examples, and what the book's code gets wrong."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar import (
    allreduce,
    assert_equal_replicas,
    devices,
    get_params,
    init_lenet,
    split_batch,
    train_batch,
)
from d2lpar._mxnet import gluon, mx, np
from d2lpar.buckets import Bucket, allreduce_buckets
from d2lpar.parallel import allreduce_in_tree

CPUS = [mx.cpu(k) for k in range(8)]
DTYPES = ["float16", "float32", "float64", "int32", "int64", "uint8"]
SOFTMAX = gluon.loss.SoftmaxCrossEntropyLoss()


def linear(X, params):
    return np.dot(X, params[0]) + params[1]


def squared(y_hat, y):
    return ((y_hat - y.reshape(y_hat.shape)) ** 2).sum(axis=1)


def test_get_params_copies_keeps_dtypes_and_attaches_zero_gradients(contexts):
    (device,) = contexts(1)
    b1, W1 = np.zeros(20, ctx=device), numpy.arange(6.0).reshape(2, 3)
    bias, weight = get_params([b1, W1], device)
    bias[:] = 7
    assert (b1.asnumpy() == 0).all()  # also on the same device: a copy, not an alias
    assert weight.dtype == numpy.float64 and (weight.asnumpy() == W1).all()
    assert (weight.grad.asnumpy() == numpy.zeros((2, 3))).all()
    assert weight.ctx == device


@settings(deadline=None, max_examples=20)
@given(
    n=st.integers(1, 20),
    rest=st.lists(st.integers(1, 3), max_size=3),
    dtype=st.sampled_from(DTYPES),
    num_devices=st.integers(1, 8),
    kind=st.sampled_from(["numpy", "np", "nd"]),
)
def test_split_batch_keeps_order_balance_and_dtype(n, rest, dtype, num_devices, kind):
    X = numpy.arange(n * numpy.prod(rest, dtype=int)) % 200
    X = X.reshape((n, *rest)).astype(dtype)
    y = numpy.arange(n, dtype="int32")
    make = {
        "numpy": lambda a: a,
        "np": lambda a: np.array(a, dtype=a.dtype),
        "nd": lambda a: mx.nd.array(a, dtype=a.dtype),
    }[kind]
    if n < num_devices:  # as d2l's: MXNet cannot compute on an empty shard
        with pytest.raises(ValueError, match=f"{n} samples.*devices\\[:{n}\\]"):
            split_batch(make(X), make(y), CPUS[:num_devices])
        return
    X_shards, y_shards = split_batch(make(X), make(y), CPUS[:num_devices])
    sizes = [len(s) for s in X_shards]
    assert len(sizes) == num_devices and sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    assert [len(s) for s in y_shards] == sizes
    joined = numpy.concatenate([s.asnumpy() for s in X_shards])
    numpy.testing.assert_array_equal(joined, X)
    assert X_shards[0].dtype == dtype and y_shards[0].dtype == numpy.int32
    for shard, device in zip(X_shards, CPUS):
        assert isinstance(shard, np.ndarray) and shard.ctx == device


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3, 1), (10**6 + 3,)])
@pytest.mark.parametrize("n", [1, 3])
def test_allreduce_is_the_sum_to_the_bit(dtype, shape, n, contexts):
    rng, chosen = numpy.random.default_rng(0), contexts(n)
    hosts = [(9 * rng.random(shape)).astype(dtype) for _ in chosen]
    data = [np.array(h, dtype=dtype, ctx=c) for h, c in zip(hosts, chosen)]
    for _ in range(3):  # the sums of sums, too: nothing starts before it may
        allreduce(data)
        hosts = [sum(hosts[1:], hosts[0])] * n
    for array, host, device in zip(data, hosts, chosen):
        assert array.dtype == dtype and array.ctx == device
        numpy.testing.assert_array_equal(array.asnumpy(), host)


# Steps, against the derivative written by hand, in NumPy


def numpy_step(arrays, gradients, lr, n):
    return [a - lr / n * g for a, g in zip(arrays, gradients)]


def equal_to(replicas, arrays, rtol=1e-10):
    for replica in replicas:
        for p, expected in zip(replica, arrays):
            numpy.testing.assert_allclose(p.asnumpy(), expected, rtol=rtol)


@pytest.mark.parametrize(("n", "num_devices"), [(8, 1), (13, 3), (5, 2), (2, 5)])
@pytest.mark.parametrize("shape", [(1,), ()])
def test_train_batch_is_one_step_of_gradient_descent(n, num_devices, shape, contexts):
    """Uneven shards and idle devices; a bias that is one number, too."""
    chosen = contexts(num_devices)
    rng = numpy.random.default_rng(n)
    X, w, b = rng.normal(size=(n, 4)), rng.normal(size=(4, 1)), rng.normal(size=shape)
    y = rng.normal(size=n)
    replicas = [get_params([w, numpy.array(b)], device) for device in chosen]
    for replica in replicas:
        replica[0].grad[:] = 1e6  # what an idle device might still hold
    losses = train_batch(X, y, replicas, chosen, 0.1, net=linear, loss=squared)
    residual = X @ w + b - y[:, None]
    gradients = 2 * X.T @ residual, 2 * residual.sum().reshape(shape)
    equal_to(replicas, numpy_step([w, b], gradients, 0.1, n))
    total = numpy.concatenate([l.asnumpy() for l in losses])
    numpy.testing.assert_allclose(total, residual[:, 0] ** 2, rtol=1e-10)


@pytest.mark.parametrize("num_devices", [1, 4])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_parameter_that_a_step_does_not_use_stays(num_devices, grad_req):
    """Its old sum would be summed again: N times as much in each step."""
    rng = numpy.random.default_rng(0)
    X, w = rng.normal(size=(5, 3)), rng.normal(size=(3, 1))
    y, c = rng.normal(size=5), numpy.full(1, 0.7)
    contexts = CPUS[:num_devices]
    replicas = [get_params([w, c], device) for device in contexts]
    for p in (p for params in replicas for p in params):
        p.attach_grad(grad_req)
    for k in range(4):

        def net(X, params, used=k == 0):
            return np.dot(X, params[0]) * (params[1] if used else 1)

        train_batch(X, y, replicas, contexts, 0.1, net=net, loss=squared)
        residual = X @ w * (c if k == 0 else 1) - y[:, None]
        by_w = 2 * X.T @ residual * (c if k == 0 else 1)
        by_c = (2 * residual * (X @ w)).sum(0) if k == 0 else 0
        w, c = numpy_step([w, c], [by_w, by_c], 0.1, 5)
    equal_to(replicas, [w, c])


def test_tied_weights_stay_tied():
    rng = numpy.random.default_rng(0)
    X, W, y = rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), rng.normal(size=(4, 3))
    replicas = [get_params([W, W], device) for device in CPUS[:2]]
    assert all(replica[0] is replica[1] for replica in replicas)

    def net(X, params):
        return np.dot(np.dot(X, params[0]), params[1])

    train_batch(X, y, replicas, CPUS[:2], 0.1, net=net, loss=squared)
    residual = X @ W @ W - y
    gradient = 2 * (X.T @ residual @ W.T + (X @ W).T @ residual)
    equal_to(replicas, [W - 0.1 / 4 * gradient] * 2)


# Of the first eight numbers each order of sums in float32 loses other ones.
@pytest.mark.parametrize("data", [[1e8, 1, 1, 1, 1, -1e8, 1, 1], [1, 2, 4, 8, 16]])
def test_a_tree_adds_in_an_order_of_its_own(data):
    data = numpy.float32(data)
    expected = data.sum()  # of the five, in any order
    if len(data) == 8:
        a, b, c, d = data[:4] + data[4:]
        expected = (a + c) + (b + d)  # not 6, the sum
    replicas = [get_params([numpy.zeros(2, "float32")], c) for c in CPUS[: len(data)]]
    for (p,), value in zip(replicas, data):
        p.grad[:] = value
    allreduce_in_tree(replicas)
    for (p,) in replicas:
        assert p.grad.tolist() == [expected, expected]


@pytest.mark.parametrize("n", [5, 20])  # fewer samples than chunks, too
def test_in_chunks_steps_have_the_same_bits_on_1_to_4_contexts(n):
    rng = numpy.random.default_rng(n)
    X, y = rng.random((n, 1, 28, 28), "float32"), rng.integers(0, 10, n)
    ends = []
    for count in (1, 2, 3, 4):
        chunks = devices.for_chunks(CPUS[:count])
        replicas = [get_params(init_lenet(0.1), device) for device in chunks]
        for _ in range(3):
            train_batch(X, y, replicas, chunks, 0.1, reduce=allreduce_in_tree)
        assert_equal_replicas(replicas)
        ends.append([p.asnumpy() for p in replicas[0]])
    for end in ends[1:]:
        assert all((p == q).all() for p, q in zip(end, ends[0]))
    whole = [get_params(init_lenet(0.1), CPUS[0])]
    for _ in range(3):
        train_batch(X, y, whole, CPUS[:1], 0.1)
    for p, q in zip(ends[0], whole[0]):
        numpy.testing.assert_allclose(p, q.asnumpy(), atol=1e-6)


# A reader's own functions


def momentum(velocities_of):
    """docs/api.md's update, with its state found by `velocities_of`."""

    def update(params, lr, batch_size):
        for p, v in zip(params, velocities_of(params)):
            v[:] = 0.9 * v + p.grad / batch_size
            p -= lr * v

    return update


def own_steps(make, update, rates, **options):
    rng = numpy.random.default_rng(1)
    X, y, w = rng.normal(size=(7, 3)), rng.normal(size=7), rng.normal(size=(3, 1))
    two, options = CPUS[:2], {"loss": squared, "update": update, **options}
    replicas = [make([w, numpy.zeros(1)], device) for device in two]
    for lr in rates:
        train_batch(X, y, replicas, two, lr, net=linear, **options)
    return replicas, X, y, w


def test_momentum_with_a_state_per_device_is_numpys():
    own = {c: [np.zeros((3, 1), ctx=c), np.zeros(1, ctx=c)] for c in CPUS[:2]}
    update = momentum(lambda params: own[params[0].ctx])
    replicas, X, y, p = own_steps(get_params, update, [0.1] * 9)
    b, v_p, v_b = numpy.zeros(1), 0, 0
    for _ in range(9):
        slope = 2 * (X @ p + b - y[:, None])
        v_p, v_b = 0.9 * v_p + X.T @ slope / 7, 0.9 * v_b + slope.mean(0)
        p, b = p - 0.1 * v_p, b - 0.1 * v_b
    equal_to(replicas, [p, b], rtol=1e-5)  # the velocities are float32


@pytest.mark.parametrize("reduce", ["book's", "buckets"])
# The second step differs little, or a state begins to matter after the eighth.
@pytest.mark.parametrize("rates", [[1e-9] * 2, [1e-300] * 8 + [0.1] * 8])
def test_one_state_for_all_replicas_is_noticed(reduce, rates):
    shared = [np.zeros((3, 1)), np.zeros(1)]
    update = momentum(lambda params: shared)
    make, options = get_params, {}
    if reduce == "buckets":
        make, options = Bucket, {"reduce": allreduce_buckets}
    with pytest.raises(AssertionError, match=r"replicas 0 and 1 differ .*params\[0\]"):
        own_steps(make, update, rates, **options)
    assert_equal_replicas([get_params([numpy.full(1, numpy.nan)], c) for c in CPUS[:2]])


# What a learner gets wrong: an error that names the value, and no step is taken

X, Y = numpy.ones((4, 4)), numpy.zeros(4)


def three_scores(X, params):
    return np.dot(X, np.concatenate([params[0]] * 3, axis=1))


LABELS = {"net": three_scores, "loss": SOFTMAX}


@pytest.mark.parametrize(
    ("changed", "error", "value"),
    [
        ({"devices": "cpu:2"}, TypeError, "cpu:2"),
        ({"devices": CPUS[:3]}, ValueError, r"not on \[cpu\(0\), cpu\(1\), cpu\(2\)"),
        ({"devices": CPUS[1::-1]}, ValueError, r"are on \[cpu\(0\), cpu\(1\)\]"),
        ({"devices": CPUS[:1] * 2, "same": True}, ValueError, "listed twice"),
        ({"y": Y[:3]}, ValueError, r"\(4, 4\) and y \(3,\)"),
        ({"X": X[:0], "y": Y[:0]}, ValueError, r"empty: X \(0, 4\)"),
        ({"X": X.astype("float32")}, TypeError, r"X.astype\('float64'\)"),
        ({"X": X.astype(object)}, TypeError, "X is object"),
        ({"loss": lambda y_hat, y: squared(y_hat, y).mean()}, ValueError, r"\(\)"),
        ({"lr": numpy.nan}, ValueError, "lr nan"),
        ({"lr": 0}, ValueError, "lr 0"),
        ({"lr": "0.1"}, ValueError, "lr '0.1'"),
        ({"update": lambda *_: [1]}, TypeError, "list was returned"),
        ({"reduce": lambda *_: 1}, TypeError, "int was returned"),
        ({**LABELS, "y": numpy.array([0, 1, 2, 3])}, ValueError, "label 3: .* 0 to 2"),
        ({**LABELS, "y": [0, 0.5, 0, 1]}, ValueError, "label 0.5"),
        ({**LABELS, "y": Y > 0}, TypeError, "y is bool"),
    ],
)
def test_train_batch_refuses(changed, error, value):
    call = {"X": X, "y": Y, "devices": CPUS[:2], "loss": squared, "lr": 0.1}
    call = {**call, "net": linear, **changed}
    params = [numpy.zeros((4, 1)), numpy.zeros(1)]
    replicas = [get_params(params, device) for device in CPUS[:2]]
    replicas = replicas[:1] * 2 if call.pop("same", False) else replicas
    with pytest.raises(error, match=value):
        train_batch(device_params=replicas, **call)
    for replica in replicas:
        assert all((p.asnumpy() == 0).all() for p in replica)


def test_get_params_refuses():
    for params, device, value in (
        ([numpy.zeros((4, 1), int)], CPUS[0], "int64: write floats"),
        (numpy.zeros(2), CPUS[0], "params is one ndarray"),
        ([0.5], CPUS[0], "a float: write arrays"),
        ([gluon.Parameter("w", shape=(2,))], CPUS[0], r"a Parameter: .* p.data\(\)"),
        ([numpy.zeros(2)], "cpu:0", "device 'cpu:0': write one context"),
    ):
        with pytest.raises(TypeError, match=value):
            get_params(params, device)


def test_allreduce_refuses_what_it_would_broadcast_and_sums_neighbours():
    whole, other = np.arange(6), np.ones(3, ctx=CPUS[1])
    for data in ([whole, other], [whole] * 2, [whole, mx.nd.arange(6)], []):
        with pytest.raises(ValueError, match="allreduce"):
            allreduce(data)
    for array in (numpy.zeros(2), np.ones(2, dtype="bool")):
        with pytest.raises(TypeError, match="allreduce"):
            allreduce([array])
    allreduce([whole[:3], whole[3:]])
    assert whole.asnumpy().tolist() == [3, 5, 7] * 2

"""The four functions: the book's examples, and what the book's code gets wrong."""

import time
import warnings
from fractions import Fraction

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar import (
    allreduce,
    assert_equal_replicas,
    get_params,
    init_lenet,
    parallel,
    sgd,
    split_batch,
    train_batch,
)
from d2lpar._mxnet import autograd, gluon, mx, np, npx
from d2lpar.step_checks import share_host_memory

CPUS = [mx.cpu(k) for k in range(8)]
DTYPES = st.sampled_from(["float16", "float32", "float64", "int32", "int64", "uint8"])


def test_get_params_copies_keeps_dtypes_and_attaches_zero_gradients():
    b1, W1 = np.zeros(20), numpy.arange(6, dtype=numpy.float64).reshape(2, 3)
    bias, weight = get_params([b1, W1], mx.cpu(0))
    bias[:] = 7
    assert (b1.asnumpy() == 0).all()  # also on the same device: a copy, not an alias
    assert weight.dtype == numpy.float64 and (weight.asnumpy() == W1).all()
    assert (weight.grad.asnumpy() == numpy.zeros((2, 3))).all()


@settings(deadline=None, max_examples=20)
@given(
    n=st.integers(1, 20),
    rest=st.lists(st.integers(1, 3), max_size=3),
    dtype=DTYPES,
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


def linear(X, params):
    return np.dot(X, params[0]) + params[1]


def squared(y_hat, y):
    return ((y_hat - y.reshape(y_hat.shape)) ** 2).sum(axis=1)


@pytest.mark.parametrize(("n", "num_devices"), [(8, 1), (13, 3), (3, 3), (2, 5)])
def test_train_batch_is_one_step_of_gradient_descent(n, num_devices):
    # Against the derivative written by hand, in NumPy.
    rng = numpy.random.default_rng(n)
    X, w, b = rng.normal(size=(n, 4)), rng.normal(size=(4, 1)), rng.normal(size=1)
    y = rng.normal(size=n)
    replicas = [get_params([w, b], c) for c in CPUS[:num_devices]]
    for replica in replicas:
        for p in replica:
            p.grad[:] = 1e6  # what an idle device might still hold
    losses = train_batch(
        X, y, replicas, CPUS[:num_devices], 0.1, net=linear, loss=squared
    )
    residual = X @ w + b - y[:, None]
    w_new = w - 0.1 / n * 2 * X.T @ residual
    b_new = b - 0.1 / n * 2 * residual.sum(0)
    for replica in replicas:
        numpy.testing.assert_allclose(replica[0].asnumpy(), w_new, rtol=1e-10)
        numpy.testing.assert_allclose(replica[1].asnumpy(), b_new, rtol=1e-10)
    total = numpy.concatenate([l.asnumpy() for l in losses])
    numpy.testing.assert_allclose(total, residual[:, 0] ** 2, rtol=1e-10)


@settings(deadline=None, max_examples=30)
@given(
    num_devices=st.integers(1, 5),
    shape=st.lists(st.integers(1, 3), max_size=4),
    dtype=DTYPES,
    seed=st.integers(0, 9),
)
def test_allreduce_of_any_shape_and_dtype(num_devices, shape, dtype, seed):
    rng = numpy.random.default_rng(seed)
    host = [rng.integers(0, 40, size=shape).astype(dtype) for _ in range(num_devices)]
    data = [np.array(h, dtype=dtype, ctx=c) for h, c in zip(host, CPUS)]
    allreduce(data)
    for array, device in zip(data, CPUS):
        assert array.dtype == dtype and array.ctx == device
        numpy.testing.assert_array_equal(array.asnumpy(), sum(host))


def test_a_tree_adds_in_an_order_of_its_own():
    """Of these numbers each order of sums in float32 loses other ones."""
    data = numpy.float32([1e8, 1, 1, 1, 1, -1e8, 1, 1])
    a, b, c, d = data[:4] + data[4:]
    expected = (a + c) + (b + d)
    assert expected != data.sum(dtype="float64")
    for count in range(1, 9):
        arrays = [np.full(2, v, ctx=CPUS[k % count]) for k, v in enumerate(data)]
        assert parallel.sum_in_tree(arrays).tolist() == [expected, expected]


def test_contexts_draw_different_repeatable_dropout_masks():
    """MXNet's, as docs/second-gpu.md says: with dropout N devices are not one."""

    def masks():
        mx.random.seed(0)
        with autograd.train_mode():
            return [
                npx.dropout(np.ones(1_000, ctx=device), p=0.5).asnumpy() > 0
                for device in CPUS[:2]
            ]

    first, again = masks(), masks()
    assert all((a == b).all() for a, b in zip(first, again))
    assert 0.4 < (first[0] == first[1]).mean() < 0.6


# Steps that are not the book's


def numpy_step(arrays, gradients, lr, n):
    return [a - lr / n * g for a, g in zip(arrays, gradients)]


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
    for replica in replicas:
        numpy.testing.assert_allclose(replica[0].asnumpy(), w, rtol=1e-10)
        numpy.testing.assert_allclose(replica[1].asnumpy(), c, rtol=1e-10)


def test_tied_weights_stay_tied():
    rng = numpy.random.default_rng(0)
    X, W, y = rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), rng.normal(size=(4, 3))
    contexts = CPUS[:2]
    replicas = [get_params([W, W], device) for device in contexts]
    assert all(replica[0] is replica[1] for replica in replicas)

    def net(X, params):
        return np.dot(np.dot(X, params[0]), params[1])

    train_batch(X, y, replicas, contexts, 0.1, net=net, loss=squared)
    residual = X @ W @ W - y
    gradient = 2 * (X.T @ residual @ W.T + (X @ W).T @ residual)
    for replica in replicas:
        numpy.testing.assert_allclose(
            replica[1].asnumpy(), W - 0.1 / 4 * gradient, rtol=1e-10
        )


def test_views_of_one_array_are_refused_and_parts_of_one_are_not():
    flat = numpy.arange(6.0)
    for array in (flat, np.array(flat)):
        with pytest.raises(ValueError, match="two parameters are views"):
            get_params([array, array[2:]], CPUS[0])
    assert len(get_params([flat[:2], flat[2:]], CPUS[0])) == 2


def test_numbers_are_copied_one_by_one_and_train_as_arrays_of_one_number():
    """CPython shares equal constants; 0-d arrays fail in MXNet's older operations."""
    rng = numpy.random.default_rng(0)
    X, y, w = rng.normal(size=(5, 2)), rng.normal(size=5), numpy.array([0.5, 0.5])
    contexts, pair = CPUS[:2], [0.25]
    replicas = [get_params([w, 0.5, 0.5, pair, pair], c) for c in contexts]
    assert [p.shape for p in replicas[0]] == [(2,), (), (), (1,), (1,)]
    assert len({id(p) for p in replicas[0]}) == 5

    def net(X, params):
        return np.dot(X, params[0]) * params[1] + params[2] + params[3] - params[4]

    for _ in range(2):
        train_batch(
            X, y, replicas, contexts, 0.1, net=net, loss=lambda p, y: (p - y) ** 2
        )
    expected = [w, 0.5, 0.5, 0.25, 0.25]
    for _ in range(2):
        w, scale, shift, plus, minus = expected
        slope = 2 * (X @ w * scale + shift + plus - minus - y)
        grads = [X.T @ slope * scale, (slope * (X @ w)).sum()]
        grads += [slope.sum(), slope.sum(), -slope.sum()]
        expected = numpy_step(expected, grads, 0.1, 5)
    for replica in replicas:
        for p, value in zip(replica, expected):
            numpy.testing.assert_allclose(p.asnumpy().reshape(-1), value, rtol=1e-10)


def test_many_parameters_are_compared_in_order_of_their_addresses():
    table = numpy.zeros((300, 40))
    columns = list(table.T) + [numpy.zeros(3) for _ in range(3000)]
    begin = time.process_time()
    assert not share_host_memory(columns)  # columns interleave, and share nothing
    assert time.process_time() - begin < 1  # pair by pair 10 s
    assert share_host_memory([*columns, table[::-1][5:7, ::-2]])


def test_a_frozen_parameter_stays_and_one_without_a_gradient_is_named():
    replicas = [get_params([numpy.ones((4, 1)), numpy.ones(1)], c) for c in CPUS[:2]]
    for replica in replicas:
        replica[1].attach_grad("null")
    X, y = numpy.ones((3, 4)), numpy.zeros(3)
    for _ in range(2):
        train_batch(X, y, replicas, CPUS[:2], 0.1, net=linear, loss=squared)
    assert [float(replica[1]) for replica in replicas] == [1, 1]
    replicas[1][1] = np.array([1.0], dtype="float64", ctx=CPUS[1])
    with pytest.raises(ValueError, match="parameter 1 of replica 1 has no gradient"):
        train_batch(X, y, replicas, CPUS[:2], 0.1, net=linear, loss=squared)


def three_classes(X, params):
    return np.dot(X, params[0])


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([1, 2, 3], "label 3: classes are 0 to 2"),
        ([0, 0.5, 0], "label 0.5"),
        (numpy.eye(3), r"y \(3, 3\): write class numbers"),
        (numpy.zeros((3, 1, 1)), r"y \(3, 1, 1\): write class numbers"),
    ],
)
def test_labels_of_any_net_with_gluons_softmax_loss(y, says):
    replicas = [get_params([numpy.ones((2, 3))], c) for c in CPUS[:2]]
    with pytest.raises(ValueError, match=says):
        train_batch(
            numpy.ones((3, 2)), numpy.array(y), replicas, CPUS[:2], 0.1,
            net=three_classes, loss=gluon.loss.SoftmaxCrossEntropyLoss(),
        )  # fmt: skip
    assert (replicas[0][0].asnumpy() == 1).all()


def test_what_are_no_parameters_is_named():
    with pytest.raises(TypeError, match="write floats"):
        get_params([numpy.zeros((4, 1), int)], CPUS[0])
    with pytest.raises(TypeError, match="params is one ndarray"):
        get_params(numpy.zeros(2), CPUS[0])
    with pytest.raises(TypeError, match="device 'cpu:0': write one context"):
        get_params([numpy.zeros(2)], "cpu:0")
    with pytest.raises(ValueError, match=r"gpu\(0\): MXNet sees 0 GPUs here"):
        get_params([numpy.zeros(2)], mx.gpu(0))


# State and results of a reader's own functions


def momentum(velocity_of):
    def update(params, lr, batch_size):
        for p, v in zip(params, velocity_of(params)):
            v[:] = 0.9 * v + p.grad / batch_size
            p -= lr * v

    return update


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_one_state_for_all_replicas_is_noticed_after_two_steps(num_devices):
    rng = numpy.random.default_rng(1)
    X, y, w = rng.normal(size=(7, 3)), rng.normal(size=7), rng.normal(size=(3, 1))
    contexts = CPUS[:num_devices]

    def steps(update, count):
        replicas = [get_params([w, numpy.zeros(1)], c) for c in contexts]
        for _ in range(count):
            train_batch(
                X, y, replicas, contexts, 0.1, net=linear, loss=squared, update=update
            )
        return replicas

    own = {c: [np.zeros((3, 1), ctx=c), np.zeros(1, ctx=c)] for c in contexts}
    replicas = steps(momentum(lambda params: own[params[0].ctx]), 4)
    p, b, v_p, v_b = w, numpy.zeros(1), 0, 0
    for _ in range(4):
        slope = 2 * (X @ p + b - y[:, None])
        v_p, v_b = 0.9 * v_p + X.T @ slope / 7, 0.9 * v_b + slope.mean(0)
        p, b = p - 0.1 * v_p, b - 0.1 * v_b
    for replica in replicas:
        numpy.testing.assert_allclose(replica[0].asnumpy(), p, rtol=1e-5)
        numpy.testing.assert_allclose(replica[1].asnumpy(), b, rtol=1e-5)
    assert_equal_replicas(replicas)

    shared = [np.zeros((3, 1)), np.zeros(1)]
    steps(momentum(lambda params: shared), 1)
    if num_devices == 1:
        steps(momentum(lambda params: shared), 4)
    else:
        with pytest.raises(
            AssertionError, match=r"replicas 0 and 1 differ .*params\[0\]"
        ):
            steps(momentum(lambda params: shared), 2)


def test_replicas_are_equal_up_to_rounding():
    values = numpy.array([1.0, -2.0, numpy.nan], "float32")
    for step, equal in ((1e-7, True), (1e-5, False)):
        replicas = [get_params([values], CPUS[0]), get_params([values + step], CPUS[1])]
        if equal:
            assert_equal_replicas(replicas)
        else:
            with pytest.raises(AssertionError, match=r"by 1e-05 in parameter 0"):
                assert_equal_replicas(replicas)


@pytest.mark.parametrize("name", ["reduce", "update"])
def test_functions_that_return_instead_of_changing_are_refused(name):
    X, y, two = numpy.ones((4, 4)), numpy.ones(4), CPUS[:2]
    replicas = [get_params([numpy.zeros((4, 1)), numpy.zeros(1)], c) for c in two]
    own = {name: lambda *_: [1]}
    with pytest.raises(TypeError, match=f"{name} returned a list"):
        train_batch(X, y, replicas, two, 0.1, net=linear, loss=squared, **own)
    assert (replicas[0][0].asnumpy() == 0).all()


def mixing(y_hat, y):
    return ((y_hat - y) ** 2).mean(axis=1)  # (n, n), then a mean


def test_a_loss_that_mixes_samples_is_told_once():
    rng = numpy.random.default_rng(0)
    X, y = rng.normal(size=(6, 4)), rng.normal(size=6)
    two, params = CPUS[:2], [rng.normal(size=(4, 1)), numpy.zeros(1)]
    replicas = [get_params(params, device) for device in two]
    told = []
    for loss, labels in ((squared, y), (mixing, y[:, None]), (mixing, y), (mixing, y)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train_batch(X, labels, replicas, two, 0.1, net=linear, loss=loss)
        lines = [str(warning.message) for warning in caught]  # MXNet 2 has others
        told.append([line for line in lines if "the other samples" in line])
    assert [len(lines) for lines in told] == [0, 0, 1, 0]
    assert "depends on the other samples (y_hat (3, 1), y (3,))" in told[2][0]


# What GPUs do in one operation, here on CPU contexts


def replicas_with_gradients(num_devices, shapes, seed=0):
    rng = numpy.random.default_rng(seed)
    replicas = []
    for device in CPUS[:num_devices]:
        params = [rng.normal(size=shape).astype("float32") for shape in shapes]
        replicas.append(get_params(params, device))
        for p in replicas[-1]:
            grad = np.array(rng.normal(size=p.shape), dtype="float32", ctx=device)
            p.grad[() if p.shape == () else slice(None)] = grad
    return replicas


@pytest.fixture
def on_gpus(monkeypatch):
    """Call it to take the calls of GPUs, which a CPU context can take as well."""

    def in_float32(params):
        return all(p.dtype == numpy.float32 for p in params)

    def take_their_calls():
        monkeypatch.setattr(parallel, "on_gpu_in_float32", in_float32)
        monkeypatch.setattr(parallel, "pushed_together", lambda _: mx.engine.bulk(100))

    return take_their_calls


SHAPES = [(2, 3), (1,), (4, 1, 2), (), (5,)]


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_one_all_reduce_of_all_gradients_is_that_of_each(on_gpus, num_devices):
    ours = replicas_with_gradients(num_devices, SHAPES)
    expected = replicas_with_gradients(num_devices, SHAPES)
    parallel.allreduce_gradients(expected)
    on_gpus()
    parallel.allreduce_gradients(ours)
    for replica, other in zip(ours, expected):
        for p, q in zip(replica, other):
            if num_devices < 3:
                assert (p.grad.asnumpy() == q.grad.asnumpy()).all()
            numpy.testing.assert_allclose(
                p.grad.asnumpy(), q.grad.asnumpy(), rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("count", [1, 4, 91])
def test_one_update_of_all_parameters_is_that_of_each(on_gpus, count):
    shapes = (SHAPES * count)[:count]
    (ours,), (expected,) = (replicas_with_gradients(1, shapes) for _ in range(2))
    sgd(expected, 0.3, 7)
    on_gpus()
    sgd(ours, 0.3, 7)
    for p, q in zip(ours, expected):
        assert (p.asnumpy() == q.asnumpy()).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [13, 2])  # uneven; an idle device
def test_steps_in_groups_are_the_same_steps(on_gpus, dtype, n):
    def replicas_after_steps():
        rng = numpy.random.default_rng(3)
        w, b = rng.normal(size=(4, 1)).astype(dtype), numpy.zeros(1, dtype)
        replicas = [get_params([w, b], c) for c in CPUS[:3]]
        for _ in range(3):
            X = rng.normal(size=(n, 4)).astype(dtype)
            y = rng.normal(size=n).astype(dtype)
            train_batch(X, y, replicas, CPUS[:3], 0.1, net=linear, loss=squared)
        return [[p.asnumpy() for p in replica] for replica in replicas]

    expected = replicas_after_steps()
    on_gpus()
    ours = replicas_after_steps()
    for replica, other in zip(ours, expected):
        for p, q, first in zip(replica, other, ours[0]):
            numpy.testing.assert_allclose(p, q, rtol=1e-5, atol=1e-7)
            assert (p == first).all()  # replicas stay equal to the bit


# What a learner gets wrong: one clear error, and no step is taken

X, Y = numpy.ones((4, 4)), numpy.zeros(4)


@pytest.mark.parametrize(
    ("changed", "error", "value"),
    [
        ({"devices": "cpu:2"}, TypeError, "cpu:2"),
        ({"devices": CPUS[:3]}, ValueError, "2 replicas for 3 devices"),
        ({"devices": CPUS[1::-1]}, ValueError, r"replica 0 is on cpu\(0\)"),
        ({"y": Y[:3]}, ValueError, r"\(4, 4\) and y \(3,\)"),
        ({"X": X.astype("float32")}, TypeError, "float32.*float64"),
        ({"loss": lambda y_hat, y: squared(y_hat, y).mean()}, ValueError, r"\(\)"),
        ({"lr": numpy.nan}, ValueError, "lr nan: write a finite float greater than 0"),
        ({"lr": Fraction(1, 10)}, ValueError, r"lr Fraction\(1, 10\): write"),
        ({"lr": mx.nd.array([0.1])}, ValueError, r"lr \[0.1\] <NDArray .*: write"),
        ({"lr": 0}, ValueError, "lr 0"),
        ({"lr": "0.1"}, ValueError, "lr '0.1'"),
        ({"X": mx.nd.ones((4, 4)).tostype("csr")}, TypeError, "X is sparse: write"),
        ({"X": X[0, 0], "y": Y[0]}, ValueError, r"X \(\) and y \(\)"),
        ({"X": X[:0], "y": Y[:0]}, ValueError, r"empty: X \(0, 4\)"),
        ({"X": X[:, :0]}, ValueError, r"empty: X \(4, 0\)"),
        ({"net": gluon.nn.Dense(1)}, TypeError, "lenet_concise.train_batch"),
    ],
)
def test_train_batch_refuses(changed, error, value):
    call = {"X": X, "y": Y, "devices": CPUS[:2], "loss": squared, "lr": 0.1}
    call = {**call, "net": linear, **changed}
    params = [numpy.zeros((4, 1)), numpy.zeros(1)]
    replicas = [get_params(params, device) for device in CPUS[:2]]
    with pytest.raises(error, match=value):
        train_batch(device_params=replicas, **call)
    for replica in replicas:
        assert all((p.asnumpy() == 0).all() for p in replica)


def test_parameters_that_are_no_replicas_are_refused():
    images, y = numpy.zeros((2, 1, 28, 28), "float32"), numpy.zeros(2)
    with pytest.raises(ValueError, match="replica 0 is on the host"):
        train_batch(images, y, [init_lenet(), init_lenet()], CPUS[:1] * 2, 0.1)
    for lengths in ([1, 2], [2, 1]):
        odd = [get_params([1.0] * n, c) for n, c in zip(lengths, CPUS)]
        with pytest.raises(ValueError, match="replicas of ., . parameters"):
            train_batch(images, y, odd, CPUS[:2], 0.1)
    odd = [get_params([numpy.ones(n)], c) for n, c in zip((3, 2), CPUS)]
    with pytest.raises(ValueError, match=r"parameter 0 has shapes \(3,\), \(2,\)"):
        train_batch(images, y, odd, CPUS[:2], 0.1)
    with pytest.raises(ValueError, match="replicas are empty"):
        train_batch(images, y, [[], []], CPUS[:2], 0.1)
    twice = [get_params(init_lenet(), CPUS[0])] * 2
    with pytest.raises(ValueError, match="in two replicas"):
        train_batch(images, y, twice, CPUS[:1] * 2, 0.1)


def test_allreduce_refuses_other_shapes_and_overlaps_and_sums_neighbours():
    whole, other = np.arange(6), np.ones(3, ctx=CPUS[1])
    for data in ([whole, other], [whole] * 2, [whole[:4], whole[2:]]):
        with pytest.raises(ValueError, match="allreduce"):
            allreduce(data)
    with pytest.raises(TypeError, match="allreduce: ndarray: write MXNet arrays"):
        allreduce([numpy.zeros(2), numpy.zeros(2)])
    with pytest.raises(ValueError, match="of one shape and dtype: 0"):
        allreduce([])
    with pytest.raises(TypeError, match="allreduce: the arrays are bool"):
        allreduce([np.ones(2, dtype="bool", ctx=c) for c in CPUS[:2]])
    allreduce(part for part in (whole[:3], whole[3:]))
    assert whole.asnumpy().tolist() == [3, 5, 7] * 2

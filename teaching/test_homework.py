"""Grades homework.py by values, never by times: python -m pytest test_homework.py

Each test takes the functions that it calls as arguments, and imports what it needs, so
that nbgrader and otter run the same tests. Those whose name ends in _hidden are not in
the students' notebooks.
"""


def pytest_generate_tests(metafunc):
    """The arguments of a test are the homework's functions of these names."""
    import homework

    for name in metafunc.fixturenames:
        metafunc.parametrize(name, [getattr(homework, name)], ids=[name])


def test_get_params_copies(get_params):
    import numpy

    from d2lpar import mx, np

    source = [np.ones((2, 3)), np.arange(5, dtype="int32")]
    replica = get_params(source, mx.cpu(0))
    assert isinstance(replica, list) and len(replica) == 2, "return a list of 2 arrays"
    for p, original in zip(replica, source):
        assert p.dtype == original.dtype, f"{p.dtype}: keep {original.dtype}"
        numpy.testing.assert_array_equal(p.asnumpy(), original.asnumpy())
    replica[0][:] = 7
    assert (source[0] == 1).all(), "the replica shares memory with its source"


def test_get_params_makes_room_for_gradients(get_params):
    from d2lpar import mx, np

    (p,) = get_params([np.ones((2, 3))], mx.cpu(1))
    assert p.ctx == mx.cpu(1), f"the copy is on {p.ctx}: put it on cpu(1)"
    assert p.grad is not None, "the copy has no gradient: attach one"
    assert p.grad.ctx == mx.cpu(1) and p.grad.shape == (2, 3), "not its gradient"


def test_allreduce_sums_in_place(allreduce):
    from d2lpar import mx, np

    arrays = [np.full((1, 2), k + 1.0, ctx=mx.cpu(k)) for k in range(2)]
    allreduce(list(arrays))
    for k, array in enumerate(arrays):
        assert array.ctx == mx.cpu(k), f"array {k} is now on {array.ctx}"
        assert array.tolist() == [[3, 3]], (
            f"array {k} holds {array.tolist()}, the sum is [[3, 3]]: change it in place"
        )


def test_allreduce_hidden(allreduce):
    import numpy

    from d2lpar import mx, np

    rng = numpy.random.default_rng(1)
    for num_devices in (1, 3, 5):
        start = rng.normal(size=(num_devices, *rng.integers(1, 6, size=3)))
        arrays = [np.array(a, ctx=mx.cpu(k)) for k, a in enumerate(start)]
        allreduce(list(arrays))
        for k, array in enumerate(arrays):
            wrong = f"array {k} of {num_devices} is not the sum"
            close = numpy.allclose(array.asnumpy(), start.sum(0), rtol=1e-5, atol=1e-5)
            assert close, wrong
        arrays[0][:] = 0
        assert num_devices == 1 or (arrays[1] != 0).all(), "two arrays share memory"


def test_split_batch_loses_no_row(split_batch):
    from d2lpar import mx, np

    X, y = np.arange(14).reshape((7, 2)), np.arange(7)
    X_shards, y_shards = split_batch(X, y, [mx.cpu(k) for k in range(3)])
    sizes = [len(shard) for shard in X_shards]
    assert sizes == [3, 2, 2], f"7 rows are split into {sizes}: expected [3, 2, 2]"
    for shards, whole in ((X_shards, X), (y_shards, y)):
        places = [shard.ctx for shard in shards]
        assert places == [mx.cpu(k) for k in range(3)], f"the shards are on {places}"
        rows = [row for shard in shards for row in shard.tolist()]
        assert rows == whole.tolist(), f"{whole.tolist()} became {rows}"


def test_split_batch_hidden(split_batch):
    import numpy

    import d2lpar
    from d2lpar import mx, np

    rng = numpy.random.default_rng(2)
    for num_devices in (1, 2, 4, 5):
        n, *shape = rng.integers(num_devices, 12, size=3)
        devices = [mx.cpu(k) for k in range(num_devices)]
        batch = np.array(rng.normal(size=(n, *shape))), np.arange(n)
        ours, theirs = d2lpar.split_batch(*batch, devices), split_batch(*batch, devices)
        for expected, shards in zip(ours, theirs):
            assert len(shards) == num_devices, f"{len(shards)} shards: {num_devices}"
            for shard, right in zip(shards, expected):
                assert shard.ctx == right.ctx, f"on {shard.ctx}, its device {right.ctx}"
                assert shard.tolist() == right.tolist(), f"{n} rows, {num_devices} ways"


def test_train_batch_takes_the_step_of_numpy(train_batch):
    import numpy

    import d2lpar
    from d2lpar import gluon, mx, np

    rng, net = numpy.random.default_rng(3), lambda X, params: np.dot(X, params[0])
    X, w, y = (rng.normal(size=shape).astype("float32") for shape in [(11, 4), 4, 11])
    expected = w - 0.1 / 11 * X.T @ (X @ w - y)
    for devices in ([mx.cpu(0)], [mx.cpu(k) for k in range(3)]):
        replicas = [d2lpar.get_params([w], device) for device in devices]
        batch = np.array(X), np.array(y)
        train_batch(*batch, replicas, devices, 0.1, net, gluon.loss.L2Loss())
        for k, (p,) in enumerate(replicas):
            wrong = f"replica {k} of {len(devices)} is not NumPy's step with 11 rows"
            assert numpy.allclose(p.asnumpy(), expected, rtol=1e-4, atol=1e-6), wrong
            assert p.tolist() == replicas[0][0].tolist(), f"replicas 0 and {k} differ"


def test_train_batch_hidden(train_batch):
    import numpy

    import d2lpar
    from d2lpar import gluon, mx, np, npx

    def net(X, params):
        return np.dot(npx.relu(np.dot(X, params[0])), params[1])

    rng, devices = numpy.random.default_rng(5), [mx.cpu(k) for k in range(4)]
    params = [rng.normal(size=shape).astype("float32") for shape in [(5, 8), (8, 3)]]
    ours = [d2lpar.get_params(params, mx.cpu(0))]
    theirs = [d2lpar.get_params(params, device) for device in devices]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for n in (13, 6):  # the gradients of one step do not count in the next
        X = np.array(rng.normal(size=(n, 5)), dtype="float32")
        y = np.array(rng.integers(3, size=n))
        d2lpar.train_batch(X, y, ours, [mx.cpu(0)], 0.5, net=net, loss=loss)
        train_batch(X, y, theirs, devices, 0.5, net, loss)
    for replica in theirs:
        for p, right in zip(replica, ours[0]):
            close = numpy.allclose(p.asnumpy(), right.asnumpy(), rtol=1e-4, atol=1e-5)
            assert close, "two steps on four devices are not those on one"

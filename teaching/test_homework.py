"""Grades homework.py by values and counts, never by times.

    python -m pytest test_homework.py

Each test takes the function that it calls as its argument, and imports what it needs,
so that nbgrader runs the same tests, beside watching.py. The first line of each says
its points. Those whose name ends in _hidden are not in the students' notebooks.
"""


def pytest_generate_tests(metafunc):
    """The arguments of a test are the homework's functions of these names."""
    import homework

    for name in metafunc.fixturenames:
        metafunc.parametrize(name, [getattr(homework, name)], ids=[name])


def test_get_params_copies(get_params):
    """4 points."""
    import numpy
    from watching import own

    from d2lpar import mx, np

    get_params = own(get_params)
    source = [np.ones((2, 3)), np.arange(5, dtype="float64")]
    replica = get_params(source, mx.cpu(0))
    assert isinstance(replica, list) and len(replica) == 2, "return a list of 2 arrays"
    for p, original in zip(replica, source):
        assert p.dtype == original.dtype, f"{p.dtype}: keep {original.dtype}"
        numpy.testing.assert_array_equal(p.asnumpy(), original.asnumpy())
    replica[0][:] = 7
    assert (source[0] == 1).all(), "the replica shares memory with its source"


def test_get_params_makes_room_for_gradients(get_params):
    """4 points."""
    from watching import own

    from d2lpar import mx, np

    get_params = own(get_params)
    (p,) = get_params([np.ones((2, 3))], mx.cpu(1))
    assert p.ctx == mx.cpu(1), f"the copy is on {p.ctx}: put it on cpu(1)"
    assert p.grad is not None, "the copy has no gradient: attach one"
    assert p.grad.ctx == mx.cpu(1) and p.grad.shape == (2, 3), "not its gradient"


def test_allreduce_sums_in_place(allreduce):
    """4 points."""
    from watching import own

    from d2lpar import mx, np

    allreduce = own(allreduce)
    arrays = [np.full((1, 2), k + 1.0, ctx=mx.cpu(k)) for k in range(2)]
    allreduce(list(arrays))
    for k, array in enumerate(arrays):
        assert array.ctx == mx.cpu(k), f"array {k} is now on {array.ctx}"
        assert array.tolist() == [[3, 3]], (
            f"array {k} holds {array.tolist()}, the sum is [[3, 3]]: change it in place"
        )


def test_allreduce_hidden(allreduce):
    """6 points."""
    import numpy
    from watching import own, watched

    from d2lpar import mx, np

    allreduce = own(allreduce)
    rng = numpy.random.default_rng(1)
    for num_devices in (1, 3, 5):
        start = rng.normal(size=(num_devices, *rng.integers(1, 6, size=3)))
        arrays = [np.array(a, ctx=mx.cpu(k)) for k, a in enumerate(start)]
        with watched() as notes:
            allreduce(list(arrays))
        for array in arrays if num_devices > 1 else []:
            sent = notes.sent(array.ctx)
            assert sent >= array.size, f"{array.ctx} sent {sent} of {array.size}"
        for k, array in enumerate(arrays):
            wrong = f"array {k} of {num_devices} is not the sum"
            close = numpy.allclose(array.asnumpy(), start.sum(0), rtol=1e-5, atol=1e-5)
            assert close, wrong
        arrays[0][:] = 0
        assert num_devices == 1 or (arrays[1] != 0).all(), "two arrays share memory"


def test_split_batch_loses_no_row(split_batch):
    """4 points."""
    from watching import own

    from d2lpar import mx, np

    split_batch = own(split_batch)
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
    """4 points."""
    import numpy
    from watching import own

    import d2lpar
    from d2lpar import mx, np

    split_batch = own(split_batch)
    rng = numpy.random.default_rng(2)
    for num_devices in (1, 2, 4, 5):
        n, *shape = rng.integers(num_devices, 12, size=3)
        devices = [mx.cpu(k) for k in range(num_devices)]
        batch = np.array(rng.normal(size=(n, *shape))), np.arange(n)
        ours = d2lpar.split_batch(*batch, devices)
        theirs = split_batch(*batch, devices)
        for expected, shards in zip(ours, theirs):
            assert len(shards) == num_devices, f"{len(shards)} shards: {num_devices}"
            for shard, right in zip(shards, expected):
                assert shard.ctx == right.ctx, f"on {shard.ctx}, its device {right.ctx}"
                assert shard.tolist() == right.tolist(), f"{n} rows, {num_devices} ways"


def test_train_batch_takes_the_step_of_numpy(train_batch):
    """4 points."""
    import numpy
    from watching import own

    import d2lpar
    from d2lpar import gluon, mx, np

    train_batch = own(train_batch)
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


def test_train_batch_computes_each_row_once(train_batch):
    """5 points."""
    import numpy
    from watching import own, watched

    import d2lpar
    from d2lpar import autograd, gluon, mx, np

    train_batch = own(train_batch)
    rows, already = {}, []

    def net(X, params):
        if autograd.is_recording():
            rows[X.ctx] = rows.get(X.ctx, 0) + len(X)
            already.append({d: notes.sent(d) for d in devices})
        return np.dot(X, params[0])

    rng, devices = numpy.random.default_rng(4), [mx.cpu(k) for k in range(3)]
    X, w, y = (rng.normal(size=shape).astype("float32") for shape in [(11, 4), 4, 11])
    replicas = [d2lpar.get_params([w], device) for device in devices]
    batch = np.array(X), np.array(y)
    with watched() as notes:
        train_batch(*batch, replicas, devices, 0.1, net, gluon.loss.L2Loss())
    counts = [rows.get(device, 0) for device in devices]
    assert counts == [4, 4, 3], f"rows per device are {counts}: 11 are [4, 4, 3]"
    for device in devices:
        sent = notes.sent(device) - already[-1][device]
        assert sent >= 4, f"{device} sent {sent} numbers of a gradient of 4"


def test_train_batch_hidden(train_batch):
    """5 points."""
    import numpy
    from watching import own

    import d2lpar
    from d2lpar import gluon, mx, np, npx

    train_batch = own(train_batch)

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

    def scaled(X, params):  # which device has computed a row shows in the result
        return (1 + X.ctx.device_id) * np.dot(X, params[0])

    X, w, y = (rng.normal(size=shape).astype("float32") for shape in [(9, 4), 4, 9])
    factor = 1 + numpy.repeat(numpy.arange(4), [3, 2, 2, 2])
    expected = w - 0.1 / 9 * X.T @ (factor * (factor * (X @ w) - y))
    replicas = [d2lpar.get_params([w], device) for device in devices]
    batch = np.array(X), np.array(y)
    train_batch(*batch, replicas, devices, 0.1, scaled, gluon.loss.L2Loss())
    for k, (p,) in enumerate(replicas):
        close = numpy.allclose(p.asnumpy(), expected, rtol=1e-4, atol=1e-5)
        assert close, f"replica {k}: a row was computed on another device than its own"


def test_combine_weights_by_rows(combine):
    """5 points."""
    import numpy

    mean = combine([numpy.array([1.0, 0.0]), numpy.array([4.0, 3.0])], [2, 1])
    right = numpy.allclose(mean, [2.0, 1.0])
    assert right, f"2 rows of mean [1, 0] and 1 of [4, 3] have mean [2, 1], not {mean}"


def test_combine_hidden(combine):
    """5 points."""
    import numpy

    rng = numpy.random.default_rng(6)
    for counts in ([7], [5, 4, 4], [1, 0], [0, 2, 0, 3], [100, 1]):
        shards = [rng.normal(size=(count, 3)) for count in counts]
        with numpy.errstate(all="ignore"):
            means = [shard.sum(axis=0) / len(shard) for shard in shards]
        mean = combine(means, counts)
        right = numpy.allclose(mean, numpy.concatenate(shards).mean(axis=0))
        assert right, f"wrong for shards of {counts} rows"


def test_break_even_needs_separate_quartiles(break_even):
    """5 points."""
    one, two = [[2.0] * 5, [4.0] * 5, [8.0] * 5], [[3.0] * 5, [3.0] * 5, [5.0] * 5]
    found = break_even([16, 32, 64], one, two)
    assert found == 32, f"two devices win at 32 and 64, but it returns {found}"
    noisy = [3.0, 1.0, 3.0, 5.0, 6.0]  # its median is below 4, its upper quartile not
    found = break_even([32], [[4.0] * 5], [noisy])
    assert found is None, f"the quartiles overlap at 32, but it returns {found}"


def test_break_even_hidden(break_even):
    """5 points."""
    fast, slow = [1.0] * 7 + [9.0], [2.0] * 7 + [0.1]
    equal = [1.0] * 5 + [2.2] * 3  # faster by the median only
    batches = [8, 16, 32, 64]
    for two, expected in [
        ([fast, fast, fast, fast], 8),
        ([fast, slow, fast, fast], 32),
        ([slow, fast, fast, equal], None),
        ([slow, slow, slow, fast], 64),
        ([slow, slow, slow, slow], None),
        ([fast, [1.6] * 8, fast, fast], 32),
    ]:
        middle = [1.5] * 3 + [1.9] * 5  # its lower quartile is 1.5
        found = break_even(batches, [middle] * 4, two)
        assert found == expected, f"it returns {found}, the break-even is {expected}"


def test_chosen_is_right(chosen):
    """5 points."""
    import numpy

    class Shard:
        def __init__(self, A, b):
            self.A, self.b, self.calls = A, b, [0, 0]

        def times(self, x):
            self.calls[0] += 1
            return self.A @ x

        def transposed(self, r):
            self.calls[1] += 1
            return self.A.T @ r

    function, rng = chosen(), numpy.random.default_rng(7)
    name = function.__name__
    if name == "cgls":
        A, b = rng.normal(size=(9, 3)), rng.normal(size=9)
        shards = [Shard(A[:5], b[:5]), Shard(A[5:], b[5:])]
        right = numpy.linalg.lstsq(A, b, rcond=None)[0]
        assert numpy.allclose(function(shards, 3), right), "3 steps solve 3 unknowns"
        calls = [n for shard in shards for n in shard.calls]
        assert max(calls) <= 4, f"a shard was passed {max(calls)} times: at most 4"
    elif name == "local_sgd":
        averages, ws = [], [numpy.array([8.0]), numpy.array([0.0])]

        def average(arrays):
            averages.append(1)
            mean = sum(arrays) / len(arrays)
            for array in arrays:
                array[:] = mean

        function(list(ws), [lambda w: w, lambda w: w - 4], 0.5, 3, 2, average)
        assert len(averages) == 2, f"{len(averages)} averages: after steps 2 and 3"
        assert numpy.allclose(ws, [[2.25], [2.25]]), f"{ws}: both should be [2.25]"
    else:
        assert name == "int8", f"{name!r}: call it cgls, local_sgd or int8"
        q, scales = function(numpy.array([[127.0, -64.0], [0.5, 0.0]]))
        assert q.dtype == "int8" and q.shape == (2, 2), f"q is {q.dtype} {q.shape}"
        assert numpy.allclose(scales, [1, 0.5 / 127]), f"the scales are {scales}"
        assert q.tolist() == [[127, -64], [127, 0]], f"q is {q.tolist()}"


def test_chosen_hidden(chosen):
    """5 points."""
    import numpy

    def counted(A):
        def product(x):
            calls.append(x)
            return A @ x

        return product

    class Shard:
        def __init__(self, A, b):
            self.b, self.times, self.transposed = b, counted(A), counted(A.T)

    function, rng = chosen(), numpy.random.default_rng(8)
    if function.__name__ == "cgls":
        A, b = rng.normal(size=(20, 6)), rng.normal(size=20)
        shards = [Shard(A[k::4], b[k::4]) for k in range(4)]
        basis, vector = [], A.T @ b
        for steps in (1, 2, 3):  # the best x of the space of A^T b, A^T A A^T b, ...
            basis.append(vector / numpy.linalg.norm(vector))
            vector, K = A.T @ (A @ vector), numpy.stack(basis, axis=1)
            right = K @ numpy.linalg.lstsq(A @ K, b, rcond=None)[0]
            calls = []
            x = function(shards, steps)
            assert numpy.allclose(x, right), f"x after {steps} steps is not the best"
            most = 2 * len(shards) * (steps + 1)
            assert len(calls) <= most, f"{len(calls)} products: at most {most}"
    elif function.__name__ == "local_sgd":
        curves = numpy.array([[1.0], [2.0], [3.0]])  # one per device: the means matter
        for between, runs in [(3, (3, 3)), (3, (3, 3, 1)), (5, (2,)), (1, (1, 1, 1))]:
            goals, averages, steps = rng.normal(size=(3, 4)), [], sum(runs)
            ws = [numpy.zeros(4) for _ in range(3)]

            def average(arrays, averages=averages):
                averages.append(1)
                mean = sum(arrays) / len(arrays)
                for array in arrays:
                    array[:] = mean

            gradients = [lambda w, c=c, g=g: c * (w - g) for c, g in zip(curves, goals)]
            function(list(ws), gradients, 0.25, steps, between, average)
            wrong = f"{steps} steps, {between} between averages"
            assert len(averages) == len(runs), wrong
            right = numpy.zeros(4)
            for run in runs:  # without an average, w - g shrinks by 1 - 0.25 c per step
                right = (goals + (1 - 0.25 * curves) ** run * (right - goals)).mean(0)
            assert numpy.allclose(ws, [right] * 3), f"{steps} steps of local SGD"
    else:
        W = rng.normal(size=(5, 40)) * [[1], [1e-3], [1e3], [0], [1]]
        W[4, 7] = 1e4  # an outlier costs its own row only
        q, scales = function(W.copy())
        error, scales = abs(W - scales[:, None] * q), numpy.asarray(scales)
        assert numpy.isfinite(scales).all() and not q[3].any(), "a row of zeros"
        assert (error <= scales[:, None] / 2 * 1.001).all(), "off by over half a scale"
        largest = abs(q.astype(int)).max(axis=1)
        assert largest.tolist() == [127, 127, 127, 0, 127], f"largest |q| {largest}"

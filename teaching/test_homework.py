"""Grades homework.py by values and counts, never by times.

    python -m pytest test_homework.py

Each test takes the functions that it calls as its arguments, and imports what it needs,
so that nbgrader runs the same tests. The functions run apart, in a process that does
not compute the answers. The first line of each test says its points. Those whose name
ends in _hidden are not in the students' notebooks.
"""


def pytest_generate_tests(metafunc):
    """The arguments of a test are the homework's functions of these names."""
    for name in metafunc.fixturenames:
        metafunc.parametrize(name, [Late(name)], ids=[name])


class Late:
    """A function of homework.py, which is loaded where it is called: apart."""

    loaded: dict = {}

    def __init__(self, name):
        self.name = name

    def __call__(self, *args):
        import os
        import sys
        from pathlib import Path

        if not self.loaded:
            source = Path(__file__).with_name("homework.py").read_text(encoding="utf-8")
            os.chdir("/")  # where there is no solution
            sys.path[:] = [p for p in sys.path if p != str(Path(__file__).parent)]
            sys.modules["solution"] = None
            exec(compile(source, "homework.py", "exec"), self.loaded)
        return self.loaded[self.name](*args)


def test_get_params_copies_to_a_device(get_params):
    """6 points."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read

    def scenario(get_params):
        source = [numpy.ones((2, 3), "float32"), numpy.arange(5.0)]
        replica, grads = get_params(source, 1, Network(2).place)
        source[0][:] = 7
        devices = {array.device for array in [*replica, *grads]}
        return [*map(read, replica)], [*map(read, grads)], devices

    replica, grads, devices = apart(scenario, get_params)
    assert devices == {1}, f"arrays are on device(s) {devices}, not on 1"
    for k, right in enumerate([numpy.ones((2, 3), "float32"), numpy.arange(5.0)]):
        for array in (replica[k], grads[k]):
            assert array.dtype == right.dtype, f"{array.dtype}: keep {right.dtype}"
        numpy.testing.assert_array_equal(replica[k], right)
        numpy.testing.assert_array_equal(grads[k], 0 * right)


def test_allreduce_sums_in_place(allreduce):
    """4 points."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read

    def scenario(allreduce):
        network = Network(2)
        arrays = [network.place(k, numpy.full((1, 2), k + 1.0)) for k in range(2)]
        allreduce(list(arrays), network.exchange)
        return [read(array).tolist() for array in arrays]

    for k, numbers in enumerate(apart(scenario, allreduce)):
        assert numbers == [[3, 3]], (
            f"array {k} holds {numbers}, the sum is [[3, 3]]: change it in place"
        )


def test_allreduce_hidden(allreduce):
    """6 points."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read

    def numbers(num_devices):
        rng = numpy.random.default_rng(num_devices)
        return rng.normal(size=(num_devices, *rng.integers(1, 6, size=3)))

    def scenario(allreduce):
        found = []
        for num_devices in (1, 3, 5):
            network = Network(num_devices)
            arrays = [network.place(*item) for item in enumerate(numbers(num_devices))]
            allreduce(list(arrays), network.exchange)
            found.append([*map(read, arrays)])
        return found

    for arrays in apart(scenario, allreduce):
        for k, array in enumerate(arrays):
            right = numpy.allclose(array, numbers(len(arrays)).sum(axis=0))
            assert right, f"array {k} of {len(arrays)} is not the sum"


def test_split_batch_loses_no_row(split_batch):
    """4 points."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read

    def scenario(split_batch):
        X, y = numpy.arange(14).reshape((7, 2)), numpy.arange(7)
        both = split_batch(X, y, 3, Network(3).place)
        return [[(a.device, read(a).tolist()) for a in shards] for shards in both]

    X, y = numpy.arange(14).reshape((7, 2)), numpy.arange(7)
    for shards, whole in zip(apart(scenario, split_batch), (X, y)):
        sizes = [len(rows) for _, rows in shards]
        assert sizes == [3, 2, 2], f"7 rows are split into {sizes}: expected [3, 2, 2]"
        places = [device for device, _ in shards]
        assert places == [0, 1, 2], f"the shards are on devices {places}"
        rows = [row for _, shard in shards for row in shard]
        assert rows == whole.tolist(), f"{whole.tolist()} became {rows}"


def test_split_batch_hidden(split_batch):
    """4 points."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read

    def batch(num_devices):
        rng = numpy.random.default_rng(num_devices)
        n, *shape = rng.integers(num_devices, 12, size=3)
        return rng.normal(size=(n, *shape)), numpy.arange(n)

    def scenario(split_batch):
        found = []
        for n in (1, 2, 4, 5):
            both = split_batch(*batch(n), n, Network(n).place)
            found.append([[(a.device, read(a)) for a in shards] for shards in both])
        return found

    for n, both in zip((1, 2, 4, 5), apart(scenario, split_batch)):
        for shards, whole in zip(both, batch(n)):
            assert len(shards) == n, f"{len(shards)} shards: {n}"
            for k, right in enumerate(numpy.array_split(whole, n)):
                assert shards[k][0] == k, f"on {shards[k][0]}, its device is {k}"
                same = numpy.array_equal(shards[k][1], right)
                assert same, f"{len(whole)} rows, {n} ways"


def test_train_batch_is_the_step_of_one_device(get_params, train_batch):
    """7 points: all four functions, and `d2lpar verify` names the mistake."""
    from types import SimpleNamespace

    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read
    from d2lpar.verify import verify

    def init(seed):
        return [numpy.linspace(-1, 1, 4), numpy.ones(1)]

    def batch(n, seed):
        rng = numpy.random.default_rng(seed)
        return rng.normal(size=(n, 4)), rng.normal(size=n)

    def gradients(X, y, w, b):
        error = X @ w + b - y
        return [X.T @ error, error.sum(keepdims=True)]

    def backward(X, y, params, grads):
        for g, own in zip(grads, gradients(*map(read, (X, y, *params)))):
            read(g)[:] += own

    def replicas(params, X, y, num_devices, lr, steps=1):
        def scenario(get_params, train_batch):
            place, exchange = (network := Network(num_devices)).place, network.exchange
            replicas = [get_params(params, k, place) for k in range(num_devices)]
            for _ in range(steps):
                train_batch(X, y, replicas, lr, backward, place, exchange)
            return [[*map(read, params)] for params, _ in replicas]

        if num_devices > 1:
            return apart(scenario, get_params, train_batch)
        for _ in range(steps):
            grads = gradients(X, y, *params)
            params = [p - lr / len(X) * g for p, g in zip(params, grads)]
        return [params]

    def step(params, X, y, num_devices, lr, steps=1):
        if len(X) < num_devices:
            raise NotImplementedError("split_batch need not split them")
        return replicas(params, X, y, num_devices, lr, steps)[0]

    replicas(init(0), *batch(9, 0), 4, 0.1)  # raises what the functions raise
    mine = SimpleNamespace(init=init, batch=batch, step=step, replicas=replicas)
    for check in verify(mine, num_devices=4):
        is_right = check.verdict in ("right", "skipped")
        assert is_right, f"{check.what}: {check.line}"


def test_train_batch_computes_each_row_once(train_batch):
    """5 points."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network

    def scenario(train_batch):
        rows, network = [0, 0, 0], Network(3)

        def backward(X, y, params, grads):
            devices = {a.device for a in [X, y, *params, *grads]}
            assert len(devices) == 1, f"backward has arrays of devices {devices}"
            rows[X.device] += len(X)

        arrays = numpy.ones(4), numpy.zeros(4)
        replicas = [[[network.place(k, a)] for a in arrays] for k in range(3)]
        X, y = numpy.ones((11, 4)), numpy.ones(11)
        train_batch(X, y, replicas, 0.1, backward, network.place, network.exchange)
        return rows, network.sent

    counts, sent = apart(scenario, train_batch)
    assert counts == [4, 4, 3], f"rows per device are {counts}: 11 are [4, 4, 3]"
    assert min(sent) >= 4, f"the devices sent {sent} numbers of a gradient of 4"


def test_train_batch_hidden(train_batch):
    """4 points: each device has a loss of its own, so who computes a row shows."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read

    rng = numpy.random.default_rng(5)
    X, w, y = (rng.normal(size=shape) for shape in [(11, 4), 4, 11])

    def backward(X, y, params, grads):
        error = (1 + X.device) * (read(X) @ read(params[0]) - read(y))
        read(grads[0])[:] += read(X).T @ error

    def scenario(train_batch):
        place, exchange = (network := Network(4)).place, network.exchange
        replicas = [([place(k, w)], [place(k, 0 * w)]) for k in range(4)]
        train_batch(X, y, replicas, 0.1, backward, place, exchange)
        return [read(params[0]) for params, _ in replicas]

    found = apart(scenario, train_batch)
    error = numpy.repeat([1, 2, 3, 4], [3, 3, 3, 2]) * (X @ w - y)
    same = numpy.allclose(found, [w - 0.1 / 11 * X.T @ error] * 4)
    assert same, "a step of four devices with 11 rows is not that of NumPy"


def test_combine_weights_by_rows(combine):
    """5 points."""
    import numpy

    from d2lpar.puzzles.apart import apart

    means = [numpy.array([1.0, 0.0]), numpy.array([4.0, 3.0])]
    mean = apart(lambda combine: combine(means, [2, 1]), combine)
    right = numpy.allclose(mean, [2.0, 1.0])
    assert right, f"2 rows of mean [1, 0] and 1 of [4, 3] have mean [2, 1], not {mean}"


def test_combine_hidden(combine):
    """5 points."""
    import numpy

    from d2lpar.puzzles.apart import apart

    rng = numpy.random.default_rng(6)
    for counts in ([7], [5, 4, 4], [1, 0], [0, 2, 0, 3], [100, 1]):
        shards = [rng.normal(size=(count, 3)) for count in counts]
        with numpy.errstate(all="ignore"):
            means = [shard.sum(axis=0) / len(shard) for shard in shards]
        mean = apart(lambda combine: combine(means, counts), combine)  # noqa: B023
        right = numpy.allclose(mean, numpy.concatenate(shards).mean(axis=0))
        assert right, f"wrong for shards of {counts} rows"
    diverged = [numpy.array([numpy.nan]), numpy.array([1.0])]
    mean = apart(lambda combine: combine(diverged, [2, 1]), combine)
    assert numpy.isnan(mean).all(), "a device has diverged, and its nan is hidden"


def test_break_even_needs_separate_quartiles(break_even):
    """5 points."""
    from d2lpar.puzzles.apart import apart

    one, two = [[2.0] * 5, [4.0] * 5, [8.0] * 5], [[3.0] * 5, [3.0] * 5, [5.0] * 5]
    noisy = [3.0, 1.0, 3.0, 5.0, 6.0]  # its median is below 4, its upper quartile not
    cases = [([16, 32, 64], one, two), ([32], [[4.0] * 5], [noisy])]
    found = apart(lambda break_even: [break_even(*case) for case in cases], break_even)
    assert found[0] == 32, f"two devices win at 32 and 64, but it returns {found[0]}"
    assert found[1] is None, f"the quartiles overlap at 32, but it returns {found[1]}"


def test_break_even_hidden(break_even):
    """5 points."""
    from d2lpar.puzzles.apart import apart

    fast, slow = [1.0] * 7 + [9.0], [2.0] * 7 + [0.1]
    equal = [1.0] * 5 + [2.2] * 3  # faster by the median only
    above, below = ([1.0] * 5 + [1.4, x, 2.0] for x in (1.9, 1.6))  # the 70 %, the 80 %
    middle = [1.5] * 3 + [1.9] * 5  # its lower quartile is 1.5
    cases = [
        ([fast, fast, fast, fast], 8),
        ([fast, slow, fast, fast], 32),
        ([slow, fast, fast, equal], None),
        ([slow, slow, slow, fast], 64),
        ([slow, slow, slow, slow], None),
        ([fast, [1.6] * 8, fast, fast], 32),
        ([fast, fast, fast, above], None),
        ([slow, slow, slow, below], 64),
    ]

    def scenario(break_even):
        return [break_even([8, 16, 32, 64], [middle] * 4, two) for two, _ in cases]

    for found, (_, expected) in zip(apart(scenario, break_even), cases):
        assert found == expected, f"it returns {found}, the break-even is {expected}"


def test_chosen_is_right(chosen):
    """5 points."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read

    class Shard:
        def __init__(self, network, k, A, b):
            self.place, self.k, self.A, self.calls = network.place, k, A, [0, 0]
            self.b = network.place(k, b)

        def product(self, which, A, x):
            assert getattr(x, "device", None) == self.k, (
                f"not an array of device {self.k}"
            )
            self.calls[which] += 1
            return self.place(self.k, A @ read(x))

        def times(self, x):
            return self.product(0, self.A, x)

        def transposed(self, r):
            return self.product(1, self.A.T, r)

    def cgls(function):
        rng, network = numpy.random.default_rng(7), Network(2)
        A, b = rng.normal(size=(9, 3)), rng.normal(size=9)
        parts = [slice(0, 5), slice(5, 9)]
        shards = [Shard(network, k, A[p], b[p]) for k, p in enumerate(parts)]
        found = [read(x) for x in function(shards, 3, network.exchange)]
        return A, b, found, [n for shard in shards for n in shard.calls]

    def int8(function):
        return function(numpy.array([[127.0, -64.0], [0.5, 0.0]]))

    choices = {"cgls": cgls, "int8": int8}

    def scenario(chosen):
        function = chosen()
        name = function.__name__
        assert name in choices, f"{name!r}: call it cgls or int8"
        return name, choices[name](function)

    name, found = apart(scenario, chosen)
    if name == "cgls":
        A, b, xs, calls = found
        right = numpy.linalg.lstsq(A, b, rcond=None)[0]
        for x in xs:
            assert numpy.allclose(x, right), "3 steps solve 3 unknowns"
        assert max(calls) <= 4, f"a shard was passed {max(calls)} times: at most 4"
    else:
        q, scales = found
        assert q.dtype == "int8" and q.shape == (2, 2), f"q is {q.dtype} {q.shape}"
        assert numpy.allclose(scales, [1, 0.5 / 127]), f"the scales are {scales}"
        assert q.tolist() == [[127, -64], [127, 0]], f"q is {q.tolist()}"


def test_chosen_hidden(chosen):
    """5 points."""
    import numpy

    from d2lpar.puzzles.apart import apart
    from d2lpar.puzzles.network import Network, read

    rng = numpy.random.default_rng(8)
    A, b = rng.normal(size=(20, 6)), rng.normal(size=20)
    W = rng.normal(size=(5, 40)) * [[1], [1e-3], [1e3], [0], [1]]
    W[4, 7] = 1e4  # an outlier costs its own row only

    class Shard:
        def __init__(self, network, k, calls):
            def counted(A):
                def product(x):
                    calls.append(x.device)
                    assert x.device == k, f"not an array of device {k}"
                    return network.place(k, A @ read(x))

                return product

            self.b = network.place(k, b[k::4])
            self.times, self.transposed = counted(A[k::4]), counted(A[k::4].T)

    def cgls(function):
        found = []
        for steps in (1, 2, 3):
            calls, network = [], Network(4)
            shards = [Shard(network, k, calls) for k in range(4)]
            xs = [read(x) for x in function(shards, steps, network.exchange)]
            found.append((xs, len(calls)))
        return found

    choices = {"cgls": cgls, "int8": lambda f: f(W.copy())}
    name, found = apart(
        lambda chosen: ((f := chosen()).__name__, choices[f.__name__](f)), chosen
    )
    if name == "cgls":
        basis, vector = [], A.T @ b
        for steps, (xs, calls) in enumerate(found, 1):
            # The best x of the space of A^T b, A^T A A^T b, ...
            basis.append(vector / numpy.linalg.norm(vector))
            vector, K = A.T @ (A @ vector), numpy.stack(basis, axis=1)
            right = K @ numpy.linalg.lstsq(A @ K, b, rcond=None)[0]
            assert numpy.allclose(xs, [right] * 4), f"x after {steps} steps is not best"
            most = 2 * 4 * (steps + 1)
            assert calls <= most, f"{calls} products: at most {most}"
    else:
        q, scales = found
        error, scales = abs(W - scales[:, None] * q), numpy.asarray(scales)
        assert numpy.isfinite(scales).all() and not q[3].any(), "a row of zeros"
        assert (error <= scales[:, None] / 2 * 1.001).all(), "off by over half a scale"
        largest = abs(q.astype(int)).max(axis=1)
        assert largest.tolist() == [127, 127, 127, 0, 127], f"largest |q| {largest}"

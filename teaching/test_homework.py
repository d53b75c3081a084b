"""Grades homework.py by values and counts, never by times.

    python -m pytest --tb=line test_homework.py

Each test takes the functions that it calls as its arguments, so that nbgrader runs the
same tests. The functions run apart: in a process that has none of the numbers, for 20
seconds. What a test draws differs in each run. The first line of each test says its
points. Those whose name ends in _hidden are for graders.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy

from d2lpar.puzzles.apart import PRELOADED, Source, apart
from d2lpar.puzzles.interconnect import Network, read
from d2lpar.verify import verify

# The homework's rule. Students' processes may not be allowed to read its files.
PRELOADED.append("d2lpar.records.comparison")


def pytest_generate_tests(metafunc):
    """The arguments of a test are the homework's functions of these names."""
    path = Path(__file__).with_name("homework.py")
    for name in metafunc.fixturenames:
        metafunc.parametrize(name, [Source.of(path, name)], ids=[name])


def test_get_params_copies_to_a_device(get_params):
    """6 points."""
    get_params, rng = apart(get_params), numpy.random.default_rng()
    params = [rng.normal(size=s).astype("float32") for s in [(2, 3), 4, 4]]
    params += [rng.normal(size=(2, 3))]
    replica, grads = get_params(params, 1, Network(2).place)
    assert len(replica) == len(grads) == 4, f"{len(replica)} and {len(grads)} arrays"
    devices = {array.device for array in [*replica, *grads]}
    assert devices == {1}, f"arrays are on device(s) {devices}, not on 1"
    for mine, grad, right in zip(replica, grads, params):
        for array in (mine, grad):
            assert array.dtype == right.dtype, f"{array.dtype}: keep {right.dtype}"
        numpy.testing.assert_array_equal(read(mine), right)
        numpy.testing.assert_array_equal(read(grad), 0 * right)
    for k, array in enumerate([*replica, *grads]):
        read(array)[...] = k
    separate = all((read(a) == k).all() for k, a in enumerate([*replica, *grads]))
    assert separate, "two of the arrays are one: each has numbers of its own"


def check_allreduce(allreduce, num_devices, shapes, shows=True):
    """Compare sums of random arrays with NumPy's."""
    allreduce, rng = apart(allreduce), numpy.random.default_rng()
    for n in num_devices:
        for shape in shapes:
            network = Network(n, shows=shows)
            values = rng.integers(1, 100, size=(n, *shape)) / 4
            arrays = [network.place(k, values[k]) for k in range(n)]
            allreduce(list(arrays), network.exchange)
            total = values.sum(axis=0).tolist()
            for k, array in enumerate(arrays):
                mine = read(array).tolist()
                assert mine == total, f"array {k} of {n} is {mine}, the sum is {total}"


def test_allreduce_sums_in_place(allreduce):
    """4 points."""
    check_allreduce(allreduce, [2], [(1, 2)])


def test_allreduce_hidden(allreduce):
    """6 points."""
    check_allreduce(allreduce, [1, 3, 5, 6, 7], [(), (3, 1, 4)], shows=False)


def check_split(split_batch, rows_and_devices):
    """Compare shards with NumPy's, and look where they are."""
    split_batch, rng = apart(split_batch), numpy.random.default_rng()
    for rows, n in rows_and_devices:
        batch = rng.normal(size=(rows, 2, 3)), rng.permutation(rows)
        for shards, whole in zip(split_batch(*batch, n, Network(n).place), batch):
            sizes, right = [len(shard) for shard in shards], numpy.array_split(whole, n)
            expected = [len(shard) for shard in right]
            assert sizes == expected, f"{rows} rows: {sizes}, expected {expected}"
            places = [shard.device for shard in shards]
            assert places == list(range(n)), f"the shards are on devices {places}"
            same = all(map(numpy.array_equal, map(read, shards), right))
            assert same, f"{rows} rows on {n} devices: other rows, or another order"


def test_split_batch_loses_no_row(split_batch):
    """4 points."""
    check_split(split_batch, [(7, 3)])


def test_split_batch_hidden(split_batch):
    """4 points."""
    check_split(split_batch, [(3, 1), (2, 2), (11, 4), (7, 5), (20, 6), (13, 7)])


def test_train_batch_is_the_step_of_one_device(get_params, train_batch):
    """7 points: all four functions, and `d2lpar verify` names the mistake."""
    get_params, train_batch = apart(get_params), apart(train_batch)
    first = int(numpy.random.default_rng().integers(1_000_000))

    def init(seed):
        return [numpy.linspace(-1, 1, 4), numpy.ones(1)]

    def batch(n, seed):
        rng = numpy.random.default_rng(first + seed)
        return rng.normal(size=(n, 4)), rng.normal(size=n)

    def gradients(X, y, w, b):
        error = X @ w + b - y
        return [X.T @ error, error.sum(keepdims=True)]

    def backward(X, y, params, grads):
        devices = {a.device for a in [X, y, *params, *grads]}
        assert len(devices) == 1, f"backward has arrays of devices {devices}"
        for g, own in zip(grads, gradients(*map(read, (X, y, *params)))):
            read(g)[:] += own

    def replicas(params, X, y, num_devices, lr, steps=1):
        if num_devices == 1:
            for _ in range(steps):
                grads = gradients(X, y, *params)
                params = [p - lr / len(X) * g for p, g in zip(params, grads)]
            return [params]
        network = Network(num_devices)
        copies = [get_params(params, k, network.place) for k in range(num_devices)]
        for _ in range(steps):
            train_batch(X, y, copies, lr, backward, network.place, network.exchange)
        return [[*map(read, params)] for params, _ in copies]

    def step(params, X, y, num_devices, lr, steps=1):
        if len(X) < num_devices:
            raise NotImplementedError("split_batch need not split them")
        return replicas(params, X, y, num_devices, lr, steps)[0]

    replicas(init(0), *batch(9, 0), 4, 0.1)  # raises what the functions raise
    mine = SimpleNamespace(init=init, batch=batch, step=step, replicas=replicas)
    for check in verify(mine, num_devices=4):
        is_right = check.verdict in ("right", "skipped")
        assert is_right, f"{check.what}: {check.line}"


def check_step(train_batch, num_devices, n, shows=True):
    """Compare a step with NumPy's, of losses that differ by the device of a row."""
    train_batch, rng = apart(train_batch), numpy.random.default_rng()
    X, w, y = (rng.normal(size=shape) for shape in [(n, 4), 4, n])
    weights, rows = rng.uniform(1, 2, size=num_devices), [0] * num_devices

    def backward(X, y, params, grads):
        devices = {a.device for a in [X, y, *params, *grads]}
        assert len(devices) == 1, f"backward has arrays of devices {devices}"
        rows[X.device] += len(X)
        error = weights[X.device] * (read(X) @ read(params[0]) - read(y))
        read(grads[0])[:] += read(X).T @ error

    network = Network(num_devices, shows=shows)
    place, exchange, sent = network.place, network.exchange, network.sent
    replicas = [([place(k, w)], [place(k, 0 * w)]) for k in range(num_devices)]
    train_batch(X, y, replicas, 0.1, backward, place, exchange)
    counts = [len(part) for part in numpy.array_split(y, num_devices)]
    assert rows == counts, f"rows per device are {rows}: {n} are {counts}"
    assert min(sent) >= 4, f"the devices sent {sent} numbers of a gradient of 4"
    error = numpy.repeat(weights, counts) * (X @ w - y)
    found = [read(params[0]) for params, _ in replicas]
    right = [w - 0.1 / n * X.T @ error] * num_devices
    same = numpy.allclose(found, right, rtol=1e-12)
    assert same, f"a step of {num_devices} devices with {n} rows is not that of NumPy"


def test_train_batch_computes_each_row_once(train_batch):
    """5 points."""
    check_step(train_batch, 3, 11)


def test_train_batch_hidden(train_batch):
    """4 points."""
    check_step(train_batch, 4, 13, shows=False)


def test_combine_weights_by_rows(combine):
    """5 points."""
    combine = apart(combine)
    means = [*numpy.random.default_rng().integers(1, 9, size=(2, 2)).astype(float)]
    mean, right = combine(means, [2, 1]), (2 * means[0] + means[1]) / 3
    same = numpy.allclose(mean, right)
    assert same, f"2 rows of mean {means[0]}, 1 of {means[1]}: {right}, not {mean}"


def test_combine_hidden(combine):
    """5 points."""
    combine, rng = apart(combine), numpy.random.default_rng()
    for counts in ([7], [5, 4, 4], [1, 0], [0, 2, 0, 3], [100, 1]):
        shards = [rng.normal(size=(count, 3)) for count in counts]
        with numpy.errstate(all="ignore"):
            means = [shard.sum(axis=0) / len(shard) for shard in shards]
        right = numpy.allclose(
            combine(means, counts), numpy.concatenate(shards).mean(axis=0)
        )
        assert right, f"wrong for shards of {counts} rows"
    for lost in (numpy.nan, numpy.inf):
        mean = combine([numpy.array([lost]), numpy.array([1.0])], [2, 1])
        same = numpy.array_equal(numpy.ravel(mean), [lost], equal_nan=True)
        assert same, f"a device has diverged, and its {lost} is hidden"


def test_break_even_follows_the_rule(break_even):
    """5 points."""
    break_even, rng = apart(break_even), numpy.random.default_rng()
    one, two = (
        [(x * rng.uniform(1, 1.01, 5)).tolist() for x in seconds]
        for seconds in ((2, 4, 8), (3, 3, 5))
    )
    found = break_even([16, 32, 64], one, two)
    assert found == 32, f"two devices win at 32 and 64, but it returns {found}"
    found = break_even([16, 32, 64], one, [*two[:2], one[2]])
    assert found is None, f"they do not win at 64, but it returns {found}"
    found = break_even([32], [one[1][:3]], [two[1][:3]])
    assert found is None, f"three times are too few, but it returns {found}"


def test_break_even_hidden(break_even):
    """5 points."""
    break_even, rng = apart(break_even), numpy.random.default_rng()
    alone = numpy.arange(1.60, 1.76, 0.02)
    fast, slow, above = alone / 1.6, alone * 1.6, alone / 1.2
    close = alone / 1.1  # all are below, by a factor that processes may differ by
    noisy = numpy.append(fast[:5], slow[:3])  # less by the median only
    mixed = numpy.append(fast[:5], [1.65, 1.67, 1.69])  # quartiles overlap, ranks tell
    cases = [
        ([fast, fast, fast, fast], 0),
        ([fast, slow, fast, fast], 2),
        ([slow, fast, fast, noisy], None),
        ([slow, slow, slow, fast], 3),
        ([slow, slow, slow, slow], None),
        ([fast, close, fast, fast], 2),
        ([fast, fast, fast, close], None),
        ([slow, above, fast, above], 1),
        ([slow, slow, mixed, fast], 2),
    ]
    for k in rng.permutation(len(cases)):
        two, right = cases[k]
        scale, batches = rng.uniform(1, 2), sorted(rng.permutation(500)[:4].tolist())
        two = [(scale * rng.permutation(seconds)).tolist() for seconds in two]
        one = [(scale * rng.permutation(alone)).tolist() for _ in two]
        found = break_even(batches, one, two)
        right = None if right is None else batches[right]
        assert found == right, f"it returns {found}, the break-even is {right}"


def check_cgls(cgls, num_devices, n, d, all_steps):
    """Compare x after some steps of CGLS with the best x of its space."""
    cgls, rng, network = apart(cgls), numpy.random.default_rng(), Network(num_devices)
    A, b, basis, calls = rng.normal(size=(n, d)), rng.normal(size=n), [], []
    vector = A.T @ b

    def product(k, A):
        def times(x):
            calls.append(k)
            assert getattr(x, "device", None) == k, f"not an array of device {k}"
            return network.place(k, A @ read(x))

        return times

    def shard(k, rows):
        times, transposed = product(k, A[rows]), product(k, A[rows].T)
        b_k = network.place(k, b[rows])
        return SimpleNamespace(b=b_k, times=times, transposed=transposed)

    shards = [shard(k, slice(k, None, num_devices)) for k in range(num_devices)]
    for steps in range(1, max(all_steps) + 1):
        basis.append(vector / numpy.linalg.norm(vector))  # A^T b, A^T A A^T b, ...
        vector, K = A.T @ (A @ vector), numpy.stack(basis, axis=1)
        right = K @ numpy.linalg.lstsq(A @ K, b, rcond=None)[0]
        if steps in all_steps:
            calls.clear()
            xs = cgls(shards, steps, network.exchange)
            devices = [getattr(x, "device", None) for x in xs]
            each = list(range(num_devices))
            assert devices == each, f"the replicas of x are on devices {devices}"
            same = numpy.allclose([*map(read, xs)], [right] * num_devices)
            assert same, f"x after {steps} steps is not the best"
            most = 2 * num_devices * (steps + 1)
            assert len(calls) <= most, f"{len(calls)} products: at most {most}"


def check_int8(int8, W):
    """Check the properties of a quantised matrix, whatever its scales are."""
    q, scales = apart(int8)(W)
    shape, rows = numpy.shape(scales), len(W)
    assert q.dtype == "int8" and q.shape == W.shape, f"q is {q.dtype} {q.shape}"
    assert shape in ((rows,), (rows, 1)), f"the scales have shape {shape}: one per row"
    scales, largest = numpy.reshape(scales, (rows, 1)), abs(q.astype(int)).max(axis=1)
    assert numpy.isfinite(scales).all(), "a scale is not finite"
    off = abs(W - scales * q).max(axis=1) / scales[:, 0]
    assert (off <= 0.501).all(), f"rows are off by {off} scales: at most one half"
    right = 127 * (W != 0).any(axis=1)
    assert (largest == right).all(), f"the largest |q| are {largest}, not {right}"


def test_int8_or_cgls_is_right(cgls, int8):
    """5 points: those of cgls, if it is written."""
    W = numpy.random.default_rng().uniform(0.5, 2) * numpy.array([[127, -64], [0.5, 0]])
    try:
        check_cgls(cgls, 2, 9, 3, [3])
    except NotImplementedError:
        check_int8(int8, W)


def test_int8_or_cgls_hidden(cgls, int8):
    """5 points: those of cgls, if it is written."""
    W = numpy.random.default_rng().normal(size=(5, 40))
    W *= [[1], [1e-3], [1e3], [0], [1]]
    W[4, 7] = 1e4  # an outlier costs its own row only
    try:
        check_cgls(cgls, 4, 20, 6, [1, 2, 3])
    except NotImplementedError:
        check_int8(int8, W)

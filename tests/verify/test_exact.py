"""`EXACT = True`: a step whose bits must not depend on the number of devices."""

from types import SimpleNamespace

import numpy
import pytest

from d2lpar.verify import verify


def of_bits(count_shards, even_only=False, **more):
    """The check of a step that sums as many shards as `count_shards(N)` says."""

    def batch(n, seed):
        rng = numpy.random.default_rng(seed)
        return [rng.normal(size=s).astype("float32") for s in ((n, 300), n)]

    def step(params, X, y, num_devices, lr):
        if even_only and len(X) % num_devices:
            raise ValueError("an uneven batch")
        (w,), count = params, count_shards(num_devices)
        shards = zip(numpy.array_split(X, count), numpy.array_split(y, count))
        sums = [(X_k @ w - y_k) @ X_k for X_k, y_k in shards]
        return [w - numpy.float32(lr / len(X)) * sum(sums[1:], sums[0])]

    own = {"init": lambda seed: [batch(300, seed)[1]], "batch": batch, "step": step}
    checks = verify(SimpleNamespace(**own, **more), num_devices=3)
    return [check[1:3] for check in checks if check.what == "the same bits"]


@pytest.mark.parametrize("even_only", [False, True])
def test_bits_are_compared_where_the_file_asks_for_it(even_only):
    assert of_bits(lambda N: N, even_only) == []
    right = of_bits(lambda N: 8, even_only, EXACT=True)
    assert right == [("right", "on [1, 2, 3] devices")]
    ((verdict, line),) = of_bits(lambda N: max(2, N), even_only, EXACT=True)
    assert verdict == "wrong" and "bytes differ on 3 devices" in line

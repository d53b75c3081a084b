"""Steps that differ in one place from a right one: tokens, 16 bits, samplers."""

import types

import numpy
import pytest

from d2lpar.verify import verify

IGNORED = -1


def gradient(params, X, y, cast=lambda a: a):
    """The gradient of the sum of the losses of all valid labels, and their number."""
    W1, b1, W2, b2 = map(cast, params)
    X, y = cast(X.reshape(-1, 6)), y.reshape(-1)
    h = numpy.tanh(cast(X @ W1 + b1))
    error = numpy.exp(cast(h @ W2 + b2))
    error /= error.sum(1, keepdims=True)
    valid = y != IGNORED
    error[numpy.arange(len(y)), numpy.where(valid, y, 0)] -= 1
    error = cast(error * valid[:, None])
    below = cast(error @ W2.T * (1 - h**2))
    grads = X.T @ below, below.sum(0), h.T @ error, error.sum(0)
    return [cast(g) for g in grads], valid.sum()


def add(grads):
    return [sum(gs) for gs in zip(*grads)]


def scale(factor, grads):
    return [factor * g for g in grads]


def clip(grads, clip_norm):
    norm = sum((g**2).sum() for g in grads) ** 0.5
    return grads if clip_norm is None else scale(min(1, clip_norm / norm), grads)


def split(X, y, N):
    return list(zip(numpy.array_split(X, N), numpy.array_split(y, N)))


def moved(params, grads, lr):
    return [(p - lr * g).astype(p.dtype) for p, g in zip(params, grads)]


def subject(step, tokens=False, dtype="float64"):
    """An object for `verify`: a network of two layers, and this step."""

    def init(seed):
        rng = numpy.random.default_rng(seed)
        shapes = (6, 8), (8,), (8, 3), (3,)
        return [rng.normal(0, 0.5, shape).astype(dtype) for shape in shapes]

    def batch(n, seed):
        rng = numpy.random.default_rng(seed)
        shape = (n, 5) if tokens else (n,)
        X, y = rng.normal(size=(*shape, 6)).astype(dtype), rng.integers(0, 3, shape)
        if tokens:  # rows of one to five valid labels
            y[:, 1:][rng.random((n, 4)) < 0.5] = IGNORED
        return X, y

    return types.SimpleNamespace(init=init, batch=batch, step=step)


def right(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
    for _ in range(steps):
        pieces = [
            p for own in split(X, y, num_devices) for p in split(*own, accumulate)
        ]
        parts = [gradient(params, *piece) for piece in pieces]
        total = scale(1 / sum(n for _, n in parts), add(g for g, _ in parts))
        params = moved(params, clip(total, clip_norm), lr)
    return params


def own_means(X_y_of):
    """A step that averages each device's mean over its own valid labels."""

    def step(params, X, y, num_devices, lr):
        parts = [gradient(params, X[k], y[k]) for k in X_y_of(len(X), num_devices)]
        means = add(scale(1 / max(1, n), g) for g, n in parts)
        return moved(params, scale(1 / num_devices, means), lr)

    return step


def in_a_row(n, N):
    return numpy.array_split(numpy.arange(n), N)


def shuffled(n, N):
    return numpy.array_split(numpy.random.default_rng(7).permutation(n), N)


def padded(n, N):
    order = numpy.random.default_rng(7).permutation(n)
    order = numpy.concatenate([order, order[: -n % N]])
    return [order[k::N] for k in range(N)]


def stale(of, keeps=True):
    """A step whose several devices keep what they got first, or have that of before."""
    kept = {}

    def step(params, X, y, num_devices, lr):
        given = (X, y) if of == "batch" else params
        if num_devices > 1:
            before = kept.setdefault((num_devices, len(X)), given)
            if not keeps:
                kept[num_devices, len(X)] = given
            given = before
        X, y = given if of == "batch" else (X, y)
        grads, n = gradient(params if of == "batch" else given, X, y)
        return moved(params, scale(1 / n, grads), lr)

    return step


def clips_pieces(params, X, y, num_devices, lr, clip_norm=None, accumulate=1):
    total = [0 * p for p in params]
    shards = [split(*own, accumulate) for own in split(X, y, num_devices)]
    for k in range(accumulate):
        piece = add(gradient(params, *own[k])[0] for own in shards)
        total = clip(add([total, scale(1 / len(X), piece)]), clip_norm)
    return moved(params, total, lr)


def clips_adam(params, X, y, num_devices, lr, clip_norm=None, accumulate=1):
    """Clip each piece on several devices, and divide by the gradient's length."""
    pieces = accumulate if num_devices > 1 else 1
    new = clips_pieces(params, X, y, 1, 1, clip_norm, pieces)
    grads = add([params, scale(-1, new)])
    return moved(params, [g / (abs(g) + 1e-8) for g in grads], lr)


def steps_of_pieces(params, X, y, num_devices, lr, accumulate=1):
    for piece in split(X, y, accumulate if num_devices > 1 else 1):
        params = right(params, *piece, num_devices, lr)
    return params


def clips_sums(params, X, y, num_devices, lr, clip_norm=None):
    mean = scale(1 / len(X), gradient(params, X, y)[0])
    sums = clip(scale(num_devices, mean), clip_norm)
    return moved(params, scale(1 / num_devices, sums), lr)


def counts_rows(params, X, y, num_devices, lr):
    grads, n = gradient(params, X, y)
    return moved(params, scale(1 / (n if num_devices == 1 else len(X)), grads), lr)


def half_summed(params, parts):
    """The sum of a bucket that ends within a parameter, and the rest of a device."""
    total, own = (
        numpy.concatenate([g.ravel() for g in p]) for p in (add(parts), parts[0])
    )
    k, ends = len(own) // 2, numpy.cumsum([p.size for p in params])[:-1]
    pieces = numpy.split(numpy.concatenate([total[:k], own[k:]]), ends)
    return [g.reshape(p.shape) for g, p in zip(pieces, params)]


def sums_again(params, X, y, num_devices, lr, accumulate=1):
    """All-reduce what is accumulated after each piece: early pieces count N times."""
    total, N = [0 * p for p in params], num_devices
    shards = [split(*own, accumulate) for own in split(X, y, N)]
    for k in range(accumulate):
        grads = add(gradient(params, *own[k])[0] for own in shards)
        total = add([scale(N if k else 1, total), grads])
    return moved(params, scale(1 / len(X), total), lr)


def zeroes_one(params, X, y, num_devices, lr, steps=1):
    """Set the gradient of the first device only to zero between two steps."""
    left = [0 * p for p in params]
    for _ in range(steps):
        grads = [gradient(params, *own)[0] for own in split(X, y, num_devices)]
        params = moved(params, scale(1 / len(X), add([*grads, left])), lr)
        left = add([left, *grads[1:]]) if num_devices > 1 else left
    return params


def filled(params, X, y, num_devices, lr):
    """Fill each shard of several devices with zeros, up to 64 rows."""
    size = 64 * num_devices if num_devices > 1 else len(X)
    zeros = [
        numpy.zeros((max(0, size - len(a)), *a.shape[1:]), a.dtype) for a in (X, y)
    ]
    X, y = (numpy.concatenate(pair) for pair in zip((X, y), zeros))
    return moved(params, scale(1 / len(X), gradient(params, X, y)[0]), lr)


def raises(params, X, y, num_devices, lr, steps=1):
    assert num_devices == 1 or steps == 1, "the bucket is not reset"
    return right(params, X, y, num_devices, lr, steps)


def changed(change):
    """A step whose gradient on several devices is another function of the parts."""

    def step(params, X, y, num_devices, lr):
        shards = split(X, y, num_devices)
        sums = [gradient(params, *own) for own in shards]
        parts = [scale(1 / sum(n for _, n in sums), g) for g, _ in sums]
        grads = change(params, parts) if num_devices > 1 else add(parts)
        return moved(params, grads, lr)

    return step


def decayed(factor, decay):
    """A step with weight decay, the factor of the gradient, and that of the decay."""

    def step(params, X, y, num_devices, lr):
        grads = scale(factor(num_devices) / len(X), gradient(params, X, y)[0])
        decays = scale(0.1 * decay(num_devices), params)
        return moved(params, add([grads, decays]), lr)

    return step


def bfloat16(a):
    bits = numpy.asarray(a, "float32").view("uint32").astype("uint64")
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return bits.astype("uint32").view("float32").astype("float64")


def float16(a):
    return numpy.asarray(a).astype("float16").astype("float64")


def low(cast, factor=lambda N: 1):
    """A step that computes in 16 bits, also on one device."""

    def step(params, X, y, num_devices, lr, clip_norm=None, accumulate=1):
        pieces = split(X, y, num_devices * accumulate)
        parts = [gradient(params, *piece, cast)[0] for piece in pieces]
        total = scale(factor(num_devices) / len(X), add(parts))
        return moved(params, clip(total, clip_norm), lr)

    return step


def largest_half(g):
    return g * (abs(g) >= numpy.quantile(abs(g), 0.5))


def each(function):
    return lambda params, parts: add([function(g) for g in part] for part in parts)


def weighted_devices(params, parts):
    """Count the rows of every other device three times as much."""
    weights = numpy.resize([3.0, 1.0], len(parts))
    weights *= len(parts) / weights.sum()
    return add(scale(w, part) for w, part in zip(weights, parts))


def noise(params, parts):
    return [g + 1e-3 * RNG.normal(size=g.shape) for g in add(parts)]


RNG = numpy.random.default_rng(0)
WRONG = {
    "tokens": (own_means(in_a_row), "mean of means of tokens", True),
    "tokens, shuffled": (own_means(shuffled), "mean of means of tokens", True),
    "rows, shuffled": (own_means(shuffled), "mean of means", False),
    "rows repeated": (own_means(padded), "repeated rows", False),
    "an old batch": (stale("batch"), "stale batch", False),
    "the batch before": (stale("batch", False), "stale batch", False),
    "the parameters before": (stale("parameters", False), "stale parameters", False),
    "a lost sum": (changed(lambda _, p: p[0]), "lost sum", True),
    "half a bucket": (changed(half_summed), "lost sum", False),
    "rows for tokens": (counts_rows, "wrong count", True),
    "steps of pieces": (steps_of_pieces, "step of each piece", False),
    "clipped sums": (clips_sums, "clipped sum", False),
    "old parameters": (stale("parameters"), "stale parameters", False),
    "clipped pieces": (clips_pieces, "clipped pieces", False),
    "clipped pieces, Adam": (clips_adam, "clipped pieces", False),
    "an error": (raises, "raises", False),
    "pieces summed again": (sums_again, "unequal rows", False),
    "one device zeroed": (zeroes_one, "stale gradient", False),
    "filled with zeros": (filled, "padding", False),
    "the largest half": (changed(each(largest_half)), "", False),
    "one percent": (changed(lambda _, p: scale(1.01, add(p))), "factor", False),
    "root": (changed(lambda _, p: scale(2**0.5, add(p))), "factor", False),
    "float32": (changed(each(lambda g: g.astype("f4"))), "single precision", False),
    "float16": (changed(each(float16)), "half precision", False),
    "bfloat16": (changed(each(bfloat16)), "half precision", False),
    "noise": (changed(noise), "unequal on several", False),
    "decay, N times": (decayed(lambda N: N, lambda N: 1), "N times", False),
    "decay, by N": (decayed(lambda N: 1 / N, lambda N: 1), "divided by N", False),
    "decay of each": (decayed(lambda N: 1, lambda N: N), "constant part", False),
    "16 bits, N times": (low(bfloat16, lambda N: N), "N times", False),
}
RIGHT = {
    "tokens": (right, True),
    "rows": (right, False),
    "decay": (decayed(lambda N: 1, lambda N: 1), False),
    "bfloat16": (low(bfloat16), False),
    "float16": (low(float16), False),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("num_devices", [2, 3])
def test_a_strangers_mistake_is_named(name, num_devices):
    step, mistake, tokens = WRONG[name]
    for seed in range(2):
        *checks, summary = verify(subject(step, tokens), num_devices, seed=seed)
        assert (summary.verdict, summary.mistake) == ("wrong", mistake), checks


def test_weights_of_devices_are_no_mean_of_means():
    """On four devices all rows of equal weight have a whole share together."""
    *_, summary = verify(subject(changed(weighted_devices)), 4)
    assert (summary.verdict, summary.mistake) == ("wrong", "unequal rows")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_strangers_step_is_right(name, dtype):
    step, tokens = RIGHT[name]
    for seed in range(10):
        *checks, summary = verify(subject(step, tokens, dtype), 2, seed=seed)
        assert summary.verdict == "right", (seed, checks)


def test_a_step_in_16_bits_says_how_good_it_is():
    first, *_ = verify(subject(low(bfloat16)))
    assert (first.what, first.verdict) == ("precision", "skipped")
    assert "as in 16 bits" in first.line


def test_a_sum_is_judged_as_a_sum():
    def step(params, X, y, num_devices, lr, clip_norm=None, accumulate=1):
        parts = [gradient(params, *own)[0] for own in split(X, y, num_devices)]
        return moved(params, clip(scale(0.01, add(parts)), clip_norm), lr)

    first, *_, summary = verify(subject(step))
    assert (first.what, first.verdict, first.mistake) == (
        "a mean",
        "skipped",
        "not divided",
    )
    assert summary.verdict == "right"


def test_batch_norm_of_shuffled_rows_is_another_algorithm():
    def normalised(params, X, y):
        W1, b1, W2, b2 = params
        h = numpy.tanh(X @ W1 + b1)
        return gradient(params, X - (X * h.mean()).mean(0), y)[0]

    def step(params, X, y, num_devices, lr):
        rows = shuffled(len(X), num_devices)
        parts = [normalised(params, X[k], y[k]) for k in rows if len(k)]
        return moved(params, scale(1 / len(X), add(parts)), lr)

    *checks, summary = verify(subject(step))
    assert (summary.verdict, summary.mistake) == ("unjudged", "another algorithm"), (
        checks
    )


def test_a_file_may_say_which_rows_a_device_has():
    wrong = subject(clipping_of(shuffled))
    assert verify(wrong)[-1].mistake == ""
    wrong.rows = shuffled
    assert verify(wrong)[-1].mistake == "clipped first"


def clipping_of(rows):
    def step(params, X, y, num_devices, lr, clip_norm=None):
        parts = [gradient(params, X[k], y[k]) for k in rows(len(X), num_devices)]
        own = (clip(scale(1 / max(1, n), g), clip_norm) for g, n in parts)
        shares = [n / len(X) for _, n in parts]
        return moved(params, add(map(scale, shares, own)), lr)

    return step


def test_uneven_batches_can_be_turned_off():
    def step(params, X, y, num_devices, lr):
        assert len(X) % num_devices == 0, "uneven"
        return right(params, X, y, num_devices, lr)

    assert verify(subject(step))[-1].mistake == "raises"
    assert verify(subject(step), even=True)[-1].verdict == "right"
    module = subject(step)
    module.EVEN = True
    *checks, summary = verify(module)
    assert summary.verdict == "right" and "an uneven batch" in summary.line


def test_even_batches_alone_are_tried_to_find_a_name():
    left = set()  # rows that cannot be split: a process may wait for them forever

    def step(params, X, y, num_devices, lr):
        left.add(len(X) % num_devices)
        grads = [gradient(params, *own)[0] for own in split(X, y, num_devices)]
        most = [numpy.max(gs, axis=0) for gs in zip(*grads)]  # not their sum
        return moved(params, scale(1 / len(X), most), lr)

    *_, summary = verify(subject(step), even=True)
    assert (summary.verdict, summary.mistake) == ("wrong", "")
    assert left == {0}


def test_even_shards_have_the_most_general_name():
    scaled = changed(lambda _, parts: scale(2, add(parts)))
    assert verify(subject(scaled), even=True)[-1].mistake == "N times"


def test_a_small_factor_is_no_constant_part():
    def longer(_, parts):
        grads = add(parts)
        return [*grads[:3], grads[3] * 1.001]

    assert verify(subject(changed(longer), dtype="float32"), 3)[-1].mistake == "factor"


def test_a_factor_of_adam_is_no_wrong_count():
    def step(params, X, y, num_devices, lr):
        grads = scale(1 / len(X), gradient(params, X, y)[0])
        grads = add([grads, scale(0.1 * num_devices, params)])
        return moved(params, [numpy.sign(g) for g in grads], lr)

    assert verify(subject(step, dtype="float32"))[-1].mistake != "wrong count"


def test_an_option_that_fails_on_one_device_is_not_judged():
    def step(params, X, y, num_devices, lr, clip_norm=None):
        assert clip_norm is None, "no clipping here"
        return right(params, X, y, num_devices, lr)

    *checks, summary = verify(subject(step))
    (check,) = [check for check in checks if check.what == "clipping"]
    assert (check.verdict, summary.verdict) == ("unjudged", "unjudged")
    assert "no clipping here" in check.line
    assert checks[-1].what == "the first batch again"


def test_a_step_that_ignores_its_rows_is_not_judged():
    first = []

    def step(params, X, y, num_devices, lr):
        first.append((X, y))
        return right(params, *first[0], 1, lr)

    check, summary = verify(subject(step))
    assert summary.verdict == "unjudged" and "with other rows" in check.line

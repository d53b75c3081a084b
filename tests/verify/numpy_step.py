"""A step in NumPy, with the mistake that the variable D2LPAR_MISTAKE names.

It needs no framework, so that the tests can plant each mistake of the table.
"""

import os

import numpy

MISTAKE = os.environ.get("D2LPAR_MISTAKE", "")
DTYPE = os.environ.get("D2LPAR_DTYPE", "float64")
left = {}  # the sum of the call before, of each number of devices


def init(seed):
    rng = numpy.random.default_rng(seed)
    params = [rng.normal(0, 0.5, shape) for shape in ((6, 8), (8,), (8, 3), (3,))]
    return [p.astype(DTYPE) for p in params]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype(DTYPE), rng.integers(0, 3, n)


def gradient(params, X, y):
    """The gradient of the sum of the losses."""
    W1, b1, W2, b2 = params
    h = numpy.tanh(X @ W1 + b1)
    if MISTAKE == "another algorithm":
        h = h - h.sum(0) / max(1, len(h))
    scores = numpy.exp(h @ W2 + b2)
    error = scores / scores.sum(1, keepdims=True)
    error[range(len(y)), y] -= 1
    below = error @ W2.T * (1 - numpy.tanh(X @ W1 + b1) ** 2)
    return [X.T @ below, below.sum(0), h.T @ error, error.sum(0)]


def add(grads):
    return [sum(g) for g in zip(*grads)]


def scale(factor, grads):
    return [factor * g for g in grads]


def length(grads):
    return sum((g**2).sum() for g in grads) ** 0.5


def clip(grads, clip_norm, by):
    return scale(min(1, clip_norm / (length(by) or 1)), grads) if clip_norm else grads


def split(X, y, N):
    n = len(X)
    if MISTAKE == "dropped rows":
        X, y = X[: n // N * N], y[: n // N * N]
    rows = numpy.arange(-n % N)
    if MISTAKE == "repeated rows":
        X, y = numpy.concatenate([X, X[rows]]), numpy.concatenate([y, y[rows]])
    if MISTAKE == "padding":
        X, y = numpy.concatenate([X, 0 * X[rows]]), numpy.concatenate([y, 0 * y[rows]])
    return list(zip(numpy.array_split(X, N), numpy.array_split(y, N)))


def several(params, X, y, clip_norm, accumulate, shards):
    """The gradient of several devices, with the mistake."""
    N, n = len(shards), len(X)
    filled = n + -n % N
    pieces = [split(*shard, accumulate) for shard in shards]
    sums = [gradient(params, *shard) for shard in shards]
    means = [scale(1 / max(1, len(s[1])), g) for s, g in zip(shards, sums)]
    of_pieces = [[gradient(params, *piece) for piece in own] for own in pieces]
    piece_means = [
        scale(1 / max(1, len(piece[1])), g)
        for own, grads in zip(pieces, of_pieces)
        for piece, g in zip(own, grads)
    ]
    last = [grads[-1] for grads in of_pieces]
    whole = scale(1 / n, add(sums))
    wrong = {
        "sum of means": add(means),
        "mean of means": scale(1 / N, add(means)),
        "N times": scale(N, whole),
        "divided by N": scale(1 / N, whole),
        "mean of sums": scale(1 / N, add(sums)),
        "no step": scale(0, whole),
        "one device": means[0],
        "lost sum": scale(1 / n, sums[0]),
        "missing device": scale(1 / n, add(sums[:-1])),
        "device twice": scale(1 / n, add([*sums, sums[-1]])),
        "dropped rows": scale(1 / max(1, n // N * N), add(sums)),
        "repeated rows": scale(1 / filled, add(sums)),
        "padding": scale(1 / filled, add(sums)),
        "padded size": scale(1 / filled, add(sums)),
        "not divided": scale(n, whole),
        "divided twice": scale(1 / n, whole),
        "half precision": [g.astype("float16").astype(DTYPE) for g in whole],
    }
    if accumulate > 1:
        wrong["sum of pieces"] = scale(1 / N, add(piece_means))
        wrong["mean of pieces"] = scale(1 / N / accumulate, add(piece_means))
        wrong["one piece"] = scale(1 / n, add(last))
        not_last = add(grads[0] for grads in of_pieces)
        wrong["piece not summed"] = scale(1 / n, add([not_last, scale(N, last[0])]))
    by, total = whole, wrong.get(MISTAKE, whole)
    if MISTAKE == "clipped first":
        own = (clip(g, clip_norm, g) for g in means)
        total = add(scale(len(s[1]) / n, g) for s, g in zip(shards, own))
    elif MISTAKE != "not clipped":
        by = {
            "own norm": means[0],
            "norm twice": scale(N**0.5, whole),
            "clipped sum": scale(n, whole),
        }.get(MISTAKE, total)
        total = clip(total, clip_norm, by)
    return total


def train(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
    N, n, own = num_devices, len(X), [params for _ in range(num_devices)]
    late = None
    for _ in range(steps):
        if N == 1:
            whole = scale(1 / n, gradient(own[0], X, y))
            grads = clip(whole, clip_norm, whole)
        else:
            shards = split(X, y, N)
            grads = several(own[0], X, y, clip_norm, accumulate, shards)
            if MISTAKE == "stale replica":
                sums = [gradient(p, *shard) for p, shard in zip(own, shards)]
                grads = scale(1 / n, add(sums))
            if MISTAKE in ("stale gradient", "idle device"):
                before, left[N] = left.get(N, scale(0, grads)), scale(n, grads)
                if n < N or MISTAKE == "stale gradient":
                    grads = add([grads, scale(1 / n, before)])
            if MISTAKE == "old gradient":
                late = grads = late or grads
        own = [[p - lr * g for p, g in zip(ps, grads)] for ps in own]
        if N > 1 and MISTAKE == "apart":
            own[1] = params
        if N > 1 and MISTAKE == "stale replica":
            own[1:] = [params for _ in own[1:]]
    return own


def step(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
    return train(params, X, y, num_devices, lr, steps, clip_norm, accumulate)[0]


def replicas(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
    return train(params, X, y, num_devices, lr, steps, clip_norm, accumulate)

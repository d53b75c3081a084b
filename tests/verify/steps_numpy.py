"""A step in NumPy with one mistake of the table, or none: each is planted once."""

from itertools import chain
from types import SimpleNamespace

import numpy

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


def clip(grads, clip_norm, factor=1):
    """Scale gradients as if they were `factor` times as long before."""
    norm = factor * sum((g**2).sum() for g in grads) ** 0.5
    return grads if clip_norm is None else scale(min(1, clip_norm / (norm or 1)), grads)


def split(X, y, N):
    return list(zip(numpy.array_split(X, N), numpy.array_split(y, N)))


def filled(X, y, N, of):
    """Rows that can be split evenly: the last ones are others again, or zeros."""
    if of == "dropped rows":
        n = len(X) // N * N
        return X[:n], y[:n]
    k = -len(X) % N
    zero = of == "padding"
    return [numpy.concatenate([a, 0 * a[:k] if zero else a[:k]]) for a in (X, y)]


def bfloat16(a):
    bits = numpy.asarray(a, "float32").view("uint32").astype("uint64")
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return bits.astype("uint32").view("float32").astype("float64")


def several(mistake, params, X, y, shards, pieces, clip_norm, left):
    """The gradient that N devices apply, with the mistake; `pieces` has theirs."""
    N, n, A = len(shards), len(X), len(pieces[0])
    cast = bfloat16 if mistake == "right, bfloat16" else numpy.asarray
    sums = [gradient(params, *own, cast) for own in shards]
    total, valid = add(g for g, _ in sums), max(1, sum(k for _, k in sums))
    whole = scale(1 / valid, total)
    means = [scale(1 / max(1, k), g) for g, k in sums]
    of_pieces = [[gradient(params, *piece) for piece in own] for own in pieces]
    last = [scale(1 / valid, own[-1][0]) for own in of_pieces]
    piece_means = [scale(1 / max(1, k), g) for g, k in chain(*of_pieces)]
    before = left.get(N, scale(0, total))
    left[N] = total
    grads = {
        "mean of means": lambda: scale(1 / N, add(means)),
        "own tokens": lambda: scale(1 / N, add(means)),
        "N times": lambda: scale(N, whole),
        "divided by N": lambda: scale(1 / N, whole),
        "mean of sums": lambda: scale(1 / N, total),
        "not divided": lambda: total,
        "divided twice": lambda: scale(1 / n, whole),
        "one device": lambda: means[0],
        "old gradient": lambda: scale(1 / n, add([total, before])),
        "half precision": lambda: [bfloat16(g) for g in whole],
        "factor": lambda: scale(2**0.5, whole),
        "one parameter": lambda: [whole[0], 1.5 * whole[1], *whole[2:]],
        "factors": lambda: scale(1 / y.size, total),
        "random": lambda: [g + 1e-3 * RNG.normal(size=g.shape) for g in whole],
        "no name": lambda: [g * numpy.linspace(1, 1 + 1e-11, len(g.T)) for g in whole],
        "not finite": lambda: scale(numpy.nan if n < N else 1, whole),
    }.get(mistake, lambda: whole)()
    if A > 1:
        grads = {
            "sum of pieces": lambda: scale(1 / N, add(piece_means)),
            "mean of pieces": lambda: scale(1 / N / A, add(piece_means)),
            "one piece": lambda: add(last),
            "piece not summed": lambda: add(
                [whole, scale(-1, add(last)), scale(N, last[0])]
            ),
        }.get(mistake, lambda: grads)()
    if mistake == "clipped pieces" and A > 1:
        grads = scale(0, grads)
        for own in zip(*of_pieces):
            grads = clip(add([grads, scale(1 / n, add(g for g, _ in own))]), clip_norm)
        return grads
    if mistake == "clipped first" and clip_norm:
        own = [clip(g, clip_norm) for g in means]
        return add(scale(len(s[1]) / n, g) for s, g in zip(shards, own))
    if mistake == "clipped by value":
        own = [[g.clip(-0.01, 0.01) for g in grads] for grads in means]
        return add(scale(len(s[1]) / n, g) for s, g in zip(shards, own))
    if mistake == "not clipped":
        return grads
    return clip(grads, clip_norm, n if mistake == "clipped sum" else 1)


RNG = numpy.random.default_rng(0)
HAS_TOKENS = {"own tokens", "factors", "right, tokens"}
OF_ONE = {"clipped by value", "right, bfloat16"}  # one device does it, too
FILLED = {"dropped rows", "repeated rows", "padding"}


def subject(mistake="", dtype="float64", **more):
    """An object for `verify`: a network of two layers and its step, with a mistake."""
    left = {}

    def init(seed):
        rng = numpy.random.default_rng(seed)
        shapes = (6, 8), (8,), (8, 3), (3,)
        return [rng.normal(0, 0.5, shape).astype(dtype) for shape in shapes]

    def batch(n, seed):
        rng = numpy.random.default_rng(seed)
        shape = (n, 5) if mistake in HAS_TOKENS else (n,)
        X, y = rng.normal(size=(*shape, 6)).astype(dtype), rng.integers(0, 3, shape)
        if len(shape) > 1:  # rows of one to five valid labels
            y[:, 1:][rng.random((n, 4)) < 0.5] = IGNORED
        return X, y

    def replicas(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
        N, own = num_devices, [params] * num_devices
        if mistake == "local steps" and (clip_norm or accumulate > 1):
            raise NotImplementedError
        if N > 1 and mistake in FILLED:
            X, y = filled(X, y, N, mistake)
        if N > 1 and mistake == "raises" and steps > 1:
            raise AssertionError("the bucket is not reset")
        if N > 1 and mistake == "step of each piece" and accumulate > 1:
            for piece in split(X, y, accumulate):
                params = replicas(params, *piece, 1, lr)[0]
            return [params] * N
        shards = split(X, y, N)
        pieces = [split(*shard, accumulate) for shard in shards]
        late = None
        for k in range(steps):
            if mistake == "local steps":
                sums = [gradient(p, *shard) for p, shard in zip(own, shards)]
                grads = [scale(1 / max(1, n), g) for g, n in sums]
            else:
                given = mistake if N > 1 or mistake in OF_ONE else ""
                how = (shards, pieces, clip_norm, left)
                grads = several(given, own[0], X, y, *how)
                late = grads = late or grads if given == "late gradient" else grads
                grads = [grads] * N
            decay = 0.1 * (N if mistake == "constant part" else 1)
            decays = [decay if "constant" in mistake else 0] * N
            apart = [("apart", 0), ("apart in step 2", 1)]
            if (mistake, k) in apart or mistake == "apart if clipped" and clip_norm:
                decays[1:] = [0.1] * (N - 1)
            own = [
                [(p - lr * (g + decay * p)).astype(dtype) for p, g in zip(ps, gs)]
                for ps, gs, decay in zip(own, grads, decays)
            ]
        if mistake == "local steps":
            own = [scale(1 / N, add(own))] * N
        return own

    def step(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
        how = (num_devices, lr, steps, clip_norm, accumulate)
        return replicas(params, X, y, *how)[0]

    own = {"init": init, "batch": batch, "step": step, "replicas": replicas, **more}
    return SimpleNamespace(**{key: f for key, f in own.items() if f is not None})

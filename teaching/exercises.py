"""The exercises that tests grade: points, arguments and right answers.

The right answers are computed here by NumPy, from numbers that are drawn in each run.
"""

import time

import numpy
from puzzles.cases import all_reduce
from puzzles.devices import Case, Program, Wrong, check

try:
    import solution  # of graders: its diagnosis is not in a student's folder
except ImportError:
    solution = None


def split_batch(n, size, rng):
    X, y = rng.normal(size=(size, 2, 3)), rng.permutation(size)
    wanted = [*zip(numpy.array_split(X, n), numpy.array_split(y, n))]
    args = [(k, n, X, y) for k in range(n)]
    return Case(args, 2, wanted, dtype="")


def allreduce(n, size, rng):
    shape = [(), (size,), (2, 1, size)][rng.integers(3)]
    values = rng.normal(size=(n, *shape)).astype("float32")
    args = [(k, n, numpy.array(value)) for k, value in enumerate(values)]
    says, least = f"{n} devices, arrays {shape}", 2 * (n - 1) * values[0].size
    return Case(args, (2,), [[values.sum(axis=0)]] * n, says, least=least)


# Rows of each device weigh something that only this device knows.
GRADIENT = """lambda X, y, params: (lambda e: [X.T @ e, e.sum(keepdims=True)])(
    weight * (X @ params[0] + params[1] - y))"""


def shards(n, rng):
    """How many rows each device has: at least one has some."""
    return rng.permutation([int(rng.integers(1, 6)), *rng.integers(0, 6, size=n - 1)])


def train_batch(n, size, rng):
    counts, lr = shards(n, rng), float(rng.uniform(0.1, 0.3))
    params = [rng.normal(size=4), rng.normal(size=1)]
    args, total, rows = [], [0, 0], counts.sum()
    for k, count in enumerate(counts):
        X, y, weight = rng.normal(size=(count, 4)), rng.normal(size=count), 1 + k % 3
        gradient = {"lambda": GRADIENT, "weight": weight}
        args.append((k, n, X, y, [p.copy() for p in params], lr, gradient))
        error = weight * (X @ params[0] + params[1] - y)
        total = [total[0] + X.T @ error, total[1] + error.sum()]
    wanted = [[p - lr / rows * g for p, g in zip(params, total)]] * n
    says = f"devices with {counts.tolist()} rows"
    return Case(args, (4,), wanted, says, "float64", least=2 * (n - 1) * 5)


def batch_norm(n, size, rng):
    d, counts = 3, shards(n, rng)
    of_each = [rng.normal(rng.uniform(1, 3), 2, size=(count, d)) for count in counts]
    X, args = numpy.concatenate(of_each), [(k, n, of_each[k]) for k in range(n)]
    link, least = 8 * 3 * (n - 1) * (2 * d + 1), 2 * (n - 1) * (2 * d + 1)
    return Case(
        args, 2, [[X.mean(axis=0), X.var(axis=0)]] * n,
        f"devices with {counts.tolist()} rows", "float64", link=link, least=least,
    )  # fmt: skip


def diagnosis(step):
    def case(n, size, rng):
        if solution is None:
            raise Wrong("graded after you hand in")
        return Case([(step,)], 1, [[solution.diagnosis(step)]], "this step", "")

    return case


def break_even(n, size, rng):
    """Ratios of 1.1 to 1.6 that are told from 1, and that are not."""
    t, batches = int(rng.integers(4, 11)), sorted(rng.permutation(500)[:4] + 1)
    noise = rng.permutation(numpy.linspace(-1, 1, t))
    wins = rng.random(4) < [0.4, 0.5, 0.7, 0.8]
    one, two = [], []
    for win in wins:
        # The interval is about T95 / sqrt(t) * 0.6 times the noise, 0.4 to 1 of it.
        mean = rng.uniform(0.1, 0.5)
        logs = mean + noise * mean * (rng.uniform(0.2, 0.5) if win else 4)
        if not win and rng.random() < 0.5:
            logs = -logs  # slower
        two.append(rng.uniform(1e-3, 2e-3, size=t))
        one.append((two[-1] * numpy.exp(logs)).tolist())
        two[-1] = two[-1].tolist()
    if size % 3 == 0:  # three turns do not tell
        one[-1], two[-1], wins[-1] = [2.0, 2.1, 2.2], [1.0, 1.05, 1.1], False
    lost = numpy.flatnonzero(~wins)
    start = lost[-1] + 1 if len(lost) else 0
    args = [int(b) for b in batches], one, two
    return Case([args], 1, [[args[0][start:][:1] and args[0][start]
                             if start < 4 else []]], "these seconds", "")  # fmt: skip


ALONE, SEVERAL = [1] * 8, [2, 1, 3, 4, 5, 6, 7, 8]
EXERCISES = {  # points, the function, cases, numbers of devices
    "split_batch": (8, "split_batch", split_batch, SEVERAL),
    "allreduce": (10, "allreduce", allreduce, SEVERAL),
    "ring": (12, "ring", all_reduce("ring", "ring"), SEVERAL),
    "train_batch": (14, "train_batch", train_batch, SEVERAL),
    "batch_norm": (10, "batch_norm", batch_norm, SEVERAL),
    **{f"step {k}": (2, "diagnosis", diagnosis(k), [1]) for k in "abcde"},
    "break_even": (6, "break_even", break_even, ALONE),
}


def grade(program, exercise):
    """Return nothing for a right answer. Raises Wrong with the reason for any other."""
    _, function, case, devices = EXERCISES[exercise]
    check(program, function, case, devices)


NETWORK = """lambda X, y, params: (lambda h: (lambda e: [
    X.T @ (numpy.outer(e, params[1]) * (h > 0)), h.T @ e])(h @ params[1] - y))(
    numpy.maximum(X @ params[0], 0))"""


def seconds(path, batch, turns=8):
    """Return the seconds of steps of a file's `train_batch`, on one device and on two.

    They take turns, after a step of each that is not timed. The clock is that of the
    process that carries the messages, which costs time, too.
    """
    rng, found = numpy.random.default_rng(), ([], [])
    X, y = rng.normal(size=(batch, 256)), rng.normal(size=batch)
    params = [0.1 * rng.normal(size=(256, 64)), 0.1 * rng.normal(size=64)]
    with Program(path) as program, program.devices("train_batch", 2) as group:
        for turn in range(turns + 1):
            for n in (1, 2):
                rows = zip(numpy.array_split(X, n), numpy.array_split(y, n))
                gradient = {"lambda": NETWORK}
                args = [
                    (k, n, *own, params, 0.01, gradient) for k, own in enumerate(rows)
                ]
                start = time.perf_counter()
                group.call(Case(args, (), [[]] * n, "", "float64"))
                if turn:
                    found[n - 1].append(time.perf_counter() - start)
    return found

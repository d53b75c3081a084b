"""What Python costs per step: d2l's train_batch, ours from scratch, ours in Gluon.

    python benchmarks/step.py                   # one and two CPU contexts, a minute
    python benchmarks/step.py --devices gpu:2
    python benchmarks/step.py --steps 5 --rounds 2         # tiny

Four images, so that computing hides little. A round takes `--steps` steps of each form,
in turn, in one process. "issue" is the time until Python has issued a step, "step"
until the devices have finished it: microseconds, medians over the rounds. Ratios are
those of the rounds to d2l's step. "calls" are Python's calls in one step, which no
other work disturbs. The last rows leave out a check each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy

from d2lpar import devices, get_params, init_lenet, lenet_concise, parallel, train_batch
from d2lpar._mxnet import mx, np, npx
from d2lpar.buckets import BUCKETS, Bucket
from d2lpar.text import plain_table

sys.path.insert(0, str(Path(__file__).with_name("peers")))
LR, IMAGES = 1e-4, 4
CHECKS = "as_array", "check_batch", "check_replicas", "check_dtypes", "check_losses"
CHECKS += ("check_results",)


def forms(contexts: list[mx.Context]) -> dict:
    """Return a step on four images of each form, by name."""
    import book

    rng = numpy.random.default_rng(0)
    X = np.array(rng.random((IMAGES, 1, 28, 28), "float32"), ctx=contexts[0])
    y = np.array(rng.integers(0, 10, IMAGES), dtype="int32", ctx=contexts[0])
    params = [np.array(p) for p in init_lenet(0.1)]
    books = [book.get_params(params, device) for device in contexts]
    plain = [get_params(params, device) for device in contexts]
    flat = [Bucket(init_lenet(0.1), device) for device in contexts]
    net, trainer, loss = lenet_concise.build(init_lenet(0.1), contexts, LR)
    ours = partial(train_batch, X, y, plain, contexts, LR)
    steps = {
        "d2l's": partial(book.train_batch, X, y, books, contexts, LR),
        "ours": ours,
        "ours, in buckets": partial(train_batch, X, y, flat, contexts, LR, **BUCKETS),
        "ours, in Gluon": partial(
            lenet_concise.train_batch, X, y, net, contexts, trainer, loss=loss
        ),
    }
    for name in CHECKS:
        steps[f"ours, without {name}"] = partial(unchecked, name, ours)
    return steps


def unchecked(name: str, step) -> None:
    """Take a step without one of its checks."""
    instead = (lambda _, array: array) if name == "as_array" else (lambda *_: None)
    with patch.object(parallel.step_checks, name, instead):
        step()


def calls(step) -> int:
    """Return the number of Python's calls in a step, C functions too."""
    count = [0]

    def counting(frame, event, argument):
        count[0] += event in ("call", "c_call")

    sys.setprofile(counting)
    step()
    sys.setprofile(None)
    npx.waitall()
    return count[0]


def measure(contexts: list[mx.Context], steps: int, rounds: int) -> list[list[str]]:
    """Return a row for each form on these devices."""
    timed, seconds = forms(contexts), defaultdict(list)
    for _ in range(rounds + 1):  # the first warms up
        for name, step in timed.items():
            npx.waitall()
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            issued = time.perf_counter() - begin
            npx.waitall()
            taken = time.perf_counter() - begin
            seconds[name].append((issued / steps, taken / steps))
    rows, books = [], [taken for _, taken in seconds["d2l's"][1:]]
    for name, samples in seconds.items():
        issues, takens = zip(*samples[1:])
        ratios = sorted(taken / other for taken, other in zip(takens, books))
        times = f"{1e6 * median(issues):,.0f}", f"{1e6 * median(takens):,.0f}"
        interval = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        rows.append([name, f"{calls(timed[name]):,}", *times, interval])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--steps", type=int, default=50, help="of a form in a round")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    chosen = devices.parse(args.devices)
    devices.enable_peer_access(chosen)
    for count in range(1, len(chosen) + 1):
        columns = [f"{count} x {chosen[0]}", "calls", "issue", "step", "to d2l's"]
        rows = measure(chosen[:count], args.steps, args.rounds)
        print(plain_table(columns, rows, names=1), end="\n\n")


if __name__ == "__main__":
    main()

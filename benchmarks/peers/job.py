"""What the peers share: flags, LeNet's data, our first steps, the line of an epoch.

With `--check FILE` a peer of LeNet trains on the batches in the file, from the
parameters in it, before it is timed. Where a loss differs from ours it refuses: it
prints one JSON line {"error": ...} and exits with status 2. Otherwise its timed
training starts from our initial parameters. `benchmarks/peers.py` writes such a file.
With `--job` a peer reads its flags as a line of JSON from standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from d2lpar import datasets

RELATIVE = 1e-4  # float32 summed in another order differs by about 1e-6


class FirstSteps(NamedTuple):
    """Our first steps: `losses[k]` is the mean over batch `index[k]`, before step k.

    `check` are [W1, b1, ..., W4, b4] before the first step, each dense W as (inputs,
    outputs); `index` (steps, batch) holds training sample numbers; `lr` is the learning
    rate. The timed training starts from `params`. They are not used for the check: the
    book's parameters are so close to 0 that any network has the same first losses.
    """

    params: list[np.ndarray]
    check: list[np.ndarray]
    index: np.ndarray
    losses: np.ndarray
    lr: float


def parser(about: str) -> argparse.ArgumentParser:
    """The flags that all peers have."""
    flags = argparse.ArgumentParser(description=about.split("\n")[0])
    flags.add_argument("--check", metavar="FILE", help="our results, to reproduce")
    flags.add_argument("--job", action="store_true", help="flags from standard input")
    return flags


def lenet_parser(about: str) -> argparse.ArgumentParser:
    """The flags of the peers that train LeNet."""
    flags = parser(about)
    flags.add_argument("--num-epochs", type=int, default=10)
    flags.add_argument("--global-batch-size", type=int, default=256)
    flags.add_argument("--lr", type=float, default=0.2)
    flags.add_argument(
        "--data", choices=("fashion-mnist", "sample"), default="fashion-mnist"
    )
    flags.add_argument("--n-train", type=int, help="use only the first images")
    flags.add_argument("--n-test", type=int)
    return flags


def parse(flags: argparse.ArgumentParser) -> argparse.Namespace:
    """The flags of the command line, or with --job those of standard input."""
    args = flags.parse_args()
    if args.job:
        vars(args).update(json.loads(sys.stdin.readline()))
    return args


def data(args: argparse.Namespace) -> datasets.ImageData:
    """X_train, y_train, X_test, y_test: uint8 (n, 28, 28) and (n,)."""
    return datasets.load(args.data, n_train=args.n_train, n_test=args.n_test)


def first_steps(path: str) -> FirstSteps:
    """Read the file that `--check` names."""
    with np.load(path) as file:
        params, check = (
            [file[f"{name}.{k}"] for k in range(8)] for name in ("params", "check")
        )
        losses, lr = file["losses"], float(file["lr"])
        return FirstSteps(params, check, file["index"], losses, lr)


def check_count(num_devices: int, gpus: int, library: str) -> None:
    """Refuse missing GPUs: for each of them the book's code silently takes the CPU."""
    if not 1 <= num_devices <= max(gpus, 1):
        refuse(
            f"{num_devices} devices: {library} sees {gpus} GPUs here, and the book's "
            "code takes the CPU once"
        )


def disagreement(losses: list[float], first: FirstSteps) -> str | None:
    """Describe the first of `losses` that differs from ours; None if all agree."""
    for step, (loss, ours) in enumerate(zip(losses, first.losses), 1):
        if not abs(loss - ours) <= RELATIVE * abs(ours):
            return f"step {step}: the loss is {loss:.6f}, ours {ours:.6f}"
    return None


def divergence(epoch: int, params: Iterable[np.ndarray], lr: float) -> str | None:
    """Why the training is not timed, if its parameters after `epoch` are not finite."""
    if all(np.isfinite(p).all() for p in params):
        return None
    return f"diverged in epoch {epoch}: use a smaller learning rate than {lr:g}"


def print_epoch(
    epoch: int, seconds: float, samples: int, test_acc: float, **others: object
) -> None:
    """Print the line of an epoch of `samples` images; `others` are further values."""
    line = {
        "epoch": epoch,
        "seconds": seconds,
        "samples_per_sec": samples / seconds,
        "test_acc": test_acc,
        **others,
    }
    print(json.dumps(line), flush=True)


def report(why: str) -> None:
    """Print why this peer is not timed."""
    print(json.dumps({"error": why}), flush=True)


def refuse(why: str | None) -> None:
    """Report `why` and exit with status 2; go on if it is None."""
    if why is not None:
        report(why)
        sys.exit(2)

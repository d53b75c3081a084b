"""The job that every peer does: its flags, its data, and the first steps to agree on.

No peer is timed before it has computed what ours computes: with `--check FILE` it
trains on the batches of the file from the parameters in it, and ends with status 2
where a loss is not ours; then its timed training starts where ours does.
`d2lpar compare --peers` writes such a file.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np

from d2lpar import datasets

RELATIVE = 1e-4  # float32 in another order of summation differs by 1e-6 or so


class FirstSteps(NamedTuple):
    """What ours did: `losses[k]` is the mean over batch `index[k]` before step k.

    `check` are [W1, b1, ..., W4, b4] before the first step, a dense W as (inputs,
    outputs); `index` (steps, batch) are numbers of training samples; the learning rate
    is `lr`. `params` are where the timed training starts: from the book's, which are
    nearly 0, every network would have the same first losses.
    """

    params: list[np.ndarray]
    check: list[np.ndarray]
    index: np.ndarray
    losses: np.ndarray
    lr: float


def parser(about: str) -> argparse.ArgumentParser:
    """The flags that all peers have."""
    flags = argparse.ArgumentParser(description=about.split("\n")[0])
    flags.add_argument("--num-epochs", type=int, default=10)
    flags.add_argument("--check", metavar="FILE", help="first steps to agree on")
    flags.add_argument(
        "--data", choices=("fashion-mnist", "synthetic"), default="fashion-mnist"
    )
    flags.add_argument("--n-train", type=int, help="the first so many images only")
    flags.add_argument("--n-test", type=int)
    return flags


def data(args: argparse.Namespace) -> datasets.ImageData:
    """X_train, y_train, X_test, y_test: uint8 (n, 28, 28) and (n,)."""
    return datasets.load(args.data, n_train=args.n_train, n_test=args.n_test)


def first_steps(path: str) -> FirstSteps:
    """What `--check` names."""
    with np.load(path) as file:
        params, check = (
            [file[f"{name}.{k}"] for k in range(8)] for name in ("params", "check")
        )
        losses, lr = file["losses"], float(file["lr"])
        return FirstSteps(params, check, file["index"], losses, lr)


def check_count(num_devices: int, gpus: int, library: str) -> None:
    """The book's code takes a GPU that is not there for the CPU, silently."""
    if not 1 <= num_devices <= max(gpus, 1):
        refuse(
            f"{num_devices} devices: {library} sees {gpus} GPUs here, and the book's "
            "code takes the CPU once"
        )


def disagreement(losses: list[float], first: FirstSteps) -> str | None:
    """The first of `losses` that is not ours, in words, or None."""
    for step, (found, ours) in enumerate(zip(losses, first.losses), 1):
        if not abs(found - ours) <= RELATIVE * abs(ours):
            return f"step {step}: the loss is {found:.6f}, ours {ours:.6f}"
    return None


def agree(losses: list[float], first: FirstSteps) -> None:
    """End the process with status 2 where one of `losses` is not ours."""
    why = disagreement(losses, first)
    if why is not None:
        refuse(why)


def refuse(why: str) -> None:
    """One line, and status 2."""
    print(f"{sys.argv[0]}: {why}", file=sys.stderr, flush=True)
    sys.exit(2)

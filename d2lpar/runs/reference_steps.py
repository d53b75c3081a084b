"""Our LeNet's first steps, written to a file for the peers to reproduce.

    python -m d2lpar.runs.reference_steps FILE '{"data": {...}, "seed": 0, ...}'

A peer trains on the batches in the file from the parameters in it, and refuses to be
timed where a loss differs (``peers/job.py``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy

from d2lpar import datasets
from d2lpar.records import atomic
from d2lpar.runs.in_turn import tell

STEPS = 5
# From the book's N(0, 0.01) every score is near 0 and every loss near log 10, whatever
# the network computes; from N(0, 0.1) the losses differ between networks.
SCALE, LR = 0.1, 0.05


def first_steps(
    data: datasets.ImageData, seed: int, global_batch_size: int
) -> dict[str, numpy.ndarray]:
    """The arrays in the file.

    "params.0" ... "params.7" are where the training starts; "check.0" ... "check.7",
    float32, where these `STEPS` steps do, of learning rate "lr", on the samples "index"
    (STEPS, global_batch_size), int64; "losses" (STEPS,), float64, is the mean over each
    batch before its step.
    """
    from d2lpar import devices, lenet, networks
    from d2lpar._mxnet import np
    from d2lpar.parallel import get_params, train_batch

    one = devices.parse("cpu:1")
    check = networks.init_lenet(SCALE, seed)
    state = lenet.start(seed)
    order = state.rng.permutation(len(data.y_train))
    index = numpy.resize(order, (STEPS, global_batch_size))
    replicas, losses = [get_params(check, one[0])], []
    for rows in index:
        X = np.array(datasets.to_float(data.X_train[rows]), ctx=one[0])
        y = np.array(data.y_train[rows], dtype="uint8", ctx=one[0])
        (loss,) = train_batch(X, y, replicas, one, LR)
        losses.append(float(loss.asnumpy().astype(float).mean()))
    return {
        **{f"params.{k}": p for k, p in enumerate(state.params)},
        **{f"check.{k}": p for k, p in enumerate(check)},
        "index": index,
        "losses": numpy.array(losses),
        "lr": numpy.array(LR),
    }


def write(path: str, data: dict, **settings) -> Iterator[dict]:
    """Write the file; one line with the losses."""
    arrays = first_steps(datasets.load(**data), **settings)
    with atomic.replacing(Path(path)) as tmp:
        numpy.savez(tmp, **arrays)
    yield {"losses": arrays["losses"].tolist()}


if __name__ == "__main__":
    tell(write(sys.argv[1], **json.loads(sys.argv[2])))

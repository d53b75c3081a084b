"""The first steps of our LeNet, written down for a peer to compute the same.

    python -m d2lpar.runs.reference_steps FILE '{"data": {...}, "lr": 0.2, ...}'

A peer that computes something else is no peer: it takes the file, trains on its batches
from its parameters and is refused where a loss differs (``peers/job.py``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy

from d2lpar import datasets
from d2lpar.records import atomic

STEPS = 5
# The book's N(0, 0.01) puts every score near 0 and every loss near log 10, whatever the
# network computes: those would agree for anything. From 0.1 they tell.
SCALE, LR = 0.1, 0.05


def first_steps(
    data: datasets.ImageData, seed: int, global_batch_size: int
) -> dict[str, numpy.ndarray]:
    """What the file holds.

    "params.0" ... "params.7" are where the training starts; "check.0" ... "check.7",
    float32, where the `STEPS` steps do, of learning rate "lr", on the samples "index"
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


def main() -> None:
    path, settings = sys.argv[1], json.loads(sys.argv[2])
    data = datasets.load(**settings.pop("data"))
    found = first_steps(data, **settings)
    with atomic.replacing(Path(path)) as tmp:
        numpy.savez(tmp, **found)
    print(json.dumps({"losses": found["losses"].tolist()}))


if __name__ == "__main__":
    main()

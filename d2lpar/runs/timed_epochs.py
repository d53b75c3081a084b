"""Train our LeNet in this process and print a JSON line per epoch, as the peers do.

    python -m d2lpar.runs.timed_epochs concise '{"num_devices": 2, "data": {...}, ...}'

"data" are the arguments of :func:`d2lpar.datasets.load`, the rest those of `train`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from d2lpar import datasets, lenet, lenet_concise
from d2lpar.runs.in_turn import tell

TRAININGS = {"from scratch": lenet.train, "concise": lenet_concise.train}


def epochs(training: str, data: dict, **settings) -> Iterator[dict]:
    """One line per epoch."""
    for epoch in TRAININGS[training](data=datasets.load(**data), **settings):
        yield {
            "epoch": epoch.epoch,
            "seconds": epoch.seconds,
            "samples_per_sec": epoch.samples_per_sec,
            "test_acc": epoch.test_acc,
            "eval_seconds": epoch.eval_seconds,
        }


if __name__ == "__main__":
    tell(epochs(sys.argv[1], **json.loads(sys.argv[2])))

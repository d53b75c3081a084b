"""Train our LeNet in this process and print a JSON line per epoch, as the peers do.

    python -m d2lpar.runs.timed_epochs concise '{"num_devices": 2, "data": {...}, ...}'

"data" are the arguments of :func:`d2lpar.datasets.load`, the rest those of `train`. On
GPUs the first line also has their "gpu_build".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from d2lpar import datasets, lenet, lenet_concise
from d2lpar.devices import enable_peer_access
from d2lpar.runs.child import gpu_build_of
from d2lpar.runs.in_turn import tell
from d2lpar.training import choose

TRAININGS = {"from scratch": lenet.train, "concise": lenet_concise.train}


def epochs(
    training: str, data: dict, devices: str, num_devices: int, **settings
) -> Iterator[dict]:
    """One line per epoch."""
    chosen = choose(devices, num_devices)
    enable_peer_access(chosen)
    on_gpus = chosen[0].device_type == "gpu"
    said_once = {"gpu_build": gpu_build_of(chosen)} if on_gpus else {}
    settings.update(devices=chosen, data=datasets.load(**data))
    for epoch in TRAININGS[training](**settings):
        yield {
            "epoch": epoch.epoch,
            "seconds": epoch.seconds,
            "samples_per_sec": epoch.samples_per_sec,
            "test_acc": epoch.test_acc,
            "eval_seconds": epoch.eval_seconds,
            **said_once,
        }
        said_once = {}


if __name__ == "__main__":
    tell(epochs(sys.argv[1], **json.loads(sys.argv[2])))

"""Our side of a comparison with peers: first steps to repeat, and timed epochs.

python -c 'import first_steps; first_steps.write_first_steps("first_steps.npz",
{"name": "fashion-mnist"}, seed=0, global_batch_size=256)'      # in benchmarks/
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy

from d2lpar import datasets
from d2lpar.records import atomic

STEPS = 5
# From the book's N(0, 0.01) every score is near 0 and every loss near log 10, whatever
# the network computes; from N(0, 0.1) the losses differ between networks.
SCALE, LR = 0.1, 0.05


def epochs(
    training: str, data: dict, devices: str, num_devices: int, **settings
) -> Iterator[dict]:
    """Train our LeNet, "from scratch" or "concise"; one dict per epoch, as the peers'.

    `data` are the arguments of :func:`d2lpar.datasets.load`, `settings` those of
    `train`.
    """
    from d2lpar import lenet, lenet_concise
    from d2lpar.devices import enable_peer_access
    from d2lpar.epochs import choose

    trainings = {"from scratch": lenet.train, "concise": lenet_concise.train}
    chosen = choose(devices, num_devices)
    enable_peer_access(chosen)
    loaded = datasets.load(**data)
    for epoch in trainings[training](devices=chosen, data=loaded, **settings):
        yield {
            "epoch": epoch.epoch,
            "seconds": epoch.seconds,
            "samples_per_sec": epoch.samples_per_sec,
            "test_acc": epoch.test_acc,
            "eval_seconds": epoch.eval_seconds,
        }


def first_steps(
    data: datasets.ImageData, seed: int, global_batch_size: int
) -> dict[str, numpy.ndarray]:
    """Our first steps, for the peers to repeat.

    "params.0" ... "params.7" are where the training starts; "check.0" ... "check.7",
    float32, where these `STEPS` steps do, of learning rate "lr", on the samples "index"
    (STEPS, global_batch_size), int64; "losses" (STEPS,), float64, is the mean over each
    batch before its step. A peer refuses to be timed where a loss differs.
    """
    from d2lpar import devices, lenet
    from d2lpar._mxnet import np
    from d2lpar.lenet import train_batch
    from d2lpar.parallel import get_params

    one = devices.parse("cpu:1")
    check = lenet.init_lenet(SCALE, seed)
    state = lenet.start(seed)
    order = numpy.random.default_rng([seed, 1]).permutation(len(data.y_train))
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


def write_first_steps(path: str, data: dict, **settings) -> dict:
    """Write :func:`first_steps` to a file; return the losses."""
    arrays = first_steps(datasets.load(**data), **settings)
    with atomic.replacing(Path(path)) as tmp:
        numpy.savez(tmp, **arrays)
    return {"losses": arrays["losses"].tolist()}

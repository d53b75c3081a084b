"""The state of a training of LeNet, which passes from one epoch to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy

from d2lpar import datasets
from d2lpar._mxnet import mx
from d2lpar.epochs import State, check_finite, check_pixels, check_state, choose
from d2lpar.errors import SettingError
from d2lpar.lenet.network import init_lenet
from d2lpar.step_checks import check_classes


@dataclass
class TrainingState(State):
    """Hold host arrays `params`, and in `epoch` the number of finished epochs.

    :func:`d2lpar.lenet.train` continues from it, with any number of devices.
    """

    params: list[numpy.ndarray]
    epoch: int
    seed: int

    workload: ClassVar[str] = "lenet"

    def order(self, epoch: int, n: int) -> numpy.ndarray:
        """Draw the order int32 (n,) in which an epoch takes n samples."""
        rng = numpy.random.default_rng([self.seed, epoch])
        return rng.permutation(n).astype("int32")

    def finish_epoch(self, params: list[numpy.ndarray], lr: float) -> None:
        """Advance to the parameters after an epoch, or raise `DivergedError`."""
        check_finite(f"a parameter after epoch {self.epoch + 1}", params, lr)
        self.params, self.epoch = params, self.epoch + 1


def start(seed: int = 0, scale: float = 0.01) -> TrainingState:
    """Return the state before the first epoch; initial weights are N(0, `scale`)."""
    return TrainingState(init_lenet(scale, seed), 0, seed)


def setup(
    num_devices: int | None,
    devices: str | Sequence[mx.Context],
    seed: int,
    data: datasets.ImageData | None,
    state: TrainingState | None,
) -> tuple[list[mx.Context], datasets.ImageData, TrainingState]:
    """Return a training's contexts, data and state.

    Raises SettingError or ValueError for other images and labels, and for another seed
    than the state's; TypeError for other kinds of data and state.
    """
    contexts = choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    if not hasattr(data, "X_train"):
        raise TypeError(f"data is a {type(data).__name__}: write datasets.ImageData")
    if state is not None:
        check_state(state, TrainingState.workload, seed)
    for X, y in ((data.X_train, data.y_train), (data.X_test, data.y_test)):
        check_pixels("images", X, (28, 28))
        if numpy.shape(y) != X.shape[:1]:
            raise SettingError(f"labels {numpy.shape(y)}: write one for each image")
        check_classes(y, 10)
    return contexts, data, start(seed) if state is None else state

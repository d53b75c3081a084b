"""The state of a training of LeNet, which passes from one epoch to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy
from msgspec.structs import replace

from d2lpar import datasets
from d2lpar._mxnet import mx
from d2lpar.book_lenet import init_lenet
from d2lpar.epochs import check_params, check_pixels, check_state, choose
from d2lpar.errors import SettingError
from d2lpar.records.kinds import EpochRecord
from d2lpar.step_checks import check_unmasked


@dataclass
class TrainingState:
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
        check_params(self.epoch + 1, params, lr)
        self.params, self.epoch = params, self.epoch + 1

    def with_sha256(self, record: EpochRecord) -> EpochRecord:
        """Return an epoch's record with the SHA-256 of all parameters' bytes."""
        joined = b"".join(p.tobytes() for p in self.params)
        return replace(record, params_sha256=hashlib.sha256(joined).hexdigest())

    def tensors(self) -> dict[str, numpy.ndarray]:
        """Return the arrays of the state by name, for a checkpoint."""
        return {f"params.{i}": p for i, p in enumerate(self.params)}

    def facts(self) -> dict:
        """Return the rest of the state, as JSON can hold it."""
        return {"epoch": self.epoch, "seed": self.seed}

    @classmethod
    def restore(cls, tensors: dict[str, numpy.ndarray], facts: dict) -> TrainingState:
        """Invert :meth:`tensors` and :meth:`facts`."""
        params = [tensors[f"params.{i}"] for i in range(len(tensors))]
        return cls(params, facts["epoch"], facts["seed"])


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

    Raises SettingError for other images and another seed than the state's, TypeError
    for other kinds of data and state.
    """
    contexts = choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    if not hasattr(data, "X_train"):
        raise TypeError(f"data is a {type(data).__name__}: write datasets.ImageData")
    if state is not None:
        check_state(state, TrainingState.workload, seed)
    parts = (data.X_train, data.y_train), (data.X_test, data.y_test)
    for name, (X, y) in zip(("training", "test"), parts):
        check_pixels(f"{name} images", X, (28, 28))
        check_unmasked(f"the array of {name} labels", y)
        y = numpy.asarray(y)
        if y.dtype.kind not in "iuf":
            raise SettingError(f"{name} labels are {y.dtype}: write integers")
        if y.shape != X.shape[:1]:
            raise SettingError(
                f"{name} labels {y.shape}: write a class for each of {len(X)}"
            )
        wrong = y[~numpy.isin(y, numpy.arange(10))]
        if wrong.size:
            raise SettingError(f"{name} label {wrong[0]}: classes are 0 to 9")
    return contexts, data, start(seed) if state is None else state

"""TODO: one idea."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from d2lpar import datasets
from d2lpar import devices as _devices
from d2lpar._mxnet import mx, np
from d2lpar.errors import DivergedError, SettingError
from d2lpar.records.kinds import EpochRecord

# Python runs ahead of the devices. This many batches at most, so that the memory of
# batches that wait does not grow with the epoch.
BATCHES_IN_FLIGHT = 16


def on_device(data: datasets.ImageData, device: mx.Context) -> list[np.ndarray]:
    """The four uint8 arrays of `data` on a device, where batches are cut from them.

    A batch that comes from the host instead makes Python wait: MXNet's copy from the
    host queues behind whatever cpu(0) has to do, and the devices run dry meanwhile.
    """
    return [np.array(array, dtype="uint8", ctx=device) for array in data]


def shuffled(n: int, rng: numpy.random.Generator, device: mx.Context) -> np.ndarray:
    """A permutation of range(n) drawn from `rng`, int32 (n,), on a device."""
    return np.array(rng.permutation(n).astype("int32"), dtype="int32", ctx=device)


def check_settings(global_batch_size: int, lr: float, num_epochs: int) -> None:
    """Raise :class:`SettingError` for the first setting that cannot be."""
    check_whole("global-batch-size", global_batch_size)
    check_whole("num-epochs", num_epochs)
    if not (math.isfinite(lr) and lr > 0):
        raise SettingError(f"lr {lr}: write a finite number greater than 0")


def check_whole(name: str, value: int, most: int | None = None) -> None:
    """Raise :class:`SettingError` for what is no whole number from 1 to `most`."""
    if value != int(value) or value < 1 or (most is not None and value > most):
        limit = "1 or more" if most is None else f"1 to {most:,}"
        raise SettingError(f"{name} {value}: write a whole number, {limit}")


def choose(
    devices: str | Sequence[mx.Context], num_devices: int | None
) -> list[mx.Context]:
    """The first `num_devices` of a device string or of a list of contexts."""
    found = _devices.parse(devices) if isinstance(devices, str) else list(devices)
    if num_devices is None:
        return found
    return found[: _devices.parse_counts(str(num_devices), len(found))[0]]


def epoch_record(
    epoch: int,
    seconds: float,
    eval_seconds: float,
    train_loss: float,
    test_acc: float,
    num_samples: int,
    lr: float,
) -> EpochRecord:
    """The record of a finished epoch, or :class:`DivergedError` if its loss is not."""
    if not math.isfinite(train_loss):
        raise DivergedError(
            f"training diverged: the loss of epoch {epoch} is {train_loss}; "
            f"use a smaller learning rate than {lr:g}"
        )
    return EpochRecord(
        epoch=epoch,
        seconds=seconds,
        samples_per_sec=num_samples / seconds,
        train_loss=train_loss,
        test_acc=test_acc,
        eval_seconds=eval_seconds,
    )

"""What trainings share: an epoch's clock and losses, batches, checks of settings."""

from __future__ import annotations

import math
import numbers
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy

from d2lpar._mxnet import mx, np, npx
from d2lpar.devices import check_contexts, check_count, parse
from d2lpar.errors import DivergedError, SettingError
from d2lpar.records.kinds import EpochRecord
from d2lpar.step_checks import check_rate

BATCHES_IN_FLIGHT = 16  # at most, ahead of the devices: they take memory
MAX_COUNT = 2**31 - 1  # samples per batch, and epochs: MXNet's sizes are ints


@dataclass
class State:
    """Base of what a training hands to its next epoch, and to a checkpoint."""

    def tensors(self) -> dict[str, numpy.ndarray]:
        """Return the arrays by name, those of a list as "name.0", "name.1", ..."""
        named: dict[str, numpy.ndarray] = {}
        for name, value in vars(self).items():
            if isinstance(value, list):
                named |= {f"{name}.{i}": array for i, array in enumerate(value)}
            elif isinstance(value, numpy.ndarray):
                named[name] = value
        return named

    def facts(self) -> dict[str, int]:
        """Return the whole numbers, such as `epoch` and `seed`."""
        return {name: n for name, n in vars(self).items() if isinstance(n, int)}

    def restored(self, tensors: dict[str, numpy.ndarray], facts: dict[str, int]) -> Any:
        """Return the later state of the same training that a checkpoint holds."""
        values: dict[str, Any] = {name: facts[name] for name in self.facts()}
        for name, value in vars(self).items():
            if isinstance(value, list):
                values[name] = [tensors[f"{name}.{i}"] for i in range(len(value))]
            elif isinstance(value, numpy.ndarray):
                values[name] = tensors[name]
        return replace(self, **values)


class Epoch:
    """Time one epoch of training from its creation on, and sum its losses."""

    def __init__(self, batches_in_flight: int = BATCHES_IN_FLIGHT) -> None:
        self._batches_in_flight = batches_in_flight
        self._loss_sums: list[np.ndarray] = []
        self._in_flight: deque[np.ndarray] = deque()
        npx.waitall()
        self._begin = time.perf_counter()

    def add(self, losses: Sequence[np.ndarray]) -> None:
        """Add a step's losses, (n_k,) per busy device; wait if Python is far ahead."""
        self._loss_sums += [l.sum() for l in losses]
        self.keep_pace(self._loss_sums[-1:])

    def keep_pace(self, arrays: Sequence[np.ndarray]) -> None:
        """Wait for an earlier step, by its last `arrays`, if Python is far ahead."""
        self._in_flight += arrays
        if len(self._in_flight) > self._batches_in_flight:
            self._in_flight.popleft().wait_to_read()

    def stop(self) -> float:
        """Wait for the devices and read the clock; return the sum of all losses."""
        npx.waitall()
        self._trained = time.perf_counter()
        return sum((float(s) for s in self._loss_sums), 0.0)

    def times(self, num_samples: int) -> dict[str, Any]:
        """Return the record's fields of time; call it after the evaluation."""
        seconds = self._trained - self._begin
        return {
            "seconds": seconds,
            "samples_per_sec": num_samples / seconds,
            "eval_seconds": time.perf_counter() - self._trained,
        }


def run(
    state: Any,
    num_epochs: int,
    n: int,
    lr: float,
    steps: Callable[[numpy.ndarray], Iterable[Sequence[np.ndarray]]],
    evaluate: Callable[[], float],
    params: Callable[[], list[numpy.ndarray]],
    over_all: Callable[[float], float] = lambda loss: loss,
) -> Iterator[EpochRecord]:
    """Train, yielding one record per epoch of n samples.

    ``steps(order)`` takes an epoch's steps and yields the losses of each,
    ``evaluate()`` returns the test accuracy, and ``params()`` the host parameters, to
    which `state` advances. `over_all` sums the loss over several processes.
    """
    order = state.order(state.epoch + 1, n)
    for _ in range(num_epochs):
        epoch, number = Epoch(), state.epoch + 1
        for losses in steps(order):
            epoch.add(losses)
        # Drawn while the devices work: a millisecond, 2 % of a fast epoch on GPUs.
        order = state.order(number + 1, n)
        loss = over_all(epoch.stop() / n)
        accuracy = evaluate()
        times = epoch.times(n)
        check_finite(f"the loss of epoch {number}", [loss], lr)
        state.finish_epoch(params(), lr)
        yield EpochRecord(epoch=number, train_loss=loss, test_acc=accuracy, **times)


def check_finite(name: str, values: Sequence, lr: float | None = None) -> None:
    """Raise :class:`DivergedError` unless the numbers or host arrays are finite."""
    if not all(numpy.isfinite(value).all() for value in values):
        remedy = "" if lr is None else f"; use a smaller learning rate than {lr:g}"
        raise DivergedError(f"training diverged: {name} is not finite{remedy}")


def on_device(data: Iterable[numpy.ndarray], device: mx.Context) -> list[np.ndarray]:
    """Copy the uint8 arrays of `data` to a device, where batches are sliced.

    Copying each batch from the host would wait for cpu(0).
    """
    return [np.array(array, dtype="uint8", ctx=device) for array in data]


def check_pixels(name: str, X: numpy.ndarray, shape: tuple[int, ...]) -> None:
    """Raise :class:`SettingError` unless X are uint8 images (n, *shape) in 0..255."""
    if not isinstance(X, numpy.ndarray):
        raise SettingError(f"{name} are a {type(X).__name__}: write a NumPy array")
    if X.dtype != numpy.uint8:  # in [0, 1] they would become black
        raise SettingError(f"{name} are {X.dtype}: write uint8 from 0 to 255")
    if X.shape[1:] != shape or len(X) == 0:
        raise SettingError(f"{name} {X.shape}: write at least one image {shape}")


def batch_slices(n: int, batch_size: int) -> Iterator[slice]:
    """Yield the slice of each batch in an epoch of n samples."""
    for start in range(0, n, batch_size):
        yield slice(start, min(start + batch_size, n))


def shuffled(n: int, rng: numpy.random.Generator, device: mx.Context) -> np.ndarray:
    """Return a permutation of range(n) drawn from `rng`, int32 (n,), on a device."""
    return np.array(rng.permutation(n).astype("int32"), dtype="int32", ctx=device)


def check_settings(global_batch_size: int, lr: float, num_epochs: int) -> None:
    """Raise :class:`SettingError` for the first setting that is out of range."""
    check_whole("global-batch-size", global_batch_size, MAX_COUNT)
    check_whole("num-epochs", num_epochs, MAX_COUNT)
    check_rate(lr)


def check_state(state: Any, workload: str, seed: int) -> None:
    """Raise TypeError for a state of another training, SettingError for another seed.

    A state has its own seed; 0, the default, does not contradict it.
    """
    if getattr(state, "workload", None) != workload:
        raise TypeError(f"state is a {type(state).__name__}: write {workload}.start(0)")
    if seed not in (0, state.seed):
        raise SettingError(
            f"seed {seed}: the state has seed {state.seed}; leave it out"
        )


def check_whole(name: str, value: int, most: int | None = None) -> None:
    """Raise :class:`SettingError` unless `value` is a whole number from 1 to `most`."""
    if not isinstance(value, numbers.Integral) or not 1 <= value <= (most or math.inf):
        limit = "1 or more" if most is None else f"1 to {most:,}"
        raise SettingError(f"{name} {value!r}: write a whole number, {limit}")


def choose(
    devices: str | Sequence[mx.Context], num_devices: int | None
) -> list[mx.Context]:
    """Return the first `num_devices` contexts of a device string or list (None: all).

    Raises :class:`DeviceError` if there are fewer, and TypeError for other types.
    """
    contexts = parse(devices) if isinstance(devices, str) else devices
    check_contexts(contexts)
    if num_devices is not None:
        check_count(num_devices, len(contexts))
    return list(contexts[:num_devices])

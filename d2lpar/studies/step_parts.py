"""Where a step's time goes, by omission: split, forward, backward, all-reduce, update.

A step that ends after the forward pass, minus one that ends after the split, is the
forward pass. Every shortened step is timed as training runs it, many in a row, so that
the parts add up to a training step. A machine's speed drifts by more than the smaller
parts take, so the shortened steps take turns, and only those of one turn are subtracted
from each other. The steps are those of
:func:`d2lpar.parallel.train_batch` and :func:`d2lpar.lenet_concise.train_batch`, taken
apart; the tests compare their parameters.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import NamedTuple

import numpy

from d2lpar import datasets, lenet_concise
from d2lpar._mxnet import autograd, gluon, mx, np, npx
from d2lpar.buckets import Bucket, allreduce_buckets, update_bucket
from d2lpar.networks import lenet
from d2lpar.parallel import split_batch
from d2lpar.records.kinds import PARTS
from d2lpar.training import BATCHES_IN_FLIGHT


class Step(NamedTuple):
    """A training step that can end after any of PARTS; `replicas[k]` is on device k.

    `losses` takes the lists of shards X and y and returns each device's losses;
    `all_reduce` sums the gradients over the devices; `update` takes the global batch
    size.
    """

    devices: Sequence[mx.Context]
    replicas: Sequence[Sequence[np.ndarray]]
    losses: Callable[[list, list], list[np.ndarray]]
    all_reduce: Callable[[], object]
    update: Callable[[int], object]

    def __call__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        upto: str = PARTS[-1],
        finish_backward: bool = False,
    ) -> object:
        """Take the step up to a part; return what keeps its results alive.

        With `finish_backward` the all-reduce waits for the backward pass to end.
        """
        X_shards, y_shards = split_batch(X, y, self.devices)
        if upto == "split and copy":
            return X_shards, y_shards
        with autograd.record():
            losses = self.losses(X_shards, y_shards)
        if upto == "forward":
            return losses
        for l in losses:
            l.backward()
        if upto == "backward":
            return losses
        if finish_backward:
            npx.waitall()
        self.all_reduce()
        if upto == "all-reduce":
            return losses
        self.update(X.shape[0])
        return losses


def from_scratch(
    devices: Sequence[mx.Context],
    params: Sequence[numpy.ndarray],
    lr: float,
    per_device_batch_size: int = 1,
) -> Step:
    """The step of :mod:`d2lpar.lenet`, on replicas of `params`, for any batch size."""
    replicas = [Bucket(params, device) for device in devices]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize()

    def losses(X_shards: list, y_shards: list) -> list[np.ndarray]:
        return [
            loss(lenet(X_k, params), y_k)
            for X_k, y_k, params in zip(X_shards, y_shards, replicas)
        ]

    def update(global_batch_size: int) -> None:
        for bucket in replicas:
            update_bucket(bucket, lr, global_batch_size)

    all_reduce = partial(allreduce_buckets, replicas)
    return Step(devices, replicas, losses, all_reduce, update)


def concise(
    devices: Sequence[mx.Context],
    params: Sequence[numpy.ndarray],
    lr: float,
    per_device_batch_size: int = 1,
) -> Step:
    """Gluon's step: network, trainer and loss of :mod:`d2lpar.lenet_concise`."""
    net, trainer, loss = lenet_concise.build(params, devices, lr, per_device_batch_size)
    replicas = list(zip(*(p.list_data() for p in net.collect_params().values())))

    def losses(X_shards: list, y_shards: list) -> list[np.ndarray]:
        return [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]

    return Step(devices, replicas, losses, trainer.allreduce_grads, trainer.update)


class Seconds(NamedTuple):
    """Seconds of a step, and how many of them Python took to issue it."""

    step: float
    issue: float


def endless_batches(
    X: np.ndarray, y: np.ndarray, batch_size: int, order: np.ndarray
) -> Iterator[tuple]:
    """Full batches of data on a device, over and over; see datasets.batches."""
    while True:
        for X_batch, y_batch in datasets.batches(X, y, batch_size, order):
            if len(y_batch) == batch_size:
                yield X_batch, y_batch


def sample(
    step: Step,
    batches: Iterator,
    steps: int,
    upto: str = PARTS[-1],
    finish_backward: bool = False,
) -> Seconds:
    """The mean of `steps` steps in a row; see :meth:`Step.__call__`.

    As in training, Python waits for an earlier step once BATCHES_IN_FLIGHT are queued;
    the seconds to issue a step are those of the steps before that.
    """
    in_flight: deque = deque()
    npx.waitall()
    begin = issued = time.perf_counter()
    for number, (X, y) in enumerate(itertools.islice(batches, steps), 1):
        in_flight.append(step(X, y, upto, finish_backward))
        if number <= BATCHES_IN_FLIGHT:
            issued = time.perf_counter()
        else:
            _wait(in_flight.popleft())
    npx.waitall()
    end = time.perf_counter()
    del in_flight  # alive until the clock is read, so that freeing them is not timed
    issue = (issued - begin) / min(steps, BATCHES_IN_FLIGHT)
    return Seconds((end - begin) / steps, issue)


def _wait(results) -> None:
    """Wait for a shortened step's last array: losses, or lists of shards X and y."""
    last = results[-1]
    (last[-1] if isinstance(last, (list, tuple)) else last).wait_to_read()


def warm_up(step: Step, batches: Iterator) -> None:
    """Two steps: the first ones compile and allocate."""
    sample(step, batches, 2)


def steps_per_sample(step: Step, batches: Iterator, seconds: float) -> int:
    """How many steps take about `seconds`, after a warm-up."""
    warm_up(step, batches)
    one_step = sample(step, batches, 4).step
    return max(1, round(seconds / one_step))


def turn(step: Step, batches: Iterator, steps: int) -> dict[str, float]:
    """Seconds of the step that ends after each of PARTS, one after the other.

    One device has no all-reduce: a step that ends after it is the one before.
    """
    seconds: dict[str, float] = {}
    for name in PARTS:
        if name == "all-reduce" and len(step.devices) == 1:
            seconds[name] = seconds["backward"]
        else:
            seconds[name] = sample(step, batches, steps, upto=name).step
    return seconds


def parts(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of each of PARTS, from several turns of all shortened steps.

    Means over the half of the turns whose whole step is nearest to the median, so that
    the parts add up to their whole step. A part below the noise is 0.
    """
    ordered, cut = sorted(turns, key=lambda t: t[PARTS[-1]]), len(turns) // 4
    middle = ordered[cut : len(turns) - cut]
    means = (mean(seconds[name] for seconds in middle) for name in PARTS)
    ends = list(itertools.accumulate(means, max))
    return dict(zip(PARTS, (b - a for a, b in zip([0.0, *ends], ends))))


def without_python(
    step: Step, batches: Iterator, order: np.ndarray, steps: int
) -> float:
    """Seconds of a step when the devices never wait for Python.

    Each device first multiplies matrices. The parameters and the `order` that batches
    are cut by depend on the products, so that all steps, BATCHES_IN_FLIGHT at most, are
    issued before the first one starts. The products are timed alone and subtracted.
    """
    steps = min(steps, BATCHES_IN_FLIGHT)
    issue = sample(step, batches, steps).issue * steps
    n = 1000  # a product takes about 20 ms on one core
    layer = {"num_hidden": n, "no_bias": True}
    # The product of such matrices is such a matrix: it stays finite, however often.
    matrices = [np.full((n, n), 1 / n, ctx=device) for device in step.devices]

    def delay(products: int) -> None:
        for matrix, params in zip(matrices, step.replicas):
            product = matrix
            for _ in range(products):
                product = npx.fully_connected(product, matrix, **layer)
            zero = product[0, 0] * 0
            for p in params:
                p += zero
            if product.ctx == order.ctx:
                order[:1] += zero.astype(order.dtype)

    def delayed_steps(products: int) -> list:
        delay(products)
        return [step(X, y) for X, y in itertools.islice(batches, steps)]

    _seconds(lambda: delay(1))
    products = max(1, round(2 * issue / _seconds(lambda: delay(1))))
    alone = min(_seconds(lambda: delay(products)) for _ in range(3))
    both = _seconds(lambda: delayed_steps(products))
    return max(1e-9, both - alone) / steps  # a record's seconds are above 0


def _seconds(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, synchronised before and after."""
    npx.waitall()
    begin = time.perf_counter()
    results = work()
    npx.waitall()
    end = time.perf_counter()
    del results
    return end - begin

"""Where a step's time goes, found by leaving out: split, forward, backward, and so on.

A step that ends after the forward pass, less one that ends after the split, is the
forward pass. Every step is timed as training has it, many in a row, so that the parts
add up to what a step of training takes. The steps are those of
:func:`d2lpar.parallel.train_batch` and :func:`d2lpar.lenet_concise.train_batch`, taken
apart; the tests hold them to the same parameters.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy

from d2lpar import datasets, lenet_concise
from d2lpar._mxnet import autograd, mx, np, npx
from d2lpar.networks import lenet
from d2lpar.parallel import (
    _softmax_cross_entropy,
    allreduce,
    get_params,
    sgd,
    split_batch,
)
from d2lpar.records.kinds import PARTS
from d2lpar.training import BATCHES_IN_FLIGHT


class Step(NamedTuple):
    """A step that can end after any of PARTS; `replicas[k]` is on device k.

    `losses` takes the shards X and y, a list each, and gives each device's losses;
    `all_reduce` sums the gradients over the devices; `update` takes the global batch.
    """

    devices: Sequence[mx.Context]
    replicas: Sequence[Sequence[np.ndarray]]
    losses: Callable[[list, list], list[np.ndarray]]
    all_reduce: Callable[[], object]
    update: Callable[[int], object]

    def __call__(self, X, y, upto: str = PARTS[-1], wait: bool = False):
        """Take the step; with `wait` the backward pass ends before the all-reduce."""
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
        if wait:
            npx.waitall()
        self.all_reduce()
        if upto == "all-reduce":
            return losses
        self.update(X.shape[0])
        return losses


def from_scratch(
    devices: Sequence[mx.Context], params: Sequence[numpy.ndarray], lr: float
) -> Step:
    """The book's step, on replicas of `params`."""
    replicas = [get_params(params, device) for device in devices]

    def losses(X_shards: list, y_shards: list) -> list[np.ndarray]:
        return [
            _softmax_cross_entropy(lenet(X_k, params), y_k)
            for X_k, y_k, params in zip(X_shards, y_shards, replicas)
        ]

    def all_reduce() -> None:
        for i in range(len(replicas[0])):
            allreduce([params[i].grad for params in replicas])

    def update(global_batch_size: int) -> None:
        for params in replicas:
            sgd(params, lr, global_batch_size)

    return Step(devices, replicas, losses, all_reduce, update)


def concise(
    devices: Sequence[mx.Context], params: Sequence[numpy.ndarray], lr: float
) -> Step:
    """Gluon's step: network, trainer and loss of :mod:`d2lpar.lenet_concise`."""
    net, trainer, loss = lenet_concise.build(params, devices, lr)
    replicas = list(zip(*(p.list_data() for p in net.collect_params().values())))

    def losses(X_shards: list, y_shards: list) -> list[np.ndarray]:
        return [loss(net(X_k), y_k) for X_k, y_k in zip(X_shards, y_shards)]

    return Step(devices, replicas, losses, trainer.allreduce_grads, trainer.update)


IMPLEMENTATIONS = {"from scratch": from_scratch, "concise": concise}


class Seconds(NamedTuple):
    """A step's seconds, and of them those that Python took to issue it."""

    step: float
    issue: float


def endless(
    X: np.ndarray, y: np.ndarray, batch_size: int, order: np.ndarray
) -> Iterator[tuple]:
    """Full batches of data on a device, round and round; see datasets.batches."""
    while True:
        for X_batch, y_batch in datasets.batches(X, y, batch_size, order):
            if len(y_batch) == batch_size:
                yield X_batch, y_batch


def sample(step: Step, batches: Iterator, steps: int, **how) -> Seconds:
    """The mean of `steps` steps in a row, waiting for the devices at both ends."""
    npx.waitall()
    begin = time.perf_counter()
    kept = [step(X, y, **how) for X, y in itertools.islice(batches, steps)]
    issued = time.perf_counter()
    npx.waitall()
    end = time.perf_counter()
    del kept  # alive until the clock is read: nothing is computed for nobody
    return Seconds((end - begin) / steps, (issued - begin) / steps)


def steps_a_sample(step: Step, batches: Iterator, seconds: float) -> int:
    """How many steps in a row take about so long; at most what training has in flight.

    The first step, which compiles and allocates, is left out.
    """
    sample(step, batches, 1)
    once = sample(step, batches, 1).step
    return max(1, min(BATCHES_IN_FLIGHT, round(seconds / once)))


def parts(step: Step, batches: Iterator, steps: int, samples: int) -> dict[str, float]:
    """Seconds a step of each of PARTS, from medians of `samples` of each shorter step.

    The shorter steps take turns. A part that is lost in the noise is 0.
    """
    found = {name: [] for name in PARTS}
    for _ in range(samples):
        for name, seconds in found.items():
            seconds.append(sample(step, batches, steps, upto=name).step)
    up_to = [median(seconds) for seconds in found.values()]
    so_far = list(itertools.accumulate(up_to, max))
    return dict(zip(PARTS, (b - a for a, b in zip([0.0, *so_far], so_far))))


def without_python(step: Step, batches: Iterator, steps: int) -> float:
    """Seconds a step where the devices never wait for Python.

    They are kept busy until all the steps are issued: with products of matrices that
    the parameters wait for, of which the time alone is known and subtracted.
    """
    issue = sample(step, batches, steps).issue * steps
    n = 1000  # a product of about 20 ms on one core
    held = [np.ones((n, n), ctx=device) for device in step.devices]

    def hold(times: int) -> None:
        for matrix, params in zip(held, step.replicas):
            product = matrix
            for _ in range(times):
                product = npx.fully_connected(
                    product, matrix, num_hidden=n, no_bias=True
                )
            nothing = product[0, 0] * 0
            for p in params:
                p += nothing

    def seconds(work: Callable[[], object]) -> float:
        npx.waitall()
        begin = time.perf_counter()
        kept = work()
        npx.waitall()
        taken = time.perf_counter() - begin
        del kept
        return taken

    hold(1)
    once = seconds(lambda: hold(1))
    times = max(1, round(2 * issue / once))
    alone = min(seconds(lambda: hold(times)) for _ in range(3))

    def held_steps() -> list:
        hold(times)
        return [step(X, y) for X, y in itertools.islice(batches, steps)]

    return max(0.0, seconds(held_steps) - alone) / steps

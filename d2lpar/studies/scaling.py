"""When does a second device pay? Steps, all-reduces and accuracy, measured.

The book's two V100s were slower than one (2.5 against 1.8 seconds per epoch at a batch
of 256), and the book does not show where that turns. Here every device count takes the
same steps at every global batch (strong scaling), and trains with the same batch on
every device, the learning rate scaled and warmed up (weak scaling). The device counts
take their steps in turn, in one process: a machine's speed drifts over minutes, and the
drift between two measurements would pass for a speedup.
:mod:`d2lpar.records.step_model` evaluates the measurements.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy

from d2lpar import datasets, lenet, lenet_concise, networks, training
from d2lpar._mxnet import mx, np, npx
from d2lpar.buckets import BUCKETS, Bucket
from d2lpar.errors import DivergedError, SettingError
from d2lpar.parallel import train_batch
from d2lpar.records.kinds import AllReduceRecord, ScaledEpoch, StepRecord
from d2lpar.studies import allreduce_variants, step_parts

log = logging.getLogger("d2lpar")

WARM_UP = 3  # steps of a training under weak scaling


class Training(NamedTuple):
    """A network on all devices: its step, its accuracy, and its parameters.

    ``step(X, y, lr)`` returns the losses of each device without waiting for them;
    ``accuracy(X, y)`` is that on images of the test set; ``params()`` are host arrays.
    """

    step: Callable[[np.ndarray, np.ndarray, float], list[np.ndarray]]
    accuracy: Callable[[np.ndarray, np.ndarray], float]
    params: Callable[[], list[numpy.ndarray]]


def from_scratch(params, devices: list[mx.Context], per_device: int) -> Training:
    """What :func:`d2lpar.lenet.train` does in an epoch, for a rate that changes."""
    replicas = [Bucket(params, device) for device in devices]

    def step(X, y, lr: float) -> list[np.ndarray]:
        return train_batch(X, y, replicas, devices, lr, **BUCKETS)

    return Training(
        step,
        lambda X, y: lenet.evaluate_accuracy(X, y, replicas, devices),
        lambda: [p.asnumpy() for p in replicas[0]],
    )


def concise(params, devices: list[mx.Context], per_device: int) -> Training:
    """What :func:`d2lpar.lenet_concise.train` does, for a rate that changes."""
    net, trainer, loss = lenet_concise.build(params, devices, 0.0, per_device)

    def step(X, y, lr: float) -> list[np.ndarray]:
        trainer.set_learning_rate(lr)
        return lenet_concise.train_batch(X, y, net, devices, trainer, loss=loss)

    return Training(
        step,
        lambda X, y: lenet_concise.evaluate(net, X, y, devices),
        lambda: networks.get_host_params(net),
    )


# Each implementation's training, and its step taken apart.
TRAIN = {"from scratch": from_scratch, "concise": concise}
STEP = {"from scratch": step_parts.from_scratch, "concise": step_parts.concise}


@dataclass(frozen=True)
class Settings:
    """What a study measures. Batch sizes are global unless they are per device."""

    implementation: str = "concise"  # or "from scratch"
    # On the first so many of the devices, in turn; by default on all of them only.
    device_counts: Sequence[int] = ()
    # A step at every batch size: `samples` means of steps that take `seconds` together.
    batch_sizes: Sequence[int] = (2, 8, 32, 128, 512, 2048)
    samples: int = 5
    seconds: float = 0.3
    parts_at: Sequence[int] = (32, 512)  # where the parts of a step are timed, too
    turns: int = 15  # of the steps that the parts are the differences of
    # Bytes of one array; without sizes no all-reduce is timed, LeNet's neither.
    all_reduce_sizes: Sequence[int] = ()
    # `num_epochs` of training with each of these batches, see scaled_lr.
    per_device_batch_sizes: Sequence[int] = ()
    num_epochs: int = 5
    warmup: int = 2
    base_lr: float = 0.2
    base_batch: int = 256


def train(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    seed: int = 0,
    data: datasets.ImageData | None = None,
    **settings,
) -> Iterator[StepRecord | AllReduceRecord | ScaledEpoch]:
    """Measure one implementation on some devices, yielding a record's lines.

    `settings` are the fields of :class:`Settings`; the other arguments are those of
    :func:`d2lpar.lenet.train`. Raises :class:`SettingError` for an unknown
    implementation, for a batch that is larger than the training set, and for more
    devices than there are.
    """
    chosen = training.choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    study = Settings(**settings)
    if study.implementation not in TRAIN:
        raise SettingError(
            f"implementation {study.implementation!r}: write one of {', '.join(TRAIN)}"
        )
    counts = study.device_counts or [len(chosen)]
    for count in counts:
        training.check_whole("device-counts", count, most=len(chosen))
    groups = [chosen[:count] for count in counts]
    weak = [size * max(counts) for size in study.per_device_batch_sizes]
    for size in (*study.batch_sizes, *study.parts_at, *weak):
        training.check_whole("global-batch-size", size, most=len(data.y_train))
    yield from _strong_scaling(study, groups, seed, data)
    for devices in groups:
        if study.all_reduce_sizes and len(devices) > 1:
            for record in allreduce_variants.measure(devices, study.all_reduce_sizes):
                yield replace(record, num_devices=len(devices))
    for devices in groups:
        for epoch in _weak_scaling(study, devices, seed, data):
            yield replace(epoch, num_devices=len(devices))


class Sampled(NamedTuple):
    """A step on some devices, its batches, and its record so far."""

    step: step_parts.Step
    batches: Iterator
    record: StepRecord


def _strong_scaling(
    study: Settings,
    groups: list[list[mx.Context]],
    seed: int,
    data: datasets.ImageData,
) -> Iterator[StepRecord]:
    """A record for each batch size and group of devices, sampled in passes over all.

    The speed of a machine drifts over minutes: samples in a row would have nearly equal
    times, and a drift would look like an effect of the batch size or of the devices.
    """
    first = groups[0][0]
    X, y, _, _ = training.on_device(data, first)
    order = training.shuffled(len(data.y_train), lenet.start(seed).rng, first)

    def begin(size: int, devices: list[mx.Context]) -> tuple[step_parts.Step, Iterator]:
        # A small learning rate, so that the parameters stay finite.
        params, per_device = networks.init_lenet(seed=seed), size // len(devices)
        step = STEP[study.implementation](devices, params, 1e-3, per_device)
        return step, step_parts.endless_batches(X, y, size, order)

    records = {
        (size, len(devices)): StepRecord(size, 0, [], [], num_devices=len(devices))
        for size in study.batch_sizes
        for devices in groups
        if size >= len(devices)  # else a device would have no sample
    }
    for passes_left in reversed(range(study.samples)):
        for size in study.batch_sizes:
            sampled = []
            for devices in groups:
                key = size, len(devices)
                if key in records:
                    sampled.append(
                        _sampled(*begin(size, devices), records[key], study.seconds)
                    )
                    records[key] = sampled[-1].record
            if not passes_left:
                yield from _with_parts(study, sampled, order)


def _sampled(
    step: step_parts.Step, batches: Iterator, record: StepRecord, seconds: float
) -> Sampled:
    """A record with one more sample, of steps that take `seconds` together."""
    steps = record.steps or step_parts.steps_per_sample(step, batches, seconds)
    step_parts.warm_up(step, batches)
    one = step_parts.sample(step, batches, steps)
    longer = replace(
        record,
        steps=steps,
        seconds=[*record.seconds, one.step],
        issue_seconds=[*record.issue_seconds, one.issue],
    )
    return Sampled(step, batches, longer)


def _with_parts(
    study: Settings, sampled: list[Sampled], order: np.ndarray
) -> Iterator[StepRecord]:
    """Records of one batch, with the parts of a step where the study times them."""
    if not sampled or sampled[0].record.global_batch_size not in study.parts_at:
        yield from (each.record for each in sampled)
        return
    turns = [
        [
            step_parts.turn(each.step, each.batches, each.record.steps)
            for each in sampled
        ]
        for _ in range(study.turns)
    ]
    times = range(study.samples)
    for (step, batches, record), same_step in zip(sampled, zip(*turns)):
        yield replace(
            record,
            parts=step_parts.parts(same_step),
            without_overlap=[
                step_parts.sample(
                    step, batches, record.steps, finish_backward=True
                ).step
                for _ in times
            ],
            without_python=[
                step_parts.without_python(step, batches, order, record.steps)
                for _ in times
            ],
        )


def _weak_scaling(
    study: Settings, devices: list[mx.Context], seed: int, data: datasets.ImageData
) -> Iterator[ScaledEpoch]:
    """One training for each batch, with a learning rate of its own in every epoch."""
    X, y, X_test, y_test = training.on_device(data, devices[0])
    for per_device in study.per_device_batch_sizes:
        size, start = per_device * len(devices), lenet.start(seed)
        trained = TRAIN[study.implementation](start.params, devices, per_device)
        _warm_up(trained, X, y, size)
        for epoch in range(1, study.num_epochs + 1):
            lr = scaled_lr(size, epoch, study.base_lr, study.base_batch, study.warmup)
            clock = training.Epoch()
            for batch in training.shuffled_batches(X, y, size, start.rng):
                clock.add(trained.step(*batch, lr))
            try:
                loss = clock.end_training(len(y))
                test_acc = trained.accuracy(X_test, y_test)
                record = clock.record(
                    epoch, loss, test_acc, num_samples=len(y), lr=lr
                )  # fmt: skip
                training.check_params(epoch, trained.params(), lr)
            except DivergedError as error:
                log.warning("batch %d, epoch %d: %s", size, epoch, error)
                yield ScaledEpoch(size, epoch, lr, why_not=str(error))
                break
            measured = (record.seconds, record.train_loss, record.test_acc)
            yield ScaledEpoch(size, epoch, lr, *measured)


def _warm_up(trained: Training, X: np.ndarray, y: np.ndarray, size: int) -> None:
    """Compile and allocate, in steps that change nothing: their learning rate is 0."""
    for batch in itertools.islice(datasets.batches(X, y, size), WARM_UP):
        trained.step(*batch, 0.0)
    npx.waitall()


def scaled_lr(
    global_batch_size: int, epoch: int, base_lr: float, base_batch: int, warmup: int
) -> float:
    """The learning rate of an epoch (from 1): linear in the batch, warmed up.

    It rises in equal steps from `base_lr` to ``base_lr * global_batch_size /
    base_batch`` during the first `warmup` epochs. A rate below `base_lr` needs no
    warm-up. Source: Goyal et al., "Accurate, Large Minibatch SGD" (arXiv 1706.02677).

    >>> [scaled_lr(1024, epoch, 0.2, 256, warmup=3) for epoch in (1, 2, 3, 4, 5)]
    [0.2, 0.4, 0.6, 0.8, 0.8]
    >>> scaled_lr(64, 1, 0.2, 256, warmup=3)
    0.05
    """
    scaled = base_lr * global_batch_size / base_batch
    share = 1.0 if epoch > warmup or scaled < base_lr else (epoch - 1) / warmup
    return round(base_lr + (scaled - base_lr) * share, 12)


WORKLOAD = training.Workload(train, unit="line")

"""When does a second device pay? Steps, all-reduces and accuracy, measured.

The book's two V100s were slower than one (2.5 against 1.8 seconds per epoch at a batch
of 256), and the book does not show where that turns. Here every device count takes the
same steps at every global batch (strong scaling), and trains with the same batch on
every device, the learning rate scaled and warmed up (weak scaling). The device counts
take their steps in turn, in one process: a machine's speed drifts over minutes, and the
drift between two measurements would pass for a speedup.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from d2lpar import datasets, networks, training
from d2lpar._mxnet import mx, npx
from d2lpar.errors import DivergedError, SettingError
from d2lpar.records.kinds import AllReduceRecord, ScaledEpoch, StepRecord
from d2lpar.scaling import allreduce, step

log = logging.getLogger("d2lpar")

WARM_UP = 3  # steps of a training under weak scaling


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


def measure(
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
    if study.implementation not in step.IMPLEMENTATIONS:
        raise SettingError(
            f"implementation {study.implementation!r}: write one of "
            f"{', '.join(step.IMPLEMENTATIONS)}"
        )
    counts = study.device_counts or [len(chosen)]
    for count in counts:
        training.check_whole("device-counts", count, len(chosen))
    weak = [size * max(counts) for size in study.per_device_batch_sizes]
    for size in (*study.batch_sizes, *study.parts_at, *weak):
        training.check_whole("global-batch-size", size, len(data.y_train))
    groups = [chosen[:count] for count in counts]
    yield from _strong_scaling(study, groups, seed, data)
    for group in groups:
        if study.all_reduce_sizes and len(group) > 1:
            yield from allreduce.measure(group, study.all_reduce_sizes)
    for group in groups:
        for per_device in study.per_device_batch_sizes:
            yield from _weak_scaling(study, group, per_device, seed, data)


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
    order = training.shuffled(len(y), numpy.random.default_rng([seed, 1]), first)
    params = networks.init_lenet(seed=seed)
    implementation = step.IMPLEMENTATIONS[study.implementation]
    steps: dict[tuple[int, int], int] = {}
    samples = defaultdict(list)
    for passes_left in reversed(range(study.samples)):
        for size in study.batch_sizes:
            trained = {}
            for group in groups:
                n = len(group)
                if size < n:
                    continue  # a device would have no sample
                trained[n] = implementation(params, group, size // n)
                batches = step.endless_batches(X, y, size, order)
                if (size, n) not in steps:
                    steps[size, n] = step.steps_per_sample(
                        trained[n], batches, study.seconds
                    )
                step.sample(trained[n], batches, 2)  # compiles and allocates
                samples[size, n].append(
                    step.sample(trained[n], batches, steps[size, n])
                )
            if passes_left:
                continue
            turns = defaultdict(list)
            for _ in range(study.turns if size in study.parts_at else 0):
                for n, one in trained.items():
                    batches = step.endless_batches(X, y, size, order)
                    turns[n].append(step.turn(one, batches, steps[size, n]))
            for n in trained:
                yield StepRecord(
                    global_batch_size=size,
                    steps=steps[size, n],
                    seconds=[sample.step for sample in samples[size, n]],
                    issue_seconds=[sample.issue for sample in samples[size, n]],
                    parts=step.parts(turns[n]) if turns[n] else {},
                    num_devices=n,
                )


def _weak_scaling(
    study: Settings,
    devices: list[mx.Context],
    per_device_batch_size: int,
    seed: int,
    data: datasets.ImageData,
) -> Iterator[ScaledEpoch]:
    """One training, with a learning rate of its own in every epoch."""
    X, y, X_test, y_test = training.on_device(data, devices[0])
    size = per_device_batch_size * len(devices)
    params = networks.init_lenet(seed=seed)
    trained = step.IMPLEMENTATIONS[study.implementation](
        params, devices, per_device_batch_size
    )
    # Compile and allocate, in steps that change nothing: their learning rate is 0.
    for batch in itertools.islice(datasets.batches(X, y, size), WARM_UP):
        trained.step(*batch, 0.0)
    npx.waitall()
    for epoch in range(1, study.num_epochs + 1):
        lr = scaled_lr(size, epoch, study.base_lr, study.base_batch, study.warmup)
        line = {
            "global_batch_size": size,
            "epoch": epoch,
            "lr": lr,
            "num_devices": len(devices),
        }
        rng = numpy.random.default_rng([seed, epoch])
        clock = training.Epoch()
        for batch in training.shuffled_batches(X, y, size, rng):
            clock.add(trained.step(*batch, lr))
        loss = clock.end_training(len(y))
        acc = trained.accuracy(X_test, y_test)
        try:
            record = clock.record(epoch, loss, acc, num_samples=len(y), lr=lr)
            training.check_params(epoch, trained.params(), lr)
        except DivergedError as error:
            log.warning("batch %d, epoch %d: %s", size, epoch, error)
            yield ScaledEpoch(**line, why_not=str(error))
            break
        yield ScaledEpoch(
            **line,
            seconds=record.seconds,
            train_loss=record.train_loss,
            test_acc=record.test_acc,
        )


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

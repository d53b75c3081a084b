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
from collections.abc import Callable, Iterator, Sequence

import numpy

from d2lpar import datasets, networks, training
from d2lpar._mxnet import mx, np, npx
from d2lpar.errors import DivergedError, SettingError
from d2lpar.records.kinds import AllReduceRecord, ScaledEpoch, StepRecord
from d2lpar.scaling import allreduce, step

log = logging.getLogger("d2lpar")

WARM_UP = 3  # steps of a training under weak scaling


def measure(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    seed: int = 0,
    data: datasets.ImageData | None = None,
    implementation: str = "concise",
    device_counts: Sequence[int] = (),
    batch_sizes: Sequence[int] = (2, 8, 32, 128, 512, 2048),
    samples: int = 5,
    seconds: float = 0.3,
    parts_at: Sequence[int] = (32, 512),
    turns: int = 15,
    all_reduce_sizes: Sequence[int] = (),
    per_device_batch_sizes: Sequence[int] = (),
    num_epochs: int = 5,
    warmup: int = 2,
    base_lr: float = 0.2,
    base_batch: int = 256,
) -> Iterator[StepRecord | AllReduceRecord | ScaledEpoch]:
    """Measure "concise" or "from scratch" on some devices, yielding a record's lines.

    All is measured on the first `device_counts` devices, in turn; by default on all of
    them only. Strong scaling: at each global batch of `batch_sizes`, `samples` means of
    steps that take `seconds` together; for a batch in `parts_at` also the parts of a
    step, from `turns` turns. All-reduces: of arrays of `all_reduce_sizes` bytes and of
    LeNet's gradients, or without sizes none. Weak scaling: `num_epochs` of training
    with each of `per_device_batch_sizes` on every device, at the rates of
    :func:`scaled_lr`. The other arguments are those of :func:`d2lpar.lenet.train`.

    Raises :class:`SettingError` for an unknown implementation, for a batch that is
    larger than the training set, and for more devices than there are.
    """
    chosen = training.choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    if implementation not in step.IMPLEMENTATIONS:
        names = ", ".join(step.IMPLEMENTATIONS)
        raise SettingError(f"implementation {implementation!r}: write one of {names}")
    counts = device_counts or [len(chosen)]
    for count in counts:
        training.check_whole("device-counts", count, len(chosen))
    weak = [size * max(counts) for size in per_device_batch_sizes]
    for size in (*batch_sizes, *parts_at, *weak):
        training.check_whole("global-batch-size", size, len(data.y_train))
    groups = [chosen[:count] for count in counts]

    X, y, X_test, y_test = training.on_device(data, chosen[0])
    order = training.shuffled(len(y), numpy.random.default_rng([seed, 1]), chosen[0])

    def build(group: Sequence[mx.Context], per_device: int) -> step.Training:
        params = networks.init_lenet(seed=seed)
        return step.IMPLEMENTATIONS[implementation](params, group, per_device)

    def batches(size: int) -> Iterator[tuple]:
        return step.endless_batches(X, y, size, order)

    yield from _strong_scaling(
        groups,
        build,
        batches,
        batch_sizes=batch_sizes,
        samples=samples,
        seconds=seconds,
        parts_at=parts_at,
        turns=turns,
    )
    for group in groups:
        if all_reduce_sizes and len(group) > 1:
            yield from allreduce.measure(group, all_reduce_sizes)
    for group, per_device in itertools.product(groups, per_device_batch_sizes):
        size = per_device * len(group)
        rates = [
            scaled_lr(size, epoch, base_lr, base_batch, warmup)
            for epoch in range(1, num_epochs + 1)
        ]
        trained = build(group, per_device)
        yield from _weak_scaling(trained, (X, y, X_test, y_test), size, rates, seed)


def _strong_scaling(
    groups: Sequence[list[mx.Context]],
    build: Callable[[Sequence[mx.Context], int], step.Training],
    batches: Callable[[int], Iterator[tuple]],
    *,
    batch_sizes: Sequence[int],
    samples: int,
    seconds: float,
    parts_at: Sequence[int],
    turns: int,
) -> Iterator[StepRecord]:
    """A record for each batch size and group of devices, sampled in passes over all.

    The speed of a machine drifts over minutes: samples in a row would have nearly equal
    times, and a drift would look like an effect of the batch size or of the devices.
    """
    steps: dict[tuple[int, int], int] = {}  # of a sample, by batch and device count
    taken = defaultdict(list)
    for _, size, group in itertools.product(range(samples), batch_sizes, groups):
        n = len(group)
        if size < n:
            continue  # a device would have no sample
        trained = build(group, size // n)
        step.sample(trained, batches(size), 2)  # compiles and allocates
        if (size, n) not in steps:
            one, _ = step.sample(trained, batches(size), 4)
            steps[size, n] = max(1, round(seconds / one))
        taken[size, n].append(step.sample(trained, batches(size), steps[size, n]))
    for size in batch_sizes:
        busy = {len(group): group for group in groups if len(group) <= size}
        shortened = defaultdict(list)
        if size in parts_at:
            built = {n: build(group, size // n) for n, group in busy.items()}
            for n in busy:
                step.sample(built[n], batches(size), 2)
            for _, n in itertools.product(range(turns), busy):
                turn = step.turn(built[n], batches(size), steps[size, n])
                shortened[n].append(turn)
        for n in busy:
            whole, issue = zip(*taken[size, n])
            yield StepRecord(
                global_batch_size=size,
                steps=steps[size, n],
                seconds=list(whole),
                issue_seconds=list(issue),
                parts=step.parts(shortened[n]) if shortened[n] else {},
                num_devices=n,
            )


def _weak_scaling(
    trained: step.Training,
    data: Sequence[np.ndarray],
    size: int,
    rates: Sequence[float],
    seed: int,
) -> Iterator[ScaledEpoch]:
    """One training with global batches of `size`, an epoch at each learning rate."""
    X, y, X_test, y_test = data
    # Compile and allocate, in steps that change nothing: their learning rate is 0.
    for batch in itertools.islice(datasets.batches(X, y, size), WARM_UP):
        trained.step(*batch, 0.0)
    npx.waitall()
    for epoch, lr in enumerate(rates, 1):
        rng = numpy.random.default_rng([seed, epoch])
        clock = training.Epoch()
        for batch in training.shuffled_batches(X, y, size, rng):
            clock.add(trained.step(*batch, lr))
        loss = clock.end_training(len(y))
        acc = trained.accuracy(X_test, y_test)
        line = {
            "global_batch_size": size,
            "epoch": epoch,
            "lr": lr,
            "num_devices": len(trained.devices),
        }
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

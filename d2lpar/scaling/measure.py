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
from functools import partial

import numpy

from d2lpar import datasets, networks, training
from d2lpar._mxnet import mx, np
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

    n = len(data.y_train)
    train_set = data.X_train, data.y_train
    copies = [training.on_device(train_set, device) for device in chosen]

    def orders(epoch: int) -> list[np.ndarray]:
        """The same order of an epoch on every device."""
        return [
            training.shuffled(n, numpy.random.default_rng([seed, epoch]), device)
            for device in chosen
        ]

    def build(group: Sequence[mx.Context], per_device: int) -> step.Training:
        params = networks.init_lenet(seed=seed)
        return step.IMPLEMENTATIONS[implementation](params, group, per_device, copies)

    yield from _strong_scaling(
        groups,
        build,
        orders(1),
        batch_sizes=batch_sizes,
        samples=samples,
        seconds=seconds,
        parts_at=parts_at,
        turns=turns,
    )
    for group in groups:
        if all_reduce_sizes and len(group) > 1:
            in_steps = build(group, 1).all_reduce
            yield from allreduce.measure(group, all_reduce_sizes, in_steps)
    test_set = training.on_device((data.X_test, data.y_test), chosen[0])
    for group, per_device in itertools.product(groups, per_device_batch_sizes):
        size = per_device * len(group)
        rates = [
            scaled_lr(size, epoch, base_lr, base_batch, warmup)
            for epoch in range(1, num_epochs + 1)
        ]
        trained = build(group, per_device)
        yield from _weak_scaling(trained, orders, test_set, size, rates)


def _strong_scaling(
    groups: Sequence[list[mx.Context]],
    build: Callable[[Sequence[mx.Context], int], step.Training],
    orders: Sequence[np.ndarray],
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
        batches = step.endless_batches(trained, orders, size)
        step.sample(trained, batches, 2)  # compiles and allocates
        if (size, n) not in steps:
            one, _ = step.sample(trained, batches, 4)
            steps[size, n] = max(1, round(seconds / one))
        taken[size, n].append(step.sample(trained, batches, steps[size, n]))
    for size in batch_sizes:
        busy = {len(group): group for group in groups if len(group) <= size}
        shortened = defaultdict(list)
        if size in parts_at:
            built = {n: build(group, size // n) for n, group in busy.items()}
            endless = {
                n: step.endless_batches(trained, orders, size)
                for n, trained in built.items()
            }
            for n in busy:
                step.sample(built[n], endless[n], 2)
            for _, n in itertools.product(range(turns), busy):
                turn = step.turn(built[n], endless[n], steps[size, n])
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
    orders: Callable[[int], list[np.ndarray]],
    test_set: Sequence[np.ndarray],
    size: int,
    rates: Sequence[float],
) -> Iterator[ScaledEpoch]:
    """Train with global batches of `size`, an epoch at each learning rate.

    ``orders(epoch)`` is the order of an epoch on each device.
    """
    # Compile and allocate, in steps that change nothing: their learning rate is 0.
    trained.set_learning_rate(0.0)
    for batch in itertools.islice(trained.batches(orders(1), size), WARM_UP):
        trained.step(batch)
    for epoch, lr in enumerate(rates, 1):
        trained.set_learning_rate(lr)
        order = orders(epoch)
        n = len(order[0])
        clock = training.Epoch()
        with trained.pushing():
            for batch in trained.batches(order, size):
                clock.add(trained.step(batch))
        loss = clock.end_training(n)
        acc = trained.accuracy(*test_set)
        line = partial(
            ScaledEpoch,
            global_batch_size=size,
            epoch=epoch,
            lr=lr,
            num_devices=len(trained.devices),
        )
        try:
            record = clock.record(epoch, loss, acc, num_samples=n, lr=lr)
            training.check_params(epoch, trained.params(), lr)
        except DivergedError as error:
            log.warning("batch %d, epoch %d: %s", size, epoch, error)
            yield line(why_not=str(error))
            break
        yield line(
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

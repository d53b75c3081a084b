"""When does a second device pay? Steps, all-reduces and accuracy, measured.

The seed's two V100s were slower than one (1.8 to 2.5 s an epoch at a batch of 256), and
the book does not show where that turns. Here every device count takes the same steps at
every global batch (strong scaling), and trains with the same batch on every device, the
learning rate scaled and warmed up (weak scaling). What comes of the numbers is in
:mod:`d2lpar.records.step_model`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from d2lpar import datasets, lenet, lenet_concise, networks, training
from d2lpar._mxnet import mx
from d2lpar.errors import DivergedError, SettingError
from d2lpar.records.kinds import AllReduceRecord, ScaledEpoch, StepRecord
from d2lpar.studies import allreduce_variants, step_parts

log = logging.getLogger("d2lpar")

TRAIN = {"from scratch": lenet.train, "concise": lenet_concise.train}


def train(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    seed: int = 0,
    data: datasets.ImageData | None = None,
    implementation: str = "concise",
    batch_sizes: Sequence[int] = (2, 8, 32, 128, 512, 2048),
    samples: int = 5,
    seconds: float = 0.3,
    parts_at: Sequence[int] = (32, 512),
    all_reduce_sizes: Sequence[int] = (),
    per_device_batch_sizes: Sequence[int] = (),
    num_epochs: int = 5,
    warmup: int = 2,
    base_lr: float = 0.2,
    base_batch: int = 256,
) -> Iterator[StepRecord | AllReduceRecord | ScaledEpoch]:
    """Measure one implementation on some devices, yielding a record's lines.

    `implementation` is "from scratch" or "concise". For each of `batch_sizes`, global,
    `samples` times as many steps in a row as take about so many `seconds`; at those of
    `parts_at` also where the time goes. On several devices, the all-reduce of one array
    of `all_reduce_sizes` bytes each, and of LeNet's gradients, unless there are no
    sizes. Then `num_epochs` of training with each of `per_device_batch_sizes` on every
    device, at :func:`~d2lpar.studies.scaling.scaled_lr`.

    `devices`, `num_devices`, `seed` and `data` are :func:`d2lpar.lenet.train`'s. Raises
    :class:`SettingError` for a batch that is larger than the training set.
    """
    if implementation not in TRAIN:
        raise SettingError(
            f"implementation {implementation!r}: write one of {', '.join(TRAIN)}"
        )
    chosen = training.choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    per_device = [size * len(chosen) for size in per_device_batch_sizes]
    for size in (*batch_sizes, *parts_at, *per_device):
        training.check_whole("global-batch-size", size, most=len(data.y_train))
    X, y, _, _ = training.on_device(data, chosen[0])
    order = training.shuffled(len(data.y_train), lenet.start(seed).rng, chosen[0])
    for size in batch_sizes:
        if size >= len(chosen):  # else a device has nothing to do
            params = networks.init_lenet(seed=seed)
            lr = 1e-3  # the numbers do not matter here, but are to stay finite
            step = step_parts.IMPLEMENTATIONS[implementation](chosen, params, lr)
            batches = step_parts.endless(X, y, size, order)
            yield _steps(step, batches, size, samples, seconds, parts_at)
    del X, y, order
    if all_reduce_sizes and len(chosen) > 1:
        yield from allreduce_variants.measure(chosen, all_reduce_sizes)
    for size in per_device:
        yield from _epochs(
            TRAIN[implementation], chosen, seed, data, size,
            num_epochs, warmup, base_lr, base_batch,
        )  # fmt: skip


def _steps(
    step: step_parts.Step,
    batches: Iterator,
    global_batch_size: int,
    samples: int,
    seconds: float,
    parts_at: Sequence[int],
) -> StepRecord:
    steps = step_parts.steps_a_sample(step, batches, seconds)
    taken = [step_parts.sample(step, batches, steps) for _ in range(samples)]
    more = {}
    if global_batch_size in parts_at:
        more["parts"] = step_parts.parts(step, batches, steps, samples)
        more["without_overlap"] = [
            step_parts.sample(step, batches, steps, wait=True).step
            for _ in range(samples)
        ]
        more["without_python"] = [
            step_parts.without_python(step, batches, steps) for _ in range(samples)
        ]
    return StepRecord(
        global_batch_size=global_batch_size,
        steps=steps,
        seconds=[s.step for s in taken],
        issue_seconds=[s.issue for s in taken],
        **more,
    )


def _epochs(
    train, devices, seed, data, global_batch_size, num_epochs, warmup, base_lr,
    base_batch,
) -> Iterator[ScaledEpoch]:  # fmt: skip
    """Train an epoch at a time, because each has a learning rate of its own."""
    state = lenet.start(seed)
    for epoch in range(1, num_epochs + 1):
        lr = scaled_lr(global_batch_size, epoch, base_lr, base_batch, warmup)
        begin = time.perf_counter()
        try:
            (found,) = train(
                devices=devices,
                global_batch_size=global_batch_size,
                lr=lr,
                num_epochs=1,
                data=data,
                state=state,
            )
        except DivergedError as error:
            seconds = time.perf_counter() - begin
            log.warning("global batch %d: %s", global_batch_size, error)
            yield ScaledEpoch(global_batch_size, epoch, lr, seconds, why_not=str(error))
            return
        yield ScaledEpoch(
            global_batch_size, epoch, lr,
            found.seconds, found.train_loss, found.test_acc,
        )  # fmt: skip


def scaled_lr(
    global_batch_size: int, epoch: int, base_lr: float, base_batch: int, warmup: int
) -> float:
    """The learning rate of an epoch (from 1): linear in the batch, warmed up.

    It rises from `base_lr` to ``base_lr * global_batch_size / base_batch`` during the
    first `warmup` epochs, in equal steps; a rate that is to fall starts where it ends.
    Source: Goyal et al., "Accurate, Large Minibatch SGD" (arXiv 1706.02677).

    >>> [scaled_lr(1024, epoch, 0.2, 256, warmup=3) for epoch in (1, 2, 3, 4, 5)]
    [0.2, 0.4, 0.6, 0.8, 0.8]
    >>> scaled_lr(64, 1, 0.2, 256, warmup=3)
    0.05
    """
    scaled = base_lr * global_batch_size / base_batch
    share = 1.0 if epoch > warmup or scaled < base_lr else (epoch - 1) / warmup
    return round(base_lr + (scaled - base_lr) * share, 12)


WORKLOAD = training.Workload(train, unit="line")

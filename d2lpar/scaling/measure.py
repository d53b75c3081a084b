"""Steps and all-reduces, measured: device counts take turns, since speeds drift."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy

from d2lpar import datasets, epochs, lenet
from d2lpar._mxnet import mx
from d2lpar.records.kinds import AllReduceRecord, StepRecord
from d2lpar.scaling import allreduce, step


def study(
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
) -> Iterator[StepRecord | AllReduceRecord]:
    """Measure "concise" or "from scratch" on some devices, yielding a record's lines.

    On the first `device_counts` devices, in turn (by default on all): at each batch of
    `batch_sizes`, `samples` means of steps that take `seconds` together, and at
    `parts_at` the parts of a step, from `turns` turns. All-reduces: of arrays of
    `all_reduce_sizes` bytes and of LeNet's gradients; without sizes none. The others
    are :func:`d2lpar.lenet.train`'s.
    """
    chosen = epochs.choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    counts = device_counts or [len(chosen)]
    for count in counts:
        epochs.check_whole("device-counts", count, len(chosen))
    for size in (*batch_sizes, *parts_at):
        epochs.check_whole("global-batch-size", size, len(data.y_train))
    groups = [chosen[:count] for count in counts]

    train_set = data.X_train, data.y_train
    copies = [epochs.on_device(train_set, device) for device in chosen]
    orders = [
        epochs.shuffled(len(data.y_train), numpy.random.default_rng(seed), device)
        for device in chosen
    ]

    def ready(group: Sequence[mx.Context], size: int) -> tuple[step.Training, Iterator]:
        params, per_device = lenet.init_lenet(seed=seed), size // len(group)
        make = step.IMPLEMENTATIONS[implementation]
        trained = make(params, group, per_device, copies)
        batches = step.endless_batches(trained, orders, size)
        step.sample(trained, batches, 2)  # compiles and allocates
        return trained, batches

    # In passes over all: samples in a row would have nearly equal times, and a drift
    # would look like an effect of the batch size or of the devices.
    steps: dict[tuple[int, int], int] = {}  # of a sample, by batch and device count
    taken = defaultdict(list)
    passes = itertools.product(range(samples), batch_sizes)  # A B, B A
    for size, group in ((s, g) for k, s in passes for g in groups[:: (-1) ** k]):
        n = len(group)
        if size < n:
            continue  # a device would have no sample
        trained, batches = ready(group, size)
        if (size, n) not in steps:
            one, _ = step.sample(trained, batches, 2)
            steps[size, n] = max(1, round(seconds / one))
        taken[size, n].append(step.sample(trained, batches, steps[size, n]))
    for size in batch_sizes:
        busy = {len(group): group for group in groups if len(group) <= size}
        shortened = defaultdict(list)
        if size in parts_at:
            trainings = {n: ready(group, size) for n, group in busy.items()}
            for _, n in itertools.product(range(turns), busy):
                shortened[n].append(step.turn(*trainings[n], steps[size, n]))
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
    for group in groups:
        if all_reduce_sizes and len(group) > 1:
            trained, _ = ready(group, len(group))
            yield from allreduce.time_all(group, all_reduce_sizes, trained.all_reduce)

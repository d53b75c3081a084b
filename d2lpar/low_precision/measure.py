"""LeNet's inference in float32, bfloat16, float16 and INT8: accuracy, speed, bytes.

A network is trained in float32 and lowered *after* training
(:mod:`d2lpar.low_precision.lowering`). A precision that the hardware or the build does
not support is a row that says so. It may even crash the process (MXNet 1.9.1: one scale
per channel without calibration), so each is measured in a separate process.

The channels stay 20 and 50: padded with zeros to 32 and 64, for whole vectors, INT8 was
slower (30 thousand images/s against 39 on one thread of an AMD EPYC); float32 gained
with 24 and 56 (16 against 11).

Source: the GPU wiki, "Low Precision Inference on GPU" (T4: 8.1 TFLOPS in float32, 130
TOPS in INT8).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from d2lpar import datasets, process
from d2lpar._mxnet import gluon, mx, np
from d2lpar.errors import RunError, SettingError
from d2lpar.lenet import concise, start
from d2lpar.low_precision.equalize import equalize, stretch
from d2lpar.low_precision.lowering import legacy_semantics, lower, weight_bytes
from d2lpar.networks import lenet
from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import (
    INT8,
    PRECISIONS,
    EpochRecord,
    PrecisionRecord,
    Weights,
)
from d2lpar.training import check_whole, choose

WARMUP_PASSES = 2  # INT8 packs its weights in the first


class Task(NamedTuple):
    """What every precision infers, and how: the same for all of them.

    `X` and `X_calibration` are images uint8 (n, 28, 28), `y` (n,) the classes of `X`
    and `y_float32` (n,) those that the trained network predicts in float32. Each device
    takes `batch_size` images at a time; `repeats` passes are timed.
    """

    X: numpy.ndarray
    y: numpy.ndarray
    y_float32: numpy.ndarray
    X_calibration: numpy.ndarray
    devices: Sequence[mx.Context]
    batch_size: int
    repeats: int


def measure(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    seed: int = 0,
    data: datasets.ImageData | None = None,
    params: Sequence[numpy.ndarray] | None = None,
    precisions: Sequence[str] = PRECISIONS,
    stretch_factor: float = 128,
    per_device_batch_size: int = 200,
    calibration_images: int = 1000,
    repeats: int = 15,
    **recipe: Any,
) -> Iterator[EpochRecord | PrecisionRecord]:
    """Train LeNet in float32, yielding its epochs; then a row for each precision.

    `recipe` are :func:`d2lpar.lenet.concise.train`'s `global_batch_size`, `lr` and
    `num_epochs`; with the `params` of a trained network nothing is trained. Inference
    is data-parallel on the same devices, calibrated with the first `calibration_images`
    training images. INT8 with one scale per tensor follows again with an outlier of
    `stretch_factor` (none if 1), before and after equalising
    (:mod:`d2lpar.low_precision.equalize`). Raises :class:`SettingError` for settings
    out of range, before anything is trained.
    """
    data = datasets.fashion_mnist() if data is None else data
    state, devices = start(seed), choose(devices, num_devices)
    for name in precisions:
        if name not in PRECISIONS:
            choices = ", ".join(PRECISIONS)
            raise SettingError(f"precision {name!r}: write one of {choices}")
    stretch(state.params, stretch_factor)  # raises now what it would raise later
    size, most = per_device_batch_size, len(data.y_train)
    check_whole("per-device-batch-size", size, len(data.y_test))
    check_whole("calibration-images", calibration_images, most)
    check_whole("repeats", repeats)
    if calibration_images < size:
        raise SettingError(f"calibration-images {calibration_images}: at least {size}")
    if params is None:
        yield from concise.train(devices=devices, data=data, state=state, **recipe)
        params = state.params
    y_float32 = predictions(params, data.X_test, devices[0])
    X_calibration = data.X_train[:calibration_images]
    task = Task(
        data.X_test, data.y_test, y_float32, X_calibration, devices, size, repeats
    )
    stretched = stretch(params, stretch_factor)
    in_int8 = [name for name in INT8 if name in precisions and stretch_factor > 1]
    networks: tuple[tuple[Weights, Sequence[numpy.ndarray], Sequence[str]], ...] = (
        ("trained", params, precisions),
        ("stretched", stretched, in_int8),
        ("equalised", equalize(stretched), in_int8),
    )
    for weights, values, names in networks:
        for precision in names:
            yield measure_apart(precision, values, task, weights)


def measure_apart(
    precision: str,
    params: Sequence[numpy.ndarray],
    task: Task,
    weights: Weights = "trained",
) -> PrecisionRecord:
    """Measure one precision in a fresh process; return its row, or why there is none.

    `params` are :func:`d2lpar.networks.init_lenet`'s, `weights` their name in the row.
    """
    job = dict(precision=precision, params=params, task=task, weights=weights)
    try:
        return process.answer("d2lpar.low_precision.measure:infer", job)
    except RunError as error:  # MXNet refused, or crashed
        return PrecisionRecord(
            precision=precision,
            weights=weights,
            per_device_batch_size=task.batch_size,
            why_not=str(error),
        )


def infer(
    precision: str,
    params: Sequence[numpy.ndarray],
    task: Task,
    weights: Weights = "trained",
) -> PrecisionRecord:
    """Infer the test images in one precision, in this process.

    Each device takes every N-th batch. The images are on the devices before the clock
    starts; only full batches are timed. Raises MXNetError for what the device or the
    build does not support; MXNet may raise it again at the next synchronisation,
    because every pending batch has failed.
    """
    X_calibration, size = datasets.to_float(task.X_calibration), task.batch_size
    nets = [
        lower(gluon_lenet(params, device), precision, X_calibration, device, size)
        for device in task.devices
    ]
    X, images_per_sec = datasets.to_float(task.X), []
    starts = range(0, len(X), size)
    with legacy_semantics():
        batches = [
            mx.nd.array(X[start : start + size], ctx=device)
            for start, device in zip(starts, itertools.cycle(task.devices))
        ]
        scores = [scores.asnumpy() for scores in _forward(nets, batches)]
        full = batches[: len(X) // size]
        for _ in range(WARMUP_PASSES + task.repeats):
            mx.nd.waitall()
            begin = time.perf_counter()
            outputs = _forward(nets, full)
            mx.nd.waitall()
            images_per_sec.append(size * len(full) / (time.perf_counter() - begin))
            del outputs  # kept until the clock was read
    predicted = numpy.concatenate(scores).argmax(axis=1)
    speed = summarize(images_per_sec[WARMUP_PASSES:])
    return PrecisionRecord(
        precision=precision,
        weights=weights,
        per_device_batch_size=size,
        test_acc=float((predicted == task.y).mean()),
        agreement=float((predicted == task.y_float32).mean()),
        images_per_sec=speed.median,
        images_per_sec_q1=speed.q1,
        images_per_sec_q3=speed.q3,
        n=speed.n,
        weight_bytes=weight_bytes(nets[0]),
    )


def _forward(nets: Sequence, batches: Sequence) -> list:
    """Return the outputs of every batch, on its device, without waiting for them."""
    return [net(X) for net, X in zip(itertools.cycle(nets), batches)]


def gluon_lenet(
    params: Sequence[numpy.ndarray], device: mx.Context
) -> gluon.HybridBlock:
    """Return LeNet in Gluon on a device, with parameters from scratch."""
    net, _, _ = concise.build(params, [device], lr=1)  # which is not trained
    return net


def predictions(
    params: Sequence[numpy.ndarray], X: numpy.ndarray, device: mx.Context
) -> numpy.ndarray:
    """Return the classes (n,) that LeNet predicts for images X uint8 (n, 28, 28)."""
    params = [np.array(p, ctx=device) for p in params]
    parts = [X[start : start + 1000] for start in range(0, len(X), 1000)]
    scores = [
        lenet(np.array(datasets.to_float(part), ctx=device), params).asnumpy()
        for part in parts
    ]
    return numpy.concatenate(scores).argmax(axis=1)

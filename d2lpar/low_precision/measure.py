"""LeNet's inference in each precision: accuracy, speed, bytes. Source: the GPU wiki."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy

from d2lpar import datasets, process
from d2lpar._mxnet import lowering_array, lowering_semantics, mx, np
from d2lpar.devices import Device, contexts
from d2lpar.errors import RunError
from d2lpar.lenet import concise, lenet
from d2lpar.lenet.state import setup
from d2lpar.low_precision.lowering import lower, weight_bytes
from d2lpar.records.kinds import PRECISIONS, EpochRecord, PrecisionRecord

WARMUP_PASSES = 2  # INT8 packs its weights in the first


def measure(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    seed: int = 0,
    data: datasets.ImageData | None = None,
    precisions: Sequence[str] = PRECISIONS,
    per_device_batch_size: int = 200,
    calibration_images: int = 1000,
    repeats: int = 15,
    **recipe: Any,
) -> Iterator[EpochRecord | PrecisionRecord]:
    """Train LeNet in float32, yielding its epochs; then a row for each precision.

    `recipe` goes to :func:`d2lpar.lenet.concise.train`. Calibration needs images for a
    batch. What MXNet refuses, or crashes on, is a row that says so.
    """
    devices, data, state = setup(num_devices, devices, seed, data, None)
    yield from concise.train(devices=devices, data=data, state=state, **recipe)
    task = {
        "params": state.params,
        "data": data.take(slice(calibration_images), slice(None)),
        "y_float32": predictions(state.params, data.X_test, devices[0]),
        # An MXNet context would import MXNet too early in the other process.
        "devices": [Device(d.device_type, d.device_id) for d in devices],
        "per_device_batch_size": per_device_batch_size,
        "repeats": repeats,
    }
    for name in precisions:
        try:
            job = {**task, "precision": name}
            yield process.answer("d2lpar.low_precision.measure:infer", job)
        except RunError as error:
            yield PrecisionRecord(
                precision=name,
                per_device_batch_size=per_device_batch_size,
                why_not=str(error),
            )


def infer(
    precision: str,
    params: Sequence[numpy.ndarray],
    *,
    data: datasets.ImageData,
    y_float32: numpy.ndarray,
    devices: Sequence[Device],
    per_device_batch_size: int,
    repeats: int,
) -> PrecisionRecord:
    """Infer the test images in a precision, in this process; X_train calibrates."""
    batch_size, chosen = per_device_batch_size, contexts(devices)
    X_calibration, X = map(datasets.to_float, (data.X_train, data.X_test))
    nets, batches, images_per_sec = [], [], []
    for device in chosen:
        net, _, _ = concise.build(params, [device], lr=1)  # which is not trained
        nets.append(lower(net, precision, X_calibration, device, batch_size))
    with lowering_semantics():
        starts = range(0, len(X), batch_size)
        for start, net, device in zip(starts, cycle(nets), cycle(chosen)):
            part = X[start : start + batch_size]
            batches.append((net, lowering_array(part, device)))
        scores = [y_hat.asnumpy() for y_hat in [net(batch) for net, batch in batches]]
        full = batches[: len(X) // batch_size]
        for _ in range(WARMUP_PASSES + repeats):
            mx.nd.waitall()
            begin = time.perf_counter()
            outputs = [net(batch) for net, batch in full]
            mx.nd.waitall()
            seconds = time.perf_counter() - begin
            images_per_sec.append(batch_size * len(full) / seconds)
            del outputs  # kept until the clock was read
    predicted = numpy.concatenate(scores).argmax(axis=1)
    timed = images_per_sec[WARMUP_PASSES:]
    q1, speed, q3 = numpy.percentile(timed, (25, 50, 75))
    return PrecisionRecord(
        precision=precision,
        per_device_batch_size=batch_size,
        test_acc=float((predicted == data.y_test).mean()),
        agreement=float((predicted == y_float32).mean()),
        images_per_sec=float(speed),
        images_per_sec_q1=float(q1),
        images_per_sec_q3=float(q3),
        n=len(timed),
        weight_bytes=weight_bytes(nets[0]),
    )


def predictions(
    params: Sequence[numpy.ndarray], X: numpy.ndarray, device: mx.Context
) -> numpy.ndarray:
    """Return the classes (n,) that LeNet predicts for images X uint8 (n, 28, 28)."""
    params = [np.array(p, ctx=device) for p in params]
    parts = [datasets.to_float(X[k : k + 1000]) for k in range(0, len(X), 1000)]
    scores = [lenet(np.array(part, ctx=device), params).asnumpy() for part in parts]
    return numpy.concatenate(scores).argmax(axis=1)

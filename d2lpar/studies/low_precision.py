"""LeNet's inference in float32, bfloat16, float16 and INT8: accuracy, speed, bytes.

A network is trained in float32 and lowered *after* training
(:mod:`d2lpar.studies.lowering`). A precision that the hardware or the build does not
support is a row that says so. It may even crash the process (MXNet 1.9.1: one scale per
channel without calibration), so :func:`train` measures in a process of its own.

The channels stay 20 and 50: padded with zeros to 32 and 64, for whole vectors, INT8 was
slower (30 thousand images/s against 39 on one thread of an AMD EPYC); float32 gained
with 24 and 56 (16 against 11).

Source: the GPU wiki, "Low Precision Inference on GPU" (T4: 8.1 TFLOPS in float32, 130
TOPS in INT8).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import loky
import numpy
from loky.process_executor import TerminatedWorkerError

from d2lpar import datasets, lenet, lenet_concise, networks, training
from d2lpar._mxnet import gluon, mx, np
from d2lpar.errors import SettingError, first_line
from d2lpar.records.kinds import INT8, PRECISIONS, EpochRecord, PrecisionRecord
from d2lpar.records.summary import summarize
from d2lpar.studies.equalize_channels import equalize, stretch
from d2lpar.studies.lowering import (
    check_precision,
    legacy_semantics,
    lower,
    weight_bytes,
)

WARMUP_PASSES = 2  # the first gives the predictions, too; INT8 packs its weights in it
PROFILED_BATCHES = 5


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


def train(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    seed: int = 0,
    data: datasets.ImageData | None = None,
    precisions: Sequence[str] = PRECISIONS,
    stretch_factor: float = 128,
    per_device_batch_size: int = 200,
    calibration_images: int = 1000,
    repeats: int = 15,
    **recipe: float,
) -> Iterator[EpochRecord | PrecisionRecord]:
    """Train LeNet in float32, yielding its epochs; then a row for each precision.

    `recipe` are :func:`d2lpar.lenet_concise.train`'s `global_batch_size`, `lr` and
    `num_epochs`. Inference is data-parallel on the same devices, calibrated with the
    first `calibration_images` training images. INT8 with one scale per tensor follows
    again with an outlier of `stretch_factor` (none if 1), before and after equalising
    (:mod:`d2lpar.studies.equalize_channels`). Raises :class:`SettingError` for settings
    out of range, before anything is trained.
    """
    data = datasets.fashion_mnist() if data is None else data
    state, devices = lenet.start(seed), training.choose(devices, num_devices)
    stretch(state.params, stretch_factor)  # raises now what it would raise later
    _check(precisions, data, per_device_batch_size, calibration_images, repeats)
    yield from lenet_concise.train(devices=devices, data=data, state=state, **recipe)
    y_float32 = predictions(state.params, data.X_test, devices[0])
    task = Task(
        data.X_test, data.y_test, y_float32, data.X_train[:calibration_images],
        devices, per_device_batch_size, repeats,
    )  # fmt: skip
    for precision in precisions:
        yield measure_apart(precision, state.params, task, "trained")
    if stretch_factor > 1:
        stretched = stretch(state.params, stretch_factor)
        outlier = {"stretched": stretched, "equalised": equalize(stretched)}
        for weights, params in outlier.items():
            for precision in [name for name in INT8 if name in precisions]:
                yield measure_apart(precision, params, task, weights)


def _check(
    precisions: Sequence[str],
    data: datasets.ImageData,
    batch_size: int,
    calibration_images: int,
    repeats: int,
) -> None:
    for precision in precisions:
        check_precision(precision)
    training.check_whole("per-device-batch-size", batch_size, len(data.y_test))
    training.check_whole("calibration-images", calibration_images, len(data.y_train))
    training.check_whole("repeats", repeats)
    if calibration_images < batch_size:
        raise SettingError(
            f"calibration-images {calibration_images}: less than a batch of "
            f"{batch_size}; take at least as many"
        )


def measure_apart(
    precision: str, params: Sequence[numpy.ndarray], task: Task, weights: str
) -> PrecisionRecord:
    """:func:`measure` in another process, so that even a crash is a row.

    The process serves the next call, too, and ends after 20 seconds without one. A new
    one replaces a crashed one.
    """
    worker = loky.get_reusable_executor(max_workers=1, timeout=20)
    try:
        return worker.submit(measure, precision, params, task, weights).result()
    except TerminatedWorkerError as error:
        codes = re.findall(r"exit codes of the workers are \{(.*)\}", str(error))
        how = "".join(codes) or "no exit code"
        why = f"MXNet: crashes, and its process with it ({how})"
        return PrecisionRecord(precision, weights, task.batch_size, why)


def measure(
    precision: str,
    params: Sequence[numpy.ndarray],
    task: Task,
    weights: str = "trained",
) -> PrecisionRecord:
    """Infer the test images in one precision: the measured row, or why there is none.

    `params` are :func:`d2lpar.networks.init_lenet`'s, `weights` their name in the row.
    """
    record = PrecisionRecord(precision, weights, task.batch_size)
    X_calibration = datasets.to_float(task.X_calibration)
    try:
        nets = [
            lower(
                gluon_lenet(params, device),
                precision, X_calibration, device, task.batch_size,
            )
            for device in task.devices
        ]  # fmt: skip
        with legacy_semantics():
            return _infer(nets, task, record)
    except mx.base.MXNetError as error:
        # Every pending batch fails now: MXNet would raise its error at whoever waits
        # next, which is another precision.
        for _ in range(1000):
            with contextlib.suppress(mx.base.MXNetError):
                mx.nd.waitall()
                break
        return replace(record, why_not=f"MXNet: {first_line(error)}")


def _infer(
    nets: Sequence[gluon.SymbolBlock], task: Task, record: PrecisionRecord
) -> PrecisionRecord:
    """The record with everything measured. Each device takes every N-th batch.

    The images are on the devices before the clock starts; only full batches are timed.
    """
    X, size = datasets.to_float(task.X), task.batch_size
    batches = [
        mx.nd.array(X[start : start + size], ctx=device)
        for start, device in zip(range(0, len(X), size), itertools.cycle(task.devices))
    ]
    scores = [scores.asnumpy() for scores in _forward(nets, batches)]
    predicted = numpy.concatenate(scores).argmax(axis=1)
    full, images_per_sec = batches[: len(X) // size], []
    for _ in range(WARMUP_PASSES + task.repeats):
        mx.nd.waitall()
        begin = time.perf_counter()
        outputs = _forward(nets, full)
        mx.nd.waitall()
        images_per_sec.append(size * len(full) / (time.perf_counter() - begin))
        del outputs  # kept until the clock was read
    speed = summarize(images_per_sec[WARMUP_PASSES:])
    of_first_device = full[:: len(task.devices)][:PROFILED_BATCHES]
    return replace(
        record,
        test_acc=float((predicted == task.y).mean()),
        agreement=float((predicted == task.y_float32).mean()),
        images_per_sec=speed.median,
        images_per_sec_q1=speed.q1,
        images_per_sec_q3=speed.q3,
        n=speed.n,
        weight_bytes=weight_bytes(nets[0]),
        operator_ms=operator_ms(nets[0], of_first_device),
    )


def _forward(nets: Sequence, batches: Sequence) -> list:
    """The outputs of every batch, on its device, without waiting for them."""
    return [nets[k % len(nets)](X) for k, X in enumerate(batches)]


def operator_ms(net: gluon.SymbolBlock, batches: Sequence[mx.nd.NDArray]) -> dict:
    """Milliseconds of each operator for one batch, the mean over `batches`.

    The slowest comes first. MXNet's profiler runs operators one by one; together they
    may be faster. Call within :func:`~d2lpar.studies.lowering.legacy_semantics`;
    afterwards the network is no longer compiled.
    """
    # Compiled, MXNet fuses many operators into one for the profiler.
    net.hybridize(static_alloc=False, static_shape=False)
    net(batches[0])
    mx.nd.waitall()
    # The profiler writes its file again when the process ends; the folder is gone then.
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        mx.profiler.set_config(
            profile_imperative=True,
            profile_symbolic=True,
            aggregate_stats=True,
            filename=str(Path(folder) / "profile.json"),
        )
        mx.profiler.set_state("run")
        _forward([net], batches)
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        text = mx.profiler.dumps(reset=True, format="json", sort_by="total")
    ms = {
        name: round(row["Total"] / len(batches), 4)
        for name, row in json.loads(text)["Time"]["operator"].items()
        if name != "DeleteVariable"  # frees memory, in the engine's own time
    }
    return dict(sorted(ms.items(), key=lambda item: -item[1]))


def gluon_lenet(
    params: Sequence[numpy.ndarray], device: mx.Context
) -> gluon.HybridBlock:
    """LeNet in Gluon on a device, with parameters from scratch."""
    net, _, _ = lenet_concise.build(params, [device], lr=1)  # which is not trained
    return net


def predictions(
    params: Sequence[numpy.ndarray], X: numpy.ndarray, device: mx.Context
) -> numpy.ndarray:
    """Classes (n,) that the network from scratch predicts for X uint8 (n, 28, 28)."""
    params = [np.array(p, ctx=device) for p in params]
    parts = [X[start : start + 1000] for start in range(0, len(X), 1000)]
    scores = [
        networks.lenet(np.array(datasets.to_float(part), ctx=device), params).asnumpy()
        for part in parts
    ]
    return numpy.concatenate(scores).argmax(axis=1)


WORKLOAD = training.Workload(train)

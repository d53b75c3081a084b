"""LeNet's inference in float32, bfloat16, float16 and INT8: accuracy, speed, bytes.

A network is trained in float32 and then lowered, *after* training. bfloat16 and float16
are casts (``mx.contrib.amp``). INT8 replaces operators by integer ones
(``mx.contrib.quantization``), for which each tensor needs a range, what the 256 steps
stand for: calibration runs some training images to learn it once, "naive" takes the
smallest and largest value, "entropy" cuts off outliers where that changes the
distribution least. Without calibration ("none") every batch measures its own range,
which takes most of the time that INT8 saved.

Channels are as they are, 20 and 50: filled up with zeros to 32 and 64, for whole
vectors, INT8 was slower (30 thousand images/s against 39 on one thread of an AMD EPYC);
float32 gained with 24 and 56 (16 against 11).

What neither the hardware nor the build can do is a row that says so. It may end the
process (MXNet 1.9.1, scales by channel without calibration); so :func:`train` measures
in a process of its own.

Source: seed 002, "Low Precision Inference on GPU" (T4: 8.1 TFLOPS float32, 130 TOPS
INT8).
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import loky
import numpy
from loky.process_executor import TerminatedWorkerError

from d2lpar import datasets, lenet, lenet_concise, networks, training
from d2lpar._mxnet import gluon, mx, np
from d2lpar.errors import SettingError, first_line
from d2lpar.records.kinds import INT8, PRECISIONS, EpochRecord, PrecisionRecord
from d2lpar.records.summary import summarize
from d2lpar.studies.equalize_channels import equalize, stretch
from d2lpar.studies.gluon_to_symbol import legacy_semantics, quiet, to_symbolic

WARMUP_PASSES = 2  # the first also gives the predictions; INT8 packs its weights in it
PROFILED_BATCHES = 5


def lower(
    net: gluon.HybridBlock,
    precision: str,
    X_calibration: numpy.ndarray,
    device: mx.Context,
    batch_size: int,
) -> gluon.SymbolBlock:
    """`net` for inference in one of :data:`~d2lpar.records.kinds.PRECISIONS`, compiled.

    `X_calibration` is float32 (n, ...), n >= `batch_size`, shaped as the inputs; only
    "naive" and "entropy" look at more than one of them. The result takes and gives
    ``mx.nd`` arrays float32, and is to be called within
    :func:`~d2lpar.studies.gluon_to_symbol.legacy_semantics`. INT8 has signed or unsigned bytes,
    whichever the range of a tensor allows ("auto"). Raises :class:`SettingError` for
    another name, and MXNet's own error for what the device or the build cannot do,
    sometimes with the first batch only.
    """
    check_precision(precision)
    symbolic = to_symbolic(net, X_calibration[:1], device)
    with legacy_semantics(), quiet():
        if precision.startswith("int8"):
            lowered = _quantized(symbolic, precision, X_calibration, device, batch_size)
        elif precision != "float32":
            # MXNet does not load it by itself.
            amp = importlib.import_module("mxnet.contrib.amp")

            symbolic.hybridize()
            symbolic(mx.nd.array(X_calibration[:1], ctx=device))
            lowered = amp.convert_hybrid_block(
                symbolic, precision, ctx=device, cast_optional_params=True
            )
        else:
            lowered = symbolic
        lowered.hybridize(static_alloc=True, static_shape=True)
    return lowered


def _quantized(
    symbolic: gluon.SymbolBlock,
    precision: str,
    X_calibration: numpy.ndarray,
    device: mx.Context,
    batch_size: int,
) -> gluon.SymbolBlock:
    calibration = precision.rpartition("-")[2]
    granularity = "channel-wise" if "channels" in precision else "tensor-wise"
    # oneDNN's integer operators are put in for mx.cpu(0) alone, by name. Quantized
    # there, the network then works on any context.
    place = mx.cpu() if device.device_type == "cpu" else device
    symbolic.collect_params().reset_ctx(place)
    # An input that comes without a label still has to come in a list.
    full = len(X_calibration) - len(X_calibration) % batch_size
    batches = [
        [mx.nd.array(X_calibration[start : start + batch_size], ctx=place)]
        for start in range(0, full, batch_size)
    ]
    shape = mx.io.DataDesc("data", (batch_size, *X_calibration.shape[1:]))
    calibrated = {"calib_data": batches}
    data = {"data_shapes": [shape]} if calibration == "none" else calibrated
    lowered = mx.contrib.quantization.quantize_net_v2(
        symbolic,
        quantized_dtype="auto",
        quantize_mode="smart",
        quantize_granularity=granularity,
        calib_mode=calibration,
        ctx=place,
        **data,
    )
    lowered.collect_params().reset_ctx(device)
    return lowered


def weight_bytes(net: gluon.Block) -> int:
    """Bytes of a network's parameters as it keeps them, of one replica.

    Not all of INT8 is a quarter of float32: oneDNN's integer convolution keeps its
    weights in float32 and rounds them when it first runs; a dense layer keeps bytes,
    or, with scales by channel, float32 too.
    """
    return sum(
        p.list_data()[0].size * numpy.dtype(p.dtype).itemsize
        for p in net.collect_params().values()
    )


def operator_ms(net: gluon.SymbolBlock, batches: Sequence[mx.nd.NDArray]) -> dict:
    """Milliseconds of each operator for one batch, the mean over `batches`, slowest
    first.

    By MXNet's profiler, operators run one by one: together they may be faster. To be
    called within :func:`~d2lpar.studies.gluon_to_symbol.legacy_semantics`; the network is not compiled
    (no static memory) afterwards.
    """
    # Compiled, MXNet runs many operators as one and the profiler sees one.
    net.hybridize(static_alloc=False, static_shape=False)
    net(batches[0])
    mx.nd.waitall()
    # The profiler replaces its file, and does so again when the process ends: a file of
    # its own, in a folder that is gone by then.
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        mx.profiler.set_config(
            profile_imperative=True,
            profile_symbolic=True,
            aggregate_stats=True,
            filename=str(Path(folder) / "profile.json"),
        )
        mx.profiler.set_state("run")
        for X in batches:
            net(X)
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        text = mx.profiler.dumps(reset=True, format="json", sort_by="total")
    stats = json.loads(text)
    times = stats["Time"]["operator"]
    ms = {
        name: round(row["Total"] / len(batches), 4)
        for name, row in times.items()
        if name != "DeleteVariable"  # gives memory back, in the engine's own time
    }
    return dict(sorted(ms.items(), key=lambda item: -item[1]))


def measure(
    precision: str,
    params: Sequence[numpy.ndarray],
    X: numpy.ndarray,
    y: numpy.ndarray,
    y_float32: numpy.ndarray,
    X_calibration: numpy.ndarray,
    devices: Sequence[mx.Context],
    batch_size: int,
    repeats: int,
    weights: str = "trained",
) -> PrecisionRecord:
    """Infer the test images in one precision; what that measured, or why it could not.

    `params` are :func:`d2lpar.networks.init_lenet`'s; `X` and `X_calibration` uint8
    (n, 28, 28), `y` and `y_float32` (n,) the classes and those that float32 predicts.
    Each device has a network of its own and takes every N-th batch; the images are on
    the devices before the clock starts. `repeats` passes over the full batches are
    timed, synchronised, after a warm-up.
    """
    row = PrecisionRecord(precision, weights, batch_size)
    X, X_calibration = datasets.to_float(X), datasets.to_float(X_calibration)
    try:
        nets = [
            lower(block(params, device), precision, X_calibration, device, batch_size)
            for device in devices
        ]
        with legacy_semantics():
            starts = range(0, len(X), batch_size)
            batches = [
                mx.nd.array(X[start : start + batch_size], ctx=device)
                for start, device in zip(starts, itertools.cycle(devices))
            ]
            scores = [out.asnumpy() for out in _infer(nets, batches)]
            full = batches[: len(X) // batch_size]
            speed = summarize(_images_per_sec(nets, full, repeats))
            own = full[:: len(devices)][:PROFILED_BATCHES]
            ms = operator_ms(nets[0], own)
    except mx.base.MXNetError as error:
        _forget_errors()
        return replace(row, why_not=f"MXNet: {first_line(error)}")
    predicted = numpy.concatenate(scores).argmax(axis=1)
    return replace(
        row,
        test_acc=float((predicted == y).mean()),
        agreement=float((predicted == y_float32).mean()),
        images_per_sec=speed.median,
        images_per_sec_q1=speed.q1,
        images_per_sec_q3=speed.q3,
        n=speed.n,
        weight_bytes=weight_bytes(nets[0]),
        operator_ms=ms,
    )


def _forget_errors() -> None:
    """Let all batches fail that are still on their way.

    MXNet gives an error to whoever waits next, which would be another precision.
    """
    for _ in range(1000):
        try:
            mx.nd.waitall()
        except mx.base.MXNetError:
            continue
        return


def block(params: Sequence[numpy.ndarray], device: mx.Context) -> gluon.HybridBlock:
    """LeNet in Gluon on a device, with :func:`d2lpar.networks.init_lenet`'s parameters."""
    net = networks.LeNet()
    net.initialize(ctx=device)
    net(np.zeros((1, 1, 28, 28), ctx=device))  # Gluon infers the shapes now
    networks.set_params(net, params)
    return net


def _infer(nets: Sequence, batches: Sequence) -> list:
    """The outputs of every batch, on its device; nothing waits."""
    return [nets[k % len(nets)](X) for k, X in enumerate(batches)]


def _images_per_sec(nets: Sequence, batches: Sequence, repeats: int) -> list[float]:
    images, samples = sum(X.shape[0] for X in batches), []
    for k in range(WARMUP_PASSES + repeats):
        mx.nd.waitall()
        begin = time.perf_counter()
        outputs = _infer(nets, batches)
        mx.nd.waitall()
        seconds = time.perf_counter() - begin
        del outputs  # kept until the clock was read
        if k >= WARMUP_PASSES:
            samples.append(images / seconds)
    return samples


def measure_apart(precision: str, **settings) -> PrecisionRecord:
    """:func:`measure` in another process: a precision that crashes is a row, too.

    The process is kept for the next call, and ends by itself when there is none for 20
    seconds. A new one takes the place of one that crashed.
    """
    worker = loky.get_reusable_executor(max_workers=1, timeout=20)
    try:
        return worker.submit(measure, precision, **settings).result()
    except TerminatedWorkerError as error:
        codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
        how = codes[1] if codes else "no exit code"
        return PrecisionRecord(
            precision,
            settings.get("weights", "trained"),
            settings["batch_size"],
            why_not=f"MXNet: crashes, and its process with it ({how})",
        )


def train(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    global_batch_size: int = 256,
    lr: float = 0.2,
    num_epochs: int = 10,
    seed: int = 0,
    data: datasets.ImageData | None = None,
    precisions: Sequence[str] = PRECISIONS,
    stretch_factor: float = 128,
    per_device_batch_size: int = 200,
    calibration_images: int = 1000,
    repeats: int = 15,
) -> Iterator[EpochRecord | PrecisionRecord]:
    """Train LeNet in float32, yielding its epochs; then a row for each precision.

    The training is :func:`d2lpar.lenet_concise.train`'s, with its arguments and errors.
    Inference is data-parallel on the same devices, `per_device_batch_size` images at a
    time, calibrated by the first `calibration_images` of the training images. After the
    `precisions` come those of INT8 with one scale a tensor once more, on weights that
    :func:`~d2lpar.studies.equalize_channels.stretch` has given an outlier of `stretch_factor` (1: of
    which there is none, nor these rows), and that
    :func:`~d2lpar.studies.equalize_channels.equalize` has mended. Raises :class:`SettingError` for
    settings that cannot be, before anything is trained.
    """
    data = datasets.fashion_mnist() if data is None else data
    for precision in precisions:
        check_precision(precision)
    for name, value, most in (
        ("per-device-batch-size", per_device_batch_size, len(data.y_test)),
        ("calibration-images", calibration_images, len(data.y_train)),
        ("repeats", repeats, None),
    ):
        training.check_whole(name, value, most)
    if calibration_images < per_device_batch_size:
        raise SettingError(
            f"calibration-images {calibration_images}: less than a batch of "
            f"{per_device_batch_size}; take at least as many"
        )
    state = lenet.start(seed)
    stretch(state.params, stretch_factor)  # it refuses now what it would refuse later
    devices = training.choose(devices, num_devices)
    yield from lenet_concise.train(
        devices=devices,
        global_batch_size=global_batch_size,
        lr=lr,
        num_epochs=num_epochs,
        data=data,
        state=state,
    )
    stretched = stretch(state.params, stretch_factor)
    jobs = [(precision, "trained", state.params) for precision in precisions]
    if stretch_factor > 1:
        jobs += [(p, "stretched", stretched) for p in INT8 if p in precisions]
        jobs += [(p, "equalised", equalize(stretched)) for p in INT8 if p in precisions]
    y_float32 = predictions(state.params, data.X_test, devices[0])
    for precision, weights, params in jobs:
        yield measure_apart(
            precision,
            params=params,
            X=data.X_test,
            y=data.y_test,
            y_float32=y_float32,
            X_calibration=data.X_train[:calibration_images],
            devices=devices,
            batch_size=per_device_batch_size,
            repeats=repeats,
            weights=weights,
        )


def predictions(
    params: Sequence[numpy.ndarray], X: numpy.ndarray, device: mx.Context
) -> numpy.ndarray:
    """Classes (n,) that the network from scratch gives images uint8 (n, 28, 28)."""
    params = [np.array(p, ctx=device) for p in params]
    parts = [X[start : start + 1000] for start in range(0, len(X), 1000)]
    scores = [
        networks.lenet(np.array(datasets.to_float(part), ctx=device), params).asnumpy()
        for part in parts
    ]
    return numpy.concatenate(scores).argmax(axis=1)


def check_precision(precision: str) -> None:
    """Raise :class:`SettingError` for a name that is none of PRECISIONS."""
    if precision not in PRECISIONS:
        raise SettingError(
            f"precision {precision!r}: write one of {', '.join(PRECISIONS)}"
        )


WORKLOAD = training.Workload(train)

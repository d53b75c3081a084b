"""A trained Gluon network lowered to bfloat16, float16 or INT8 for inference.

bfloat16 and float16 are casts (``mx.contrib.amp``). INT8 replaces operators by integer
ones (``mx.contrib.quantization``) and needs the range that the 256 steps of each tensor
cover. Calibration learns the ranges from some training images beforehand: "naive" takes
the smallest and the largest value, "entropy" cuts off outliers where that changes the
distribution least. Without calibration ("none") every batch measures its own ranges,
which takes most of the time that INT8 saves.
"""

from __future__ import annotations

import importlib

import numpy

from d2lpar._mxnet import gluon, mx
from d2lpar.errors import SettingError
from d2lpar.records.kinds import PRECISIONS
from d2lpar.studies.gluon_to_symbol import (
    ignore_dtype_warning,
    legacy_semantics,
    to_symbol_block,
)


def check_precision(precision: str) -> None:
    """Raise :class:`SettingError` unless the precision is one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise SettingError(
            f"precision {precision!r}: write one of {', '.join(PRECISIONS)}"
        )


def lower(
    net: gluon.HybridBlock,
    precision: str,
    X_calibration: numpy.ndarray,
    device: mx.Context,
    batch_size: int,
) -> gluon.SymbolBlock:
    """`net` for inference in one of :data:`~d2lpar.records.kinds.PRECISIONS`, compiled.

    `X_calibration` are inputs float32 (n, ...), n >= `batch_size`; only "naive" and
    "entropy" look at more than one of them. The result takes and returns float32
    ``mx.nd`` arrays, within :func:`~d2lpar.studies.gluon_to_symbol.legacy_semantics`.
    Raises :class:`SettingError` for another precision, and MXNetError, sometimes only
    with the first batch, for what the device or the build does not support.
    """
    check_precision(precision)
    block = to_symbol_block(net, X_calibration[:1], device)
    with legacy_semantics(), ignore_dtype_warning():
        if precision.startswith("int8"):
            block = _quantized(block, precision, X_calibration, device, batch_size)
        elif precision != "float32":
            amp = importlib.import_module("mxnet.contrib.amp")  # not imported by MXNet
            block.hybridize()
            block(mx.nd.array(X_calibration[:1], ctx=device))
            block = amp.convert_hybrid_block(
                block, precision, ctx=device, cast_optional_params=True
            )
        block.hybridize(static_alloc=True, static_shape=True)
    return block


def _quantized(
    block: gluon.SymbolBlock,
    precision: str,
    X_calibration: numpy.ndarray,
    device: mx.Context,
    batch_size: int,
) -> gluon.SymbolBlock:
    """The block in INT8; each tensor's range decides whether its bytes are signed."""
    calibration = precision.rpartition("-")[2]
    per_channel = precision.startswith("int8-channels")
    # MXNet inserts oneDNN's integer operators for mx.cpu(0) only. Quantized there, the
    # network works on any context.
    place = mx.cpu() if device.device_type == "cpu" else device
    block.collect_params().reset_ctx(place)
    # An input without a label must still come in a list.
    full = len(X_calibration) - len(X_calibration) % batch_size
    batches = [
        [mx.nd.array(X_calibration[start : start + batch_size], ctx=place)]
        for start in range(0, full, batch_size)
    ]
    shape = mx.io.DataDesc("data", (batch_size, *X_calibration.shape[1:]))
    data = {"calib_data": batches}
    if calibration == "none":
        data = {"data_shapes": [shape]}
    quantized = mx.contrib.quantization.quantize_net_v2(
        block,
        quantized_dtype="auto",
        quantize_mode="smart",
        quantize_granularity="channel-wise" if per_channel else "tensor-wise",
        calib_mode=calibration,
        ctx=place,
        **data,
    )
    quantized.collect_params().reset_ctx(device)
    return quantized


def weight_bytes(net: gluon.Block) -> int:
    """Bytes of one replica's parameters, as the network keeps them.

    INT8 does not take a quarter of float32: oneDNN's integer convolution keeps its
    weights in float32 and rounds them when it first runs. A dense layer keeps bytes,
    but float32 with one scale per channel.
    """
    return sum(
        p.list_data()[0].size * numpy.dtype(p.dtype).itemsize
        for p in net.collect_params().values()
    )

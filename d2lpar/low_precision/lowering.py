"""A trained Gluon network lowered to bfloat16, float16 or INT8 for inference.

For INT8 "naive" and "entropy" learn tensors' ranges, "none" measures every batch's.
On CPUs "channels" changes dense layers only: with learnt ranges MXNet's convolutions
have one scale per output channel for their weights in any case.
"""

from __future__ import annotations

import ctypes
import tempfile

import numpy

from d2lpar._mxnet import cast_net, gluon, lowering_semantics, mx, quantize_net

# MXNet refuses "entropy" without SciPy's stats, of which it uses nothing.
mx.contrib.quantization.stats = "not used"
_c_array = mx.contrib.quantization.c_array


def _of_numbers(ctype: type, values: list):
    """Give MXNet the ranges as numbers: NumPy 2.4 turns no array into a C float."""
    if ctype is ctypes.c_float:
        values = [numpy.asarray(value).item() for value in values]
    return _c_array(ctype, values)


mx.contrib.quantization.c_array = _of_numbers


def lower(
    net: gluon.HybridBlock,
    precision: str,
    X_calibration: numpy.ndarray,
    device: mx.Context,
    batch_size: int,
) -> gluon.SymbolBlock:
    """Compile `net` for inference; MXNetError, maybe only in use, if unsupported.

    It is hybridized, and was called: its graph is known.
    """
    block = to_symbol_block(net, device)
    with lowering_semantics():
        if precision.startswith("int8"):
            block = _quantized(block, precision, X_calibration, device, batch_size)
        elif precision != "float32":
            block = cast_net(block, precision, device)
        block.hybridize(static_alloc=True, static_shape=True)
    return block


def to_symbol_block(net: gluon.HybridBlock, device: mx.Context) -> gluon.SymbolBlock:
    """Return the graph of `net`, on `device`, as a block with copied parameters."""
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        net.export(f"{folder}/net")
        files = f"{folder}/net-symbol.json", ["data"], f"{folder}/net-0000.params"
        # MXNet 1 has saved the parameters with NumPy shapes.
        with lowering_semantics(), mx.util.np_shape(True):
            return gluon.SymbolBlock.imports(*files, device)


def _quantized(
    block: gluon.SymbolBlock,
    precision: str,
    X_calibration: numpy.ndarray,
    device: mx.Context,
    batch_size: int,
) -> gluon.SymbolBlock:
    """Return the block in INT8, on a CPU with uint8 where a tensor is not negative."""
    per_channel = precision.startswith("int8-channels")
    # MXNet inserts oneDNN's integer operators for mx.cpu(0) only. Quantized there, the
    # network works on any context.
    on_cpu = device.device_type == "cpu"
    place = mx.cpu() if on_cpu else device
    _move(block, place)
    full = range(0, len(X_calibration) - batch_size + 1, batch_size)
    # `place`: where MXNet makes the arrays with which it tries the network.
    with place:
        quantized = quantize_net(
            block,
            [X_calibration[start : start + batch_size] for start in full],
            quantized_dtype="auto" if on_cpu else "int8",
            quantize_mode="smart",
            quantize_granularity="channel-wise" if per_channel else "tensor-wise",
            calib_mode=precision.rpartition("-")[2],
            ctx=place,
        )
    _move(quantized, device)
    return quantized


def _move(block: gluon.Block, device: mx.Context) -> None:
    for parameter in block.collect_params().values():
        parameter.reset_ctx(device)


def weight_bytes(net: gluon.Block) -> int:
    """Return bytes of one replica's parameters; oneDNN's convolutions keep float32."""
    return sum(
        p.list_data()[0].size * numpy.dtype(p.dtype).itemsize
        for p in net.collect_params().values()
    )

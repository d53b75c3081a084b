"""A trained Gluon network lowered to bfloat16, float16 or INT8 for inference.

bfloat16 and float16 are casts (``mx.contrib.amp``). INT8 replaces operators by integer
ones (``mx.contrib.quantization``) and needs the range that the integers of each tensor
cover. Calibration learns the ranges from some training images beforehand: "naive" takes
the smallest and the largest value, "entropy" cuts off outliers where that changes the
distribution least. Without calibration ("none") every batch measures its own ranges,
which takes most of the time that INT8 saves.

Both are older than ``npx.set_np()``, under which d2lpar works: they call the network
with ``mx.nd`` arrays, which a block of NumPy arrays refuses with a TypeError, and fail
with ``'NoneType' object has no attribute 'provide_data'``. The graph is the way out
(:func:`to_symbol_block`): convolution, pooling, activation and dense layers are the
same operators under both semantics (``npx.convolution`` *is* ``Convolution``).
"""

from __future__ import annotations

import ctypes
import importlib
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy

from d2lpar._mxnet import gluon, mx, np

# MXNet refuses "entropy" without SciPy's stats, of which it uses nothing.
mx.contrib.quantization.stats = "not used"


@contextmanager
def legacy_semantics() -> Iterator[None]:
    """Work on ``mx.nd`` arrays within; restore the semantics afterwards.

    Semantics belong to a thread: others are not affected. The warning of every new
    SymbolBlock, that its input has no type yet, is silenced.
    """
    # Arrays first: MXNet allows NumPy arrays with NumPy shapes only.
    with mx.util.np_array(False), mx.util.np_shape(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Cannot decide type")
        yield


@contextmanager
def _ranges_as_numbers() -> Iterator[None]:
    """Give MXNet's C library the calibrated ranges as numbers within.

    Calibration keeps each as an array of one element; since NumPy 2.4, ctypes cannot
    take that for a C float ("only 0-dimensional arrays can be converted").
    """
    quantization = mx.contrib.quantization
    c_array = quantization.c_array

    def of_numbers(ctype: type, values: list):
        if ctype is ctypes.c_float:
            values = [numpy.asarray(value).item() for value in values]
        return c_array(ctype, values)

    quantization.c_array = of_numbers
    try:
        yield
    finally:
        quantization.c_array = c_array


def to_symbol_block(
    net: gluon.HybridBlock, example: numpy.ndarray, device: mx.Context
) -> gluon.SymbolBlock:
    """Return the network on ``mx.nd`` arrays, its parameters copied to `device`.

    `net` is initialised and built from layers of gluon.nn, whose operators exist under
    both semantics; it is hybridized, but otherwise left as it is. `example` is one
    input, float32 (1, ...). Call the result within :func:`legacy_semantics`; it
    computes the same bits.
    """
    net.hybridize()
    params = net.collect_params()
    net(np.array(example, ctx=params.list_ctx()[0]))  # traces the graph
    # MXNet refuses to load a parameter file that was exported under other semantics.
    values = {name: p.list_data()[0].asnumpy() for name, p in params.items()}
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        net.export(str(Path(folder) / "net"))
        graph = Path(folder, "net-symbol.json").read_text(encoding="utf-8")
    with legacy_semantics():
        block = gluon.SymbolBlock(mx.sym.load_json(graph), mx.sym.var("data"))
        arrays = {name: mx.nd.array(value) for name, value in values.items()}
        block.collect_params().load_dict(arrays, ctx=device)
    return block


def lower(
    net: gluon.HybridBlock,
    precision: str,
    X_calibration: numpy.ndarray,
    device: mx.Context,
    batch_size: int,
) -> gluon.SymbolBlock:
    """Compile `net` for inference in one of :data:`~d2lpar.records.kinds.PRECISIONS`.

    `X_calibration` are inputs float32 (n, ...), n >= `batch_size`; only "naive" and
    "entropy" look at more than one of them. The result takes and returns float32
    ``mx.nd`` arrays, within :func:`legacy_semantics`. Raises MXNetError, sometimes only
    with the first batch, for what the device or the build does not support.
    """
    block = to_symbol_block(net, X_calibration[:1], device)
    with legacy_semantics():
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
    """Return the block in INT8, on a CPU with uint8 where a tensor is not negative."""
    calibration = precision.rpartition("-")[2]
    per_channel = precision.startswith("int8-channels")
    # MXNet inserts oneDNN's integer operators for mx.cpu(0) only. Quantized there, the
    # network works on any context.
    on_cpu = device.device_type == "cpu"
    place = mx.cpu() if on_cpu else device
    block.collect_params().reset_ctx(place)
    if calibration == "none":
        shape = mx.io.DataDesc("data", (batch_size, *X_calibration.shape[1:]))
        data = {"data_shapes": [shape]}
    else:  # an input without a label must still come in a list
        full = len(X_calibration) - len(X_calibration) % batch_size
        parts = (X_calibration[k : k + batch_size] for k in range(0, full, batch_size))
        data = {"calib_data": [[mx.nd.array(part, ctx=place)] for part in parts]}
    # `place`: where MXNet makes the arrays with which it tries the network.
    with place, _ranges_as_numbers():
        quantized = mx.contrib.quantization.quantize_net_v2(
            block,
            quantized_dtype="auto" if on_cpu else "int8",
            quantize_mode="smart",
            quantize_granularity="channel-wise" if per_channel else "tensor-wise",
            calib_mode=calibration,
            ctx=place,
            **data,
        )
    quantized.collect_params().reset_ctx(device)
    return quantized


def weight_bytes(net: gluon.Block) -> int:
    """Return the bytes of one replica's parameters, as the network keeps them.

    INT8 does not take a quarter of float32: oneDNN's integer convolution keeps its
    weights in float32 and rounds them when it first runs.
    """
    return sum(
        p.list_data()[0].size * numpy.dtype(p.dtype).itemsize
        for p in net.collect_params().values()
    )

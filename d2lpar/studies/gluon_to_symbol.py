"""From a Gluon block of NumPy arrays to the legacy Symbol that quantization needs.

``mx.contrib.quantization`` is older than ``npx.set_np()``, under which d2lpar works: it
calls the block with ``mx.nd`` arrays. A block of NumPy arrays refuses those with a
TypeError; ``quantize_net_v2`` takes that for one input too many, removes the only one,
and fails with ``'NoneType' object has no attribute 'provide_data'``.

The graph is the way out. Convolution, pooling, activation and dense layers are the same
operators under both semantics (``npx.convolution`` *is* ``Convolution``), so:

1. under NumPy semantics, run the block once, hybridized, and export its graph;
2. under legacy semantics (:func:`legacy_semantics`) load the graph as a Symbol;
3. copy the parameters into new ``mx.nd`` arrays through the host, because MXNet refuses
   to load a parameter file that was exported under other semantics.

The result computes the same bits and must be called under legacy semantics.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy

from d2lpar._mxnet import gluon, mx, np
from d2lpar.errors import D2lparError


class ConversionError(D2lparError, ValueError):
    """A network has an operator that exists under NumPy semantics only."""


@contextmanager
def legacy_semantics() -> Iterator[None]:
    """Work on ``mx.nd`` arrays within; restore the semantics afterwards.

    Semantics belong to a thread: others are not affected.
    """
    # Arrays first: MXNet allows NumPy arrays with NumPy shapes only.
    with mx.util.np_array(False), mx.util.np_shape(False):
        yield


def to_symbol_block(
    net: gluon.HybridBlock, example: numpy.ndarray, device: mx.Context
) -> gluon.SymbolBlock:
    """The same network on ``mx.nd`` arrays, with a copy of its parameters on `device`.

    `net` has one input and one output and is initialised; it is hybridized, but
    otherwise left as it is. `example` is one input, float32 (1, ...). Call the result
    within :func:`legacy_semantics`. Raises :class:`ConversionError` for an operator
    that exists under NumPy semantics only.
    """
    net.hybridize()
    params = net.collect_params()
    net(np.array(example, ctx=params.list_ctx()[0]))  # traces the graph
    values = {name: p.list_data()[0].asnumpy() for name, p in params.items()}
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        net.export(str(Path(folder) / "net"))
        path = Path(folder) / "net-symbol.json"
        _check_operators(json.loads(path.read_text(encoding="utf-8")))
        with legacy_semantics():
            graph = mx.sym.load(str(path))
            with ignore_dtype_warning():
                block = gluon.SymbolBlock(graph, mx.sym.var("data"))
            arrays = {name: mx.nd.array(value) for name, value in values.items()}
            block.collect_params().load_dict(arrays, ctx=device)
    return block


@contextmanager
def ignore_dtype_warning() -> Iterator[None]:
    """Silence the warning of every SymbolBlock: its input has no type yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Cannot decide type")
        yield


def _check_operators(graph: dict) -> None:
    for node in graph["nodes"]:
        if node["op"].startswith(("_np_", "_npi_", "_npx_")):
            raise ConversionError(
                f"{node['name']}: the operator {node['op']} exists under NumPy "
                "semantics only; build the network from layers of gluon.nn"
            )

"""From a Gluon block of NumPy arrays to the symbolic form that quantization needs.

``mx.contrib.quantization`` is older than ``npx.set_np()``, under which d2lpar works: it
calls the block with ``mx.nd`` arrays. A block of NumPy arrays refuses those with a
TypeError; ``quantize_net_v2`` takes that for one input too many, removes the only one,
and ends in ``'NoneType' object has no attribute 'provide_data'``.

The way out is the graph. Convolution, pooling, activation and dense layers are the same
operators in both worlds (``npx.convolution`` *is* ``Convolution``), so:

1. under NumPy semantics, run the block once, hybridized, and export its graph;
2. without them (:func:`legacy_semantics`) load the graph as a Symbol, and
3. give it the parameters as new ``mx.nd`` arrays, by way of the host: MXNet refuses to
   load an exported parameter file in another semantics than its own.

The result computes the same, bit for bit, and is used within the same scope. A block
with operators that only NumPy semantics have (``_np_...``, ``_npi_...``) is refused by
name: quantization does not know them.
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
    """A network holds an operator that the symbolic form does not have."""


@contextmanager
def legacy_semantics() -> Iterator[None]:
    """Work on ``mx.nd`` arrays within; what was before comes back, also on an error.

    Semantics belong to a thread: others are not touched. Arrays first, then shapes:
    MXNet allows NumPy arrays with NumPy shapes only.
    """
    with mx.util.np_array(False), mx.util.np_shape(False):
        yield


def to_symbolic(
    net: gluon.HybridBlock, example: numpy.ndarray, device: mx.Context
) -> gluon.SymbolBlock:
    """The same network on ``mx.nd`` arrays, with a copy of its parameters on `device`.

    `net` has one input and one output and is initialised; `example` is one input,
    float32 (1, ...). To be used within :func:`legacy_semantics`; the original block is
    as it was, but hybridized. Raises :class:`ConversionError` for an operator that
    NumPy semantics alone have.
    """
    net.hybridize()
    net(np.array(example, ctx=net.collect_params().list_ctx()[0]))  # traces the graph
    values = {
        name: p.list_data()[0].asnumpy() for name, p in net.collect_params().items()
    }
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        net.export(str(Path(folder) / "net"))
        path = Path(folder) / "net-symbol.json"
        _check_operators(json.loads(path.read_text(encoding="utf-8")))
        with legacy_semantics():
            graph = mx.sym.load(str(path))
            with quiet():
                symbolic = gluon.SymbolBlock(graph, mx.sym.var("data"))
            arrays = {name: mx.nd.array(value) for name, value in values.items()}
            symbolic.collect_params().load_dict(arrays, ctx=device)
    return symbolic


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning that every SymbolBlock gives: its input has no type yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Cannot decide type")
        yield


def _check_operators(graph: dict) -> None:
    for node in graph["nodes"]:
        if node["op"].startswith(("_np_", "_npi_", "_npx_")):
            raise ConversionError(
                f"{node['name']}: {node['op']} is an operator of NumPy semantics "
                "alone; build the network of layers that gluon.nn has"
            )

"""The one place that prepares the environment and imports MXNet, 1.9.1 or 2.

Everything else writes ``from d2lpar._mxnet import mx, np, npx, autograd, gluon``.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy

from d2lpar._numpy_names import restore_numpy_names, write_numbers_plainly
from d2lpar.errors import MXNetMissingError, first_line
from d2lpar.machine.builds import check_installed, install_command, missing_libraries
from d2lpar.machine.host import ENGINE_DEFAULTS, check_environment, set_defaults


def _prepare() -> None:
    """Set MXNet's variables; raise an error unless one complete build is installed."""
    check_environment()
    build = check_installed()
    set_defaults(ENGINE_DEFAULTS)
    if missing := missing_libraries(build):
        raise MXNetMissingError(
            f"{build} cannot be loaded without {', '.join(missing)}: "
            f"{install_command('cu112')} (libcuda.so.1: install the driver); or use "
            f"the CPU build: pip uninstall {build} && {install_command('cpu')}"
        )


def _import():
    if "mxnet" not in sys.modules:
        _prepare()
    elif "MXNET_CPU_TEMP_COPY" not in os.environ:
        warnings.warn(
            "mxnet was imported before d2lpar, so MXNET_CPU_TEMP_COPY=256 and "
            "OMP_NUM_THREADS come too late: CPU contexts will wait for each other. "
            "Import d2lpar first, or set both before Python starts.",
            stacklevel=2,
        )
    restore_numpy_names()
    try:
        with warnings.catch_warnings():
            # distutils and others warn about MXNet's own code.
            warnings.simplefilter("ignore")
            import mxnet
    except OSError as error:
        raise MXNetMissingError(
            f"MXNet cannot be loaded ({first_line(error)}): install the library that "
            "it names, as by apt-get install libgomp1 libquadmath0, or reinstall MXNet "
            "(docs/installing.md)"
        ) from None
    write_numbers_plainly()
    mxnet.npx.set_np()
    return mxnet


mx = _import()
np, npx, autograd, gluon = mx.np, mx.npx, mx.autograd, mx.gluon

# All that differs between MXNet 1 and 2

Context = type(mx.cpu(0))  # in MXNet 2 mx.Context is a function, and this mx.Device
IS_MXNET_2 = hasattr(mx, "device")


def _allocate_unheard() -> None:
    """Make the first arrays silently: MXNet 2.0.0b1 prints lines about them."""
    standard_error = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            for context in (mx.cpu(0), mx.cpu_pinned(0)):
                np.zeros(1, ctx=context).wait_to_read()
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


if IS_MXNET_2:
    _allocate_unheard()


def gluon_block(cls: Any) -> Any:
    """Make a Gluon block compute ``cls.compute(F, *inputs, **parameters)``.

    `F` has ``np`` and ``npx``. MXNet 1 calls it as ``hybrid_forward``, 2 as
    ``forward``.
    """
    if not IS_MXNET_2:
        cls.hybrid_forward = cls.compute
        return cls

    def forward(self, *inputs):
        parameters = {
            name: p.data(inputs[0].ctx) for name, p in self._reg_params.items() if p
        }
        return self.compute(mx, *inputs, **parameters)

    cls.forward = forward
    return cls


def new_parameter(owner: Any, name: str, shape: tuple[int, ...]) -> None:
    """Add a parameter that is not trained to a block, as its attribute `name`."""
    if IS_MXNET_2:
        setattr(owner, name, gluon.Parameter(name, shape=shape, grad_req="null"))
    else:
        with owner.name_scope():
            setattr(owner, name, owner.params.get(name, shape=shape, grad_req="null"))


def set_shapes(net: Any) -> None:
    """Set the shapes of convolutions' weights, which MXNet 2 leaves unknown."""
    for layer in net if IS_MXNET_2 else ():
        if channels := getattr(layer, "_in_channels", 0):
            shape = layer.weight.shape
            layer.weight.shape = tuple(channels if n == -1 else n for n in shape)


@contextmanager
def lowering_semantics() -> Iterator[None]:
    """Return a context in which networks are lowered, and called on mx.nd arrays.

    SymbolBlock's warning that its input has no type is silenced.
    """
    # Arrays first: MXNet allows NumPy arrays with NumPy shapes only.
    arrays, shapes = mx.util.np_array(IS_MXNET_2), mx.util.np_shape(IS_MXNET_2)
    with arrays, shapes, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Cannot decide type")
        yield


def lowering_array(values: Any, device: Any) -> Any:
    """Return values on a device, as an array that lowered networks take."""
    return (np if IS_MXNET_2 else mx.nd).array(values, ctx=device)


def quantize_net(net: Any, batches: Sequence, **options: Any) -> Any:
    """Quantize a network by MXNet's own function, calibrated with host batches.

    With ``calib_mode="none"`` only the shape of the first batch is used.
    """
    data = {"data_shapes": [mx.io.DataDesc("data", batches[0].shape)]}
    calibrated = options["calib_mode"] != "none"
    if IS_MXNET_2:
        if calibrated:
            rows, size = numpy.concatenate(batches), len(batches[0])
            data = {"calib_data": gluon.data.DataLoader(rows, batch_size=size)}
        return mx.contrib.quantization.quantize_net(net, **data, **options)
    if calibrated:  # an input without a label must still come in a list
        data = {"calib_data": [[mx.nd.array(batch)] for batch in batches]}
    return mx.contrib.quantization.quantize_net_v2(net, **data, **options)


def cast_net(net: Any, dtype: str, device: Any) -> Any:
    """Cast a network to bfloat16 or float16 for inference."""
    amp = importlib.import_module("mxnet.amp" if IS_MXNET_2 else "mxnet.contrib.amp")
    return amp.convert_hybrid_block(net, dtype, ctx=device, cast_optional_params=True)

"""Device strings to MXNet contexts, and what each device is.

A device string is one of::

    auto       every GPU that MXNet can use; where there is none, one CPU context a core
    cpu:4      four CPU contexts, mx.cpu(0) .. mx.cpu(3); "cpu" is one context a core
    gpu:2      the first two GPUs; "gpu" is all of them
    gpu:0,3    the GPUs numbered 0 and 3; "gpu:3," is GPU 3 alone

GPUs and CPU contexts never mix, and nothing is replaced silently: what is not there is
a :class:`~d2lpar.errors.DeviceError` that names what is. This module loads MXNet only
in the functions that return contexts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from d2lpar.errors import DeviceError
from d2lpar.machine.cores import omp_threads, usable_cores
from d2lpar.machine.cuda import (
    BUILD_RANGE,
    CudaDevice,
    build_has_code_for,
    cuda_devices,
)

if TYPE_CHECKING:
    from d2lpar._mxnet import mx


def kind_and_numbers(text: str) -> tuple[str, list[int] | None]:
    """Kind and device numbers; None for the numbers means all there are."""
    match = re.fullmatch(r"(cpu|gpu)(?::(\d+(?:,\d+)*,?))?", text.strip().lower())
    if not match:
        raise DeviceError(
            f"devices {text!r}: write auto, cpu:N, gpu:N (the first N) or gpu:I,J "
            "(those numbers); CPU contexts and GPUs do not mix"
        )
    kind, numbers = match.groups()
    if numbers is None:
        return kind, None
    if "," not in numbers:
        if int(numbers) == 0:
            raise DeviceError(
                f"devices {text!r}: asks for 0 devices; {kind}:1 is the first one, "
                f"'{kind}:0,' the one numbered 0"
            )
        return kind, list(range(int(numbers)))
    ids = [int(i) for i in numbers.strip(",").split(",")]
    if len(set(ids)) < len(ids):
        raise DeviceError(f"devices {text!r}: names a device twice")
    return kind, ids


def _check_capability(number: int, device: CudaDevice) -> None:
    if not build_has_code_for(device.capability):
        capability = ".".join(map(str, device.capability))
        raise DeviceError(
            f"gpu({number}) {device.name} has compute capability {capability}; the "
            f"MXNet GPU wheels hold code for {BUILD_RANGE} only. Use --devices cpu:N, "
            "a GPU in that range, or PyTorch on this one"
        )


def parse(text: str = "auto") -> list[mx.Context]:
    """MXNet contexts for a device string (see the module's table).

    Raises :class:`DeviceError` for a string that is none of these, a GPU that is not
    there, or one whose compute capability this MXNet has no code for; the last before
    anything is allocated on it.

    >>> parse("cpu:2")
    [cpu(0), cpu(1)]
    """
    from d2lpar._mxnet import mx

    auto = text.strip().lower() == "auto"
    kind, ids = ("gpu", None) if auto else kind_and_numbers(text)
    if kind == "cpu":
        return [mx.cpu(i) for i in (range(usable_cores()) if ids is None else ids)]

    num_gpus = mx.context.num_gpus() if mx.runtime.Features().is_enabled("CUDA") else 0
    cuda = cuda_devices()[:num_gpus]
    if auto:
        usable = [i for i, d in enumerate(cuda) if build_has_code_for(d.capability)]
        return [mx.gpu(i) for i in usable] or parse("cpu")
    absent = [i for i in ids or [] if i >= len(cuda)]
    if absent or not cuda:
        raise DeviceError(f"devices {text!r}: {what_is_there(num_gpus)}")
    ids = list(range(len(cuda))) if ids is None else ids
    for i in ids:
        _check_capability(i, cuda[i])
    return [mx.gpu(i) for i in ids]


def what_is_there(num_gpus: int) -> str:
    """One clause for error messages: the devices that could have been asked for."""
    cpus = f"any number of CPU contexts (cpu:N) on {usable_cores()} cores"
    if num_gpus:
        return f"here are gpu(0) to gpu({num_gpus - 1}), and {cpus}"
    seen = [device.name for device in cuda_devices()]
    if seen:
        return (
            f"the installed MXNet cannot use the GPUs here ({', '.join(seen)}): "
            f"d2lpar doctor says why; here are {cpus}"
        )
    return f"there is no GPU here; here are {cpus}"


def parse_counts(text: str, available: int) -> list[int]:
    """Device counts of a sweep: "1,2,4" -> [1, 2, 4], each between 1 and `available`.

    >>> parse_counts("1,2", available=2)
    [1, 2]
    """
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise DeviceError(
            f"num-devices {text!r}: write whole numbers, as in 1,2,4"
        ) from None
    for count in counts:
        if not 1 <= count <= available:
            raise DeviceError(
                f"num-devices {count}: --devices gives {available}; ask for 1 to "
                f"{available}, or for more devices (--devices cpu:{max(count, 1)})"
            )
    if len(set(counts)) < len(counts):
        raise DeviceError(f"num-devices {text!r}: names a count twice")
    return counts


def default_counts(available: int) -> str:
    """The sweep where none was asked for: 1, 2, 4, ... and all of them.

    >>> default_counts(6)
    '1,2,4,6'
    """
    powers = [2**k for k in range(available.bit_length()) if 2**k < available]
    return ",".join(map(str, [*powers, available]))


def label(device: mx.Context) -> str:
    """What a device is: "gpu(0) NVIDIA T4" or "cpu(0) (1 thread of 2 cores)"."""
    if device.device_type == "gpu":
        cuda = cuda_devices()
        name = cuda[device.device_id].name if device.device_id < len(cuda) else ""
        return f"gpu({device.device_id}) {name}".rstrip()
    threads, cores = omp_threads(), usable_cores()
    used = (
        f"{threads} thread{'s' if threads != 1 else ''}" if threads else "threads unset"
    )
    return (
        f"cpu({device.device_id}) ({used} of {cores} core{'s' if cores != 1 else ''})"
    )


def try_gpu(i: int = 0) -> mx.Context:
    """The book's: gpu(i) if it exists, else cpu(). Not used by d2lpar itself.

    Beware: with one GPU, ``[try_gpu(0), try_gpu(1)]`` is a GPU and a CPU, and a
    "two-GPU" timing on it times something else. :func:`parse` raises instead.
    """
    from d2lpar._mxnet import mx

    return mx.gpu(i) if mx.context.num_gpus() > i else mx.cpu()


def try_all_gpus() -> list[mx.Context]:
    """The book's: all GPUs, or [cpu()] if there are none. Not used by d2lpar itself."""
    from d2lpar._mxnet import mx

    return [mx.gpu(i) for i in range(mx.context.num_gpus())] or [mx.cpu()]

"""Device strings to the names of devices, and to MXNet contexts.

A device string is one of::

    auto       every GPU that MXNet can use; without one, one CPU context per core
    cpu:4      four CPU contexts, mx.cpu(0) .. mx.cpu(3); "cpu" is one per core
    gpu:2      the first two GPUs; "gpu" is all of them
    gpu:0,3    the GPUs numbered 0 and 3; "gpu:3," is GPU 3 alone
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from d2lpar.errors import DeviceError
from d2lpar.machine import builds
from d2lpar.machine.gpus import CudaDevice, cuda_devices
from d2lpar.machine.host import omp_threads, usable_cores
from d2lpar.text import plural

if TYPE_CHECKING:
    from d2lpar._mxnet import mx

T = TypeVar("T")
MAX_DEVICES = 256  # each CPU context has threads and buffers of its own
CHUNKS = 8  # of a batch that is computed with the same bits on any devices


class Device(NamedTuple):
    """Name a device by the two fields of an MXNet context."""

    device_type: str  # "cpu" or "gpu"
    device_id: int

    def __str__(self) -> str:
        return f"{self.device_type}({self.device_id})"


def kind_and_numbers(text: str) -> tuple[str, list[int] | None]:
    """Return kind and numbers of a device string; None for the numbers means all."""
    form = r"auto|(cpu|gpu)(?::([0-9]{1,4}(?:,[0-9]{1,4})*)(,?))?"
    if match := re.fullmatch(form, text.strip().lower()):
        kind, numbers, comma = match.groups()
        if numbers is None:
            return kind or "auto", None
        ids = [int(number) for number in numbers.split(",")]
        if len(ids) == 1 and not comma:
            ids = list(range(ids[0]))
        if ids and max(ids) < MAX_DEVICES and len(set(ids)) == len(ids):
            return kind, ids
    raise DeviceError(
        f"devices {text[:40]!r}: write auto, cpu:N, gpu:N (the first N, at most "
        f"{MAX_DEVICES}) or gpu:I,J (those numbers, none twice; 'gpu:0,' is GPU 0)"
    )


def names(text: str = "auto") -> list[Device]:
    """Return the devices that a string names (see the module's table), without MXNet.

    Raises :class:`DeviceError` for any other string, and for a GPU that does not exist
    or on which MXNet cannot compute; TypeError unless `text` is a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"devices {text!r}: write a string such as 'cpu:2'")
    kind, ids = kind_and_numbers(text)
    gpus = cuda_devices() if kind != "cpu" else []
    refused = why_not_usable(gpus)
    if kind == "auto":
        usable = [Device("gpu", i) for i in range(len(gpus)) if i not in refused]
        return usable or names("cpu")
    if ids is None:
        ids = list(range(usable_cores() if kind == "cpu" else len(gpus)))
    if kind == "gpu" and (not gpus or max(ids) >= len(gpus)):
        models = ", ".join(gpu.name for gpu in gpus)
        there = f"the GPUs here are {models}" if models else "there is no GPU here"
        raise DeviceError(
            f"devices {text!r}: {there}; d2lpar doctor says why; cpu:N gives CPU "
            f"contexts ({usable_cores()} cores)"
        )
    for i in ids:
        if i in refused:
            raise DeviceError(refused[i])
    return [Device(kind, i) for i in ids]


def parse(text: str = "auto") -> list[mx.Context]:
    """Return MXNet contexts for a device string; raise what :func:`names` raises.

    >>> parse("cpu:2")
    [cpu(0), cpu(1)]
    """
    return contexts(names(text))


def cpus(count: int) -> list[mx.Context]:
    """Return the first `count` CPU contexts: ``[cpu(0), cpu(1)]`` of 2."""
    return parse(f"cpu:{count}")


def contexts(devices: Iterable[Device]) -> list[mx.Context]:
    """Return MXNet contexts for named devices; allocate nothing on them."""
    from d2lpar._mxnet import Context

    return [Context(*device) for device in devices]


def check_contexts(devices: Sequence[mx.Context]) -> None:
    """Raise TypeError unless `devices` is a list or tuple of MXNet contexts."""
    from d2lpar._mxnet import Context

    is_list = isinstance(devices, (list, tuple))
    if not is_list or not all(isinstance(device, Context) for device in devices):
        raise TypeError(
            f"devices {devices!r}: write a list of contexts, such as "
            "d2lpar.devices.parse('cpu:2')"
        )
    if not devices:
        raise DeviceError("devices []: write at least one context")


def check_distinct(devices: Sequence[mx.Context]) -> None:
    """Raise :class:`DeviceError` for one listed twice, where Gluon has one replica."""
    if len(set(devices)) < len(devices):
        raise DeviceError(f"devices {list(devices)}: list each context once")


def check_exists(device: mx.Context) -> None:
    """Raise :class:`DeviceError` for a GPU that MXNet does not see.

    Raises TypeError unless `device` is a context.
    """
    from d2lpar._mxnet import Context, mx

    if not isinstance(device, Context):
        raise TypeError(f"device {device!r}: write one context, such as mx.cpu(0)")
    if device.device_type == "gpu" and device.device_id >= mx.context.num_gpus():
        raise DeviceError(
            f"{device}: MXNet sees {plural(mx.context.num_gpus(), 'GPU')} here; "
            "d2lpar doctor describes this machine"
        )


def why_not_usable(gpus: Sequence[CudaDevice]) -> dict[int, str]:
    """Return {number: reason} for the `gpus` on which MXNet's wheel cannot compute."""
    reasons = {}
    for i, gpu in enumerate(gpus):
        if remedy := builds.remedy_for(gpu.capability):
            capability = ".".join(map(str, gpu.capability))
            reasons[i] = (
                f"gpu({i}) {gpu.name} (compute capability {capability}): the MXNet "
                f"that is installed has no code for it; use {remedy}, or --devices "
                "cpu:N"
            )
    return reasons


def enable_peer_access(devices: Sequence[mx.Context]) -> None:
    """Let GPUs read each other's memory: MXNet enables it in a kvstore's first sum."""
    from d2lpar._mxnet import mx, np

    gpus = [device for device in devices if device.device_type == "gpu"]
    if len(gpus) > 1:
        ones = [np.ones(1, ctx=gpu) for gpu in gpus]
        store = mx.kv.create("device")
        store.init(0, ones[0])
        store.pushpull(0, ones, out=ones)


def parse_counts(text: str, available: int) -> list[int]:
    """Return the counts of a sweep, "1,2,4", each between 1 and `available`."""
    form = r" *[0-9]{1,4} *(, *[0-9]{1,4} *)*"
    counts = [int(n) for n in text.split(",")] if re.fullmatch(form, text) else []
    if not counts or len(set(counts)) < len(counts):
        raise DeviceError(
            f"num-devices {text[:40]!r}: write unlike whole numbers, as in 1,2,4"
        )
    for count in counts:
        check_count(count, available)
    return counts


def check_count(count: int, available: int) -> None:
    """Raise :class:`DeviceError` unless `count` is whole and in 1 to `available`."""
    if not isinstance(count, Integral) or not 1 <= count <= available:
        raise DeviceError(
            f"num-devices {count!r}: --devices gives {available}; ask for 1 to "
            f"{available}, or for more devices (--devices cpu:N)"
        )


def for_chunks(of_devices: Sequence[T]) -> list[T]:
    """Return the items of a batch's 8 chunks, which devices with an item each share.

    Raises :class:`DeviceError` for more than 8 devices.

    >>> for_chunks(["cpu(0)", "cpu(1)", "cpu(2)"])[:5]
    ['cpu(0)', 'cpu(1)', 'cpu(2)', 'cpu(0)', 'cpu(1)']
    """
    if (count := len(of_devices)) > CHUNKS:
        raise DeviceError(f"{count} devices for {CHUNKS} chunks: use {CHUNKS} or fewer")
    return [of_devices[k % count] for k in range(CHUNKS)]


def default_counts(available: int) -> list[int]:
    """Return the device counts of a sweep by default: 1, 2, 4, ... and all."""
    powers = [2**k for k in range(available.bit_length()) if 2**k < available]
    return [*powers, available]


def label(device: Device | mx.Context) -> str:
    """Describe a device: "gpu(0) NVIDIA T4" or "cpu(0) (1 thread of 2 cores)"."""
    if device.device_type == "gpu":
        models = dict(enumerate(gpu.name for gpu in cuda_devices()))
        return f"gpu({device.device_id}) {models.get(device.device_id, '')}".rstrip()
    threads = omp_threads()
    used = plural(threads, "thread") if threads else "threads unset"
    return f"cpu({device.device_id}) ({used} of {plural(usable_cores(), 'core')})"


def try_gpu(i: int = 0) -> mx.Context:
    """Return gpu(i) if it exists, else cpu(i); the book's returns cpu() for all i."""
    from d2lpar._mxnet import mx

    return mx.gpu(i) if mx.context.num_gpus() > i else mx.cpu(i)


def try_all_gpus() -> list[mx.Context]:
    """Return all GPUs, or [cpu()] without one, as in the book."""
    from d2lpar._mxnet import mx

    return [mx.gpu(i) for i in range(mx.context.num_gpus())] or [mx.cpu()]

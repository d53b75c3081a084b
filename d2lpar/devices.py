"""Device strings to MXNet contexts, and the label of each device.

A device string is one of::

    auto       every GPU that MXNet can use; without one, one CPU context per core
    cpu:4      four CPU contexts, mx.cpu(0) .. mx.cpu(3); "cpu" is one per core
    gpu:2      the first two GPUs; "gpu" is all of them
    gpu:0,3    the GPUs numbered 0 and 3; "gpu:3," is GPU 3 alone

GPUs and CPU contexts never mix, and nothing is replaced silently: asking for a device
that does not exist is a :class:`~d2lpar.errors.DeviceError` that names those that do.
Only the functions that return contexts load MXNet.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from d2lpar.errors import DeviceError, first_line
from d2lpar.machine.cores import omp_threads, usable_cores
from d2lpar.machine.cuda import (
    BUILD_RANGE,
    CudaDevice,
    build_has_code_for,
    cuda_devices,
)
from d2lpar.machine.fresh_process import answer_of
from d2lpar.machine.mxnet_builds import FROM_SOURCE, own_library
from d2lpar.records.wording import plural

if TYPE_CHECKING:
    from d2lpar._mxnet import mx

log = logging.getLogger("d2lpar")

# What was found out of a library built from source, for this process and those that it
# starts: a try takes seconds.
TRIED = "D2LPAR_GPUS_TRIED"
TRY_SECONDS = 60  # a first import from a cold disk takes a while
MOST_DEVICES = 256  # each CPU context has threads and buffers of its own


def kind_and_numbers(text: str) -> tuple[str, list[int] | None]:
    """Kind and numbers of a device string; None for the numbers means all of them."""
    match = re.fullmatch(r"(cpu|gpu)(?::([0-9]+(?:,[0-9]+)*,?))?", text.strip().lower())
    if not match:
        raise DeviceError(
            f"devices {_clipped(text)!r}: write auto, cpu:N, gpu:N (the first N) or "
            "gpu:I,J (those numbers); CPU contexts and GPUs do not mix"
        )
    kind, numbers = match.groups()
    if numbers is None:
        return kind, None
    if any(_is_too_large(number) for number in numbers.strip(",").split(",")):
        raise DeviceError(f"devices {_clipped(text)!r}: {MOST_DEVICES} are the most")
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


def _is_too_large(digits: str) -> bool:
    return len(digits) > 99 or int(digits) > MOST_DEVICES  # int takes no 5,000 digits


def _clipped(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def check_texts(devices: str, num_devices: str | None) -> None:
    """Raise :class:`DeviceError` for what two flags get wrong whatever devices exist.

    Does not load MXNet.
    """
    auto = devices.strip().lower() == "auto"
    _, ids = ("gpu", None) if auto else kind_and_numbers(devices)
    if num_devices is not None:
        parse_counts(num_devices, MOST_DEVICES if ids is None else len(ids))


def parse(text: str = "auto") -> list[mx.Context]:
    """MXNet contexts for a device string (see the module's table).

    Raises :class:`DeviceError` for any other string, for a GPU that does not exist, and
    for one whose compute capability MXNet has no code for, before allocating on it.

    >>> parse("cpu:2")
    [cpu(0), cpu(1)]
    """
    from d2lpar._mxnet import mx

    if not isinstance(text, str):
        raise TypeError(f"devices {text!r}: write a text such as 'cpu:2'")
    auto = text.strip().lower() == "auto"
    kind, ids = ("gpu", None) if auto else kind_and_numbers(text)
    if kind == "cpu":
        return [mx.cpu(i) for i in (range(usable_cores()) if ids is None else ids)]
    num_gpus = mx.context.num_gpus() if mx.runtime.Features().is_enabled("CUDA") else 0
    gpus = cuda_devices()[:num_gpus]
    if auto:
        return [mx.gpu(i) for i in usable_gpus(gpus)] or parse("cpu")
    ids = list(range(len(gpus))) if ids is None else ids
    if not gpus or max(ids) >= len(gpus):
        raise DeviceError(f"devices {text!r}: {_what_exists(num_gpus)}")
    for why in why_not_usable(ids, gpus).values():
        raise DeviceError(why)
    return [mx.gpu(i) for i in ids]


def check_contexts(devices: Sequence[mx.Context]) -> None:
    """Raise TypeError unless `devices` is a list or tuple of MXNet contexts."""
    from d2lpar._mxnet import mx

    if not isinstance(devices, (list, tuple)) or not all(
        isinstance(device, mx.Context) for device in devices
    ):
        raise TypeError(
            f"devices {devices!r}: write a list of contexts, such as "
            "d2lpar.devices.parse('cpu:2')"
        )


def usable_gpus(gpus: Sequence[CudaDevice]) -> list[int]:
    """The numbers of those of all `gpus` that MXNet can compute on.

    Where a library built from source was tried for it, a warning names each that it
    cannot compute on.
    """
    before = os.environ.get(TRIED)
    refused = why_not_usable(range(len(gpus)), gpus)
    if os.environ.get(TRIED) != before:
        for why in refused.values():
            log.warning("%s", why)
    return [i for i in range(len(gpus)) if i not in refused]


def why_not_usable(
    numbers: Sequence[int], gpus: Sequence[CudaDevice]
) -> dict[int, str]:
    """Why MXNet cannot compute on a GPU, by its number; {} where it can on all.

    MXNet's wheels have code for a known range of compute capabilities. A library built
    from source is tried on each GPU, in a process of its own.
    """
    names = {i: f"gpu({i}) {gpus[i].name}" for i in numbers}
    if own_library():
        return {
            i: f"{names[i]}: the MXNet {FROM_SOURCE} cannot compute on it ({error}); "
            "build it for this GPU (docs/newer-gpus.md), or use --devices cpu:N"
            for i, error in _errors_when_tried(numbers).items()
            if error
        }
    return {
        i: f"{names[i]} has compute capability {'.'.join(map(str, gpus[i].capability))}"
        f"; the MXNet GPU wheels have code for {BUILD_RANGE} only. Use --devices cpu:N,"
        " a GPU in that range, PyTorch on this one, or an MXNet of your own build "
        "(docs/newer-gpus.md)"
        for i in numbers
        if not build_has_code_for(gpus[i].capability)
    }


def _errors_when_tried(numbers: Sequence[int]) -> dict[int, str]:
    """The error of a tiny computation on each GPU, "" where it was right."""
    of = f"{own_library()} {os.environ.get('CUDA_VISIBLE_DEVICES')}"
    tried = json.loads(os.environ.get(TRIED, "{}"))
    known = tried if tried.get("of") == of else {"of": of}
    new = [i for i in numbers if str(i) not in known]
    if new:
        code = "from d2lpar import devices; devices.compute_on_gpu({})"
        with ThreadPoolExecutor(len(new)) as pool:
            answers = pool.map(lambda i: answer_of(code.format(i), TRY_SECONDS), new)
            known |= {str(i): answer["error"] for i, answer in zip(new, answers)}
        os.environ[TRIED] = json.dumps(known)
    return {i: known[str(i)] for i in numbers}


def compute_on_gpu(number: int) -> None:
    """In a process of its own: print {"error": ""} if gpu(number) computes, as JSON."""
    try:
        from d2lpar._mxnet import mx, np

        x = np.ones((4, 4), ctx=mx.gpu(number))
        total = float(np.dot(x, 2 * x).sum())
        error = "" if total == 128 else f"a sum of 128 came out as {total}"
    except Exception as e:
        error = first_line(e)
    print("\n" + json.dumps({"error": error}), flush=True)


def enable_peer_access(devices: Sequence[mx.Context]) -> None:
    """Let several GPUs read each other's memory from now on; nothing for CPU contexts.

    MXNet does it when a "device" kvstore first reduces over them. Without this call an
    all-reduce would be timed before that as well as after it.
    """
    gpus = tuple(device for device in devices if device.device_type == "gpu")
    if len(gpus) > 1:
        _reduce_once(gpus)


@functools.cache
def _reduce_once(devices: tuple[mx.Context, ...]) -> list[float]:
    """Sum a one of each device by a "device" kvstore; the sums on the devices."""
    from d2lpar._mxnet import mx, np

    ones = [np.ones(1, ctx=device) for device in devices]
    store = mx.kv.create("device")
    store.init(0, ones[0])
    store.pushpull(0, ones, out=ones)
    return [float(one) for one in ones]


def _what_exists(num_gpus: int) -> str:
    """A clause for error messages: the devices one can ask for."""
    cpus = f"any number of CPU contexts (cpu:N) on {usable_cores()} cores"
    if num_gpus:
        return f"here are gpu(0) to gpu({num_gpus - 1}), and {cpus}"
    here = "there is no GPU here"
    if names := ", ".join(device.name for device in cuda_devices()):
        here = f"the installed MXNet cannot use the GPUs here ({names}): d2lpar doctor "
        here += "says why"
    return f"{here}; here are {cpus}"


def parse_counts(text: str, available: int) -> list[int]:
    """Device counts of a sweep: "1,2,4" -> [1, 2, 4], each between 1 and `available`.

    >>> parse_counts("1,2", available=2)
    [1, 2]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]*", part) for part in parts):
        raise DeviceError(
            f"num-devices {_clipped(text)!r}: write whole numbers above 0, as in 1,2,4"
        )
    if any(map(_is_too_large, parts)):
        message = f"num-devices {_clipped(text)!r}: {MOST_DEVICES} are the most"
        raise DeviceError(message)
    counts = list(map(int, parts))
    for count in counts:
        if count > available:
            raise DeviceError(
                f"num-devices {count}: --devices gives {available}; ask for 1 to "
                f"{available}, or for more devices (--devices cpu:{count})"
            )
    if len(set(counts)) < len(counts):
        raise DeviceError(f"num-devices {text!r}: names a count twice")
    return counts


def default_counts(available: int) -> str:
    """The device counts of a sweep by default: 1, 2, 4, ... and all of them.

    >>> default_counts(6)
    '1,2,4,6'
    """
    powers = [2**k for k in range(available.bit_length()) if 2**k < available]
    return ",".join(map(str, [*powers, available]))


def label(device: mx.Context) -> str:
    """What a device is: "gpu(0) NVIDIA T4" or "cpu(0) (1 thread of 2 cores)"."""
    if device.device_type == "gpu":
        gpus = cuda_devices()
        name = gpus[device.device_id].name if device.device_id < len(gpus) else ""
        return f"gpu({device.device_id}) {name}".rstrip()
    threads = omp_threads()
    used = plural(threads, "thread") if threads else "threads unset"
    return f"cpu({device.device_id}) ({used} of {plural(usable_cores(), 'core')})"


def try_gpu(i: int = 0) -> mx.Context:
    """The book's: gpu(i) if it exists, else cpu(). d2lpar itself does not use it.

    Beware: on a machine with one GPU, ``[try_gpu(0), try_gpu(1)]`` is a GPU and a CPU,
    so a "two-GPU" timing measures something else. :func:`parse` raises instead.
    """
    from d2lpar._mxnet import mx

    return mx.gpu(i) if mx.context.num_gpus() > i else mx.cpu()


def try_all_gpus() -> list[mx.Context]:
    """The book's: all GPUs, or [cpu()] without one. d2lpar itself does not use it."""
    from d2lpar._mxnet import mx

    return [mx.gpu(i) for i in range(mx.context.num_gpus())] or [mx.cpu()]

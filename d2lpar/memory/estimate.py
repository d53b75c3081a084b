"""The memory a training of LeNet needs, estimated from shapes, and what is free for it.

It is a bound on CPUs: every layer's output counts, and the batches that wait. What GPUs
need beside was fitted on one H200. The shapes are numbers, so that no MXNet is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from d2lpar.errors import DeviceError
from d2lpar.machine import host
from d2lpar.machine.gpus import cuda_devices
from d2lpar.text import byte_size, filled, plain_table, plural

FLOAT = 4  # bytes of a float32
PROCESS = 250 * 2**20  # resident with Python, MXNet, and each operator used once
CUDA_CONTEXT = 800 * 2**20  # with the code of the libraries' kernels, and handles
WORKSPACES = 1.4  # of the outputs kept, on GPUs: cuDNN's workspaces and MXNet's pool
EVALUATED = 1000  # samples that are evaluated at once
IN_FLIGHT = 16  # batches that Python prepares, at most, before the first is computed
SAFETY_MARGIN = 0.2  # of the free memory, left by the largest batch

# LeNet's, in numbers float32; images are stored as uint8.
PARAMETERS = 20 * 10 + 50 * 501 + 128 * 801 + 10 * 129
PIXELS = 28**2  # of an image
LARGEST = 20, 26, 26  # the largest output of an image
# An activation keeps its input, too.
KEPT = PIXELS + 20 * (2 * 26**2 + 13**2) + 50 * (2 * 9**2 + 4**2) + 2 * 128 + 10


class Item(NamedTuple):
    """A part of the need: bytes of the "process", "first device" or "each device"."""

    name: str
    size: int
    where: str


@dataclass(frozen=True)
class Need:
    """The memory of a training, item by item; ``str()`` gives a line per item."""

    kind: str  # of the devices: "cpu" or "gpu"
    num_devices: int
    batch: int
    items: list[Item]

    def bytes_at(self, where: str) -> int:
        """Return the bytes of the items in one place."""
        return sum(item.size for item in self.items if item.where == where)

    @property
    def by_device(self) -> list[int]:
        """Return the bytes on each device, without the process's own bytes."""
        each = self.bytes_at("each device")
        return [each + self.bytes_at("first device")] + [each] * (self.num_devices - 1)

    @property
    def total(self) -> int:
        """Return the bytes of the process and of all devices together."""
        return self.bytes_at("process") + sum(self.by_device)

    @property
    def by_memory(self) -> list[int]:
        """Return the bytes in each separate memory: the host's, or each GPU's."""
        return self.by_device if self.kind == "gpu" else [self.total]

    def __str__(self) -> str:
        noun = "GPU" if self.kind == "gpu" else "CPU context"
        devices = plural(self.num_devices, noun)
        rows = [(item.name, byte_size(item.size), item.where) for item in self.items]
        rows.append(("all together", byte_size(self.total), ""))
        title = f"memory for a batch of {self.batch:,} on {devices}"
        return f"{title}:\n{plain_table([], rows)}"


def lenet_need(
    global_batch_size: int,
    num_devices: int,
    *,
    n_train: int = 60_000,
    n_test: int = 10_000,
    kind: str = "cpu",
) -> Need:
    """Return what LeNet's training needs on `num_devices` devices of a `kind`."""
    batch = min(global_batch_size, n_train)
    samples = -(-batch // num_devices)  # of the device that has most
    evaluated = -(-min(EVALUATED, n_test) // num_devices)
    largest, outputs = math.prod(LARGEST), FLOAT * samples * KEPT
    data_set, parameters = (n_train + n_test) * PIXELS, FLOAT * PARAMETERS
    # As float32, before and after dividing by 255, split, and copied to a device.
    waiting = 4 * min(IN_FLIGHT, -(-n_train // batch))
    items = [
        Item("Python and MXNet", PROCESS, "process"),
        Item("data set", data_set, "process"),
        Item("data set, its copy", data_set, "first device"),
        Item("batches that wait", waiting * FLOAT * batch * PIXELS, "first device"),
        Item("parameters", parameters, "each device"),
        Item("gradients", parameters, "each device"),
        Item("outputs kept for backward", outputs, "each device"),
        Item("gradients of outputs", FLOAT * samples * 2 * largest, "each device"),
        Item("test images", 3 * FLOAT * n_test * PIXELS, "first device"),
        Item("evaluation", FLOAT * evaluated * 4 * largest, "each device"),
    ]
    if kind == "gpu":
        items.append(Item("workspaces, pool", int(WORKSPACES * outputs), "each device"))
        items.append(Item("CUDA context", CUDA_CONTEXT, "each device"))
    return Need(kind, num_devices, batch, items)


def largest_batch(
    devices: Sequence, free: Sequence[int], n_train: int = 60_000, n_test: int = 10_000
) -> int:
    """Return the largest batch, up to `n_train`, for 4/5 of the `free` bytes; or 0."""
    usable = [f * (1 - SAFETY_MARGIN) for f in free]
    kind, low, high = devices[0].device_type, 0, n_train + 1
    while high - low > 1:  # a batch of `low` fits, one of `high` does not
        middle = (low + high) // 2
        need = lenet_need(
            middle, len(devices), n_train=n_train, n_test=n_test, kind=kind
        )
        if all(n <= u for n, u in zip(need.by_memory, usable)):
            low = middle
        else:
            high = middle
    return low


def free_memory(devices: Sequence) -> list[int]:
    """Return the bytes free on each context; CPU contexts share the host's.

    Raises :class:`DeviceError` for a GPU that NVML does not know.
    """
    if devices[0].device_type == "cpu":
        return [host.host_memory()[1]] * len(devices)
    gpus, free = cuda_devices(), []
    for device in devices:
        _, size = gpus[device.device_id].memory()
        if size is None:
            raise DeviceError("NVML does not know how much memory of the GPUs is free")
        free.append(size)
    return free


def report(global_batch_size: int, devices: Sequence, **sizes: int) -> str:
    """Return the estimate beside what is free on `devices`, as lines of text.

    `sizes` are `n_train` and `n_test` of :func:`lenet_need`.
    """
    kind, free = devices[0].device_type, free_memory(devices)
    need = lenet_need(global_batch_size, len(devices), kind=kind, **sizes)
    largest = largest_batch(devices, free, **sizes)
    # CPU contexts share one memory.
    where = [f" on {device}" for device in devices] if kind == "gpu" else [""]
    rooms = ", ".join(f"{byte_size(f)}{w}" for f, w in zip(free, where))
    fits = filled(f"free: {rooms}; largest batch that fits: {largest:,}")
    return f"{need}\n{fits}"

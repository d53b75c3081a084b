"""The memory a training needs, estimated from shapes before it runs.

Every layer's output of each sample of a shard stays until the backward pass has used
it. Beside these a device keeps parameters, gradients, what the optimiser keeps, and,
where the outputs are largest, the gradients of two of them.

The peak resident memory of a process that trains and evaluates, divided by the
estimate, measured 0.73 to 1.10 for LeNet (batches of 64 to 3,000) and 1.07 to 1.16 for
the GAN (100 to 2,400 faces) on 1 and 2 CPU contexts; with synchronised BatchNorm, which
is not compiled as one block, up to 2.0. On GPUs it was not measured. The temporary
buffers of CPU contexts and the workspaces of cuDNN are not counted.

Source: the GPU wiki ("memory"); MXNet 1.9.1, ``src/imperative``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from d2lpar.memory.free import free_memory
from d2lpar.memory.shapes import Layers, LayersOf
from d2lpar.text import byte_size, plain_table, plural

FLOAT = 4  # bytes of a float32
PROCESS = 220 * 2**20  # resident with Python, MXNet, and each operator used once
CUDA_CONTEXT = 500 * 2**20  # about, with the code of the libraries' kernels
EVALUATED = 1000  # samples that are evaluated at once
SAFETY_MARGIN = 0.2  # of the free memory, left by the largest batch


@dataclass(frozen=True)
class Item:
    """One thing that takes `size` bytes.

    `where` is "process" or "each GPU" (both from before the training), "each device" or
    "first device".
    """

    name: str
    size: int
    where: str


@dataclass(frozen=True)
class Need:
    """The memory of a training, item by item; ``str()`` gives a line per item.

    `batch` samples go to `num_devices` devices of a `kind` ("cpu", "gpu") at a time.
    `largest` is the name, dtype and shape of the largest array, `largest_size` its
    bytes.
    """

    kind: str
    num_devices: int
    batch: int
    items: tuple[Item, ...]
    largest: str
    largest_size: int

    def of(self, *places: str) -> int:
        """Bytes of the items in these places."""
        return sum(item.size for item in self.items if item.where in places)

    def on(self, k: int) -> int:
        """Bytes on the k-th device alone."""
        size = self.of("each device", "each GPU")
        return size + self.of("first device") if k == 0 else size

    @property
    def total(self) -> int:
        """Bytes of the process and of all devices: what CPU contexts need together."""
        return self.of("process") + sum(map(self.on, range(self.num_devices)))

    @property
    def by_memory(self) -> list[int]:
        """Bytes in each separate memory: the host's alone, or that of each GPU."""
        on_gpus = [self.on(k) for k in range(self.num_devices)]
        return on_gpus if self.kind == "gpu" else [self.total]

    @property
    def before_training(self) -> int:
        """Bytes of each memory that a process takes before it trains."""
        return self.of("each GPU" if self.kind == "gpu" else "process")

    def text(self, *more: tuple[str, str]) -> str:
        """A title, a line per item with its size and place, and `more` lines."""
        devices = {"cpu": "CPU context", "gpu": "GPU"}[self.kind]
        title = f"memory for a batch of {self.batch:,} on "
        title += plural(self.num_devices, devices)
        rows = [(item.name, byte_size(item.size), item.where) for item in self.items]
        rows += [(*row, "") for row in (("all together", byte_size(self.total)), *more)]
        return f"{title}:\n{plain_table([], rows)}"

    __str__ = text


def estimate(
    layers: LayersOf,
    settings: dict,
    num_devices: int,
    data: dict | None = None,
    kind: str = "cpu",
) -> Need:
    """What a training needs on `num_devices` devices of a `kind`, "cpu" or "gpu".

    `layers` gives the shapes of the network that `settings` make; `settings` and `data`
    are those of a job. A batch is never larger than the data.
    """
    return _need(layers(settings), settings, num_devices, data or {}, kind)


def _need(net: Layers, settings: dict, num_devices: int, data: dict, kind: str) -> Need:
    n_train = data.get("n_train") or net.n_train
    n_test = data.get("n_test") or net.n_test
    batch = min(settings["global_batch_size"], n_train)
    samples = -(-batch // num_devices)  # of the device that has most
    samples = min(samples, settings.get("micro_batch_size") or samples)
    evaluated = -(-min(EVALUATED, n_test or EVALUATED) // num_devices)
    name, shape = net.largest
    sample, largest = math.prod(net.input), math.prod(shape)
    parameters = FLOAT * net.parameters
    items = [
        Item("Python and MXNet", PROCESS, "process"),
        Item("data set", (n_train + n_test) * sample, "process"),
        Item("CUDA context", CUDA_CONTEXT if kind == "gpu" else 0, "each GPU"),
        Item("data set, its copy", (n_train + n_test) * sample, "first device"),
        # As float32, before and after dividing by 255.
        Item("batch", 2 * FLOAT * batch * sample, "first device"),
        Item("parameters", parameters, "each device"),
        Item("gradients", parameters, "each device"),
        Item("optimiser state", net.moments * parameters, "each device"),
        Item("outputs kept for backward", FLOAT * samples * net.kept, "each device"),
        Item("gradients of outputs", FLOAT * samples * 2 * largest, "each device"),
        Item("evaluation", FLOAT * evaluated * 2 * largest, "each device"),
    ]
    return Need(
        kind=kind,
        num_devices=num_devices,
        batch=batch,
        items=tuple(item for item in items if item.size),
        largest=f"{name}, float32 {(samples, *shape)}",
        largest_size=FLOAT * samples * largest,
    )


def largest_batch(
    layers: LayersOf,
    settings: dict,
    devices: Sequence,
    free: Sequence[int],
    data: dict | None = None,
) -> int:
    """The largest "global_batch_size" that fits, at most the data; 0: not even 1.

    A fifth of the `free` bytes of each device is left as a margin.
    """
    net, kind = layers(settings), devices[0].device_type

    def need(batch: int) -> Need:
        changed = {**settings, "global_batch_size": batch}
        return _need(net, changed, len(devices), data or {}, kind)

    usable = [f * (1 - SAFETY_MARGIN) for f in free]
    low, high = 0, need(2**62).batch + 1
    while high - low > 1:  # a batch of `low` fits, one of `high` does not
        middle = (low + high) // 2
        if all(n <= u for n, u in zip(need(middle).by_memory, usable)):
            low = middle
        else:
            high = middle
    return low


def report(
    layers: LayersOf, settings: dict, devices: Sequence, data: dict | None = None
) -> str:
    """The estimate beside what is free on `devices`, as lines of text."""
    need = estimate(layers, settings, len(devices), data, devices[0].device_type)
    free = free_memory(devices)
    rows = [(f"free on {device}", byte_size(f)) for device, f in zip(devices, free)]
    if need.kind == "cpu":
        rows = [("free", byte_size(free[0]))]
    largest = largest_batch(layers, settings, devices, free, data)
    return need.text(*rows, ("largest batch that fits", f"{largest:,}"))

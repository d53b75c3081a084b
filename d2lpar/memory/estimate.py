"""The memory a training needs, estimated from shapes before it runs.

:mod:`d2lpar.memory.shapes` says what is counted. The peak resident memory of a process
that trains and evaluates, divided by the estimate, measured 0.96 to 1.13 for LeNet from
scratch, 0.86 to 0.99 in Gluon (batches of 256 to 4,096) and 0.82 to 1.12 for the GAN
(64 to 2,048 faces), on 1 and 2 CPU contexts; 0.76 to 1.39 without the 220 MiB of Python
and MXNet on either side, worst for small batches. On a GPU CUDA's own context is
counted too, and the most that a convolution of MXNet's lets cuDNN have as a workspace,
which small batches do not fill; neither was measured against a process.

**Temporary buffers.** On a CPU an operator that needs scratch space takes the next of
``MXNET_CPU_TEMP_COPY`` buffers (256 in d2lpar, see :mod:`d2lpar._mxnet`). Each keeps
the size of its largest request until the process ends. The GAN's average 5,760 numbers
per face within 100 steps: for a batch of 64, 406 MiB with 256 buffers, 56 MiB with 4.
LeNet's in Gluon stay small but reserve addresses (12 GiB for a batch of 1,024, never
touched), which ``ulimit -v`` and ``-d`` count: under such a limit, set
``MXNET_CPU_TEMP_COPY`` to 1 or so.

Source: the GPU wiki ("memory"); MXNet 1.9.1, ``src/resource.cc``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from d2lpar.memory.free import address_limits, free_memory
from d2lpar.memory.shapes import Layers, LayersOf
from d2lpar.records.tables import plain_table
from d2lpar.records.wording import byte_size, plural

FLOAT = 4  # bytes of a float32
PROCESS = 220 * 2**20  # resident with Python, MXNet, and each operator used once
# The margin that the largest batch leaves of the free memory; and where a limit counts
# addresses, of which a process reserves more than it touches.
SPARE, SPARE_OF_ADDRESSES = 0.2, 0.5
CUDA_CONTEXT = 500 * 2**20  # about, with the code of the libraries' kernels
# The default of a convolution's `workspace`. All on a GPU take turns with one.
CUDNN_WORKSPACE = 2**30


@dataclass(frozen=True)
class Item:
    """One thing that takes `size` bytes.

    `where` is "each device" or "first device"; or "each GPU", from before the training;
    or, once for all devices, "process" (from before the training) or "host" (while it
    runs).
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
        also = ["first device"] if k == 0 else []
        return self.of("each device", "each GPU", *also)

    @property
    def total(self) -> int:
        """Bytes of the process and of all devices: what CPU contexts need together."""
        each = sum(self.on(k) for k in range(self.num_devices))
        return each + self.of("process", "host")

    def by_memory(self, running: bool = False) -> list[int]:
        """Bytes in each separate memory: the host's alone, or that of each GPU.

        With `running` the process exists, has loaded its data set and uses the GPUs.
        """
        if self.kind == "cpu":
            return [self.total - (self.of("process") if running else 0)]
        there = self.of("each GPU") if running else 0
        return [self.on(k) - there for k in range(self.num_devices)]

    def text(self, *more: tuple[str, str]) -> str:
        """A title, a line per item with its size and place, and `more` lines."""
        n, samples = self.num_devices, -(-self.batch // self.num_devices)
        each = f", {samples:,} each" if n > 1 else ""
        devices = plural(n, {"cpu": "CPU context", "gpu": "GPU"}[self.kind])
        rows = [(item.name, byte_size(item.size), item.where) for item in self.items]
        rows += [(*row, "") for row in (("all together", byte_size(self.total)), *more)]
        title = f"memory for a batch of {self.batch:,} on {devices}{each}:"
        return f"{title}\n{plain_table([], rows)}"

    __str__ = text


def temp_copies() -> int:
    """How many temporary buffers CPU contexts share, by the environment."""
    value = os.environ.get("MXNET_CPU_TEMP_COPY", "")
    return int(value) if value.isdigit() and int(value) > 0 else 256


def estimate(
    layers: LayersOf,
    settings: dict,
    num_devices: int,
    data: dict | None = None,
    kind: str = "cpu",
) -> Need:
    """What a training needs on `num_devices` devices of a `kind`, "cpu" or "gpu".

    `layers` gives the shapes of the network that `settings` make; `settings` and `data`
    are those of a :class:`d2lpar.runs.job.Job`. A batch is never larger than the data.
    """
    net = layers(settings)
    n_train = (data or {}).get("n_train") or net.samples[0]
    n_test = (data or {}).get("n_test") or net.samples[1]
    batch = min(settings["global_batch_size"], n_train)
    samples = -(-batch // num_devices)  # of the device that has most
    samples = min(samples, settings.get("micro_batch_size") or samples)
    items = [
        *_of_the_data(net, n_train, n_test, batch, samples),
        *_of_the_network(net, samples, n_test, num_devices),
    ]
    if kind == "cpu":
        buffers, size = temp_copies(), FLOAT * samples * net.temporary
        items.append(Item(f"{buffers} temporary buffers", buffers * size, "host"))
    else:
        items.append(Item("CUDA context", CUDA_CONTEXT, "each GPU"))
        items.append(Item("cuDNN's workspace, at most", CUDNN_WORKSPACE, "each device"))
    name, shape, times = max(net.kept, key=lambda kept: kept[2] * math.prod(kept[1]))
    shape = (samples * times, *shape)
    return Need(
        kind=kind,
        num_devices=num_devices,
        batch=batch,
        items=tuple(item for item in items if item.size),
        largest=f"{name}, float32 {shape}",
        largest_size=FLOAT * math.prod(shape),
    )


def _of_the_data(
    net: Layers, n_train: int, n_test: int, batch: int, samples: int
) -> list[Item]:
    """What holds data, of which a device trains on `samples` of the `batch` at once."""
    images = (n_train + n_test) * net.sample_bytes
    where, cut = ("each device", samples) if net.own_data else ("first device", batch)
    return [
        Item("Python and MXNet", PROCESS, "process"),
        Item("data set", images, "process"),
        Item("data set, its copy", images, where),
        Item("an epoch's noise", FLOAT * n_train * net.noise, "first device"),
        Item("batch", FLOAT * cut * net.batch, where),
        Item("comparison with the data set", FLOAT * n_train * net.judged, "host"),
    ]


def _of_the_network(
    net: Layers, samples: int, n_test: int, num_devices: int
) -> list[Item]:
    """What a device keeps to train on `samples` at once, and to evaluate `n_test`."""
    where = "each device"
    parameters = FLOAT * sum(map(math.prod, net.parameters))
    kept = sum(times * math.prod(shape) for _, shape, times in net.kept)
    kept, backward = FLOAT * samples * kept, FLOAT * samples * net.backward
    evaluators, evaluated = "first device", net.evaluated
    if net.share:
        evaluators, evaluated = where, -(-min(evaluated, n_test) // num_devices)
    evaluation = FLOAT * evaluated * net.evaluation
    if not net.compiled:  # the memory that training gives back serves the evaluation
        evaluation = max(0, evaluation - kept - backward)
    return [
        Item("parameters", parameters, where),
        Item("gradients", parameters, where),
        Item("optimiser state", net.moments * parameters, where),
        Item("activations kept for backward", kept, where),
        Item("gradients of activations", backward, where),
        Item("evaluation, beside the above", evaluation, evaluators),
    ]


def largest_batch(
    layers: LayersOf,
    settings: dict,
    devices: Sequence,
    free: Sequence[int],
    data: dict | None = None,
    *,
    running: bool = False,
    setting: str = "global_batch_size",
) -> int:
    """The largest value of `setting` that fits, at most the data; 0: not even 1.

    `setting` may also be "micro_batch_size". Of the `free` bytes of each device a fifth
    is left as a margin (half where a limit counts addresses). With `running` the
    process exists and has loaded its data set.
    """
    kind = devices[0].device_type
    spare = SPARE_OF_ADDRESSES if kind == "cpu" and address_limits() else SPARE

    def need(**changed: int) -> Need:
        return estimate(layers, {**settings, **changed}, len(devices), data, kind)

    low, high = 0, need(global_batch_size=2**62).batch + 1  # one fits, the other not
    while high - low > 1:
        middle = (low + high) // 2
        needed = need(**{setting: middle}).by_memory(running)
        if all(n <= f * (1 - spare) for n, f in zip(needed, free)):
            low = middle
        else:
            high = middle
    return low


def report(
    layers: LayersOf | None,
    settings: dict,
    devices: Sequence,
    data: dict | None = None,
) -> str | None:
    """The estimate beside what is free on `devices`; None without `layers`."""
    if layers is None:
        return None
    need = estimate(layers, settings, len(devices), data, devices[0].device_type)
    free = free_memory(devices)
    rows = [(f"free on {device}", byte_size(f)) for device, f in zip(devices, free)]
    if need.kind == "cpu":
        rows = [("free", byte_size(free[0]))]
    largest = largest_batch(layers, settings, devices, free, data)
    return need.text(*rows, ("largest batch that fits", f"{largest:,}"))

"""The memory a training needs, estimated from shapes, and what is free for it.

The estimate counts every layer's output of each sample of a shard, as if all stayed
until the backward pass; MXNet frees some that no gradient needs (chapter 11). The
shapes are those of the networks themselves: every block computes one sample,
and its output is written down. Beside these a device keeps parameters, gradients, what
the optimiser keeps, and, where the outputs are largest, the gradients of two of them.

The peak resident memory of a process that trains and evaluates, divided by the
estimate, measured 0.73 to 1.10 for LeNet (batches of 64 to 3,000) and 0.93 to 1.42 for
the GAN (100 to 2,400 faces) on 1 and 2 CPU contexts; with wide networks or synchronised
BatchNorm, which is not compiled as one block, up to 2.1. The temporary buffers of CPU
contexts are not counted: with 4 in place of 256, and one thread, the GAN measured 0.84
to 1.21.

On GPUs CUDA's context, the workspaces of cuDNN and what MXNet's pool holds come on top.
Both were fitted to LeNet from scratch on one H200, where batches of 256 to 8,192 took
0.99 to 1.13 times the estimate (figures/h200/benchmarks/memory.jsonl); other networks
and other GPUs were not measured.

Sources: the GPU wiki ("memory"); MXNet 1.9.1, ``src/imperative``; the networks of
:mod:`d2lpar.lenet.network` (the book) and :mod:`d2lpar.gan.networks` (the CryptoPunks
notebook).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from d2lpar.errors import DeviceError
from d2lpar.machine import host
from d2lpar.machine.cards import gpu_cards
from d2lpar.text import byte_size, plain_table, plural

FLOAT = 4  # bytes of a float32
PROCESS = 220 * 2**20  # resident with Python, MXNet, and each operator used once
CUDA_CONTEXT = 880 * 2**20  # with the code of the libraries' kernels, and handles
WORKSPACES = 1.4  # of the outputs kept, on GPUs: cuDNN's workspaces and MXNet's pool
EVALUATED = 1000  # samples that are evaluated at once
SAFETY_MARGIN = 0.2  # of the free memory, left by the largest batch

Shape = tuple[int, ...]


# Shapes


@dataclass(frozen=True)
class Layers:
    """What a training keeps; shapes are those of one sample, numbers are float32.

    `parameters` counts the numbers that are learned, `moments` those that the optimiser
    keeps for each. `outputs` are the names and shapes of all that a training step keeps
    until the backward pass. `input` is the shape of a sample, which is stored as uint8,
    and `n_train` and `n_test` the sizes of the whole data set. `evaluation_bytes(n)`
    is the number of host bytes needed to evaluate a generator on n samples.
    """

    parameters: int
    outputs: tuple[tuple[str, Shape], ...]
    input: Shape
    n_train: int
    n_test: int = 0
    moments: int = 0
    evaluation_bytes: Callable[[int], int] = lambda n_train: 0

    @property
    def kept(self) -> int:
        """Numbers per sample in all outputs."""
        return sum(math.prod(shape) for _, shape in self.outputs)

    @property
    def largest(self) -> tuple[str, Shape]:
        """The name and shape of the largest output."""
        return max(self.outputs, key=lambda output: math.prod(output[1]))


# The layers of the network that the settings of a training make.
LayersOf = Callable[[dict], Layers]


def lenet_layers(settings: dict) -> Layers:
    """LeNet, in :mod:`d2lpar.lenet.scratch` and in :mod:`d2lpar.lenet.concise`."""
    from d2lpar.lenet.network import LeNet

    image, net = (1, 28, 28), LeNet()
    return Layers(
        outputs=tuple(outputs(net, image)),
        parameters=learned(net),
        input=image,
        n_train=60_000,
        n_test=10_000,
    )


def gan_layers(settings: dict) -> Layers:
    """Both networks of :mod:`d2lpar.gan`, at the generator's update.

    By then the outputs of the generator are kept, and those of the discriminator for
    the real faces and for as many generated ones. With "sync_batch_norm", BatchNorm
    keeps its centred input and the square of it, too.
    """
    from d2lpar.gan import measures, new_networks

    face = (3, 24, 24)
    net_D, net_G = new_networks(
        settings.get("width"), settings.get("d_norm", "none"), padded=True
    )
    drawn, judged = outputs(net_G, net_G.z_shape), outputs(net_D, face)
    if settings.get("sync_batch_norm"):
        normed = [shape for name, shape in drawn if name.startswith("BatchNorm")]
        drawn += [(name, s) for s in normed for name in ("centred", "square")]
    return Layers(
        outputs=(*drawn, *judged, *judged),
        parameters=learned(net_D) + learned(net_G),
        input=face,
        n_train=10_000,
        moments=2,
        evaluation_bytes=measures.memory,
    )


def outputs(net, shape: Shape) -> list[tuple[str, Shape]]:
    """The input and what each block of a Gluon network puts out, for one sample.

    A block with an activation counts twice: the activation keeps its input, too.
    Initializes `net`.
    """
    from d2lpar._mxnet import np

    net.initialize()
    x, shapes = np.zeros((1, *shape)), [("input", shape)]
    for k, block in enumerate(net, 1):
        x = block(x)
        name = f"{type(block).__name__} {k}"
        shapes.append((name, x.shape[1:]))
        if getattr(block, "act", None) is not None:
            shapes.append((f"activation {k}", x.shape[1:]))
    return shapes


def learned(net) -> int:
    """How many numbers of a Gluon network are learned."""
    parameters = net.collect_params().values()
    return sum(math.prod(p.shape) for p in parameters if p.grad_req != "null")


# The estimate


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

    def bytes_at(self, *places: str) -> int:
        """Bytes of the items in these places."""
        return sum(item.size for item in self.items if item.where in places)

    def on(self, k: int) -> int:
        """Bytes on the k-th device alone."""
        size = self.bytes_at("each device", "each GPU")
        return size + self.bytes_at("first device") if k == 0 else size

    @property
    def total(self) -> int:
        """Bytes of the process and of all devices: what CPU contexts need together."""
        return self.bytes_at("process") + sum(map(self.on, range(self.num_devices)))

    @property
    def by_memory(self) -> list[int]:
        """Bytes in each separate memory: the host's alone, or that of each GPU."""
        on_gpus = [self.on(k) for k in range(self.num_devices)]
        return on_gpus if self.kind == "gpu" else [self.total]

    @property
    def before_training(self) -> int:
        """Bytes of each memory that a process takes before it trains."""
        return self.bytes_at("each GPU" if self.kind == "gpu" else "process")

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
    workspaces = int(WORKSPACES * FLOAT * samples * net.kept)
    items = [
        Item("Python and MXNet", PROCESS, "process"),
        Item("data set", (n_train + n_test) * sample, "process"),
        Item("judging what is generated", net.evaluation_bytes(n_train), "process"),
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
        Item("workspaces, pool", workspaces if kind == "gpu" else 0, "each device"),
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


def free_memory(devices: Sequence) -> list[int]:
    """Bytes free on each context.

    CPU contexts share the host's. NVML answers for GPUs; it counts what other processes
    use. Raises :class:`DeviceError` for a GPU whose free memory it does not know.
    """
    if devices[0].device_type == "cpu":
        return [host.host_memory().free] * len(devices)
    free = {card.number: card.memory_free for card in gpu_cards()}
    found = []
    for device in devices:
        memory = free.get(device.device_id)
        if memory is None:
            raise DeviceError(
                f"gpu({device.device_id}): NVML does not know how much memory is free; "
                "d2lpar devices shows what it does know"
            )
        found.append(memory)
    return found


def report_free(devices: Sequence) -> Iterator[str]:
    """A line of text for each device: how much memory is free on it."""
    for device, size in zip(devices, free_memory(devices)):
        yield f"free on {device}: {byte_size(size)}"


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

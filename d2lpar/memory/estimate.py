"""What a training needs before it runs, beside what is free; from shapes, no MXNet.

What is counted is in :mod:`d2lpar.memory.shapes`. Measured: the peak resident memory
of a process that trains and evaluates, divided by the estimate, was 0.96 to 1.13 for
LeNet from scratch and 0.86 to 0.99 in Gluon (batches of 256, 1,024 and 4,096, 1 and 2
contexts), and 0.82 to 1.12 for the GAN (64 to 2,048 faces, 1 and 2 contexts, with
micro-batches, with synchronised BatchNorm); without the 220 MiB of Python and MXNet on
either side 0.76 to 1.39, the ends where the batch is small. Linux, 2 cores, MXNet 1.9.1
for CPUs. What a GPU adds is not in it: CUDA's own context, and cuDNN's workspaces; nor
has it been measured on one.

**Temporary buffers.** On a CPU an operator that needs scratch space takes the next of
``MXNET_CPU_TEMP_COPY`` buffers (256 in d2lpar, see :mod:`d2lpar._mxnet`). Each keeps
the size of the largest request it has met until the process ends: so a process grows
until all have met theirs. The GAN's come to 5,760 numbers a face, on average, within
100 steps: with a batch of 64, 406 MiB with 256 buffers, and 56 MiB with 4. LeNet's
remain small in memory, though in Gluon not in addresses (12 GiB for a batch of 1,024,
never touched), which ``ulimit -v`` and ``-d`` count: with such a limit, set
``MXNET_CPU_TEMP_COPY`` to 1 or so.

Source: seed 002 ("memory"); MXNet 1.9.1, ``src/resource.cc``.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass

from d2lpar.errors import DeviceError
from d2lpar.memory.shapes import gan_layers, lenet_layers

FLOAT = 4  # bytes of a float32
PROCESS = 220 * 2**20  # resident with Python, MXNet, and each operator used once
# The share of what is free that the largest batch leaves, as a margin; and where a
# limit counts addresses, too, of which a process reserves more than it ever touches.
SPARE, SPARE_OF_ADDRESSES = 0.2, 0.5


@dataclass(frozen=True)
class Item:
    """One thing that takes `size` bytes.

    `where` is "each device" or "first device"; or once on the host, whatever the
    devices: "process" before the training begins, "host" while it runs.
    """

    name: str
    size: int
    where: str


@dataclass(frozen=True)
class Need:
    """The memory of a training, item by item; ``str()`` gives a line an item.

    `batch` samples go to `num_devices` devices of a `kind` ("cpu", "gpu") at a time.
    `largest` is the name, dtype and shape of the largest array, `largest_size` its
    bytes.
    """

    workload: str
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
        return self.of("each device", *(["first device"] if k == 0 else []))

    @property
    def total(self) -> int:
        """Bytes of the process and of all devices: what CPU contexts take together."""
        each = sum(self.on(k) for k in range(self.num_devices))
        return each + self.of("process", "host")

    def __str__(self) -> str:
        n, samples = self.num_devices, -(-self.batch // self.num_devices)
        each = f", {samples:,} each" if n > 1 else ""
        noun = {"cpu": "CPU context", "gpu": "GPU"}[self.kind] + "s" * (n > 1)
        return "\n".join(
            [
                f"{self.workload}, a batch of {self.batch:,} on {n} {noun}{each}:",
                *(_line(i.name, as_text(i.size), i.where) for i in self.items),
                _line("all together", as_text(self.total)),
            ]
        )


def _line(name: str, value: str, where: str = "") -> str:
    return f"  {name:<32}{value:>10}  {where}".rstrip()


def as_text(size: int) -> str:
    """Bytes for a person to read.

    >>> as_text(0), as_text(300_000), as_text(1_610_612_736)
    ('0', '0.3 MiB', '1.5 GiB')
    """
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.1f} MiB" if size else "0"


def temp_copies() -> int:
    """How many temporary buffers CPU contexts share, by the environment."""
    value = os.environ.get("MXNET_CPU_TEMP_COPY", "")
    return int(value) if value.isdigit() and int(value) > 0 else 256


def estimate(
    train: str,
    settings: dict,
    num_devices: int,
    data: dict | None = None,
    kind: str = "cpu",
) -> Need | None:
    """What a training needs, or None for one whose shapes are not known here.

    `train`, `settings` and `data` are those of a :class:`d2lpar.runs.job.Job`; `kind` is
    "cpu" or "gpu". A batch is never larger than the data.

    >>> need = estimate("d2lpar.lenet:train", {"global_batch_size": 256}, 2)
    >>> need.batch, need.largest
    (256, 'convolution 1, float32 (128, 20, 26, 26)')
    """
    workload = train.partition(":")[0].rpartition(".")[2]
    if workload not in ("lenet", "lenet_concise", "gan"):
        return None
    if workload == "gan":
        layers = gan_layers(bool(settings.get("sync_batch_norm")))
    else:
        layers = lenet_layers(compiled=workload == "lenet_concise")
    # As many as there are of them, where no number is given.
    most_train, most_test = (10_000, 0) if workload == "gan" else (60_000, 10_000)
    n_train = (data or {}).get("n_train") or most_train
    n_test = (data or {}).get("n_test") or most_test
    batch = min(settings["global_batch_size"], n_train)
    samples = -(-batch // num_devices)  # of the device that has most
    samples = min(samples, settings.get("micro_batch_size") or samples)

    parameters = FLOAT * sum(map(math.prod, layers.parameters))
    kept = FLOAT * samples * sum(times * math.prod(s) for _, s, times in layers.kept)
    backward = FLOAT * samples * layers.backward
    images = (n_train + n_test) * layers.sample_bytes
    noise = FLOAT * n_train * layers.noise
    evaluated, numbers = layers.evaluated
    if layers.share:
        evaluated = -(-min(evaluated, n_test) // num_devices)
    evaluation = FLOAT * evaluated * numbers
    if not layers.compiled:  # what training has given back serves the evaluation
        evaluation = max(0, evaluation - kept - backward)
    items = [
        Item("Python and MXNet", PROCESS, "process"),
        Item("data set", images, "process"),
        Item("data set, its copy", images, "first device"),
        Item("an epoch's noise", noise, "first device"),
        Item("batch", FLOAT * batch * layers.batch, "first device"),
        Item("parameters", parameters, "each device"),
        Item("gradients", parameters, "each device"),
        Item("optimiser state", layers.moments * parameters, "each device"),
        Item("activations kept for backward", kept, "each device"),
        Item("gradients of activations", backward, "each device"),
        Item(
            "evaluation, beside the above",
            evaluation,
            "each device" if layers.share else "first device",
        ),
    ]
    judged = FLOAT * n_train * layers.judged
    items.append(Item("comparison with the data set", judged, "host"))
    if kind == "cpu":
        size = FLOAT * samples * layers.temporary * temp_copies()
        name = f"{temp_copies()} temporary buffers"
        items.append(Item(name, size, "host"))
    name, shape, times = max(layers.kept, key=lambda o: o[2] * math.prod(o[1]))
    shape = (samples * times, *shape)
    return Need(
        workload=workload,
        kind=kind,
        num_devices=num_devices,
        batch=batch,
        items=tuple(item for item in items if item.size),
        largest=f"{name}, float32 {shape}",
        largest_size=FLOAT * math.prod(shape),
    )


def process_status(name: str) -> int:
    """Bytes of a line of /proc/self/status: VmRSS, VmHWM, VmData, VmSize."""
    with open("/proc/self/status", encoding="ascii") as f:
        line = next(line for line in f if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def host_free(running: bool = False) -> int:
    """Bytes that a new process, or with `running` this one, can take on the host.

    The least of what the system has available, and of what a container's limit and the
    limits of a process (``ulimit -v``, ``ulimit -d``) leave.
    """
    from d2lpar.machine.host_card import host_memory

    free = [host_memory()[1]]
    for name, limit in address_limits().items():
        taken = process_status(name) if running else 0
        free.append(max(0, limit - taken))
    return min(free)


def address_limits() -> dict[str, int]:
    """The limits of this process in bytes, by what counts in /proc/self/status."""
    kinds = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
    limits = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return {n: limit for n, limit in limits.items() if limit != resource.RLIM_INFINITY}


def free_memory(devices: Sequence, running: bool = False) -> list[int]:
    """Bytes free on each of these contexts; CPU contexts share the host's.

    They are free for a new process, or with `running` for this one. For GPUs NVML says
    it, which counts what other processes take, too. Raises :class:`DeviceError` for a
    GPU that it cannot tell of.
    """
    if devices[0].device_type == "cpu":
        return [host_free(running)] * len(devices)
    from d2lpar.machine.gpu_cards import gpu_cards
    from d2lpar.machine.nvml import nvml_session

    with nvml_session() as nvml:
        free = {card.number: card.memory_free for card in gpu_cards(nvml)}
    for device in devices:
        if free.get(device.device_id) is None:
            raise DeviceError(
                f"gpu({device.device_id}): NVML does not tell how much memory is free; "
                "d2lpar devices shows what it does tell"
            )
    return [free[device.device_id] for device in devices]


def fits(need: Need, free: Sequence[int], running: bool = False) -> bool:
    """Whether a training fits in what each of its devices has free, by the estimate.

    `running` says that the process is there already, its data set loaded.
    """
    if need.kind == "cpu":
        taken = need.of("process") if running else 0
        return need.total - taken <= free[0]
    return all(need.on(k) <= free[k] for k in range(need.num_devices))


def largest_batch(
    train: str,
    settings: dict,
    devices: Sequence,
    free: Sequence[int],
    data: dict | None = None,
    *,
    running: bool = False,
    setting: str = "global_batch_size",
) -> int:
    """The largest value of `setting` that fits, no larger than the data; 0: not even 1.

    `setting` may be "micro_batch_size", too; `free` is of each device, and a fifth of
    it is left (half of it where a limit counts addresses). Raises ValueError for a
    training without an estimate.
    """
    kind = devices[0].device_type
    whole = estimate(
        train, {**settings, "global_batch_size": 2**62}, len(devices), data, kind
    )
    if whole is None:
        raise ValueError(f"largest_batch: the shapes of {train!r} are not known")

    spare = SPARE_OF_ADDRESSES if kind == "cpu" and address_limits() else SPARE
    usable = [int(f * (1 - spare)) for f in free]

    def fitting(size: int) -> bool:
        changed = {**settings, setting: size}
        need = estimate(train, changed, len(devices), data, kind)
        return fits(need, usable, running)

    low, high = 0, whole.batch + 1  # fits, and does not or is more than there is
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle)
    return low


def report(
    train: str, settings: dict, devices: Sequence, data: dict | None = None
) -> str | None:
    """The estimate beside what is free, a line an item; None where there is none.

    The arguments are those of :func:`estimate`; `devices` are contexts.
    """
    need = estimate(train, settings, len(devices), data, devices[0].device_type)
    if need is None:
        return None
    free = free_memory(devices)
    found = {"free": free[0]}
    if need.kind == "gpu":
        found = {f"free on {device}": f for device, f in zip(devices, free)}
    largest = largest_batch(train, settings, devices, free, data)
    return "\n".join(
        [
            str(need),
            *(_line(name, as_text(size)) for name, size in found.items()),
            _line("largest batch that fits", f"{largest:,}"),
        ]
    )

"""All devices of this machine: their cards, for people and for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from d2lpar.errors import DeviceError
from d2lpar.machine.cuda import BUILD_RANGE, build_has_code_for
from d2lpar.machine.gpu_cards import GpuCard, Link, gpu_cards, nvml_session
from d2lpar.machine.host_card import CpuCard, cpu_card
from d2lpar.machine.mxnet_builds import own_library
from d2lpar.text import byte_size, plain_table


@dataclass(frozen=True)
class Machine:
    """The cards of all devices here; `no_gpu` says why there is no card of a GPU."""

    cpu: CpuCard
    gpus: tuple[GpuCard, ...]
    no_gpu: str | None = None


def machine() -> Machine:
    """The cards of everything here. Never raises for a missing GPU or driver."""
    cpu = cpu_card()
    try:
        with nvml_session() as nvml:
            gpus = gpu_cards(nvml)
    except DeviceError as error:
        return Machine(cpu, (), str(error))
    return Machine(cpu, gpus, None if gpus else "the NVIDIA driver sees no GPU")


def report(devices: Sequence) -> Iterator[str]:
    """What `d2lpar run devices` prints: the cards, and the names of these devices."""
    from d2lpar.devices import label

    yield from as_text(machine()).splitlines()
    yield f"a run on {len(devices)} uses {', '.join(map(label, devices))}"


def as_json(here: Machine) -> str:
    """The cards as JSON, by the names of their fields."""
    return json.dumps(asdict(here), indent=1)


def as_text(here: Machine) -> str:
    """The cards for a person to read: a title and a line per fact."""
    labels = {gpu.index: gpu.label for gpu in here.gpus}
    cards = [(gpu.label, _gpu_facts(gpu, labels)) for gpu in here.gpus]
    last = here.cpu.usable_cores - 1
    contexts = f"cpu(0) to cpu({last})" if last else "cpu(0)"
    cards.append((f"{contexts}, contexts on {here.cpu.model}", _cpu_facts(here.cpu)))
    lines = []
    for title, facts in cards:
        rows = [("", name, fact) for name, fact in facts if fact]
        lines += [title, plain_table([], rows, names=3)]
    return "\n".join(filter(None, [*lines, here.no_gpu]))


def cores_text(gpu: GpuCard) -> str:
    """Multiprocessors and CUDA cores, and whether NVML and the table agree.

    >>> cores_text(GpuCard(0, multiprocessors=40, cores_per_multiprocessor=64))
    '40 x 64 = 2,560 CUDA cores by the table; NVML has no count'
    """
    table, cores = gpu.cores_by_table, gpu.cores
    multiprocessors = gpu.multiprocessors or "unknown to CUDA"
    if cores is None and table is None:
        return f"{multiprocessors}; NVML has no count of CUDA cores"
    if table is None:
        absent = ", no table entry" if gpu.cores_per_multiprocessor is None else ""
        return f"{multiprocessors}; {cores:,} CUDA cores, as NVML counts{absent}"
    product = f"{multiprocessors} x {gpu.cores_per_multiprocessor} = {table:,}"
    if cores is None:
        return f"{product} CUDA cores by the table; NVML has no count"
    if cores != table:
        return (
            f"{multiprocessors}; {cores:,} CUDA cores by NVML; the table says {product}"
        )
    return f"{product} CUDA cores, as NVML counts"


def _gpu_facts(gpu: GpuCard, labels: dict[int, str]) -> list[tuple[str, str | None]]:
    capability = gpu.capability and ".".join(map(str, gpu.capability))
    in_range = gpu.capability and build_has_code_for(gpu.capability)
    if gpu.capability and not in_range and not own_library():
        capability += f", MXNet's GPU wheels have code for {BUILD_RANGE} only"
    memory_clock = gpu.memory_clock and f"memory {gpu.memory_clock} MHz"
    clocks = [gpu.clock and f"{gpu.clock} MHz", memory_clock]
    driver = [gpu.driver, gpu.cuda and f"CUDA {gpu.cuda}"]
    return [
        ("capability", capability),
        ("memory", _memory(gpu)),
        ("multiprocessors", cores_text(gpu)),
        ("highest clock", ", ".join(filter(None, clocks))),
        ("power limit", gpu.power_limit and f"{gpu.power_limit:.0f} W"),
        ("link to host", gpu.host_link),
        ("driver", ", ".join(filter(None, driver))),
        *(("link", f"{labels[link.to]}: {_link_text(link)}") for link in gpu.links),
    ]


def _link_text(link: Link) -> str:
    path = {True: "NVLink", False: "PCIe", None: None}[link.nvlink]
    peer = {True: "direct access", False: "copies through the host", None: None}
    return ", ".join(filter(None, [path, peer[link.peer]])) or "unknown"


def _cpu_facts(cpu: CpuCard) -> list[tuple[str, str | None]]:
    vectors = ", ".join(cpu.vector_extensions)
    if cpu.vector_bits:
        vectors += f": {cpu.vector_bits // 32} floats in one instruction"
    limit = cpu.memory_limit and f", limit {byte_size(cpu.memory_limit)}"
    cores = f"{cpu.physical_cores or 'unknown'} physical, {cpu.logical_cores} logical"
    sockets = cpu.sockets or "unknown"
    return [
        ("cores", f"{cores}; usable {cpu.usable_cores}; sockets {sockets}"),
        ("threads", f"{cpu.threads_per_context} per context"),
        ("caches", ", ".join(f"{name} {size}" for name, size in cpu.caches.items())),
        ("vectors", vectors),
        ("memory", f"{_memory(cpu)}{limit or ''}"),
    ]


def _memory(card: GpuCard | CpuCard) -> str | None:
    if card.memory_total is None:
        return None
    return f"{byte_size(card.memory_total)}, {byte_size(card.memory_free)} free"

"""A card for each GPU: what it is, how much memory it has, and its links to the others.

NVML, the library behind nvidia-smi, answers, and counts the CUDA cores itself;
multiprocessors, which it does not know, come from the CUDA driver. The least-squares
notes ("Querying your GPU") ask PyCUDA instead, and multiply the multiprocessors by a
table's cores of one: the table is here too, so that the two can be compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from d2lpar.errors import DeviceError
from d2lpar.machine.cuda import cuda_devices, plain_pci_address

# CUDA cores (float32 units) of one multiprocessor, by compute capability. Source: CUDA
# samples, Common/helper_cuda.h, _ConvertSMVer2Cores; the same as the results per clock
# of 32-bit additions in "Throughput of Native Arithmetic Instructions", CUDA C++
# Programming Guide. The notes have 128 for 7.5 (and a 5.1 that no GPU has).
CORES_PER_MULTIPROCESSOR = {
    (5, 0): 128, (5, 2): 128, (5, 3): 128,  # Maxwell
    (6, 0): 64, (6, 1): 128, (6, 2): 128,  # Pascal: P100, others
    (7, 0): 64, (7, 2): 64, (7, 5): 64,  # Volta: V100; Turing: T4
    (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128,  # Ampere: A100, others; Ada
    (9, 0): 128, (10, 0): 128, (12, 0): 128,  # Hopper: H100; Blackwell: B200, RTX 50
}  # fmt: skip


@dataclass(frozen=True)
class Link:
    """How one GPU reaches the one whose NVML index is `to`.

    `nvlink` is whether data goes over NVLink, or else over PCIe; `peer` whether one GPU
    can read the other's memory without a copy through the host. None: not known.
    """

    to: int
    nvlink: bool | None = None
    peer: bool | None = None


@dataclass(frozen=True)
class GpuCard:
    """A GPU. None is what its driver does not know. Memory in bytes, clocks in MHz.

    `number` is i in ``mx.gpu(i)``: CUDA's order, which is not NVML's `index`, and None
    for a GPU that CUDA_VISIBLE_DEVICES hides. `cores` is NVML's count of CUDA cores,
    `cores_per_multiprocessor` the table's. `power_limit` is in watts.
    """

    index: int
    number: int | None = None
    name: str | None = None
    capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    cores_per_multiprocessor: int | None = None
    cores: int | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    clock: int | None = None
    memory_clock: int | None = None
    power_limit: float | None = None
    host_link: str | None = None
    driver: str | None = None
    cuda: str | None = None
    links: tuple[Link, ...] = ()

    @property
    def cores_by_table(self) -> int | None:
        """Multiprocessors times the cores of one, as the least-squares notes count."""
        if self.multiprocessors is None or self.cores_per_multiprocessor is None:
            return None
        return self.multiprocessors * self.cores_per_multiprocessor

    @property
    def label(self) -> str:
        """ "gpu(0) NVIDIA T4", as in a record; "GPU 1 ..., hidden" outside of CUDA."""
        name = self.name or "of unknown name"
        if self.number is None:
            return f"GPU {self.index} {name}, hidden from CUDA"
        return f"gpu({self.number}) {name}"


@contextlib.contextmanager
def nvml_session() -> Iterator:
    """The module pynvml, initialised. Raises :class:`DeviceError` without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        names = ", ".join(device.name for device in cuda_devices())
        but = f", though CUDA sees {names}" if names else ""
        raise DeviceError(
            f"no GPU can be read ({error}){but}: where there is an NVIDIA GPU, install "
            "its driver, or pass it into the container"
        ) from None
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask(query: Callable, *args):
    """The answer to a query of NVML, text as str; None where it is not supported."""
    try:
        answer = query(*args)
        return answer.decode() if isinstance(answer, bytes) else answer
    except Exception:
        return None


def gpu_handles(nvml) -> dict[int, object]:
    """NVML's handles of the GPUs that answer, by NVML's index."""
    count = ask(nvml.nvmlDeviceGetCount) or 0
    handles = {i: ask(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)}
    return {i: handle for i, handle in handles.items() if handle is not None}


def gpu_cards(nvml) -> tuple[GpuCard, ...]:
    """A card per GPU, in NVML's order; `nvml` is an initialised module like pynvml."""
    handles, visible = gpu_handles(nvml), {}
    for i, device in reversed(list(enumerate(cuda_devices()))):
        # Slices of one GPU (MIG) share its address: MXNet uses the first.
        visible[device.pci_address or i] = i, device
    return tuple(_gpu_card(nvml, i, handles, visible) for i in handles)


def _gpu_card(nvml, index: int, handles: dict, visible: dict) -> GpuCard:
    gpu = handles[index]
    number, device = visible.get(_pci_address(nvml, gpu), (None, None))
    capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, gpu)
    capability = capability and tuple(capability)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
    limit = ask(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
    lanes = ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, gpu)
    generation = ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu)
    cuda = ask(nvml.nvmlSystemGetCudaDriverVersion)
    return GpuCard(
        index=index,
        number=number,
        name=ask(nvml.nvmlDeviceGetName, gpu),
        capability=capability,
        multiprocessors=device and device.multiprocessors,
        cores_per_multiprocessor=CORES_PER_MULTIPROCESSOR.get(capability),
        cores=ask(nvml.nvmlDeviceGetNumGpuCores, gpu),
        memory_total=memory and memory.total,
        memory_free=memory and memory.free,
        clock=ask(nvml.nvmlDeviceGetMaxClockInfo, gpu, nvml.NVML_CLOCK_SM),
        memory_clock=ask(nvml.nvmlDeviceGetMaxClockInfo, gpu, nvml.NVML_CLOCK_MEM),
        power_limit=limit and limit / 1000,
        host_link=f"PCIe {generation}, {lanes} lanes" if generation and lanes else None,
        driver=ask(nvml.nvmlSystemGetDriverVersion),
        cuda=cuda and f"{cuda // 1000}.{cuda % 1000 // 10}",
        links=tuple(_link(nvml, index, j, handles) for j in handles if j != index),
    )


def _link(nvml, a: int, b: int, handles: dict) -> Link:
    def can(what: int | tuple[int]) -> bool | None:
        # nvidia-ml-py 13 has tuples among its constants, by a stray comma.
        number = what[0] if isinstance(what, tuple) else what
        status = ask(nvml.nvmlDeviceGetP2PStatus, handles[a], handles[b], number)
        return None if status is None else status == nvml.NVML_P2P_STATUS_OK

    nvlink, read = nvml.NVML_P2P_CAPS_INDEX_NVLINK, nvml.NVML_P2P_CAPS_INDEX_READ
    return Link(b, nvlink=can(nvlink), peer=can(read))


def _pci_address(nvml, gpu) -> str | None:
    pci = ask(nvml.nvmlDeviceGetPciInfo, gpu)
    return pci and plain_pci_address(pci.busId)

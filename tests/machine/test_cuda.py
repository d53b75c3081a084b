"""GPUs as a faked CUDA driver numbers them, and those that MXNet has code for."""

import pytest

from d2lpar.machine import cuda
from d2lpar.machine.cuda import CudaDevice

T4 = CudaDevice("Tesla T4", (7, 5), 40, "0:3b:0")
L4 = CudaDevice("NVIDIA L4", (8, 9), 58, "0:af:0")
H200 = CudaDevice("NVIDIA H200", (9, 0), 132, "1:5:0")


@pytest.mark.parametrize(
    ("capability", "runs"),
    [
        ((3, 7), False),
        ((5, 0), True),
        ((5, 2), True),
        ((6, 1), True),
        ((7, 0), True),
        ((7, 5), True),
        ((8, 0), True),
        ((8, 6), True),
        ((8, 9), True),
        ((9, 0), False),
        ((10, 0), False),
        ((12, 0), False),
    ],
)
def test_build_has_code_for(capability, runs):
    assert cuda.build_has_code_for(capability) is runs


class Driver:
    """As libcuda.so.1, on a machine with these GPUs."""

    def __init__(self, gpus, status=0):
        self.gpus, self.status = gpus, status

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.gpus)
        return 0

    def cuDeviceGet(self, device, i):
        device._obj.value = 100 + i  # a handle need not be the number
        return 0

    def cuDeviceGetName(self, name, size, device):
        name.value = self.gpus[device.value - 100].name.encode()
        return 0

    def cuDeviceGetPCIBusId(self, address, size, device):
        address.value = self.gpus[device.value - 100].pci_address.encode()
        return 0

    def cuDeviceGetAttribute(self, number, attribute, device):
        gpu = self.gpus[device.value - 100]
        values = {16: gpu.multiprocessors, 75: gpu.capability[0], 76: gpu.capability[1]}
        number._obj.value = values[attribute]
        return 0


def test_cuda_devices_in_the_drivers_order(monkeypatch):
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: Driver([L4, T4, H200]))
    assert cuda.cuda_devices() == [L4, T4, H200]


@pytest.mark.parametrize(
    ("numbers", "reached", "expected"),
    [
        ([0], [], None),
        ([0, 1], [(0, 1), (1, 0)], True),
        ([0, 1], [(0, 1)], False),
        ([0, 2], [(0, 1), (1, 0)], False),
    ],
)
def test_peer_access_is_that_of_every_pair(monkeypatch, numbers, reached, expected):
    driver = Driver([L4, T4, H200])

    def can_access(can, a, b):
        can._obj.value = (a.value - 100, b.value - 100) in reached
        return 0

    driver.cuDeviceCanAccessPeer = can_access
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: driver)
    assert cuda.peer_access(numbers) is expected


def test_peer_access_is_unknown_without_a_driver(monkeypatch):
    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda.ctypes, "CDLL", absent)
    assert cuda.peer_access([0, 1]) is None


def test_cuda_devices_without_a_driver_or_a_gpu(monkeypatch):
    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda.ctypes, "CDLL", absent)
    assert cuda.cuda_devices() == []
    no_device = 100  # CUDA_ERROR_NO_DEVICE
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: Driver([T4], no_device))
    assert cuda.cuda_devices() == []

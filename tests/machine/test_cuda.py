"""GPUs as a faked CUDA driver numbers them, and those that MXNet has code for."""

import pytest

from d2lpar.machine import cuda
from d2lpar.machine.cuda import CudaDevice

T4 = CudaDevice("Tesla T4", (7, 5), 40, "0:3b:0")
L4 = CudaDevice("NVIDIA L4", (8, 9), 58, "0:af:0")
H200 = CudaDevice("NVIDIA H200", (9, 0), 132, "1:5:0")


class Driver:
    """As libcuda.so.1; a GPU's handle is its number plus 100."""

    def __init__(self, *gpus, status=0, reached=()):
        self.gpus, self.status, self.reached = gpus, status, reached

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.gpus)
        return 0

    def cuDeviceGet(self, device, i):
        device._obj.value = 100 + i
        return 0

    def cuDeviceGetName(self, name, size, device):
        name.value = self.gpus[device.value - 100].name.encode()

    def cuDeviceGetPCIBusId(self, address, size, device):
        address.value = self.gpus[device.value - 100].pci_address.encode()

    def cuDeviceGetAttribute(self, number, attribute, device):
        gpu = self.gpus[device.value - 100]
        values = {16: gpu.multiprocessors, 75: gpu.capability[0], 76: gpu.capability[1]}
        number._obj.value = values[attribute]

    def cuDeviceCanAccessPeer(self, can, a, b):
        can._obj.value = (a.value - 100, b.value - 100) in self.reached
        return 0


@pytest.fixture
def install(monkeypatch):
    """Install a driver; None: there is none."""

    def load(driver):
        def library(name):
            if driver is None:
                raise OSError(f"{name}: cannot open shared object file")
            return driver

        monkeypatch.setattr(cuda.ctypes, "CDLL", library)

    return load


def test_devices_in_the_drivers_order(install):
    install(Driver(L4, T4, H200))
    assert cuda.cuda_devices() == [L4, T4, H200]


@pytest.mark.parametrize("driver", [None, Driver(T4, status=100)])  # 100: no device
def test_without_a_driver_or_a_gpu_there_are_no_devices(install, driver):
    install(driver)
    assert cuda.cuda_devices() == []
    assert cuda.peer_access([0, 1]) is None


@pytest.mark.parametrize(
    ("numbers", "reached", "expected"),
    [
        ([0], [], None),
        ([0, 1], [(0, 1), (1, 0)], True),
        ([0, 1], [(0, 1)], False),
        ([0, 2], [(0, 1), (1, 0)], False),
    ],
)
def test_peer_access_is_that_of_every_pair(install, numbers, reached, expected):
    install(Driver(L4, T4, H200, reached=reached))
    assert cuda.peer_access(numbers) is expected


def test_capabilities_that_mxnets_wheels_have_code_for():
    yes = [(5, 0), (5, 2), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9)]
    no = [(3, 7), (9, 0), (10, 0), (12, 0)]
    assert [c for c in yes + no if cuda.build_has_code_for(c)] == yes

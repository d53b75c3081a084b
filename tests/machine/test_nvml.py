"""Sessions of NVML without a driver, and ones that fail halfway."""

import sys

import pytest
from fake_gpus import T4, fake_nvml

from d2lpar.errors import DeviceError
from d2lpar.machine import nvml
from d2lpar.machine.cuda import CudaDevice


def test_no_driver_is_said_with_what_cuda_sees(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(T4, refused=["nvmlInit"]))
    monkeypatch.setattr(nvml, "cuda_devices", lambda: [CudaDevice("T4", (7, 5))])
    with pytest.raises(DeviceError, match="Supported.*CUDA sees T4.*install its driv"):
        with nvml.nvml_session():
            pass


def test_nvml_is_closed_again_whatever_happens(monkeypatch):
    closed = []
    module = fake_nvml(T4)
    module.nvmlShutdown = lambda: closed.append(True)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(KeyError), nvml.nvml_session():
        raise KeyError
    assert closed == [True]

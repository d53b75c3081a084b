"""A module like pynvml, for GPUs that are not here."""

import types


class NVMLError(Exception):
    """As pynvml's."""


T4 = {
    "name": "Tesla T4",
    "capability": (7, 5),
    "cores": 2560,
    "bus": b"00000000:3B:00.0",
    "memory": (15360, 15109),  # MiB, total and free
    "clocks": (1590, 5001),
    "watts": 70,
    "pcie": (3, 16),
}
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "capability": (9, 0),
    "cores": 16896,
    "bus": "00000000:AF:00.0",
    "memory": (81559, 81079),
    "clocks": (1980, 2619),
    "watts": 700,
    "pcie": (5, 16),
}
READ, NVLINK = 0, 2  # what NVML is asked about two GPUs


def fake_nvml(*gpus, refused=(), error=None, p2p=()):
    """A module like pynvml; the queries in `refused` raise `error`.

    `p2p` has the statuses of READ and NVLINK between any two GPUs, 0 by default: OK.
    """
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = NVMLError
    nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM = 1, 2
    nvml.NVML_TEMPERATURE_GPU = 0
    nvml.NVML_P2P_CAPS_INDEX_READ = (READ,)  # as nvidia-ml-py 13 has it
    nvml.NVML_P2P_CAPS_INDEX_NVLINK = NVLINK
    nvml.NVML_P2P_STATUS_OK = 0

    def memory(gpu):
        total, free = (2**20 * mib for mib in gpu["memory"])
        return types.SimpleNamespace(total=total, free=free, used=total - free)

    def peer(a, b, what):
        assert isinstance(what, int)  # ctypes takes no tuple
        return dict(p2p).get(what, 0)

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlSystemGetCudaDriverVersion": lambda: 13010,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda i: gpus[i],
        "nvmlDeviceGetName": lambda gpu: gpu["name"].encode(),
        "nvmlDeviceGetCudaComputeCapability": lambda gpu: list(gpu["capability"]),
        "nvmlDeviceGetNumGpuCores": lambda gpu: gpu["cores"],
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: gpu["clocks"][kind - 1],
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 1000 * gpu["watts"],
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: gpu["pcie"][0],
        "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: gpu["pcie"][1],
        "nvmlDeviceGetPciInfo": lambda gpu: types.SimpleNamespace(busId=gpu["bus"]),
        "nvmlDeviceGetP2PStatus": peer,
        "nvmlDeviceGetUtilizationRates": lambda gpu: types.SimpleNamespace(gpu=0),
        "nvmlDeviceGetTemperature": lambda gpu, sensor: 51,
        "nvmlDeviceGetPowerUsage": lambda gpu: 42_500,
    }

    def refuse(*args):
        raise error or NVMLError("Not Supported")

    for name, answer in answers.items():
        setattr(nvml, name, refuse if name in refused else answer)
    return nvml

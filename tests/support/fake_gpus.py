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
}
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "capability": (9, 0),
    "cores": 16896,
    "bus": "00000000:AF:00.0",
    "memory": (81559, 81079),
}


def fake_nvml(*gpus, refused=(), error=None):
    """A module like pynvml; the queries in `refused` raise `error`."""
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = NVMLError

    def memory(gpu):
        total, free = (2**20 * mib for mib in gpu["memory"])
        return types.SimpleNamespace(total=total, free=free, used=total - free)

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
        "nvmlDeviceGetPciInfo": lambda gpu: types.SimpleNamespace(busId=gpu["bus"]),
        "nvmlDeviceGetUtilizationRates": lambda gpu: types.SimpleNamespace(gpu=0),
    }

    def refuse(*args):
        raise error or NVMLError("Not Supported")

    for name, answer in answers.items():
        setattr(nvml, name, refuse if name in refused else answer)
    return nvml

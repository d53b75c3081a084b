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


TOPOLOGY = ("INTERNAL", "SINGLE", "MULTIPLE", "HOSTBRIDGE", "NODE", "SYSTEM")


def fake_nvml(*gpus, refused=(), error=None, nvlinks=None, levels=None, p2p=0):
    """A module like pynvml.

    The queries in `refused` raise `error`. `nvlinks` maps a GPU's index to the PCI
    addresses at the other ends of its links (None: a switch); `levels` maps pairs of
    indices to a topology level.
    """
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = NVMLError
    nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM = 1, 2
    nvml.NVML_TEMPERATURE_GPU = 0
    nvml.NVML_P2P_CAPS_INDEX_READ = (0,)  # as nvidia-ml-py 13 has it
    nvml.NVML_P2P_CAPS_INDEX_NVLINK = 2
    nvml.NVML_P2P_STATUS_OK, nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH = 0, 2
    nvml.NVML_NVLINK_MAX_LINKS = 4
    for k, name in enumerate(TOPOLOGY):
        setattr(nvml, f"NVML_TOPOLOGY_{name}", 10 * k)

    def ends(gpu):
        return (nvlinks or {}).get(gpus.index(gpu), [])

    def end_of(gpu, link):
        return types.SimpleNamespace(busId=ends(gpu)[link] or "00000000:01:00.0")

    def state(gpu, link):
        if link >= len(ends(gpu)):
            raise NVMLError("Not Supported")
        return 1

    def memory(gpu):
        total, free = (2**20 * mib for mib in gpu["memory"])
        return types.SimpleNamespace(total=total, free=free, used=total - free)

    def peer(a, b, what):
        assert isinstance(what, int)  # ctypes takes no tuple
        return p2p

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
        "nvmlDeviceGetNvLinkState": state,
        "nvmlDeviceGetNvLinkRemotePciInfo": end_of,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, k: 0 if ends(gpu)[k] else 2,
        "nvmlDeviceGetP2PStatus": peer,
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: (levels or {})[
            gpus.index(a), gpus.index(b)
        ],
        "nvmlDeviceGetUtilizationRates": lambda gpu: types.SimpleNamespace(gpu=57),
        "nvmlDeviceGetTemperature": lambda gpu, sensor: 51,
        "nvmlDeviceGetPowerUsage": lambda gpu: 42_500,
    }

    def refuse(*args):
        raise error or NVMLError("Not Supported")

    for name, answer in answers.items():
        setattr(nvml, name, refuse if name in refused else answer)
    return nvml

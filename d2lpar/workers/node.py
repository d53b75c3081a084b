"""This process as a worker: its number, and how gradients are shared."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from d2lpar.errors import SettingError


@dataclass(frozen=True)
class WorkerInfo:
    """Hold this worker's `number` of `count`, and the settings of its launcher."""

    number: int
    count: int
    servers: int
    kvstore: str = "dist_sync"
    threshold: float | None = None

    def __str__(self) -> str:
        return (
            f"worker {self.number} of {self.count} (DMLC_NUM_WORKER={self.count}, "
            f"DMLC_NUM_SERVER={self.servers})"
        )

    @property
    def launched_by(self) -> str:
        """Return the beginning of the command that started it, up to "run ..."."""
        words = f"d2lpar launch --workers {self.count} --servers {self.servers} "
        if self.kvstore != "dist_sync":
            words += f"--kvstore {self.kvstore} "
        if self.threshold is not None:
            words += f"--compress {self.threshold:g} "
        return words + "-- "

    @property
    def variant(self) -> str:
        """Return the way to share gradients, for file names: "", "async", "2bit"."""
        ways = ["async"] if self.kvstore == "dist_async" else []
        if self.threshold is not None:
            ways.append("2bit")
        return "-".join(ways)


def worker_info() -> WorkerInfo:
    """Return which worker this process is; SettingError without a launcher."""
    text = os.environ.get("D2LPAR_THRESHOLD")
    try:
        threshold = float(text) if text else None
        info = WorkerInfo(
            number=int(os.environ["D2LPAR_WORKER"]),
            count=int(os.environ["DMLC_NUM_WORKER"]),
            servers=int(os.environ["DMLC_NUM_SERVER"]),
            kvstore=os.environ.get("D2LPAR_KVSTORE", "dist_sync"),
            threshold=threshold,
        )
    except (KeyError, ValueError):
        raise SettingError(
            f"D2LPAR_WORKER {os.environ['D2LPAR_WORKER'][:40]!r}: only d2lpar launch "
            "sets it, with others; unset it"
        ) from None
    right = {
        "DMLC_ROLE": os.environ.get("DMLC_ROLE") == "worker",
        "DMLC_INTERFACE": "DMLC_INTERFACE" in os.environ,
        "DMLC_NUM_SERVER": info.servers >= 1,
        "D2LPAR_WORKER": 0 <= info.number < info.count,
        "D2LPAR_KVSTORE": info.kvstore in ("dist_sync", "dist_async"),
        "D2LPAR_THRESHOLD": threshold is None or 0 < threshold < math.inf,
    }
    for name, is_right in right.items():
        if not is_right:
            raise SettingError(
                f"{name} {os.environ.get(name, '')[:40]!r} does not fit worker "
                f"{info.number} of {info.count}: give all roles the variables that "
                "d2lpar launch --print writes"
            )
    return info

"""This process as a worker: its number, and how gradients are shared."""

from __future__ import annotations

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
    threshold = os.environ.get("D2LPAR_THRESHOLD")
    try:
        return WorkerInfo(
            number=int(os.environ["D2LPAR_WORKER"]),
            count=int(os.environ["DMLC_NUM_WORKER"]),
            servers=int(os.environ["DMLC_NUM_SERVER"]),
            kvstore=os.environ.get("D2LPAR_KVSTORE", "dist_sync"),
            threshold=float(threshold) if threshold else None,
        )
    except (KeyError, ValueError):
        raise SettingError(
            f"D2LPAR_WORKER {os.environ['D2LPAR_WORKER'][:40]!r}: only d2lpar launch "
            "sets it, with others; unset it"
        ) from None

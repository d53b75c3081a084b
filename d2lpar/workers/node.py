"""Which worker this process is, and how it shares gradients with the others."""

from __future__ import annotations

import os
from dataclasses import dataclass

from d2lpar.errors import SettingError


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this process is: `number` of `count`, how gradients are shared."""

    number: int
    count: int
    servers: int
    kvstore: str = "dist_sync"
    threshold: float | None = None

    @property
    def launched_by(self) -> str:
        """The beginning of the command that started it, up to "run ..."."""
        words = f"d2lpar launch --workers {self.count} --servers {self.servers} "
        if self.kvstore != "dist_sync":
            words += f"--kvstore {self.kvstore} "
        if self.threshold is not None:
            words += f"--compress {self.threshold:g} "
        return words + "-- "

    @property
    def variant(self) -> str:
        """How gradients are shared, for a record's name: "", "async", "2bit", ..."""
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

"""Which worker this process is, and what workers and launcher tell each other.

The launcher describes a worker's place in its environment (DMLC_* and D2LPAR_*); the
worker answers on its standard error. Never imports MXNet.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from d2lpar.machine.mxnet_builds import installed_builds

KVSTORES = ("dist_sync", "dist_async")
SIGN_OF_LIFE = "\0"  # written at every step: no text, so that no log shows it
NODE = "ps-lite's node "  # a worker's line ends with this and its number in ps-lite


@dataclass(frozen=True)
class Place:
    """Which worker this process is: `number` of `count`, and how they share gradients.

    `kvstore` is one of KVSTORES; `threshold` is that of 2-bit gradient compression
    (None: no compression).
    """

    number: int
    count: int
    servers: int
    kvstore: str = "dist_sync"
    threshold: float | None = None

    @property
    def launched_by(self) -> str:
        """The beginning of the command that started it, up to "run ..."."""
        words = f"d2lpar launch --workers {self.count} --servers {self.servers} "
        if self.kvstore != KVSTORES[0]:
            words += f"--kvstore {self.kvstore} "
        if self.threshold is not None:
            words += f"--compress {self.threshold:g} "
        return words + "-- "

    @property
    def variant(self) -> str:
        """How gradients are shared, for a record's name: "", "async", "2bit", ..."""
        asynchronous = ["async"] * (self.kvstore == "dist_async")
        return "-".join(asynchronous + ["2bit"] * (self.threshold is not None))


def place() -> Place | None:
    """This process's place, from its environment; None unless it is a worker."""
    if os.environ.get("DMLC_ROLE") != "worker" or "D2LPAR_WORKER" not in os.environ:
        return None
    threshold = os.environ.get("D2LPAR_THRESHOLD")
    return Place(
        int(os.environ["D2LPAR_WORKER"]),
        int(os.environ["DMLC_NUM_WORKER"]),
        int(os.environ["DMLC_NUM_SERVER"]),
        os.environ.get("D2LPAR_KVSTORE", KVSTORES[0]),
        float(threshold) if threshold else None,
    )


def resume_after_restart(resume: str | None, folder: Path) -> str | None:
    """ "last" if this launch has written a checkpoint to `folder`, else `resume`."""
    since = float(os.environ.get("D2LPAR_RESUME_SINCE", "inf"))
    found = (path for path in folder.glob("[!.]*.safetensors") if path.is_file())
    written = any(path.stat().st_mtime >= since for path in found)
    return "last" if written else resume


def package_digest() -> str:
    """SHA-256 of this package's source and of the builds of MXNet and NumPy."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    versions = {**installed_builds(), "numpy": metadata.version("numpy")}
    digest.update(repr(sorted(versions.items())).encode())
    return digest.hexdigest()


def node_number(role: str, rank: int) -> int:
    """ps-lite's number, 8 or more, of the "server" or "worker" of a rank.

    The rank is ps-lite's own, by address and port; it is not the launcher's number.
    """
    return {"server": 8, "worker": 9}[role] + 2 * rank


def show_life() -> None:
    """Tell the launcher that this worker makes progress."""
    sys.stderr.write(SIGN_OF_LIFE)
    sys.stderr.flush()


def at_most_every(seconds: float, call: Callable[[], object]) -> Callable[[], None]:
    """`call`, which does nothing within `seconds` of the last time it did something."""
    last = -seconds

    def limited() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            call()

    return limited

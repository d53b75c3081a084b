"""The process of one role: ``python -m d2lpar.workers.node run ...``.

The environment describes the role (:mod:`d2lpar.workers.launch`): the scheduler, a
server, or a worker, which runs ``d2lpar`` with the words of the command line.

A launcher that watches sets D2LPAR_ATTACHED. The role then ends when its standard input
closes, so that it never outlives the launcher, or the ssh that started it. Its standard
output is its heartbeat: a line every second, with the number of steps that this worker
has made. All text goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import select
import threading
from dataclasses import dataclass

from d2lpar.errors import SettingError

# What :func:`~d2lpar.workers.launch.plan` sets of ps-lite's variables, for every role.
PLANNED = (
    "DMLC_ROLE",
    "DMLC_INTERFACE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
)
_steps = 0


# Which worker this is


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this process is: `number` of `count`, and how they share gradients.

    `kvstore` is "dist_sync" or "dist_async"; `threshold` is that of 2-bit gradient
    compression (None: no compression).
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
    """Which worker this process is; the environment of one has D2LPAR_WORKER.

    Raises :class:`SettingError` where no launcher has set this environment.
    """
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


# The process


def report_step() -> None:
    """Count a step of this worker; the launcher reads how many there were."""
    global _steps
    _steps += 1


def main() -> None:
    """Run the role named by DMLC_ROLE until it finishes."""
    drop_inherited()
    if "D2LPAR_ATTACHED" in os.environ:
        status = os.dup(1)
        os.dup2(2, 1)
        threading.Thread(target=attend, args=(status,), daemon=True).start()
    role = os.environ.get("DMLC_ROLE")
    if role in ("scheduler", "server"):
        serve(role)
    else:
        runpy.run_module("d2lpar", run_name="__main__", alter_sys=True)


def drop_inherited() -> None:
    """Unset ps-lite's variables that no launcher has set, but this host's environment.

    Containers and shells of other clusters have some. DMLC_NODE_HOST and
    DMLC_USE_KUBERNETES would open the role to other interfaces than DMLC_INTERFACE.
    """
    for name in list(os.environ):
        if name.startswith(("DMLC_", "PS_")) and name not in PLANNED:
            del os.environ[name]


def attend(status: int) -> None:
    """Write a heartbeat every second; end with the launcher."""
    with contextlib.suppress(OSError):
        while not select.select([0], [], [], 1)[0] or os.read(0, 4096):
            os.write(status, b"%d\n" % _steps)
    os._exit(1)  # the measuring process then ends for the same reason


def serve(role: str) -> None:
    """Run the scheduler or a server until all workers have finished."""
    os.environ["DMLC_ROLE"] = "worker"  # or the import would serve, and end the process
    from d2lpar._mxnet import mx

    os.environ["DMLC_ROLE"] = role
    server = mx.kvstore.KVStoreServer(mx.kv.create("dist"))
    if os.environ.get("D2LPAR_KVSTORE") != "dist_async":
        # MXNet would unpickle what it is sent, and so run any program: only the servers
        # of "dist_async" need that, for the optimizer.
        server._controller = lambda: lambda number, body, _: None
    server.run()


if __name__ == "__main__":
    from d2lpar.workers import node  # the module whose steps the package counts

    node.main()

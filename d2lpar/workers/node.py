"""The process of one role: ``python -m d2lpar.workers.node [--attached] run ...``.

The environment describes the role (:mod:`d2lpar.workers.launch`): the scheduler, a
server, or a worker, which runs ``d2lpar`` with the rest of the command line. With
``--attached`` it ends when its standard input closes, so that it never outlives the
launcher, or the ssh that started it. Its standard output then carries its status as
JSON lines, and all text goes to standard error:

- {"begin": 1763857753.1}: the time by the clock of its host;
- {"alive": true} from a worker, at most once per second while it makes steps;
- {"node": 9, "role": "worker 0"} from a server: ps-lite's number of a worker, which
  has announced it, or of this server;
- {"silent": 9, "seconds": 8} from the scheduler: no heartbeat of that number.

Without ``--attached`` there is no status, and nobody watches but the scheduler.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import runpy
import sys
import threading
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from d2lpar.machine.builds import mxnet_version

_status: IO[str] | None = None


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


def worker_info() -> WorkerInfo | None:
    """Which worker the environment says this process is; None if it is not a worker."""
    if os.environ.get("DMLC_ROLE") != "worker" or "D2LPAR_WORKER" not in os.environ:
        return None
    threshold = os.environ.get("D2LPAR_THRESHOLD")
    return WorkerInfo(
        number=int(os.environ["D2LPAR_WORKER"]),
        count=int(os.environ["DMLC_NUM_WORKER"]),
        servers=int(os.environ["DMLC_NUM_SERVER"]),
        kvstore=os.environ.get("D2LPAR_KVSTORE", "dist_sync"),
        threshold=float(threshold) if threshold else None,
    )


def resume_after_restart(resume: str | None, folder: Path) -> str | None:
    """ "last" if this launch has written a checkpoint to `folder`, else `resume`."""
    since = float(os.environ.get("D2LPAR_RESUME_SINCE", "inf"))
    for path in folder.glob("[!.]*.safetensors"):
        if path.stat().st_mtime >= since:
            return "last"
    return resume


def versions() -> dict[str, str]:
    """What must be the same for all workers: our source's digest, MXNet, NumPy."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return {
        "d2lpar": digest.hexdigest()[:12],
        "MXNet": mxnet_version(),
        "NumPy": metadata.version("numpy"),
    }


# What it tells the launcher


def send_status(**facts) -> None:
    """Write a line for the launcher, if one is attached."""
    if _status is not None:
        _status.write(json.dumps(facts) + "\n")
        _status.flush()


def report_alive() -> None:
    """Report progress of this worker to the launcher."""
    send_status(alive=True)


# The process


def main() -> None:
    """Be the role that the environment describes, until it is done."""
    global _status
    arguments = sys.argv[1:]
    if arguments[:1] == ["--attached"]:
        del arguments[0]
        _status = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        send_status(begin=time.time())
        threading.Thread(target=_end_with_launcher, daemon=True).start()
    if os.environ.get("DMLC_ROLE") in ("scheduler", "server"):
        _serve(os.environ["DMLC_ROLE"])
        return
    sys.argv[1:] = arguments
    runpy.run_module("d2lpar", run_name="__main__", alter_sys=True)


def _end_with_launcher() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)  # the measuring process then ends for the same reason


def _serve(role: str) -> None:
    """Be the scheduler or a server, until all workers are done."""
    os.environ["DMLC_ROLE"] = "worker"  # or the import would serve, and end the process
    from d2lpar._mxnet import mx

    os.environ["DMLC_ROLE"] = role
    kvstore = mx.kv.create("dist")
    server = mx.kvstore.KVStoreServer(kvstore)
    default = server._controller()
    name = f"server {os.environ.get('D2LPAR_SERVER')}"

    def controller(number: int, body: bytes, _) -> None:
        """Take a worker's announcement, or in "dist_async" the optimizer.

        MXNet's own controller unpickles an optimizer, and so runs any program that it
        is sent.
        """
        if body.startswith(b"{"):
            announced = json.loads(body)
            send_status(node=announced["node"], role=announced["role"])
            send_status(node=node_number("server", kvstore.rank), role=name)
        elif os.environ.get("D2LPAR_KVSTORE") == "dist_async":
            default(number, body, _)

    server._controller = lambda: controller
    timeout = int(os.environ.get("D2LPAR_HEARTBEAT", 0))
    if role == "scheduler" and timeout:
        args = (mx, kvstore.handle, timeout)
        threading.Thread(target=_watch_heartbeats, args=args, daemon=True).start()
    server.run()


def node_number(role: str, rank: int) -> int:
    """ps-lite's number, 8 or more, of the "server" or "worker" of a rank.

    The rank is ps-lite's own, by address and port; it is not the launcher's number.
    """
    return {"server": 8, "worker": 9}[role] + 2 * rank


def _watch_heartbeats(mx, handle, timeout: int) -> None:
    """End the scheduler if a node is silent for `timeout` seconds."""
    nodes = [
        node_number(role, rank)
        for role in ("worker", "server")
        for rank in range(int(os.environ[f"DMLC_NUM_{role.upper()}"]))
    ]
    dead = ctypes.c_int()
    while True:
        time.sleep(1)
        for node in nodes:
            count = mx.base._LIB.MXKVStoreGetNumDeadNode
            mx.base.check_call(count(handle, node, ctypes.byref(dead), timeout))
            if dead.value:
                send_status(silent=node, seconds=timeout)
                print(f"no heartbeat of node {node} for {timeout} s", flush=True)
                os._exit(1)


if __name__ == "__main__":
    from d2lpar.workers import node  # the module whose status the package writes

    node.main()

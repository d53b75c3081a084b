"""Scheduler, server and workers on this machine, each in a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from d2lpar.errors import DiedError

LOOPBACK = "127.0.0.1"
SERVING = sys.executable, "-c", "from d2lpar.workers.launch import serve; serve()"
PAUSE = 0.1  # seconds between two looks at the processes
SECONDS_TO_STOP = 25  # for the workers to end their step and write a checkpoint


def launch(
    command: Sequence[str], workers: int, serving: Sequence[str] = SERVING
) -> None:
    """Run `command` as each worker, beside a scheduler and a server that are `serving`.

    Each finds its role in DMLC_ROLE. They communicate through the loopback interface.
    When one fails, the others are ended: they would wait for it for ever. Raises
    :class:`DiedError`.
    """
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))  # to a port that nothing uses
        port = probe.getsockname()[1]
    # Without another cluster's variables, which could open other interfaces.
    own = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "PS_"))}
    own |= {
        "DMLC_PS_ROOT_URI": LOOPBACK,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": LOOPBACK,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": "1",
    }
    names = ["scheduler", "server", *(f"worker {k}" for k in range(workers))]
    running: dict[str, subprocess.Popen] = {}
    try:
        for name in names:
            role = name.split()[0]
            # A session of its own: Ctrl-C is for this process to handle.
            running[name] = subprocess.Popen(
                command if role == "worker" else serving,
                env={**own, "DMLC_ROLE": role},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        while True:
            codes = {name: process.poll() for name, process in running.items()}
            for name, code in codes.items():
                if code:
                    raise DiedError(f"{name} ended with status {code}")
            if all(codes[name] == 0 for name in names if name.startswith("worker")):
                return
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        trains = [p for name, p in running.items() if name.startswith("worker")]
        for process in trains:
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            for process in trains:
                process.wait(SECONDS_TO_STOP)
        raise
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def serve() -> None:
    """Be the scheduler or a server, as DMLC_ROLE says, until the workers have left."""
    role, os.environ["DMLC_ROLE"] = os.environ["DMLC_ROLE"], "worker"
    from d2lpar._mxnet import mx  # which would serve during the import, as MXNet's own

    os.environ["DMLC_ROLE"] = role
    server = mx.kvstore.KVStoreServer(mx.kv.create("dist"))
    # MXNet's own controller unpickles what it is sent, and so would run any program.
    server._controller = lambda: lambda number, body, _: None
    server.run()

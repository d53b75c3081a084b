"""One role of a training on several machines: ``python -m d2lpar.workers.node``.

What it is stands in ps-lite's environment (:mod:`d2lpar.workers.plan`): a scheduler or a
server; a worker is ``d2lpar run ...``, the rest of the command. ``--attached``: it ends
when its standard input does, so that it never outlives the launcher, or the ssh that
started it. ``--about`` prints what a launcher compares.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time

from d2lpar.workers import group


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--about"]:
        print(json.dumps({"package": group.package_digest(), "time": time.time()}))
        return
    if arguments[:1] == ["--attached"]:
        arguments = arguments[1:]
        threading.Thread(target=_end_with_launcher, daemon=True).start()
    if os.environ.get("DMLC_ROLE") in ("scheduler", "server"):
        _serve(os.environ["DMLC_ROLE"])
        return
    from d2lpar.cli import main as cli_main

    sys.argv = ["d2lpar", *arguments]
    cli_main.main()


def _serve(role: str) -> None:
    """Until all workers have finished."""
    os.environ["DMLC_ROLE"] = "worker"  # or the import would serve, and end the process
    from d2lpar._mxnet import mx

    os.environ["DMLC_ROLE"] = role
    kvstore = mx.kv.create("dist")
    server = mx.kvstore.KVStoreServer(kvstore)
    if os.environ.get("D2LPAR_KVSTORE") != "dist_async":
        # MXNet's would unpickle an optimizer, that is run whatever anyone sends it.
        server._controller = lambda: lambda number, body, _: None
    timeout = int(os.environ.get("D2LPAR_HEARTBEAT", 0))
    if role == "scheduler" and timeout:
        threading.Thread(
            target=_listen, args=(mx, kvstore.handle, timeout), daemon=True
        ).start()
    server.run()


def _listen(mx, handle, timeout: int) -> None:
    """End the scheduler, and say why, where a node is silent for so long."""
    counts = (int(os.environ[f"DMLC_NUM_{kind}"]) for kind in ("WORKER", "SERVER"))
    nodes = [
        group.node(kind, rank)
        for kind, count in zip(("worker", "server"), counts)
        for rank in range(count)
    ]
    dead = ctypes.c_int()
    while True:
        time.sleep(1)
        for node in nodes:
            mx.base.check_call(
                mx.base._LIB.MXKVStoreGetNumDeadNode(
                    handle, node, ctypes.byref(dead), timeout
                )
            )
            if dead.value:
                print(f"no heartbeat of node {node} for {timeout} s", flush=True)
                os._exit(1)


def _end_with_launcher() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)  # and the measuring process with it, for the same reason


if __name__ == "__main__":
    main()

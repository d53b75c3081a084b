"""The process of one role: ``python -m d2lpar.workers.node``.

The environment says which (:mod:`d2lpar.workers.plan`): the scheduler, a server, or a
worker, which runs ``d2lpar`` with the rest of the command line. With ``--attached`` it
ends when its standard input does, so that it never outlives the launcher, or the ssh
that started it. ``--about`` prints what the launcher compares between hosts.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import sys
import threading
import time

from d2lpar.workers.place import node_number, package_digest


def main() -> None:
    """Be the role that the environment describes, until it is done."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--about"]:
        print(json.dumps({"package": package_digest(), "time": time.time()}))
        return
    if arguments[:1] == ["--attached"]:
        arguments = arguments[1:]
        threading.Thread(target=_end_with_launcher, daemon=True).start()
    if os.environ.get("DMLC_ROLE") in ("scheduler", "server"):
        _serve(os.environ["DMLC_ROLE"])
        return
    sys.argv[1:] = arguments
    runpy.run_module("d2lpar", run_name="__main__", alter_sys=True)


def _serve(role: str) -> None:
    """Be the scheduler or a server, until all workers are done."""
    os.environ["DMLC_ROLE"] = "worker"  # or the import would serve, and end the process
    from d2lpar._mxnet import mx

    os.environ["DMLC_ROLE"] = role
    kvstore = mx.kv.create("dist")
    server = mx.kvstore.KVStoreServer(kvstore)
    if os.environ.get("D2LPAR_KVSTORE") != "dist_async":
        # MXNet's controller unpickles an optimizer: it runs any program it is sent.
        server._controller = lambda: lambda number, body, _: None
    timeout = int(os.environ.get("D2LPAR_HEARTBEAT", 0))
    if role == "scheduler" and timeout:
        threading.Thread(
            target=_watch_heartbeats, args=(mx, kvstore.handle, timeout), daemon=True
        ).start()
    server.run()


def _watch_heartbeats(mx, handle, timeout: int) -> None:
    """End the scheduler if a node is silent too long: the status is its number."""
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
                print(f"no heartbeat of node {node} for {timeout} s", flush=True)
                os._exit(node)


def _end_with_launcher() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)  # and the measuring process with it, for the same reason


if __name__ == "__main__":
    main()

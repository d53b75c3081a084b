"""Run the role that the environment names: ``python -m d2lpar.workers.role``."""

from __future__ import annotations

import os
import runpy
import threading

# What :func:`~d2lpar.workers.plan.plan` sets of ps-lite's variables, for every role.
PLANNED = (
    "DMLC_ROLE",
    "DMLC_INTERFACE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
)


def main() -> None:
    """Run the role named by DMLC_ROLE until it finishes."""
    drop_inherited()
    os.environ.pop("PYTHONSAFEPATH", None)  # for this process alone, by the plan
    if "D2LPAR_ATTACHED" in os.environ:
        threading.Thread(target=end_with_supervisor, daemon=True).start()
    role = os.environ.get("DMLC_ROLE")
    if role in ("scheduler", "server"):
        serve(role)
    else:
        runpy.run_module("d2lpar", run_name="__main__", alter_sys=True)


def drop_inherited() -> None:
    """Unset ps-lite's variables that no plan has set, such as another cluster's."""
    for name in list(os.environ):
        if name.startswith(("DMLC_", "PS_")) and name not in PLANNED:
            del os.environ[name]


def end_with_supervisor() -> None:
    """End when standard input closes; a measuring process ends for the same reason."""
    while os.read(0, 4096):
        pass
    os._exit(1)


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
    main()

"""`d2lpar launch`: from its flags to the roles, and what the terminal shows of them."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from d2lpar.errors import SettingError
from d2lpar.machine import host
from d2lpar.workers import launch

log = logging.getLogger("d2lpar")


def run_launch(flags: dict, devices_of_run: str | None) -> None:
    """Start and supervise the roles that the flags name, or print them (--print).

    `devices_of_run` is the --devices among the words after `--`: of every worker.
    """
    python = flags["python"] or sys.executable
    directory = flags["directory"] or os.getcwd()
    interface, kvstore = flags["interface"], flags["kvstore"]
    hosts: list[launch.Host] = []
    if flags["hosts"]:
        if interface == launch.LOOPBACK:
            raise SettingError(
                "--hosts needs --interface: the one on which they reach this machine"
            )
        hosts = launch.read_hosts(flags["hosts"], interface)
    else:
        if shutil.which(python) is None:
            raise SettingError(f"--python {python}: there is no such program")
        if flags["ssh"]:
            raise SettingError(f"--ssh {flags['ssh']}: goes with --hosts only")
    each = 1 if hosts else max(1, host.usable_cores() // flags["workers"])
    address = launch.address_of(interface)
    roles = launch.plan(
        flags["workers"],
        flags["servers"],
        flags["arguments"],
        hosts=hosts,
        interface=interface,
        devices=flags["devices"] or [devices_of_run or f"cpu:{each}"],
        address=address,
        port=flags["port"] or 9091,
        kvstore=kvstore,
        threshold=flags["compress"],
    )
    if flags["print"]:
        for role in roles:
            click.echo(f"# {role.full_name}\n{role.as_shell(python, directory)}\n")
        return
    if interface != launch.LOOPBACK:
        # In dist_async the servers unpickle the optimizer, which may be any program.
        also = ", or run programs as you" if kvstore == "dist_async" else ""
        log.warning(
            f"ps-lite on {interface} ({address}) neither authenticates nor encrypts: "
            "whoever reaches it can read, alter or stop the training"
            f"{also}; use a private network or a tunnel"
        )
    elif kvstore == "dist_async":
        log.warning(
            "--kvstore dist_async: every user of this machine can connect to "
            f"{address}, and run programs as you; do not use it on a shared machine"
        )
    launcher = launch.Launcher(
        directory,
        lambda role, line: click.echo(f"[{role.name}] {line}"),
        python=python,
        ssh=flags["ssh"] or launch.SSH,
        logs=Path(flags["logs"]),
        port=flags["port"],
        heartbeat=flags["heartbeat"],
        timeout=flags["timeout"],
        max_restarts=flags["max_restarts"],
    )
    launch.launch(roles, launcher)


def checked(arguments: Sequence[str]) -> list[str]:
    """The words after `--`, which must begin with "run" and a chapter."""
    if list(arguments[:1]) != ["run"] or len(arguments) < 2:
        raise SettingError(
            f"launch ... -- {' '.join(arguments) or '(nothing)'}: after -- write what "
            "each worker runs, as in: launch --workers 2 -- run multiple_gpus_concise"
        )
    return list(arguments)

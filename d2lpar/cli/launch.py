"""`d2lpar launch`: make roles from its flags, start them, and show their output."""

from __future__ import annotations

import logging

import click

from d2lpar.errors import SettingError
from d2lpar.machine import host
from d2lpar.workers.plan import LOOPBACK, PROGRAM, address_of, plan, read_hosts
from d2lpar.workers.supervisor import supervise

log = logging.getLogger("d2lpar")


def run_launch(flags: dict, devices_of_run: str | None) -> None:
    """Start and supervise the roles that the flags name, or print them (--print)."""
    interface = flags["interface"]
    if flags["hosts"] and interface == LOOPBACK:
        raise SettingError(
            "--hosts needs --interface: the one on which they reach this machine"
        )
    hosts = read_hosts(flags["hosts"], interface) if flags["hosts"] else []
    each = 1 if hosts else max(1, host.usable_cores() // flags["workers"])
    address = address_of(interface)
    roles = plan(
        flags["workers"],
        flags["servers"],
        [*PROGRAM, *flags["arguments"]],
        hosts=hosts,
        interface=interface,
        devices=flags["devices"] or [devices_of_run or f"cpu:{each}"],
        address=address,
        port=flags["port"] or 9091,
        kvstore=flags["kvstore"],
        threshold=flags["compress"],
    )
    if flags["print"]:
        for role in roles:
            click.echo(f"# {role.full_name}\n{role.as_shell()}\n")
        return
    is_async = flags["kvstore"] == "dist_async"
    if is_async or interface != LOOPBACK:
        # In dist_async the servers unpickle the optimizer, which may be any program.
        also = ", or run programs as you" if is_async else ""
        log.warning(
            f"ps-lite on {interface} ({address}) neither authenticates nor encrypts: "
            "whoever reaches it can read, alter or stop the training"
            f"{also}; use a private network or a tunnel, and no machine that is shared"
        )
    supervise(
        roles,
        lambda role, line: click.echo(f"[{role.name}] {line}"),
        port=flags["port"],
        max_restarts=0 if hosts else flags["max_restarts"],
    )

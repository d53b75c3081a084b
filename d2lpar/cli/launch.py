"""`d2lpar launch`: from its flags to the roles, and what the terminal shows of them."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from d2lpar.errors import SettingError
from d2lpar.machine import host
from d2lpar.workers import launch

log = logging.getLogger("d2lpar")


def run_launch(
    arguments: Sequence[str],
    *,
    workers: int,
    servers: int,
    hosts: str | None,
    devices: Sequence[str],
    interface: str,
    port: int | None,
    ssh: str | None,
    python: str | None,
    directory: str | None,
    kvstore: str,
    compress: float | None,
    timeout: float,
    heartbeat: int,
    max_restarts: int,
    logs: str,
    print: bool,
) -> None:
    """Start and supervise the roles that the flags name, or print them (--print)."""
    python, directory = python or sys.executable, directory or os.getcwd()
    if hosts and interface == launch.LOOPBACK:
        raise SettingError(
            "--hosts needs --interface: the one on which they reach this machine"
        )
    host_list = launch.read_hosts(hosts, interface) if hosts else []
    if not hosts and shutil.which(python) is None:
        raise SettingError(f"--python {python}: there is no such program")
    if not hosts and not os.path.isdir(directory):
        raise SettingError(f"--directory {directory}: there is no such folder")
    address = launch.address_of(interface)
    if compress is not None and not 1e-30 <= compress <= 1e30:  # it is a float32
        raise SettingError(
            f"--compress {compress:g}: write a number greater than 0, 1e-30 to 1e30"
        )
    if ssh and not hosts:
        raise SettingError(f"--ssh {ssh}: goes with --hosts only")
    words, devices_of_run = without_devices(arguments)
    default = 1 if hosts else max(1, host.usable_cores() // workers)

    def roles_at(port: int) -> list[launch.Role]:
        return launch.plan(
            workers,
            servers,
            words,
            hosts=host_list,
            interface=interface,
            devices=devices or devices_of_run or [f"cpu:{default}"],
            address=address,
            port=port,
            kvstore=kvstore,
            threshold=compress,
            heartbeat=heartbeat,
        )

    roles = roles_at(port or 9091)  # raises before anything is started
    if print:
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
    launcher = launch.Launcher(
        directory, show, python, ssh or launch.SSH, timeout, Path(logs)
    )
    launch.launch(
        roles_at, launcher, address=address, port=port, max_restarts=max_restarts
    )


def checked(arguments: Sequence[str], chapters: Collection[str]) -> list[str]:
    """The words after `--`; :class:`SettingError` unless they run one chapter."""
    if list(arguments[:1]) != ["run"] or len(arguments) < 2:
        raise SettingError(
            f"launch ... -- {' '.join(arguments) or '(nothing)'}: after -- write what "
            "each worker runs, as in: launch --workers 2 -- run multiple_gpus_concise"
        )
    if arguments[1] not in chapters:
        raise SettingError(
            f"chapter {arguments[1]!r}: write one of {', '.join(chapters)}"
        )
    return list(arguments)


def without_devices(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without --devices, and the value of --devices, for every worker.

    >>> without_devices(["run", "gan", "--devices", "gpu:1", "--seed=2"])
    (['run', 'gan', '--seed=2'], ['gpu:1'])
    """
    rest: list[str] = []
    devices: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--devices":
            devices = [next(words, "")]
        elif word.startswith("--devices="):
            devices = [word.partition("=")[2]]
        else:
            rest.append(word)
    return rest, devices


def show(role: launch.Role, line: str) -> None:
    """Print a line that a role has written, after the role's name."""
    click.echo(f"[{role.name}] {line}")

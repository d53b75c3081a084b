"""`d2lpar launch`: from its flags to the roles, and what the terminal shows of them."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click

from d2lpar.errors import SettingError
from d2lpar.workers import plan, supervise

log = logging.getLogger("d2lpar")


def run_launch(chapters: dict[str, Path], **flags) -> None:
    """Start and supervise the roles that the flags name, or print them (--print)."""
    arguments = checked(flags["arguments"], chapters)
    python = flags["python"] or sys.executable
    directory = flags["directory"] or os.getcwd()
    interface, port = flags["interface"], flags["port"]
    address = plan.address_of(interface)
    roles_at = _planner(flags, arguments, address)
    if flags["print"]:
        roles = roles_at(port or 9091)
        click.echo(plan.as_text(roles, python, directory), nl=False)
        return
    if interface != plan.LOOPBACK:
        # In dist_async the servers unpickle the optimizer, which may be any program.
        also = ", or run programs as you" * (flags["kvstore"] == "dist_async")
        log.warning(
            "ps-lite on %s (%s) neither authenticates nor encrypts: whoever reaches it "
            "can read, alter or stop the training%s; use a private network or a tunnel",
            *(interface, address, also),
        )
    roles_at(1)  # raises for impossible settings, before anything is started
    how = supervise.Launch(
        directory,
        Screen().show,
        python,
        ssh=flags["ssh"] or supervise.SSH,
        timeout=flags["timeout"],
        logs=Path(flags["logs"]),
    )
    limits = {"port": port, "max_restarts": flags["max_restarts"]}
    supervise.launch(roles_at, how, address=address, **limits)


def checked(arguments: tuple[str, ...], chapters: dict) -> list[str]:
    """The words after `--`; :class:`SettingError` unless they run one chapter."""
    if arguments[:1] != ("run",) or len(arguments) < 2:
        raise SettingError(
            f"launch ... -- {' '.join(arguments) or '(nothing)'}: after -- write what "
            "each worker runs, as in: launch --workers 2 -- run multiple_gpus_concise"
        )
    if arguments[1] not in chapters:
        raise SettingError(
            f"chapter {arguments[1]!r}: write one of {', '.join(chapters)}"
        )
    return list(arguments)


def _planner(
    flags: dict, arguments: list[str], address: str
) -> Callable[[int], list[plan.Role]]:
    """A function from the scheduler's port to the roles.

    Raises :class:`SettingError` for a threshold or for hosts that cannot be used.
    """
    threshold, interface = flags["compress"], flags["interface"]
    if threshold is not None and not (math.isfinite(threshold) and threshold > 0):
        raise SettingError(f"--compress {threshold:g}: write a number greater than 0")
    hosts = plan.read_hosts(flags["hosts"], interface) if flags["hosts"] else []
    if hosts and interface == plan.LOOPBACK:
        raise SettingError(
            "--hosts needs --interface: the one on which they reach this machine"
        )
    arguments, devices = without_devices(arguments)
    default = plan.default_devices(max(1, flags["workers"]), hosts)
    devices = flags["devices"] or devices or (default,)
    common = {
        **{name: flags[name] for name in ("interface", "kvstore", "heartbeat")},
        **{"threshold": threshold, "hosts": hosts, "devices": devices},
        "address": address,
    }
    counts = flags["workers"], flags["servers"]
    return lambda port: plan.plan(*counts, arguments, port=port, **common)


def without_devices(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """The words without --devices, and what it is given, which every worker is given.

    >>> without_devices(["run", "gan", "--devices", "gpu:1", "--seed=2"])
    (['run', 'gan', '--seed=2'], ('gpu:1',))
    """
    rest, devices, words = [], (), iter(arguments)
    for word in words:
        if word == "--devices":
            devices = (next(words, ""),)
        elif word.startswith("--devices="):
            devices = (word.partition("=")[2],)
        else:
            rest.append(word)
    return rest, devices


class Screen:
    """The lines of all roles, each after its role's name, over worker 0's progress."""

    def __init__(self) -> None:
        self.lock, self.bar = threading.Lock(), ""
        self.terminal = sys.stderr.isatty()

    def show(self, role: plan.Role, line: str, bar: bool) -> None:
        """Print a line of `role`, or keep it below the others as the progress bar."""
        with self.lock:
            if bar and role.name == "worker 0":
                self.bar = line
            if self.terminal:
                click.echo("\r\x1b[K", nl=False, err=True)
            if not bar:
                click.echo(f"[{role.name}] {line}")
            if self.terminal:
                click.echo(self.bar, nl=False, err=True)

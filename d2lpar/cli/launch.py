"""`d2lpar launch`: from its flags to the roles, and what a person sees of them."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from functools import partial
from pathlib import Path

import click

from d2lpar.errors import SettingError
from d2lpar.workers import plan as workers_plan
from d2lpar.workers import supervise

log = logging.getLogger("d2lpar")


def run_launch(chapters: dict[str, Path], **flags) -> None:
    """Start the roles that the flags name, or print them."""
    arguments = checked(flags["arguments"], chapters)
    threshold = flags["compress"]
    if threshold is not None and not (math.isfinite(threshold) and threshold > 0):
        raise SettingError(f"--compress {threshold:g}: write a number greater than 0")
    hosts = []
    if flags["hosts"]:
        hosts = workers_plan.read_hosts(flags["hosts"], flags["interface"])
        if flags["interface"] == workers_plan.LOOPBACK:
            raise SettingError(
                "--hosts needs --interface: the one that they reach this machine on"
            )
    devices = flags["devices"]
    if not devices and not any(word.startswith("--devices") for word in arguments):
        devices = (workers_plan.default_devices(max(1, flags["workers"]), hosts),)
    python = flags["python"] or workers_plan.PYTHON
    directory = flags["directory"] or os.getcwd()
    address = workers_plan.address_of(flags["interface"])
    plan = partial(
        _plan,
        workers=flags["workers"],
        servers=flags["servers"],
        arguments=arguments,
        address=address,
        interface=flags["interface"],
        hosts=hosts,
        devices=devices,
        kvstore=flags["kvstore"],
        threshold=threshold,
        heartbeat=flags["heartbeat"],
        share_cores=flags["print_as"] != "kubernetes",
    )
    if flags["print_as"]:
        planned = plan(flags["port"] or 9091)
        if flags["print_as"] == "kubernetes":
            click.echo(workers_plan.as_kubernetes(planned, flags["image"]), nl=False)
        else:
            click.echo(workers_plan.as_text(planned, python, directory), nl=False)
        return
    if flags["interface"] != workers_plan.LOOPBACK:
        log.warning(
            "ps-lite on %s (%s) neither authenticates nor encrypts: whoever reaches it "
            "can read, alter or stop the training%s; use a private network or a tunnel",
            flags["interface"], address,
            # an optimizer, pickled: any program
            ", or run programs as you" * (flags["kvstore"] == "dist_async"),
        )  # fmt: skip
    plan(1)  # what cannot be, before anything is started
    supervise.launch(
        plan,
        address=address,
        port=flags["port"],
        directory=directory,
        python=python,
        ssh=flags["ssh"] or supervise.SSH,
        timeout=flags["timeout"],
        max_restarts=flags["max_restarts"],
        logs=Path(flags["logs"]),
        show=Screen().show,
    )


def _plan(port: int, *, workers: int, servers: int, arguments: list[str], **more):
    return workers_plan.plan(workers, servers, arguments, port=port, **more)


def checked(arguments: tuple[str, ...], chapters: dict) -> list[str]:
    """The words after `--`, or :class:`SettingError` where they are no run."""
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


class Screen:
    """Lines of all roles, each after its role's name, over worker 0's progress bar."""

    def __init__(self) -> None:
        self.lock, self.bar = threading.Lock(), ""
        self.terminal = sys.stderr.isatty()

    def show(self, role: workers_plan.Role, line: str, bar: bool) -> None:
        with self.lock:
            if bar and self.terminal and role.name == "worker 0":
                self.bar = line
            if self.terminal:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            if not bar:
                click.echo(f"[{role.name}] {line}")
            if self.terminal:
                sys.stderr.write(self.bar)
                sys.stderr.flush()

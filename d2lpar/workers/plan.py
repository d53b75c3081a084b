"""Plan which processes train together: their hosts, environments and commands."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from d2lpar.devices import kind_and_numbers
from d2lpar.errors import SettingError
from d2lpar.process import SAFE_PATH

LOOPBACK = "lo"
PACKAGE = Path(__file__).resolve().parents[1]
PROGRAM = (sys.executable, "-m", "d2lpar.workers.role")
# Passed on to the roles on other hosts, if they are set here.
PASSED_ON = ("PYTHONPATH", "D2LPAR_DATA", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Host:
    """Name a machine as ssh does ("" is this one), and its network interface."""

    name: str = ""
    interface: str = LOOPBACK


@dataclass(frozen=True)
class Role:
    """Describe a process: its name, host, environment and command."""

    name: str
    host: Host
    environment: dict[str, str]
    command: list[str]

    @property
    def full_name(self) -> str:
        return f"{self.name} on {self.host.name}" if self.host.name else self.name

    @property
    def is_worker(self) -> bool:
        return self.environment["DMLC_ROLE"] == "worker"

    def as_shell(self) -> str:
        """Return the command as a line for a shell on the role's host."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        line = shlex.join(["env", *words, *self.command])
        return f"cd {shlex.quote(os.getcwd())} && exec {line}"


def plan(
    workers: int,
    servers: int,
    program: Sequence[str],
    *,
    hosts: Sequence[Host] = (),
    interface: str = LOOPBACK,
    devices: Sequence[str] = (),
    address: str = "127.0.0.1",
    port: int = 9091,
    kvstore: str = "dist_sync",
    threshold: float | None = None,
) -> list[Role]:
    """Return the roles: the scheduler here, the others round-robin over the hosts."""
    if len(devices) not in (0, 1, workers):
        raise SettingError(
            f"--devices is given {len(devices)} times for {workers} workers: once for "
            "all, or once for each"
        )
    common = {
        "DMLC_PS_ROOT_URI": address,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "D2LPAR_KVSTORE": kvstore,
    }
    if threshold is not None:
        common["D2LPAR_THRESHOLD"] = f"{threshold:g}"

    def role(name: str, host: Host, command: Sequence[str] = PROGRAM) -> Role:
        kind, _, number = name.partition(" ")
        environment = {"DMLC_ROLE": kind, "DMLC_INTERFACE": host.interface, **common}
        if kind == "worker":
            environment["D2LPAR_WORKER"] = number
        if [*command[: len(PROGRAM)]] == [*PROGRAM] and PACKAGE.parent != Path.cwd():
            environment[SAFE_PATH] = "1"
        if host.name:
            passed = {n: os.environ[n] for n in PASSED_ON if n in os.environ}
            environment.update(passed)
        return Role(name, host, environment, list(command))

    here = Host("", interface)
    places = list(hosts) or [here]
    worker_hosts = [places[k % len(places)] for k in range(workers)]
    roles = [role("scheduler", here)]
    roles += [role(f"server {k}", places[k % len(places)]) for k in range(servers)]
    for k, text in enumerate(own_devices(devices, worker_hosts)):
        command = [*program, f"--devices={text}"] if text else program
        roles.append(role(f"worker {k}", worker_hosts[k], command))
    return roles


def own_devices(devices: Sequence[str], hosts: Sequence[Host]) -> list[str]:
    """Return the device string of each worker, given the workers' hosts.

    >>> own_devices(["gpu:2"], [Host("ana"), Host("bo"), Host("ana")])
    ['gpu:0,1,', 'gpu:0,1,', 'gpu:2,3,']
    """
    devices = [text.strip().lower() for text in devices]
    each = re.fullmatch(r"gpu:([1-9]\d*)", devices[0]) if len(devices) == 1 else None
    if each:
        n = int(each[1])
        firsts = [n * hosts[:k].count(host) for k, host in enumerate(hosts)]
        return [f"gpu:{','.join(map(str, range(i, i + n)))}," for i in firsts]
    chosen = [devices[k % len(devices)] if devices else "" for k in range(len(hosts))]
    taken: set[tuple[Host, int]] = set()
    for text, host in zip(chosen, hosts):
        if text.startswith("gpu"):
            gpus = {(host, number) for number in kind_and_numbers(text)[1] or [0]}
            if taken & gpus:
                raise SettingError(
                    f"--devices {text}: workers on one host would share a GPU; write "
                    "--devices gpu:N once, for N GPUs of each worker's own, or "
                    "--devices gpu:I,J once for each worker"
                )
            taken |= gpus
    return chosen


def read_hosts(path: str | Path, interface: str) -> list[Host]:
    """Return the hosts of a file: one line each, "name [interface]"; # is a comment."""
    hosts = []
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if len(words) > 2:
            raise SettingError(
                f"{path}: line {number} is {line.strip()!r}; write: name [interface]"
            )
        if words:
            hosts.append(Host(*[*words, interface][:2]))
    if not hosts:
        raise SettingError(f"{path}: no host; write one per line: name [interface]")
    return hosts


def address_of(interface: str) -> str:
    """Return this machine's IPv4 address on an interface, or :class:`SettingError`."""
    known = psutil.net_if_addrs()
    found = (e.address for e in known.get(interface, []) if e.family == socket.AF_INET)
    if address := next(found, None):
        return address
    raise SettingError(
        f"--interface {interface}: no such interface with an IPv4 address here; there "
        f"are {', '.join(known)}"
    )

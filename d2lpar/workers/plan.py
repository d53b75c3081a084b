"""Who takes part in a training on several workers, where, and with which command.

One scheduler, which introduces the others to each other; servers, which hold the sums;
workers, which train. ps-lite reads all that from the environment (DMLC_*): what is
planned here can be started by the launcher, by hand or by Slurm.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from d2lpar.errors import SettingError

LOOPBACK = "lo"
# Passed on to the roles on other hosts, where this process has them.
PASSED_ON = ("PYTHONPATH", "D2LPAR_DATA", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Host:
    """A machine by the name that ssh knows ("": this one), and its interface."""

    name: str = ""
    interface: str = LOOPBACK


@dataclass(frozen=True)
class Role:
    """One process: what it is called, where it runs, its environment and command."""

    name: str
    host: Host
    environment: dict[str, str]
    arguments: list[str] = field(default_factory=list)

    @property
    def is_worker(self) -> bool:
        return self.environment["DMLC_ROLE"] == "worker"

    def command(self, python: str, attached: bool = False) -> list[str]:
        """What to run on the role's host, in its environment."""
        flags = ["--attached"] if attached else []
        return [python, "-m", "d2lpar.workers.node", *flags, *self.arguments]

    def as_shell(self, python: str, directory: str, attached: bool = False) -> str:
        """The same for a shell on that host."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        line = shlex.join(["env", *words, *self.command(python, attached)])
        return f"cd {shlex.quote(directory)} && exec {line}"


def read_hosts(path: str | Path, interface: str) -> list[Host]:
    """Hosts of a file: a line each, "name [interface]"; # begins a comment.

    Raises :class:`SettingError` for a line that is not that, or a file without any.
    """
    hosts = []
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if len(words) > 2 or (words and words[0].startswith("-")):
            raise SettingError(
                f"{path}: line {number} is {line.strip()!r}; write: name [interface]"
            )
        if words:
            hosts.append(Host(words[0], (words + [interface])[1]))
    if not hosts:
        raise SettingError(f"{path}: no host in it; write one a line: name [interface]")
    return hosts


def plan(
    workers: int,
    servers: int,
    arguments: Sequence[str],
    *,
    address: str = "127.0.0.1",
    port: int = 9091,
    interface: str = LOOPBACK,
    hosts: Sequence[Host] = (),
    devices: Sequence[str] = (),
    kvstore: str = "dist_sync",
    threshold: float | None = None,
    heartbeat: int = 8,
    share_cores: bool = True,
) -> list[Role]:
    """The roles: scheduler (here), servers and workers in turn over the hosts.

    `arguments` are "run", a chapter and its flags; `devices` is a device string for
    all workers, or one for each. With `share_cores` workers of this machine alone share
    out its cores, as threads of their CPU contexts. The scheduler ends when a role
    sends no heartbeat for `heartbeat` seconds (0: it does not listen).
    Raises :class:`SettingError` for counts that cannot be.
    """
    for name, count in (("workers", workers), ("servers", servers)):
        if count < 1:
            raise SettingError(f"--{name} {count}: write a whole number, 1 or more")
    if len(devices) not in (0, 1, workers):
        raise SettingError(
            f"--devices is given {len(devices)} times for {workers} workers: once for "
            "all, or once for each"
        )
    here = Host("", interface)
    common = {
        "DMLC_PS_ROOT_URI": address,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "D2LPAR_KVSTORE": kvstore,
    }
    if heartbeat:
        common.update(PS_HEARTBEAT_INTERVAL="1", D2LPAR_HEARTBEAT=str(heartbeat))
    places = list(hosts) or [here]

    def role(name: str, host: Host, kind: str, words=(), **more: str) -> Role:
        passed = {n: os.environ[n] for n in PASSED_ON if n in os.environ and host.name}
        environment = {
            "DMLC_ROLE": kind,
            "DMLC_INTERFACE": host.interface,
            **common,
            **more,
            **passed,
        }
        return Role(name, host, environment, list(words))

    roles = [role("scheduler", here, "scheduler")]
    for k in range(servers):
        roles.append(role(f"server {k}", places[k % len(places)], "server"))
    for k in range(workers):
        chosen = devices[k if len(devices) == workers else 0] if devices else None
        more = {"D2LPAR_WORKER": str(k)}
        if threshold is not None:
            more["D2LPAR_THRESHOLD"] = f"{threshold:g}"
        if share_cores and not hosts:
            more["OMP_NUM_THREADS"] = _threads(chosen or "", workers)
        words = [*arguments, *([f"--devices={chosen}"] if chosen else [])]
        host = places[k % len(places)]
        roles.append(role(f"worker {k}", host, "worker", words, **more))
    return roles


def _threads(devices: str, workers: int) -> str:
    """OMP_NUM_THREADS of each of several workers on this machine."""
    from d2lpar.machine.cores import USER_THREADS, usable_cores

    contexts = int(devices[4:]) if re.fullmatch(r"cpu:[1-9]\d*", devices) else 1
    return str(USER_THREADS or max(1, usable_cores() // (workers * contexts)))


def as_text(roles: Sequence[Role], python: str, directory: str) -> str:
    """Each role's environment and command, to be started by hand, all at once."""
    blocks = []
    for role in roles:
        where = f" on {role.host.name}" if role.host.name else ""
        blocks.append(f"# {role.name}{where}\n{role.as_shell(python, directory)}\n")
    return "\n".join(blocks)


def address_of(interface: str) -> str:
    """This machine's IPv4 address on an interface, or :class:`SettingError`."""
    import psutil

    addresses = psutil.net_if_addrs()
    for found in addresses.get(interface, []):
        if found.family == socket.AF_INET:
            return found.address
    raise SettingError(
        f"--interface {interface}: no such interface with an IPv4 address here; there "
        f"are {', '.join(addresses)}"
    )


def free_port(address: str, port: int | None = None) -> int:
    """A free TCP port on an address; `port` itself, if given and free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port or 0))
        except OSError as error:
            raise SettingError(
                f"--port {port}: cannot be had on {address} ({error.strerror}); leave "
                "it out, and a free one is chosen"
            ) from None
        return probe.getsockname()[1]


def default_devices(workers: int, hosts: Sequence[Host]) -> str:
    """CPU contexts, one a core, this machine's cores shared out among its workers."""
    from d2lpar.machine import cores

    if hosts:
        return "cpu:1"
    return f"cpu:{max(1, cores.usable_cores() // workers)}"


PYTHON = sys.executable

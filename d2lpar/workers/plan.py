"""Who takes part in a training on several workers, where, and with which command.

One scheduler introduces the others to each other, servers hold the sums, workers train.
ps-lite reads all of this from the environment (DMLC_*), so that the launcher can start
what is planned here, or Slurm, or a person in several terminals.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from d2lpar.devices import kind_and_numbers
from d2lpar.errors import SettingError
from d2lpar.machine import cores

LOOPBACK = "lo"
# A host or an interface: no option of ssh, and nothing that a shell would read.
_HOST_WORD = re.compile(r"[\w.@:\[][\w.@:%/\[\]-]*")
# Handed on to the roles on other hosts, if they are set here.
PASSED_ON = ("PYTHONPATH", "D2LPAR_DATA", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Host:
    """A machine by the name that ssh knows ("" is this one), and its interface."""

    name: str = ""
    interface: str = LOOPBACK


@dataclass(frozen=True)
class Role:
    """One process: its name, its host, its environment and its arguments."""

    name: str
    host: Host
    environment: dict[str, str]
    arguments: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """ "scheduler", "server" or "worker"."""
        return self.environment["DMLC_ROLE"]

    @property
    def full_name(self) -> str:
        """Such as "worker 1 on ana"; without a host for this machine."""
        return f"{self.name} on {self.host.name}" if self.host.name else self.name

    def command(self, python: str, attached: bool = False) -> list[str]:
        """The words to run on the role's host, in its environment."""
        flags = ["--attached"] if attached else []
        return [python, "-m", "d2lpar.workers.node", *flags, *self.arguments]

    def as_shell(self, python: str, directory: str, attached: bool = False) -> str:
        """The same with the environment, as one line for a shell on that host."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        line = shlex.join(["env", *words, *self.command(python, attached)])
        return f"cd {shlex.quote(directory)} && exec {line}"


def read_hosts(path: str | Path, interface: str) -> list[Host]:
    """The hosts of a file: one line each, "name [interface]"; # begins a comment.

    `interface` is that of hosts without one. Raises :class:`SettingError` for any other
    line, and for a file without a host, or that is no text.
    """
    hosts = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise SettingError(
            f"{path}: not a text file; write a host per line: name [interface]"
        ) from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if len(words) > 2 or not all(map(_HOST_WORD.fullmatch, words)):
            raise SettingError(
                f"{path}: line {number} is {line.strip()!r}; write: name [interface]"
            )
        if words:
            hosts.append(Host(words[0], (words + [interface])[1]))
    if not hosts:
        raise SettingError(f"{path}: no host; write one per line: name [interface]")
    return hosts


def plan(
    workers: int,
    servers: int,
    arguments: Sequence[str],
    *,
    hosts: Sequence[Host] = (),
    interface: str = LOOPBACK,
    devices: Sequence[str] = (),
    **network,
) -> list[Role]:
    """The roles: the scheduler here, servers and workers in turn over the hosts.

    `arguments` are "run", a chapter and its flags; `devices` is one device string for
    all workers, or one for each; see :func:`own_devices`. Without `hosts` all run here,
    and the workers share out the cores, as threads of their CPU contexts. `network` is
    described at :func:`common_environment`. Raises :class:`SettingError` for impossible
    counts, and for two workers that would share a GPU.
    """
    for flag, count in (("workers", workers), ("servers", servers)):
        if count < 1:
            raise SettingError(f"--{flag} {count}: write a whole number, 1 or more")
    if len(devices) not in (0, 1, workers):
        raise SettingError(
            f"--devices is given {len(devices)} times for {workers} workers: once for "
            "all, or once for each"
        )
    common = common_environment(workers, servers, **network)
    here = Host("", interface)
    places = list(hosts) or [here]
    chosen_by = own_devices(devices, [places[k % len(places)] for k in range(workers)])
    roles = [_role("scheduler", "scheduler", here, common)]
    for k in range(servers):
        roles.append(_role(f"server {k}", "server", places[k % len(places)], common))
    for k in range(workers):
        chosen = chosen_by[k]
        own = {**common, "D2LPAR_WORKER": str(k)}
        if not hosts:
            cpus = re.fullmatch(r"cpu:([1-9]\d*)", chosen)
            contexts = workers * (int(cpus[1]) if cpus else 1)
            own["OMP_NUM_THREADS"] = str(cores.threads_per_context(contexts))
        worker = _role(f"worker {k}", "worker", places[k % len(places)], own)
        worker.arguments.extend(arguments)
        worker.arguments.extend([f"--devices={chosen}"] if chosen else [])
        roles.append(worker)
    return roles


def own_devices(devices: Sequence[str], places: Sequence[Host]) -> list[str]:
    """The device string of each worker, given where they run; "" if there is none.

    "gpu:N", given once, is N GPUs for each worker: those on one host get different
    ones. Raises :class:`SettingError` for strings by which two workers on a host would
    share a GPU, and :class:`~d2lpar.errors.DeviceError` for what is no device string.
    What "auto" turns out to be, only the workers know.

    >>> own_devices(["gpu:2"], [Host("ana"), Host("bo"), Host("ana")])
    ['gpu:0,1,', 'gpu:0,1,', 'gpu:2,3,']
    """
    chosen = [devices[k % len(devices)] if devices else "" for k in range(len(places))]
    each = re.fullmatch(r"gpu:([1-9]\d*)", chosen[0].strip().lower())
    if each and len(devices) == 1:
        count = int(each[1])
        for k, host in enumerate(places):
            first = count * places[:k].count(host)
            chosen[k] = f"gpu:{','.join(map(str, range(first, first + count)))},"
    taken: dict[tuple, int] = {}
    for k, (text, host) in enumerate(zip(chosen, places)):
        if text.strip().lower() in ("", "auto"):
            continue
        kind, numbers = kind_and_numbers(text)
        if kind == "gpu":
            for i in [0] if numbers is None else numbers:
                other = taken.setdefault((host, i), k)
                if other != k:
                    raise _shared_gpu((other, k), i, host)
    return chosen


def _shared_gpu(workers: tuple[int, int], i: int, host: Host) -> SettingError:
    one, other = workers
    return SettingError(
        f"--devices: workers {one} and {other} on {host.name or 'this machine'} would "
        f"share gpu({i}); write --devices gpu:N once, for N GPUs of each worker's own, "
        "or --devices gpu:I,J once for each worker"
    )


def _role(name: str, kind: str, host: Host, environment: dict[str, str]) -> Role:
    own = {"DMLC_ROLE": kind, "DMLC_INTERFACE": host.interface}
    passed = {n: os.environ[n] for n in PASSED_ON if n in os.environ and host.name}
    return Role(name, host, {**own, **environment, **passed})


def common_environment(
    workers: int,
    servers: int,
    *,
    address: str = "127.0.0.1",
    port: int = 9091,
    kvstore: str = "dist_sync",
    threshold: float | None = None,
    heartbeat: int = 8,
) -> dict[str, str]:
    """The environment that all roles share.

    `address` and `port` are the scheduler's, which ends if a role sends no heartbeat
    for `heartbeat` seconds (0: it does not listen). `kvstore` and `threshold` are those
    of :class:`~d2lpar.workers.place.Place`.
    """
    environment = {
        "DMLC_PS_ROOT_URI": address,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "D2LPAR_KVSTORE": kvstore,
    }
    if threshold is not None:
        environment["D2LPAR_THRESHOLD"] = f"{threshold:g}"
    if heartbeat:
        environment["PS_HEARTBEAT_INTERVAL"] = "1"
        environment["D2LPAR_HEARTBEAT"] = str(heartbeat)
    return environment


def as_text(roles: Sequence[Role], python: str, directory: str) -> str:
    """The environment and command of each role, to be started by hand."""
    return "\n".join(
        f"# {role.full_name}\n{role.as_shell(python, directory)}\n" for role in roles
    )


def address_of(interface: str) -> str:
    """This machine's IPv4 address on an interface, or :class:`SettingError`."""
    addresses = psutil.net_if_addrs()
    for entry in addresses.get(interface, []):
        if entry.family == socket.AF_INET:
            return entry.address
    raise SettingError(
        f"--interface {interface}: no such interface with an IPv4 address here; there "
        f"are {', '.join(addresses)}"
    )


def free_port(address: str, port: int | None = None) -> int:
    """A free TCP port, or `port`, or :class:`SettingError` if that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port or 0))
        except OSError as error:
            raise SettingError(
                f"--port {port}: not available on {address} ({error.strerror}); leave "
                "it out, and a free one is chosen"
            ) from None
        return probe.getsockname()[1]


def default_devices(workers: int, hosts: Sequence[Host]) -> str:
    """CPU contexts: one per core of this worker's share; one per worker on hosts."""
    if hosts:
        return "cpu:1"
    return f"cpu:{max(1, cores.usable_cores() // workers)}"

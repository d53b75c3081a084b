"""Plan, start and supervise scheduler, servers and workers, here or over ssh.

One scheduler introduces the others to each other, servers hold the sums, workers train.
ps-lite reads all of this from the environment (DMLC_*), so that this launcher can start
what :func:`plan` describes, or Slurm, or a person in several terminals.

MXNet's own launcher deadlocks when a node dies. :func:`launch` watches every role. When
one ends too early, or no worker makes a step for some time, it ends the others, and the
training resumes from its last checkpoint. Every role lives as long as its standard
input, which this process holds: however this process ends, no role outlives it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from d2lpar.devices import kind_and_numbers
from d2lpar.errors import D2lparError, SettingError
from d2lpar.records.atomic import make_folder

log = logging.getLogger("d2lpar")

LOOPBACK = "lo"
# A host or an interface: not an option of ssh, and nothing that a shell would expand.
_HOST_WORD = re.compile(r"[\w.@:\[][\w.@:%/\[\]-]*")
# Passed on to the roles on other hosts, if they are set here.
PASSED_ON = ("PYTHONPATH", "D2LPAR_DATA", "OMP_NUM_THREADS")
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5"
LINES_SHOWN = 5  # of the last lines that a role wrote before it died
SECONDS_TO_FINISH = 10  # for scheduler and servers, once all workers have finished
FATAL = 2  # a worker's exit code for an error that a restart cannot mend


class LaunchError(D2lparError, RuntimeError):
    """A training on several workers did not complete."""

    exit_code = 3


class _DiedError(Exception):
    """A role ended too early; the message says which, and what it wrote last."""


# The plan


@dataclass(frozen=True)
class Host:
    """A machine by the name that ssh knows ("" is this one), and its interface."""

    name: str = ""
    interface: str = LOOPBACK

    def __str__(self) -> str:
        return self.name or "this machine"


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


def plan(
    workers: int,
    servers: int,
    arguments: Sequence[str],
    *,
    hosts: Sequence[Host] = (),
    interface: str = LOOPBACK,
    devices: Sequence[str] = (),
    address: str = "127.0.0.1",
    port: int = 9091,
    kvstore: str = "dist_sync",
    threshold: float | None = None,
    heartbeat: int = 8,
) -> list[Role]:
    """The roles: the scheduler here, servers and workers in turn over the hosts.

    `arguments` are "run", a chapter and its flags; `devices` is one device string for
    all workers, or one for each; see :func:`own_devices`. Without `hosts` all run here.
    `address` and `port` are the scheduler's, which ends if a role sends no heartbeat
    for `heartbeat` seconds (0: it does not listen). `kvstore` and `threshold` are those
    of :class:`~d2lpar.workers.node.WorkerInfo`. Raises :class:`SettingError` for a
    number of devices that does not fit, and for two workers that would share a GPU.
    """
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
    if heartbeat:
        common["PS_HEARTBEAT_INTERVAL"] = "1"
        common["D2LPAR_HEARTBEAT"] = str(heartbeat)

    def role(name: str, host: Host, arguments: Sequence[str] = ()) -> Role:
        kind, _, number = name.partition(" ")
        environment = {"DMLC_ROLE": kind, "DMLC_INTERFACE": host.interface, **common}
        if number:
            environment[f"D2LPAR_{kind.upper()}"] = number
        if host.name:
            passed = {n: os.environ[n] for n in PASSED_ON if n in os.environ}
            environment.update(passed)
        return Role(name, host, environment, list(arguments))

    here = Host("", interface)
    places = list(hosts) or [here]
    worker_hosts = [places[k % len(places)] for k in range(workers)]
    roles = [role("scheduler", here)]
    for k in range(servers):
        roles.append(role(f"server {k}", places[k % len(places)]))
    for k, text in enumerate(own_devices(devices, worker_hosts)):
        words = [*arguments, f"--devices={text}"] if text else arguments
        roles.append(role(f"worker {k}", worker_hosts[k], words))
    return roles


def own_devices(devices: Sequence[str], hosts: Sequence[Host]) -> list[str]:
    """The device string of each worker, which runs on the host of the same index.

    "gpu:N", given once, is N GPUs for each worker: those on one host get different
    ones. Raises :class:`SettingError` for strings by which two workers on a host would
    share a GPU, and :class:`~d2lpar.errors.DeviceError` for an invalid device string.
    What "auto" turns out to be, only the workers know.

    >>> own_devices(["gpu:2"], [Host("ana"), Host("bo"), Host("ana")])
    ['gpu:0,1,', 'gpu:0,1,', 'gpu:2,3,']
    """
    chosen = [devices[k % len(devices)] if devices else "" for k in range(len(hosts))]
    match = re.fullmatch(r"gpu:([1-9]\d*)", chosen[0].strip().lower())
    if match and len(devices) == 1:
        count = int(match[1])
        for k, host in enumerate(hosts):
            first = count * hosts[:k].count(host)
            chosen[k] = f"gpu:{','.join(map(str, range(first, first + count)))},"
    owners: dict[tuple[Host, int], int] = {}
    for k, (text, host) in enumerate(zip(chosen, hosts)):
        if text.strip().lower() in ("", "auto"):
            continue
        kind, numbers = kind_and_numbers(text)
        for i in ([0] if numbers is None else numbers) if kind == "gpu" else []:
            owner = owners.setdefault((host, i), k)
            if owner != k:
                raise SettingError(
                    f"--devices: workers {owner} and {k} on {host} would share "
                    f"gpu({i}); write --devices gpu:N once, for N GPUs of each "
                    "worker's own, or --devices gpu:I,J once for each worker"
                )
    return chosen


def read_hosts(path: str | Path, interface: str) -> list[Host]:
    """The hosts of a file: one line each, "name [interface]"; # begins a comment.

    `interface` is that of hosts without one. Raises :class:`SettingError` for any other
    line, and for a file without a host.
    """
    hosts = []
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if len(words) > 2 or not all(map(_HOST_WORD.fullmatch, words)):
            raise SettingError(
                f"{path}: line {number} is {line.strip()!r}; write: name [interface]"
            )
        if words:
            hosts.append(Host(words[0], words[1] if len(words) == 2 else interface))
    if not hosts:
        raise SettingError(f"{path}: no host; write one per line: name [interface]")
    return hosts


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


# The launch


@dataclass(frozen=True)
class Launcher:
    """How roles are started and watched.

    They run `python` in `directory`, on other hosts through `ssh`. After `timeout`
    seconds without a step of any worker the training counts as hung. What the roles
    write goes to the folder `logs` and to ``show(role, line)``.
    """

    directory: str
    show: Callable[[Role, str], None]
    python: str = sys.executable
    ssh: str = SSH
    timeout: float = 120
    logs: Path = Path("launch-logs")

    def command(self, role: Role) -> list[str]:
        """The words that start a role, here or on its host."""
        if not role.host.name:
            return role.command(self.python, attached=True)
        line = role.as_shell(self.python, self.directory, attached=True)
        return [*shlex.split(self.ssh), role.host.name, line]


def launch(
    roles_at: Callable[[int], Sequence[Role]],
    launcher: Launcher,
    *,
    address: str,
    port: int | None,
    max_restarts: int = 3,
) -> None:
    """Run the roles ``roles_at(port)`` until the training is complete.

    The scheduler listens on `address` and `port` (None: a free one). Raises
    :class:`LaunchError` if the training is not complete after `max_restarts`, and
    :class:`SettingError` for an error that a restart cannot mend.
    """
    make_folder(launcher.logs)
    since = None  # when worker 0 first began, by the clock of its host
    for restart in range(max_restarts + 1):
        roles = roles_at(free_port(address, port))
        for role in roles:
            if since is not None:
                role.environment["D2LPAR_RESUME_SINCE"] = repr(since)
        running: list[Process] = []
        try:
            return _run_once(roles, launcher, running)
        except _DiedError as death:
            if restart == max_restarts:
                message = f"not complete after {max_restarts} restarts: {death}"
                raise LaunchError(message) from None
            seconds = min(10.0, 0.5 * 2**restart)
            again = f"restart {restart + 1} of {max_restarts} in {seconds:g} s"
            log.warning("%s\n%s, from the last checkpoint", death, again)
            time.sleep(seconds)
        for process in running:
            if process.role.name == "worker 0" and since is None:
                since = process.begin


class Process:
    """A role that runs: its process, its status, its log, and its last lines."""

    def __init__(self, role: Role, launcher: Launcher) -> None:
        self.role, self.show = role, launcher.show
        self.status: dict = {}
        self.begin: float | None = None  # by the clock of its host
        self.nodes: dict[int, str] = {}  # the roles by ps-lite's numbers
        self.last: deque[str] = deque(maxlen=LINES_SHOWN)
        self.last_sign = time.monotonic()
        own = {} if role.host.name else role.environment
        self.process = psutil.Popen(
            launcher.command(role),
            stdin=subprocess.PIPE,  # see d2lpar.workers.node: the role ends with it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=launcher.directory,
            env={**os.environ, **own},
            start_new_session=True,  # Ctrl-C is for this process to handle
        )
        name = role.name.replace(" ", "-")
        self.log = open(launcher.logs / f"{name}.log", "ab")  # closed by _ending
        self.readers = [
            threading.Thread(target=read, daemon=True)
            for read in (self._read_status, self._read_text)
        ]
        for reader in self.readers:
            reader.start()

    def _read_status(self) -> None:
        for line in self.process.stdout:
            self.last_sign = time.monotonic()
            with contextlib.suppress(ValueError):  # cut short by a kill
                self.status = json.loads(line)
                self.begin = self.status.get("begin", self.begin)
                if "node" in self.status:
                    self.nodes[self.status["node"]] = self.status["role"]

    def _read_text(self) -> None:
        for line in self.process.stderr:
            self.last_sign = time.monotonic()
            self.log.write(line)
            self.log.flush()
            text = line.decode(errors="replace").rstrip()
            if text:
                self.last.append(text)
                self.show(self.role, text)

    def finish_reading(self, seconds: float) -> None:
        """Wait until all is read that a role has written which has ended."""
        if self.process.poll() is not None:
            for reader in self.readers:
                reader.join(timeout=seconds)

    def death(self, how: str) -> _DiedError:
        """The error of a role that ended as `how` says."""
        self.finish_reading(1)
        wrote = "".join(f"\n    {line}" for line in self.last) or " nothing"
        return _DiedError(f"{self.role.full_name} {how}; it wrote last:{wrote}")


def _run_once(
    roles: Sequence[Role], launcher: Launcher, running: list[Process]
) -> None:
    """Run the roles from start to end, or raise :class:`_DiedError` if one dies.

    Their processes are added to `running`.
    """
    with _ending(running):
        for role in roles:
            running.append(Process(role, launcher))
        workers = [p for p in running if p.role.kind == "worker"]
        while not all(p.process.poll() == 0 for p in workers):
            for process in running:
                _check_alive(process, running)
            quiet = time.monotonic() - max(p.last_sign for p in workers)
            if quiet > launcher.timeout:
                first = min(workers, key=lambda p: p.last_sign)
                raise first.death(f"hangs, as all workers: no step for {quiet:.0f} s")
            time.sleep(0.1)
        others = [p.process for p in running if p.role.kind != "worker"]
        psutil.wait_procs(others, timeout=SECONDS_TO_FINISH)


def _check_alive(process: Process, running: Sequence[Process]) -> None:
    """Raise if a process has exited with an error."""
    code = process.process.poll()
    if code in (None, 0):
        return
    process.finish_reading(1)
    if process.role.kind == "worker" and code == FATAL:
        last = process.last[-1] if process.last else "no message"
        raise SettingError(f"{process.role.name}: {last.removeprefix('d2lpar: ')}")
    if "silent" in process.status:  # the scheduler's, with ps-lite's number of a role
        names = {node: name for p in running for node, name in p.nodes.items()}
        silent = names.get(process.status["silent"])
        for other in running:
            if other.role.name == silent:
                seconds = process.status["seconds"]
                raise other.death(f"is silent: no heartbeat for {seconds} s")
    how = f"was killed (signal {-code})" if code < 0 else f"ended with status {code}"
    raise process.death(how)


@contextlib.contextmanager
def _ending(running: list[Process]) -> Iterator[None]:
    """However the block ends, end every process that it has started."""
    try:
        yield
    finally:
        processes = [process.process for process in running]
        for process in running:
            with contextlib.suppress(psutil.Error):
                processes += process.process.children(recursive=True)
        for process in processes:  # first all of them: each waits for others
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=5)
        for process in running:
            process.process.wait()
            process.finish_reading(2)
            process.process.stdin.close()
            process.log.close()

"""Plan, start and supervise scheduler, servers and workers, here or over ssh.

One scheduler introduces the others to each other, servers hold the sums, workers train.
ps-lite reads all of this from the environment (DMLC_*), so that this launcher can start
what :func:`plan` describes, or Slurm, or a person in several terminals.

MXNet's own launcher deadlocks when a node dies. :func:`launch` watches every role. When
one ends too early, its heartbeat stops, or no worker makes a step for some time, it
ends the others, and the training resumes from its last checkpoint. Every role lives as
long as its standard input, which this process holds: however this process ends, no role
outlives it (:mod:`d2lpar.workers.node`).
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from d2lpar.devices import kind_and_numbers
from d2lpar.errors import D2lparError, SettingError
from d2lpar.records.atomic import check_writable

log = logging.getLogger("d2lpar")

LOOPBACK = "lo"
# A host or an interface: not an option of ssh, and nothing that a shell would expand.
_HOST_WORD = re.compile(r"[\w.@:\[][\w.@:%/\[\]-]*")
# Passed on to the roles on other hosts, if they are set here.
PASSED_ON = ("PYTHONPATH", "D2LPAR_DATA", "OMP_NUM_THREADS")
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5"
LINES_SHOWN = 5  # of the last lines that a role wrote before it died
FATAL = 2  # a worker's exit code for an error that a restart cannot mend
PAUSE = 0.1  # between two looks at the roles, in seconds


class LaunchError(D2lparError, RuntimeError):
    """A training on several workers did not complete."""

    exit_code = 3


# The plan


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
        """One of "scheduler", "server" and "worker"."""
        return self.environment["DMLC_ROLE"]

    @property
    def full_name(self) -> str:
        """The name with its host, "worker 1 on ana", unless it runs here."""
        return f"{self.name} on {self.host.name}" if self.host.name else self.name

    def command(self, python: str) -> list[str]:
        """The words to run on the role's host, in its environment."""
        return [python, "-m", "d2lpar.workers.node", *self.arguments]

    def as_shell(self, python: str, directory: str) -> str:
        """The same with the environment, as one line for a shell on that host."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        line = shlex.join(["env", *words, *self.command(python)])
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
) -> list[Role]:
    """The roles: the scheduler here, servers and workers in turn over the hosts.

    `arguments` are "run", a chapter and its flags; `devices` is one device string for
    all workers, or one for each; see :func:`own_devices`. Without `hosts` all run here.
    `address` and `port` are the scheduler's, `kvstore` and `threshold` those of
    :class:`~d2lpar.workers.node.WorkerInfo`. Raises :class:`SettingError` for a number
    of devices that does not fit, and for two workers that would share a GPU.
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

    def role(name: str, host: Host, arguments: Sequence[str] = ()) -> Role:
        kind, _, number = name.partition(" ")
        environment = {"DMLC_ROLE": kind, "DMLC_INTERFACE": host.interface, **common}
        if kind == "worker":
            environment["D2LPAR_WORKER"] = number
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


def run_together(
    roles: Sequence[Role], program: Sequence[str], timeout: float = 100
) -> list[str]:
    """Run the roles on this machine until all have ended; return what each printed.

    `program` is the command of every worker. For a short program without a supervisor:
    after `timeout` seconds every process is killed, and TimeoutExpired raised.
    """
    processes = []
    try:
        for role in roles:
            own = role.kind == "worker"
            command = list(program) if own else role.command(sys.executable)
            environment = {**os.environ, **role.environment}
            pipe = subprocess.PIPE
            processes.append(
                subprocess.Popen(command, env=environment, stdout=pipe, text=True)
            )
        return [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()  # if a worker failed, the others would deadlock


def own_devices(devices: Sequence[str], hosts: Sequence[Host]) -> list[str]:
    """The device string of each worker, which runs on the host of the same index.

    "gpu:N", given once, is N GPUs for each worker: those on one host get different
    ones. Raises :class:`SettingError` if two workers on a host would share a GPU, and
    :class:`~d2lpar.errors.DeviceError` for an invalid string. "auto" is not checked:
    only the worker sees what it selects.

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
        if not text.strip().lower().startswith("gpu"):
            continue
        _, numbers = kind_and_numbers(text)
        for i in [0] if numbers is None else numbers:
            owner = owners.setdefault((host, i), k)
            if owner != k:
                raise SettingError(
                    f"--devices: workers {owner} and {k} on one host would share "
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

    They run `python` in `directory`, on other hosts through `ssh`. What they write goes
    to the folder `logs` and to ``show(role, line)``. The scheduler listens on `port`
    (None: a free one). A training has failed if a role sends no heartbeat for
    `heartbeat` seconds (0: never), or no worker makes a step for `timeout` seconds; it
    is restarted at most `max_restarts` times.
    """

    directory: str
    show: Callable[[Role, str], None]
    python: str = sys.executable
    ssh: str = SSH
    logs: Path = Path("launch-logs")
    port: int | None = None
    heartbeat: float = 8
    timeout: float = 120
    max_restarts: int = 3


def launch(roles: Sequence[Role], launcher: Launcher) -> None:
    """Run the roles until the training is complete.

    Raises :class:`LaunchError` if it is not complete after all restarts, and
    :class:`SettingError` for an error that a restart cannot mend.
    """
    check_writable(launcher.logs)
    begin = time.time()
    for restart in range(launcher.max_restarts + 1):
        port = free_port(roles[0].environment["DMLC_PS_ROOT_URI"], launcher.port)
        more = {"DMLC_PS_ROOT_PORT": str(port), "D2LPAR_ATTACHED": "1"}
        if restart:
            more["D2LPAR_RESUME_SINCE"] = repr(begin)
        running: list[Process] = []
        try:
            for role in roles:
                role.environment.update(more)
                running.append(Process(role, launcher))
            fault = watch(running, launcher)
            if not fault:
                return
        finally:
            end(running)
        if restart == launcher.max_restarts:
            raise LaunchError(f"not complete after {restart} restarts: {fault}")
        seconds = min(10.0, 0.5 * 2**restart)
        again = f"restart {restart + 1} of {launcher.max_restarts} in {seconds:g} s"
        log.warning("%s\n%s, from the last checkpoint", fault, again)
        time.sleep(seconds)


class Process:
    """A role that runs: its process, its log, its last lines, its signs of life."""

    def __init__(self, role: Role, launcher: Launcher) -> None:
        self.role, self.show = role, launcher.show
        self.steps = 0
        # Seconds without a heartbeat, and without a step or a text. They are counted:
        # a clock would go on while this process is stopped (Ctrl-Z).
        self.silent = self.idle = 0.0
        self.last: deque[str] = deque(maxlen=LINES_SHOWN)
        command = role.command(launcher.python)
        if role.host.name:
            line = role.as_shell(launcher.python, launcher.directory)
            command = [*shlex.split(launcher.ssh), role.host.name, line]
        name = role.name.replace(" ", "-")
        self.log = open(launcher.logs / f"{name}.log", "ab", buffering=0)
        self.process = psutil.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=launcher.directory,
            env={**os.environ, **role.environment},
            start_new_session=True,  # Ctrl-C is for this process to handle
        )
        self.readers = [
            threading.Thread(target=read, daemon=True)
            for read in (self.read_status, self.read_text)
        ]
        for reader in self.readers:
            reader.start()

    def read_status(self) -> None:
        """Read the heartbeats: numbers of steps."""
        for line in self.process.stdout:
            self.silent = 0.0
            if line.strip().isdigit() and int(line) > self.steps:
                self.steps, self.idle = int(line), 0.0

    def read_text(self) -> None:
        """Show and keep what the role writes."""
        with self.log:
            for line in self.process.stderr:
                self.idle = 0.0
                self.log.write(line)
                text = line.decode(errors="replace").rstrip()
                if text:
                    self.last.append(text)
                    self.show(self.role, text)

    def finish_reading(self) -> None:
        """Read to the end what a role has written that has ended."""
        for reader in self.readers:
            reader.join(timeout=1)

    def fault(self, heartbeat: float) -> str:
        """How the role has failed; "" for one that runs or has ended well.

        Raises :class:`SettingError` for what a restart cannot mend.
        """
        code = self.process.poll()
        if code == 0 or code is None and not 0 < heartbeat < self.silent:
            return ""
        if code is None:
            return self.failed(f"is silent: no heartbeat for {self.silent:.0f} s")
        self.finish_reading()
        if self.role.kind == "worker" and code == FATAL:
            last = self.last[-1] if self.last else "no message"
            raise SettingError(f"{self.role.name}: {last.removeprefix('d2lpar: ')}")
        if code < 0:
            return self.failed(f"was killed (signal {-code})")
        return self.failed(f"ended with status {code}")

    def failed(self, how: str) -> str:
        """A sentence with the role's name and what it wrote last."""
        wrote = "".join(f"\n    {line}" for line in self.last) or " nothing"
        return f"{self.role.full_name} {how}; it wrote last:{wrote}"


def watch(running: Sequence[Process], launcher: Launcher) -> str:
    """Wait until all workers are done, or a role fails: how it failed, or ""."""
    workers = [p for p in running if p.role.kind == "worker"]
    while not all(p.process.poll() == 0 for p in workers):
        time.sleep(PAUSE)
        joined = any(p.steps > 0 for p in workers)
        for process in running:
            process.idle += PAUSE
            if joined:  # before, a role loads MXNet, which may take long
                process.silent += PAUSE
            fault = process.fault(launcher.heartbeat)
            if fault:
                return fault
        if min(p.idle for p in workers) > launcher.timeout:
            first = max(workers, key=lambda p: p.idle)
            return first.failed(
                f"hangs, as all workers: no step for {first.idle:.0f} s"
            )
    return ""


def end(running: Sequence[Process]) -> None:
    """End the processes of all roles, and those that these have started."""
    processes = [process.process for process in running]
    for process in running:
        with contextlib.suppress(psutil.Error):
            processes += process.process.children(recursive=True)
    for process in processes:  # first all of them: each waits for others
        with contextlib.suppress(psutil.Error):
            process.kill()
    for process in running:
        process.process.wait()
        process.finish_reading()
        process.process.stdin.close()

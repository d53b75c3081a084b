"""Start scheduler, servers and workers, watch them, and start again when one dies.

MXNet's own launcher deadlocks when a node dies. Here every role is watched. When one
ends too early, or no worker makes a step for some time, the others are ended and the
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
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from d2lpar.errors import D2lparError, SettingError
from d2lpar.records.atomic import make_folder
from d2lpar.workers.place import NODE, SIGN_OF_LIFE, node_number, package_digest
from d2lpar.workers.plan import Role, free_port

log = logging.getLogger("d2lpar")

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5"
LINES_SHOWN = 5  # of the last lines that a role wrote before it died
SECONDS_TO_FINISH = 10  # for scheduler and servers, once all workers have finished
FATAL = 2  # a worker's exit code for an error that a restart cannot mend


class LaunchError(D2lparError, RuntimeError):
    """A training on several workers did not complete."""

    exit_code = 3


class _DiedError(Exception):
    """A role ended too early; the message says which, and what it wrote last."""


@dataclass(frozen=True)
class Launch:
    """How roles are started and watched.

    They run `python` in `directory`, on other hosts through `ssh`. After `timeout`
    seconds without a step of any worker the training counts as hung. What the roles
    write goes to the folder `logs` and to ``show(role, line, bar)``, where `bar` says
    that the line is a progress bar.
    """

    directory: str
    show: Callable[[Role, str, bool], None]
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
    plan: Callable[[int], Sequence[Role]],
    how: Launch,
    *,
    address: str,
    port: int | None,
    max_restarts: int = 3,
) -> None:
    """Run the roles ``plan(port)`` until the training is complete.

    The scheduler listens on `address` and `port` (None: a free one). Raises
    :class:`LaunchError` if the training is not complete after `max_restarts`, and
    :class:`SettingError` for an error that a restart cannot mend.
    """
    make_folder(how.logs)
    roles = plan(free_port(address, port))
    begun = check_hosts(roles, how)
    for restart in range(1, max_restarts + 2):
        try:
            return _run_once(roles, how)
        except _DiedError as death:
            if restart > max_restarts:
                message = f"not complete after {max_restarts} restarts: {death}"
                raise LaunchError(message) from None
            seconds = min(10.0, 0.25 * 2**restart)
            again = f"restart {restart} of {max_restarts} in {seconds:g} s"
            log.warning("%s\n%s, from the last checkpoint", death, again)
            time.sleep(seconds)
        roles = plan(free_port(address, port))
        for role in roles:
            role.environment["D2LPAR_RESUME_SINCE"] = repr(begun)


# Hosts


def check_hosts(roles: Sequence[Role], how: Launch) -> float:
    """Raise :class:`SettingError` for a host that does not answer or is different.

    Returns the time by the clock of worker 0's host.
    """
    ours = {"package": package_digest(), "time": time.time()}
    answers = {"": ours}
    for role in roles:
        name = role.host.name
        if name in answers:
            continue
        answers[name] = theirs = _about(role, how)
        if theirs["package"] != ours["package"]:
            raise SettingError(
                f"host {name} has another package ({theirs['package'][:12]}) than this "
                f"one ({ours['package'][:12]}): install the same d2lpar, MXNet and "
                "NumPy on all"
            )
    first_worker = next(role for role in roles if role.kind == "worker")
    return answers[first_worker.host.name]["time"]


def _about(role: Role, how: Launch) -> dict:
    """What the host of a role says of its package, with the role's PYTHONPATH."""
    name, path = role.host.name, role.environment.get("PYTHONPATH")
    words = ["env", *([f"PYTHONPATH={path}"] if path is not None else [])]
    words += [how.python, "-m", "d2lpar.workers.node", "--about"]
    line = f"cd {shlex.quote(how.directory)} && exec {shlex.join(words)}"
    command = [*shlex.split(how.ssh), name, line]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except subprocess.TimeoutExpired:
        raise SettingError(f"host {name}: no answer within 30 s through ssh") from None
    if done.returncode != 0:
        *_, last = [f"status {done.returncode}", *done.stderr.strip().splitlines()]
        raise SettingError(f"host {name}: cannot be used through ssh: {last}")
    return json.loads(done.stdout.splitlines()[-1])


# Roles that run


class Process:
    """A role that runs: its process, its log, and the last lines that it wrote."""

    def __init__(self, role: Role, how: Launch) -> None:
        self.role, self.show, self.node = role, how.show, None
        self.last: deque[str] = deque(maxlen=LINES_SHOWN)
        self.last_sign = time.monotonic()
        own = {} if role.host.name else role.environment
        self.process = psutil.Popen(
            how.command(role),
            stdin=subprocess.PIPE,  # see d2lpar.workers.node: the role ends with it
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=how.directory,
            env={**os.environ, **own},
            start_new_session=True,  # Ctrl-C is for this process to handle
        )
        name = role.name.replace(" ", "-")
        self.log = open(how.logs / f"{name}.log", "ab")  # closed by _ending
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self.process.stdout.fileno(), 65536):
            self.last_sign = time.monotonic()
            chunk = chunk.replace(SIGN_OF_LIFE.encode(), b"")
            self.log.write(chunk)
            self.log.flush()
            *lines, rest = re.split(rb"(?<=[\n\r])", rest + chunk)
            for line in lines:
                self._take(line)
        self._take(rest)

    def _take(self, line: bytes) -> None:
        text, bar = line.decode(errors="replace").rstrip(), line.endswith(b"\r")
        _, announced, node = text.rpartition(NODE)
        if announced:
            self.node = int(node)
        elif text:
            if not bar:
                self.last.append(text)
            self.show(self.role, text, bar)

    def death(self, how: str) -> _DiedError:
        """The error of a role that ended as `how` says."""
        self.reader.join(timeout=1)
        wrote = "".join(f"\n    {line}" for line in self.last) or " nothing"
        return _DiedError(f"{self.role.full_name} {how}; it wrote last:{wrote}")


def _run_once(roles: Sequence[Role], how: Launch) -> None:
    """Run the roles from start to end; raises :class:`_DiedError` if one dies."""
    running: list[Process] = []
    with _ending(running):
        for role in roles:
            running.append(Process(role, how))
        workers = [p for p in running if p.role.kind == "worker"]
        while not all(p.process.poll() == 0 for p in workers):
            for process in running:
                _check_alive(process, running)
            quiet = time.monotonic() - max(p.last_sign for p in workers)
            if quiet > how.timeout:
                first = min(workers, key=lambda p: p.last_sign)
                raise first.death(f"hangs, as all workers: no step for {quiet:.0f} s")
            time.sleep(0.1)
        others = [p.process for p in running if p.role.kind != "worker"]
        psutil.wait_procs(others, timeout=SECONDS_TO_FINISH)


def _check_alive(process: Process, running: Sequence[Process]) -> None:
    """Raise the error of a process that has ended, unless it ended well."""
    code = process.process.poll()
    if code in (None, 0):
        return
    process.reader.join(timeout=1)
    last = next(reversed(process.last), "")
    if process.role.kind == "worker" and code == FATAL:
        reason = last.removeprefix("d2lpar: ") or "no message"
        raise SettingError(f"{process.role.name}: {reason}")
    if process.role.kind == "scheduler" and code >= node_number("server", 0):
        # Its status is the number of the node that sends no heartbeat: odd ones are
        # workers, which have announced theirs; even ones are servers.
        servers = [p for p in running if p.role.kind == "server"]
        only = servers if code % 2 == 0 and len(servers) == 1 else []
        for silent in only or [p for p in running if p.node == code]:
            raise silent.death(f"is silent: {last}")
    how = f"was killed (signal {-code})" if code < 0 else f"ended with status {code}"
    raise process.death(how)


@contextlib.contextmanager
def _ending(running: list[Process]) -> Iterator[None]:
    """However the block ends, end every process that it has started."""
    try:
        yield
    finally:
        every = [process.process for process in running]
        for process in running:
            with contextlib.suppress(psutil.Error):
                every += process.process.children(recursive=True)
        for one in every:  # first all of them: each waits for others
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(every, timeout=5)
        for process in running:
            process.process.wait()
            process.reader.join(timeout=2)
            process.process.stdin.close()
            process.log.close()

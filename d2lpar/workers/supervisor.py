"""Run a plan's roles, here or over ssh; a role ends when its standard input closes."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from d2lpar.errors import D2lparError, SettingError
from d2lpar.workers.plan import Role

log = logging.getLogger("d2lpar")

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 --".split()
LINES_SHOWN = 5  # of the last lines that a role wrote before it died
FATAL = 2  # a worker's exit code for an error that a restart cannot mend
PAUSE = 0.1  # between two looks at the roles, in seconds
PAUSE_TO_RESTART = 1  # seconds, in which what the roles have started ends


class LaunchError(D2lparError, RuntimeError):
    """A training on several workers did not complete."""

    exit_code = 3


def supervise(
    roles: Sequence[Role],
    show: Callable[[Role, str], object],
    *,
    port: int | None = None,
    max_restarts: int = 0,
) -> None:
    """Run the roles until all workers have finished; restart all if one dies."""
    more = {"D2LPAR_ATTACHED": "1"}
    begin = time.time(), time.monotonic()
    for restart in range(max_restarts + 1):
        address = roles[0].environment["DMLC_PS_ROOT_URI"]
        more["DMLC_PS_ROOT_PORT"] = str(free_port(address, port))
        running: list[Process] = []
        try:
            for role in roles:
                role.environment.update(more)
                running.append(Process(role, show))
            fault = first_fault(running)
        finally:
            for process in running:  # first all of them: each waits for others
                process.popen.kill()
            for process in running:
                process.popen.wait()
                process.reader.join(timeout=1)
        if not fault:
            return
        if restart < max_restarts:
            again = f"restart {restart + 1} of {max_restarts}, from the last checkpoint"
            log.warning("%s\n%s", fault, again)
            more["D2LPAR_RESUME_SINCE"] = repr(begun(*begin))
            time.sleep(PAUSE_TO_RESTART)
    after = f" after {max_restarts} restarts" if max_restarts else ""
    raise LaunchError(f"not complete{after}: {fault}")


def begun(clock: float, monotonic: float) -> float:
    """Return since when files are of this launch, also if the clock was set back."""
    return min(clock, time.time() - (time.monotonic() - monotonic))


class Process:
    """Hold a running role's process, and the last lines that it wrote."""

    def __init__(self, role: Role, show: Callable[[Role, str], object]) -> None:
        self.role = role
        self.last: deque[str] = deque(maxlen=LINES_SHOWN)
        host = role.host.name
        self.popen = subprocess.Popen(
            [*SSH, host, role.as_shell()] if host else role.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **role.environment},
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process to handle
        )
        self.reader = threading.Thread(target=self.read, args=(show,), daemon=True)
        self.reader.start()

    def read(self, show: Callable[[Role, str], object]) -> None:
        """Print the lines that the role writes, and keep the last ones."""
        with self.popen:  # closes its pipes at the end
            for line in self.popen.stdout or ():
                if line.strip():
                    self.last.append(line.rstrip())
                    show(self.role, line.rstrip())

    def fault(self) -> str:
        """Return how the role failed, or ""; raise if a restart cannot help."""
        code = self.popen.poll()
        if not code:
            return ""
        self.reader.join(timeout=1)
        if self.role.is_worker and code == FATAL:
            last = self.last[-1] if self.last else "no message"
            raise SettingError(f"{self.role.name}: {last.removeprefix('d2lpar: ')}")
        ending = (
            f"was killed (signal {-code})" if code < 0 else f"ended with status {code}"
        )
        wrote = "".join(f"\n    {line}" for line in self.last) or " nothing"
        return f"{self.role.full_name} {ending}; it wrote last:{wrote}"


def first_fault(running: Sequence[Process]) -> str:
    """Wait until all workers finish or a role fails; return how it failed, or ""."""
    workers = [p for p in running if p.role.is_worker]
    while not all(p.popen.poll() == 0 for p in workers):
        for process in running:
            fault = process.fault()
            if fault:
                return fault
        time.sleep(PAUSE)
    return ""


def free_port(address: str, port: int | None = None) -> int:
    """Return a free TCP port, or `port`; :class:`SettingError` if that is taken."""
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

"""Start scheduler, servers and workers, watch them, and start again where one dies.

MXNet's own launcher waits for ever when a node dies. Here every role is watched: when
one ends before its time, or no worker makes a step for some time, the others are ended,
and the training goes on from its last checkpoint. Roles live on their standard input,
which this process holds: however it ends, none of them stays.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from d2lpar.errors import D2lparError, SettingError
from d2lpar.workers.group import announcement, package_digest
from d2lpar.workers.plan import Role, free_port

log = logging.getLogger("d2lpar")

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5"
LINES_SHOWN = 5  # of what a role wrote before it died
ANNOUNCED = re.compile(re.escape(announcement(0)).replace("0", r"(\d+)$"))
SILENT = re.compile(r"no heartbeat of node (\d+) for \d+ s")  # of the scheduler
SECONDS_TO_FINISH = 10  # for scheduler and servers, when all workers have finished
FATAL = 2  # a worker's exit code for what will be wrong again


class LaunchError(D2lparError, RuntimeError):
    """A training on several workers that did not complete."""

    exit_code = 3


class _Died(Exception):
    """A role has ended before its time: the message says which, and what it wrote."""


class Process:
    """A role that runs: its process, its log, the last lines that it wrote."""

    def __init__(self, role: Role, command: list[str], directory: str, logs: Path):
        self.role, self.last = role, deque(maxlen=LINES_SHOWN)
        self.seen, self.node = time.monotonic(), None
        here = {} if role.host.name else role.environment
        self.process = psutil.Popen(
            command,
            stdin=subprocess.PIPE,  # see d2lpar.workers.node: it ends with this
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **here},
            start_new_session=True,  # Ctrl-C is this process's to deal with
        )
        name = role.name.replace(" ", "-")
        self.log = open(logs / f"{name}.log", "ab")  # until close()
        self.reader = threading.Thread(target=self._read, daemon=True)

    def read(self, show: Callable[[Role, str, bool], None]) -> None:
        """Take up what it writes, and show it."""
        self.show = show
        self.reader.start()

    def _read(self) -> None:
        line = b""
        while chunk := os.read(self.process.stdout.fileno(), 65536):
            self.seen = time.monotonic()
            chunk = chunk.replace(b"\0", b"")  # a sign of life, see workers.show_life
            self.log.write(chunk)
            self.log.flush()
            line += chunk
            while (end := min(_found(line, b"\n"), _found(line, b"\r"))) < len(line):
                self._tell(line[:end], bar=line[end : end + 1] == b"\r")
                line = line[end + 1 :]
        self._tell(line, bar=False)

    def _tell(self, line: bytes, bar: bool) -> None:
        text = line.decode(errors="replace").rstrip()
        if found := ANNOUNCED.search(text):
            self.node = int(found[1])
        elif text:
            if not bar:
                self.last.append(text)
            self.show(self.role, text, bar)

    def tree(self) -> list[psutil.Process]:
        """It and what it has started."""
        with contextlib.suppress(psutil.Error):
            return [self.process, *self.process.children(recursive=True)]
        return [self.process]

    def close(self) -> None:
        """After its end: what is left of it here."""
        self.process.wait()
        self.reader.join(timeout=2)
        self.process.stdin.close()
        self.log.close()

    def epitaph(self, how: str) -> str:
        self.reader.join(timeout=1)
        wrote = "".join(f"\n    {line}" for line in self.last) or " nothing"
        where = f" on {self.role.host.name}" if self.role.host.name else ""
        return f"{self.role.name}{where} {how}; it wrote last:{wrote}"


def _found(line: bytes, what: bytes) -> int:
    at = line.find(what)
    return len(line) if at < 0 else at


def launch(
    plan: Callable[[int], Sequence[Role]],
    *,
    address: str,
    port: int | None,
    directory: str,
    python: str = sys.executable,
    ssh: str = SSH,
    timeout: float = 120,
    max_restarts: int = 3,
    logs: Path = Path("launch-logs"),
    show: Callable[[Role, str, bool], None],
) -> None:
    """Run the roles ``plan(port)`` until the training is complete.

    `timeout` is the number of seconds without a step of any worker after which the run
    counts as hung. ``show(role, line, bar)`` gets what the roles write; `bar` where it
    is a progress bar. Raises :class:`LaunchError` where the training is not complete
    after so many restarts, and :class:`SettingError` for what restarting cannot mend.
    """
    logs.mkdir(parents=True, exist_ok=True)
    roles = plan(free_port(address, port))
    begun = check_hosts(roles, python, directory, ssh)
    for attempt in range(max_restarts + 1):
        if attempt:
            roles = plan(free_port(address, port))
            for role in roles:
                role.environment["D2LPAR_RESUME_SINCE"] = repr(begun)
        try:
            _run_once(roles, python, directory, ssh, timeout, logs, show)
            return
        except _Died as death:
            if attempt == max_restarts:
                raise LaunchError(
                    f"not complete after {max_restarts} restarts: {death}"
                ) from None
            pause = min(10.0, 0.5 * 2**attempt)
            log.warning(
                "%s\nrestart %d of %d in %g s, from the last checkpoint",
                death, attempt + 1, max_restarts, pause,
            )  # fmt: skip
            time.sleep(pause)


def check_hosts(roles: Sequence[Role], python: str, directory: str, ssh: str) -> float:
    """Raise :class:`SettingError` for a host that cannot be reached or is different.

    Returns the time by the clock of worker 0's host.
    """
    names = list(dict.fromkeys(role.host.name for role in roles if role.host.name))
    about = f"cd {shlex.quote(directory)} && exec "
    started = {}
    for name in names:
        role = next(role for role in roles if role.host.name == name)
        keep = {n: v for n, v in role.environment.items() if n == "PYTHONPATH"}
        words = ["env", *(f"{n}={v}" for n, v in keep.items()), python]
        line = about + shlex.join([*words, "-m", "d2lpar.workers.node", "--about"])
        started[name] = subprocess.Popen(
            [*shlex.split(ssh), name, line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    said = {"": {"package": package_digest(), "time": time.time()}}
    for name, process in started.items():
        said[name] = _answer(name, process)
    for name in names:
        theirs, ours = said[name]["package"], said[""]["package"]
        if theirs != ours:
            raise SettingError(
                f"host {name} has another package ({theirs[:12]}) than this one "
                f"({ours[:12]}): install the same d2lpar, MXNet and NumPy on all"
            )
    first = next(role for role in roles if role.is_worker)
    return said[first.host.name]["time"]


def _answer(name: str, process: subprocess.Popen) -> dict:
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise SettingError(f"host {name}: no answer within 30 s through ssh") from None
    if process.returncode != 0:
        last = (err.strip().splitlines() or [f"status {process.returncode}"])[-1]
        raise SettingError(f"host {name}: cannot be used through ssh: {last}")
    return json.loads(out.splitlines()[-1])


def _run_once(
    roles: Sequence[Role],
    python: str,
    directory: str,
    ssh: str,
    timeout: float,
    logs: Path,
    show: Callable,
) -> None:
    """From start to complete; raises :class:`_Died` when a role has."""
    running: list[Process] = []
    with _ending(running):
        for role in roles:
            if role.host.name:
                line = role.as_shell(python, directory, attached=True)
                command = [*shlex.split(ssh), role.host.name, line]
            else:
                command = role.command(python, attached=True)
            process = Process(role, command, directory, logs)
            running.append(process)
            process.read(show)
        workers = [p for p in running if p.role.is_worker]
        while not all(p.process.poll() == 0 for p in workers):
            for process in running:
                _check_alive(process, running)
            quiet = time.monotonic() - max(p.seen for p in workers)
            if quiet > timeout:
                told = min(workers, key=lambda p: p.seen)
                how = f"hangs, as all workers: no step for {quiet:.0f} s"
                raise _Died(told.epitaph(how))
            time.sleep(0.1)
        others = [p.process for p in running if not p.role.is_worker]
        psutil.wait_procs(others, timeout=SECONDS_TO_FINISH)


def _check_alive(process: Process, running: Sequence[Process]) -> None:
    code = process.process.poll()
    if code in (None, 0):
        return
    if process.role.is_worker and code == FATAL:
        process.reader.join(timeout=1)
        last = next(reversed(process.last), "no message")
        raise SettingError(f"{process.role.name}: {last.removeprefix('d2lpar: ')}")
    process.reader.join(timeout=1)
    if silent := SILENT.fullmatch(next(reversed(process.last), "")):
        servers = [p for p in running if p.role.environment["DMLC_ROLE"] == "server"]
        silent_ones = [p for p in running if p.node == int(silent[1])]
        if int(silent[1]) % 2 == 0 and len(servers) == 1:  # workers' numbers are odd
            silent_ones = servers
        for other in silent_ones:
            raise _Died(other.epitaph(f"is silent: {silent[0]}"))
    how = f"was killed (signal {-code})" if code < 0 else f"ended with status {code}"
    raise _Died(process.epitaph(how))


@contextlib.contextmanager
def _ending(running: list[Process]) -> Iterator[None]:
    """Whatever happens in the block, nothing that it has started runs after it."""

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        every = [one for process in running for one in process.tree()]
        for one in every:  # at once, for one waits for another
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(every, timeout=5)
        for process in running:
            process.close()
        for number, handler in before.items():
            signal.signal(number, handler)

"""Run a learner's function once for each device, and judge what it answers.

Each device is a process that has only its own arrays. This process carries and counts
the messages. It alone has the data of all devices, the right answers and the verdict,
and believes nothing that a device says about itself. Messages are .npy files without
pickles. Each read and write has a deadline. No process of a learner outlives a test.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from .worker import ANSWER, END, ERROR, HEADER, IDLE

MOST = 8  # devices
CPU, WALL = 10, 120  # seconds of a test: of each device, and in all
LONGEST, ROUNDS = 2**24, 1000  # bytes of a message, rounds of a call: at most
LIMITS = {"RLIMIT_CPU": CPU, "RLIMIT_AS": 2**32, "RLIMIT_FSIZE": 2**24}
TOLERANCE = 4e-6  # of 1 or the largest number: no float32 holds two numbers so exact


class Wrong(Exception):
    """Why an answer is not right, in one line."""


class Case(NamedTuple):
    """Arguments of each device, and what it is to answer.

    `outputs` is a number of returned arrays, or the positions of arguments that are
    changed in place. ``wanted[k]`` has the right arrays of device k, or pairs of one
    and the part that counts. `rounds` and `link`, the bytes over the busiest link, are
    targets; `least` numbers have to be sent in all. In a "ring" devices send to the
    next one, at a "hub" all messages go from or to device 0. A function without a
    `dtype` sends nothing.
    """

    args: Sequence[tuple]
    outputs: Any
    wanted: Sequence[Sequence]
    says: str = ""
    dtype: str = "float32"
    rounds: int = ROUNDS
    link: int | None = None
    least: int = 0
    route: str = ""


class Run(NamedTuple):
    """What devices have answered, and each round's messages: (from, to, size)."""

    answers: list[list]
    rounds: list[list[tuple[int, int, int]]]
    link: int
    printed: list[str]


class Program:
    """A learner's file, which runs in processes of devices only.

    As root, as in a grader's container, each device has a user of its own, who can read
    no other device, no test and no result, if this Python is readable for all users.
    Elsewhere all are one user, and `uids` is empty.
    """

    def __init__(self, path: str | Path, seconds: float = float("inf")):
        self.name, self.data = str(path), Path(path).read_bytes()
        self.end = time.monotonic() + seconds
        base = 61_000 + 8 * (os.getpid() % 400)
        folders = [p for f in (os, numpy) for p in Path(f.__file__).resolve().parents]
        protected = os.geteuid() == 0 and all(p.stat().st_mode & 1 for p in folders)
        self.uids = [*range(base, base + MOST)] if protected else []

    def __enter__(self) -> Program:
        self.control, theirs = socket.socketpair()
        keep = {"PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH"} & os.environ.keys()
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        worker = Path(__file__).with_name("worker.py")
        self.process = subprocess.Popen(
            [sys.executable, worker, str(theirs.fileno())],
            env={**{name: os.environ[name] for name in keep}, **threads},
            pass_fds=[theirs.fileno()], cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def devices(self, function: str, n: int = MOST) -> Iterator[Program]:
        """Start the processes of n devices, and end all that they have started."""
        order = json.dumps([self.uids[:n], LIMITS]).encode()
        pairs = [socket.socketpair() for _ in range(n)]
        self.sockets, theirs = zip(*pairs)
        self.until = min(self.end, time.monotonic() + WALL)
        self.control.settimeout(30)
        try:
            socket.send_fds(self.control, [order], [end.fileno() for end in theirs])
            for k in range(n):
                theirs[k].close()
                self.say(k, (self.name, self.data, function))
            yield self
        except OSError:
            raise Wrong("the process that starts devices has ended") from None
        finally:
            for end in (*self.sockets, *theirs):
                end.close()
            with contextlib.suppress(OSError):
                self.control.sendall(b".")
                self.control.recv(1)

    @contextlib.contextmanager
    def _socket(self, k: int) -> Iterator[socket.socket]:
        """Lend the socket of device k for the time that is left."""
        left = self.until - time.monotonic()
        try:
            if left <= 0:
                raise socket.timeout
            self.sockets[k].settimeout(left)
            yield self.sockets[k]
        except socket.timeout:
            raise Wrong(f"device {k}: no answer in time") from None
        except OSError:
            raise Wrong(f"device {k}: its process has ended") from None

    def say(self, k: int, value: Any) -> None:
        with self._socket(k) as mine:  # a device reads pickles, this process does not
            mine.sendall(pickle.dumps(value))

    def _read(self, k: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            with self._socket(k) as mine:
                more = mine.recv(min(size - len(data), 2**20))
            if not more:
                raise Wrong(f"device {k}: its process has ended")
            data += more
        return data

    def hear(self, k: int) -> tuple[int, Any]:
        """Return the kind of device k's next message, and its array or text."""
        kind, size = HEADER.unpack(self._read(k, HEADER.size))
        if not 0 <= size <= LONGEST:
            raise Wrong(f"device {k}: a message of {size} bytes")
        data = self._read(k, size)
        text = data[:1000].decode(errors="replace").strip()
        if kind == ERROR:
            raise Wrong(text)
        if kind in (IDLE, END):
            return kind, text
        try:
            array = numpy.load(io.BytesIO(data), allow_pickle=False)
            if array.dtype.kind not in "fiub" or array.ndim > 4:
                raise TypeError
        except Exception:  # whatever a device can make of a header
            text = f"device {k}: a message or an answer is no array of numbers"
            raise Wrong(text) from None
        return kind, array.copy()

    def call(self, case: Case, times: float = 1) -> Run:
        """Call the function on each device; carry messages, multiplied by `times`."""
        n, most = len(case.args), len(case.wanted[0])
        for k, args in enumerate(case.args):
            self.say(k, ([*args], case.dtype, case.outputs))
        answers: list[list] = [[] for _ in range(n)]
        rounds: list[list] = []
        link, running, printed = numpy.zeros((2, n), int), set(range(n)), [""] * n
        while running:
            mail = {}
            for k in sorted(running):
                kind, array = self.hear(k)
                while kind == ANSWER and len(answers[k]) <= most:
                    answers[k].append(array)
                    kind, array = self.hear(k)
                if kind == END:
                    running.discard(k)
                    printed[k] = array
                elif kind != IDLE:
                    mail[k] = self._checked(case, k, kind, array)
            rounds.append([(k, to, a.size) for k, (to, a) in mail.items()])
            arrived: dict[int, Any] = {}
            for k, (to, array) in mail.items():
                if to in arrived:
                    raise Wrong(f"devices send to {to} twice in one round")
                if to not in running:
                    raise Wrong(f"device {k} sends to {to}, which has returned")
                link[0, k] += array.nbytes
                link[1, to] += array.nbytes
                arrived[to] = (array * times).astype(array.dtype)
            for k in running:
                self.say(k, arrived.get(k))
            if len(rounds) > ROUNDS:
                raise Wrong(f"more than {ROUNDS} rounds")
        return Run(answers, rounds[:-1], int(link.max()), printed)

    def _checked(self, case: Case, k: int, to: int, array) -> tuple[int, Any]:
        n = len(case.args)
        off = case.route == "ring" and to != (k + 1) % n
        off |= case.route == "hub" and 0 not in (k, to)
        if off or to == k or not 0 <= to < n:
            raise Wrong(f"device {k} may not send to {to}")
        # A count has fewer bits than one of the numbers: nothing is packed into it.
        is_count = array.dtype == "int64" and (array < 2**20).all()
        if array.dtype != case.dtype and not (is_count and (array > -(2**20)).all()):
            raise Wrong(f"device {k} sends {array.dtype}, messages are {case.dtype}")
        # A shape without numbers would be a message that nobody counts.
        return to, array if array.size else array.reshape(-1)[:0]


def compare(run: Run, case: Case) -> None:
    """Raise Wrong with an array of the answers that is not the wanted one."""
    for k, (found, wanted) in enumerate(zip(run.answers, case.wanted)):
        printed = run.printed[k] and f"; printed: {run.printed[k]}"
        pairs = [pair if isinstance(pair, tuple) else (pair, ...) for pair in wanted]
        has = [array.shape for array in found], [numpy.shape(a) for a, _ in pairs]
        if has[0] != has[1]:
            raise Wrong("device {} has shapes {}, wanted are {}".format(k, *has))
        for mine, (right, part) in zip(found, pairs):
            mine = mine[part].astype(float)
            right = numpy.asarray(right, float)[part]
            most = TOLERANCE * abs(right).max(initial=1)  # sums may cancel
            if not (abs(mine - right) <= most).all():
                with numpy.printoptions(precision=4, threshold=9):
                    raise Wrong(f"device {k} has {mine}, wanted is {right}{printed}")


def check(
    program: Program,
    function: str,
    make_case: Callable[[int, int, numpy.random.Generator], Case],
    devices: Sequence[int] = (2, 1, 3, 4, 5, 6, 7, 8),
) -> str:
    """Return the counts of a right function. Raises Wrong for any other.

    ``make_case(n, size, rng)`` makes a case, from numbers that differ in each run.
    """
    rng, counts = numpy.random.default_rng(), ""
    with program.devices(function, max(devices)) as group:
        for n in devices:
            for size in [2 * n + 1, int(rng.integers(1, 2 * n))][n > 3 :]:
                case = make_case(n, size, rng)
                says = case.says or f"{n} devices, {size} numbers"
                try:
                    counts = f"{says}{judged(group.call(case), case)}"
                except Wrong as error:
                    raise Wrong(" ".join(f"{says}: {error}".split())) from None
        if case.least and all(
            still_right(group, make_case(3, 7, rng), rng.uniform(1.2, 1.5))
            for _ in range(20)
        ):
            raise Wrong("the answer does not come from what arrives by exchange")
    return counts


def still_right(group: Program, case: Case, times: float) -> bool:
    """Say whether an answer stays right if all messages are changed on their way."""
    try:
        compare(group.call(case, times), case)
        return True
    except Wrong:  # as for a count of rows that is none
        return False


def judged(run: Run, case: Case) -> str:
    """Return the counts of a right run. Raises Wrong for any other."""
    compare(run, case)
    sent = sum(size for messages in run.rounds for *_, size in messages)
    if sent < case.least:
        raise Wrong(f"{sent} numbers are sent, and {case.least} are needed")
    if case.link is None:
        return ""
    counts = (
        f"{len(run.rounds)} of {case.rounds} rounds, "
        f"{run.link} of {case.link} bytes over the busiest link"
    )
    if len(run.rounds) > case.rounds or run.link > case.link:
        raise Wrong(f"right, but over its target: {counts}")
    return f": {counts}"

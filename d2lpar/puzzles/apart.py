"""Call a function in a process apart, which gets handles of arrays and no numbers.

Data cross the boundary as JSON, in both directions: numbers, lists, tuples, slices,
text, and the bytes of NumPy arrays. Arrays of devices and functions of the caller stay
here, and the other process has a number for each. What it does with an array is noted
there, on a shadow that has the shape, and done here before the next call or answer.
Nothing that a solution returns is unpickled, called or converted here.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import multiprocessing
import operator
import os
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy

from d2lpar.puzzles.interconnect import UFUNCS, DeviceArray, Network, OnDevice

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ENDED = "its process has ended"
LONGEST, DEVICES = 2**26, 64  # bytes of a message; at most
PRELOADED = [__name__]  # by the server of fresh processes, before it starts
# What the process apart does with an array.
OPERATIONS: dict[str, Any] = {ufunc.__name__: ufunc for ufunc in UFUNCS}
OPERATIONS |= {f.__name__: f for f in (operator.getitem, operator.setitem)}
OPERATIONS["copy"] = DeviceArray.copy


class Source(NamedTuple):
    """The function `name` of a program's text, which runs in a process apart only.

    The process does not import from the program's `folder`, nor a module `solution`.
    With a `uid` it gives up the rights of root, and can read and stop no grader.
    """

    text: str
    name: str
    folder: str = ""
    uid: int | None = None

    @classmethod
    def of(cls, path: Path, name: str, uid: int | None = None) -> Source:
        """Read a program."""
        return cls(path.read_text(encoding="utf-8"), name, str(path.parent), uid)

    def start(self, seconds: float) -> Callable:
        """Start a process in which the function can be called."""
        return Apart(self, seconds)

    def load(self) -> Callable:
        """Run the program, and return its function."""
        os.chdir("/")
        sys.path[:] = [path for path in sys.path if path not in ("", self.folder)]
        sys.modules["solution"] = None  # type: ignore[assignment]
        if self.uid is not None:
            os.setgroups([])
            os.setgid(self.uid)
            os.setuid(self.uid)
        namespace: dict = {"__name__": "homework"}
        exec(compile(self.text, "homework.py", "exec"), namespace)
        if self.name not in namespace:
            raise NotImplementedError(f"write {self.name}")
        return namespace[self.name]


def apart(function: Callable | Source, seconds: float = 20) -> Callable:
    """Return the function as one that runs in another process: see :class:`Apart`.

    Where no process can fork, as in a browser, it runs in this one: see :class:`Here`.
    """
    if isinstance(function, Source):
        return function.start(seconds)
    # In a browser's Python os.fork exists, and raises an error.
    can_fork = hasattr(os, "fork") and sys.platform != "emscripten"
    return Apart(function, seconds) if can_fork else Here(function)


class Here:
    """A function whose calls run in this process, with the arguments of :class:`Apart`.

    The numbers of devices are hidden as well as Python can, and nothing ends a call.
    """

    def __init__(self, function: Callable):
        self.function, self.lent = function, list[Any]()
        _say_what_is_lost()

    def __call__(self, *args: Any) -> Any:
        """Return what the function returns, as plain data."""
        try:
            return self._plain(self.function(*self._plain(args)))
        except NotImplementedError:
            raise
        except (Exception, SystemExit) as error:
            text = in_one_line(error, file_of(self.function))
            raise AssertionError(text) from None
        finally:
            self.lent.clear()

    def close(self) -> None:
        """Do nothing: there is no process to end."""

    def _plain(self, value: Any) -> Any:
        def lend(value: Any) -> int:
            self.lent.append(value)
            return len(self.lent) - 1

        def own(_: str, number: int, *__: Any) -> Any:
            return self.lent[number]

        return _decoded(_encoded(value, lend), own)


@cache
def _say_what_is_lost() -> None:
    print(
        "This Python cannot fork, so checks run in this process: nothing ends a "
        "function that does not return, and a function could look up the answers."
    )


class Apart:
    """A function whose calls run in a process apart, for `seconds` in all.

    A :class:`Source` runs in a fresh process, any other function in a fork, made now:
    what the caller draws later is not in it. A call raises NotImplementedError as the
    function does, and AssertionError, with one line that says why, in all other cases
    without an answer.
    """

    def __init__(self, function: Callable | Source, seconds: float):
        self.seconds = seconds
        self.lent, self.kept = 0, dict[int, Any]()
        self.connection, theirs = multiprocessing.Pipe()
        is_source = isinstance(function, Source)
        method = "forkserver" if is_source else "fork"
        context: Any = multiprocessing.get_context(method)
        context.set_forkserver_preload(PRELOADED)
        args = theirs, function, None if is_source else self.connection
        self.process = context.Process(target=_answer_calls, args=args, daemon=True)
        own_main = {"__main__": ModuleType("__main__")} if is_source else {}
        with warnings.catch_warnings(), patch.dict(sys.modules, own_main):
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: MXNet's
            self.process.start()
        theirs.close()
        self.connection.recv_bytes()  # it has started, which takes a server seconds
        self.end = time.monotonic() + seconds
        self.close = weakref.finalize(self, _close, self.process, self.connection)

    def __call__(self, *args: Any) -> Any:
        """Return what the function returns; its arrays of devices as they are here."""
        self.send(*args)
        while not self.serve():
            pass
        return self.found

    def send(self, *args: Any) -> None:
        """Begin a call."""
        self.found = None
        self.kept.clear()
        self._say([""], args)

    def serve(self) -> bool:
        """Answer one message of the process; return whether the result is `found`."""
        noted, what, args = self._hear()
        try:
            for operation in noted:
                self._do(*operation)
            args = _decoded(args, self._own)
            if what in ("call", "repr"):
                number, given = args
                function = repr if what == "repr" else self._own("function", number)
                self._say([""], function(*given))
                return False
        except Exception as error:
            if what not in ("call", "repr"):
                text = f"its answer is no plain data: {error}"
                raise AssertionError(text) from None
            self._say([type(error).__name__, str(error)], None)
            return False
        if what == "returned":
            self.found = args
            return True
        kind, text = map(str, args)
        is_blank = kind == "NotImplementedError"
        raise NotImplementedError(text) if is_blank else AssertionError(text)

    def _do(self, number: int, what: str, *args: Any) -> None:
        """Do what the process has noted, and keep the result under the number."""
        if what == "free":
            self.kept.pop(number, None)
            return
        if what not in ("__call__", "reduce"):
            raise TypeError(f"{what!r:.20} is none of a device")
        name, *given, options = _decoded(list(args), self._own)
        self.kept[number] = getattr(OPERATIONS[name], what)(*given, **vars(options))

    def _own(self, kind: str, number: int) -> Any:
        """What this process has lent under a number."""
        if isinstance(self.kept[number], DeviceArray) != (kind == "device"):
            raise TypeError("not what it was")
        return self.kept[number]

    def _lend(self, value: Any) -> int:
        self.lent += 1
        self.kept[self.lent] = value
        return self.lent

    def _say(self, error: list[str], value: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # _hear says why
            text = json.dumps([*error, _encoded(value, self._lend)])
            self.connection.send_bytes(text.encode())

    def _hear(self) -> tuple[list, str, Any]:
        if not self.connection.poll(max(0, self.end - time.monotonic())):
            self.close()
            raise AssertionError(f"no answer in {self.seconds:g} s")
        try:
            noted, what, args = json.loads(self.connection.recv_bytes(LONGEST))
            return list(noted), str(what), args
        except (OSError, EOFError, ValueError, TypeError, RecursionError):
            self.close()
            raise AssertionError(ENDED) from None


def _close(process: Any, connection: Connection) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
    process.kill()
    process.join()
    connection.close()


def _encoded(value: Any, lend: Callable[[Any], int]) -> Any:
    """A value as JSON has it: lists are lists, and all else {kind: parts}."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) in (int, float):
        return value
    if isinstance(value, Handle):
        return {"device": [value.number]}
    if isinstance(value, DeviceArray):
        shape, dtype = list(value.shape), str(value.dtype)
        return {"device": [lend(value), value.device, shape, dtype]}
    if isinstance(value, slice):
        parts = [value.start, value.stop, value.step]
        return {"slice": [_encoded(part, lend) for part in parts]}
    if value is ...:
        return {"ellipsis": []}
    if isinstance(value, SimpleNamespace):
        return {"names": [[key, _encoded(v, lend)] for key, v in vars(value).items()]}
    if isinstance(value, (list, tuple)):
        items = [_encoded(item, lend) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, (numpy.ndarray, numpy.generic)) or hasattr(value, "__array__"):
        array = numpy.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{value!r:.60} has no real numbers")
        return {"array": [array.dtype.name, list(array.shape), array.tobytes().hex()]}
    if callable(value) and not isinstance(value, type):
        return {"function": [lend(value)]}
    if hasattr(value, "__iter__") and not isinstance(value, (dict, set)):
        items = list(value)  # alive until all are encoded
        return [_encoded(item, lend) for item in items]
    raise TypeError(f"{value!r:.60} is no number, list, slice or array of numbers")


def _decoded(value: Any, own: Callable) -> Any:
    """The inverse of :func:`_encoded`, into plain data; `own` finds what was lent."""
    if isinstance(value, list):
        return [_decoded(item, own) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    if kind in ("device", "function"):
        return own(kind, *parts)
    if kind == "array":
        dtype, shape, text = parts
        if (dtype := numpy.dtype(str(dtype))).kind not in "fiub":
            raise TypeError("not an array of numbers")
        return numpy.frombuffer(bytes.fromhex(text), dtype).reshape(shape)[()]
    if kind == "names":
        return SimpleNamespace(**{str(key): _decoded(v, own) for key, v in parts})
    items = [_decoded(item, own) for item in parts]
    if kind == "slice":
        return slice(*items)
    return tuple(items) if kind == "tuple" else ...


def in_one_line(error: BaseException, file: str) -> str:
    """What was raised, and by which line of a solution's file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"line {frame.lineno}: " for frame in frames if frame.filename == file]
    name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    text = " ".join(f"{name}{error}".split())
    hint = " (leave the arguments as they are)" if "read-only" in text else ""
    return "".join(lines[-1:]) + text + hint


def file_of(function: Callable) -> str:
    """The file, or cell of a notebook, in which a function is written."""
    return getattr(getattr(function, "__code__", None), "co_filename", "")


class Handle(OnDevice):
    """An array whose numbers are in the process that checks, and its shadow of ones."""

    __slots__ = ("_asks", "number", "shadow")
    device = property(lambda self: self.shadow.device)
    shape = property(lambda self: self.shadow.shape)
    dtype = property(lambda self: self.shadow.dtype)

    def __init__(self, asks: Asks, number: int, shadow: DeviceArray):
        self._asks, self.number, self.shadow = asks, number, shadow

    def __del__(self):
        self._asks.freed.append([self.number, "free"])

    def __repr__(self):
        return self._asks("repr", [0, [self]])

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        given = {key: _shadow(value) for key, value in options.items()}
        shadow = getattr(ufunc, method)(*map(_shadow, inputs), **given)
        handle = self._asks.note(shadow, method, ufunc.__name__, *inputs, **options)
        return options["out"][0] if "out" in options else handle

    def __getitem__(self, key):
        return self._asks.note(self.shadow[key], "__call__", "getitem", self, key)

    def __setitem__(self, key, value):
        self.shadow[_shadow(key)] = _shadow(value)
        self._asks.note(None, "__call__", "setitem", self, key, value)

    def copy(self):
        return self._asks.note(self.shadow.copy(), "__call__", "copy", self)


def _shadow(value: Any) -> Any:
    """A value with the shadows of its handles."""
    if isinstance(value, tuple):
        return tuple(map(_shadow, value))
    return value.shadow if isinstance(value, Handle) else value


class Asks:
    """What is asked of the process that checks, and noted to be done there before."""

    def __init__(self, connection: Connection):
        self.connection, self.network, self.results = connection, Network(DEVICES), 0
        self.noted: list[list] = []
        self.freed: list[list] = []

    def __call__(self, what: str, value: Any) -> Any:
        self.say(what, value)
        return self.hear()

    def note(self, shadow: Any, what: str, name: str, *args: Any, **options: Any):
        """Note an operation, and return a handle of its result."""
        self.results -= 1
        given = [_encoded(arg, _refuse) for arg in (*args, SimpleNamespace(**options))]
        self.free()
        self.noted.append([self.results, what, name, *given])
        return Handle(self, self.results, shadow)

    def free(self) -> None:
        """Note which arrays no name refers to any more."""
        self.noted += self.freed
        self.freed.clear()

    def say(self, what: str, value: Any) -> None:
        self.free()
        encoded = _encoded(value, _refuse)
        noted, self.noted = self.noted, []
        self.connection.send_bytes(json.dumps([noted, what, encoded]).encode())

    def hear(self) -> Any:
        error, *text, value = json.loads(self.connection.recv_bytes())
        if error:
            raise getattr(builtins, error, ValueError)(*text)
        return _decoded(value, self.make)

    def make(self, kind: str, number: int, *parts: Any) -> Handle | Callable:
        """What stands here for an array or a function of the other process."""
        if kind == "function":
            return lambda *args: self("call", [number, args])
        device, shape, dtype = parts
        shadow = self.network.place(device, numpy.ones(shape, dtype))
        return Handle(self, number, shadow)


def _refuse(value: Any) -> int:
    raise TypeError(f"{value!r:.60} is a function, not numbers")


def _answer_calls(connection: Connection, function: Any, theirs: Any) -> None:
    if theirs:
        theirs.close()
    os.setsid()
    connection.send_bytes(b"started")
    asks, file = Asks(connection), file_of(function)
    while True:
        try:
            args = asks.hear()
        except (EOFError, OSError):
            return
        try:
            if isinstance(function, Source):
                file, function = "homework.py", function.load()
            asks.say("returned", function(*args))
        except (Exception, SystemExit) as error:
            is_blank = isinstance(error, NotImplementedError)
            text = str(error) if is_blank else in_one_line(error, file)
            asks.say("raised", [type(error).__name__, text])
        del args
        sys.stdout.flush()

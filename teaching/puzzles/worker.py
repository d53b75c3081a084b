"""The other side of devices.py: starts a process for each device, and is one.

A device has only what the checker sends to it. What this file does for the learner's
function, the function could also undo: nothing here is trusted by the checker.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import dis
import importlib.util
import io
import itertools
import json
import os
import pickle
import re
import resource
import signal
import socket
import struct
import sys
import traceback
import types
from pathlib import Path

import numpy

IDLE, ANSWER, END, ERROR = -1, -2, -3, -4  # kinds of messages, else: to whom
HEADER = struct.Struct("<qq")
MAGIC = re.compile(r"(?P<start>\s*(\w+\s*=\s*)?)([%!].*|[^#]*\?\s*$)")
DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def cells(name: str, data: bytes) -> list[tuple[str, str]]:
    """Return the title and the text of each cell of a script or notebook."""
    if name.endswith(".ipynb"):
        found = [c for c in json.loads(data)["cells"] if c["cell_type"] == "code"]
        texts = ["".join(cell["source"]) for cell in found]
        return [(f"{name}, code cell {k}", text) for k, text in enumerate(texts, 1)]
    try:
        text = importlib.util.decode_source(data)
    except (SyntaxError, UnicodeDecodeError):  # no encoding is declared
        text = data.decode("latin-1")
    try:
        ast.parse(text)
        return [(name, text)]
    except SyntaxError:  # it costs its cell only
        found, above = [], 0
        for part in re.split(r"^(?=# %%)", text, flags=re.MULTILINE):
            found.append((name, "\n" * above + part))
            above += part.count("\n")
        return found


def statements(title: str, text: str) -> list[ast.stmt]:
    """Return a cell's statements, without lines for IPython that Python refuses."""
    lines = text.split("\n")
    if text.startswith("%%"):
        if not text.startswith(("%%time", "%%capture", "%%prun")):
            return []
        lines[0] = ""
    while True:
        try:
            return ast.parse("\n".join(lines), title).body
        except SyntaxError as error:
            at = min(error.lineno or 1, len(lines)) - 1
            found = MAGIC.match(lines[at])
            if not found:
                raise
            lines[at] = found["start"] + "None"


def names(code) -> tuple[set, set]:
    """Return the global names that a code object uses, and those that it sets."""
    uses, sets = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            sets.add(step.argval)
        elif re.match("LOAD_(NAME|GLOBAL|FROM_DICT_OR_GLOBALS)", step.opname):
            uses.add(step.argval)
    for inner in code.co_consts:
        if hasattr(inner, "co_code"):
            uses |= names(inner)[0]
    return uses, sets


def parts(name: str, data: bytes) -> tuple[list, list[str]]:
    """Return code, uses and sets of each statement of a program, and its errors."""
    found, problems, defined = [], [], {*dir(builtins)}
    for title, text in cells(name, data):
        try:
            for node in statements(title, text):
                code = compile(ast.Module([node], []), title, "exec")
                uses, sets = names(code)
                if isinstance(node, DEFINITIONS):
                    defined |= sets
                    sets = sets or {"*"}  # from numpy import *
                elif not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                    sets |= uses - defined  # numbers.append(3), but not print(ring(x))
                elif not sets:
                    sets = uses  # table[key] = value
                found.append((code, uses, sets))
        except (SyntaxError, ValueError) as error:
            problems.append(told(error, name))
    return found, problems


def load(name: str, data: bytes, function: str) -> tuple[dict, list[str]]:
    """Run the statements of a program that a function needs; return what they set.

    So a measurement is not repeated by each device, and a broken cell costs only the
    functions that use it. Returns the errors of these statements, too.
    """
    short, module = os.path.basename(name), types.ModuleType("learner")
    sys.modules["learner"], space = module, vars(module)
    space["__file__"] = name
    found, problems = parts(short, data)
    chosen, wanted = set(), {function, "*"}
    for _ in found:
        for k, (_, uses, sets) in enumerate(found):
            if sets & wanted:
                chosen.add(k)
                wanted |= uses
    for k in sorted(chosen):
        try:
            exec(found[k][0], space)
        except (Exception, SystemExit) as error:
            problems.append(told(error, short))
    return space, problems


def told(error: BaseException, name: str) -> str:
    """Return an error in a line, with the place in the learner's file."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [(f.filename, f.lineno) for f in frames if f.filename.startswith(name)]
    if isinstance(error, SyntaxError) and error.filename:
        own = [(error.filename, error.lineno)]
    place = "{}, line {}: ".format(*own[-1]) if own else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{place}{type(error).__name__}: {text}".rstrip(": ")[:500]


def run(channel: socket.socket) -> None:
    """Be a device: load the learner's program, and answer calls of its function."""

    def say(kind: int, data: bytes = b"") -> None:
        channel.sendall(HEADER.pack(kind, len(data)) + data)

    def say_array(kind: int, array) -> None:
        file = io.BytesIO()
        numpy.save(file, array, allow_pickle=False)
        say(kind, file.getvalue())

    def exchange(array=None, to=None):
        """Send an array to device `to`, or nothing; return what arrives, or None."""
        if to is None:
            say(IDLE)
        else:
            array = numpy.asarray(array)
            is_count = array.dtype.kind in "iub"
            say_array(int(to), array.astype("int64" if is_count else dtype))
        return pickle.load(coming)  # of the checker

    coming = channel.makefile("rb")
    name, data, function = pickle.load(coming)
    sys.stdout = sys.stderr = printed = io.StringIO()
    space, problems = {}, []
    while True:
        args, dtype, outputs = pickle.load(coming)
        printed.truncate(printed.seek(0))
        try:
            if not space:
                space, problems = load(name, data, function)
            if not callable(space.get(function)):
                raise NotImplementedError(f"write {function}")
            for i, value in enumerate(args):
                if isinstance(value, dict):  # a function of the device's data, as text
                    args[i] = eval(value.pop("lambda"), {"numpy": numpy, **value})
            found = space[function](*args, *([exchange] if dtype else []))
            if isinstance(outputs, tuple):  # of arguments that are changed in place
                found = [args[k] for k in outputs]
                found = [a for x in found for a in (x if isinstance(x, list) else [x])]
            for array in [found] if outputs == 1 else found:
                say_array(ANSWER, numpy.asarray([] if array is None else array))
            say(END, printed.getvalue()[-400:].encode(errors="replace"))
        except (Exception, SystemExit) as error:
            texts = [told(error, os.path.basename(name)), *problems]
            say(ERROR, "; ".join(texts).encode(errors="replace"))


def too_long(*_) -> None:
    raise TimeoutError("more CPU time than a test has")


def become_a_device(uid: int, limits: dict[str, int]) -> None:
    """Give up the rights of root, and be limited in time and memory."""
    os.setsid()
    signal.signal(signal.SIGXCPU, too_long)
    if uid:
        limits["RLIMIT_NPROC"] = 200
        os.setgroups([])
        os.setgid(uid)
    for what, most in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # as on macOS
            hard = most + 2 if what == "RLIMIT_CPU" else most
            resource.setrlimit(getattr(resource, what), (most, hard))
    if uid:
        os.setuid(uid)


def end(devices: list[int], uids: list[int]) -> None:
    """End devices and all that they have started, also in sessions of their own."""
    for uid in uids:  # each has a device of its own, and no one else
        if (pid := os.fork()) == 0:
            try:
                os.setuid(uid)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    for kill, pid in itertools.product((os.killpg, os.kill), devices):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # no process is left
        while True:
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):
                    fields = stat.read_bytes().rpartition(b")")[2].split()
                    parent, group = map(int, fields[1:3])
                    if parent == os.getpid() and group != os.getpgrp():
                        os.killpg(group, signal.SIGKILL)  # a child alone forks on
            os.waitpid(-1, 0)


def serve(control: socket.socket) -> None:
    """Start and end devices, as the checker asks; one import of NumPy serves all."""
    with contextlib.suppress(AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans become children of this one
    while True:
        order, channels, _, _ = socket.recv_fds(control, 4096, 8)
        if not order:
            return
        (uids, limits), devices = json.loads(order), []
        for k, channel in enumerate(channels):
            if (pid := os.fork()) == 0:
                try:
                    control.close()
                    for other in {*channels} - {channel}:
                        os.close(other)
                    become_a_device(uids[k] if uids else 0, limits)
                    run(socket.socket(fileno=channel))
                finally:
                    os._exit(1)
            devices.append(pid)
        for channel in channels:
            os.close(channel)
        control.recv(1)
        end(devices, uids)
        control.sendall(b".")


if __name__ == "__main__":
    del sys.path[0]  # a learner's import finds nothing of the checker beside this file
    serve(socket.socket(fileno=int(sys.argv[1])))

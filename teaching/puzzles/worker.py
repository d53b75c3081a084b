"""The other side of devices.py: starts a process for each device, and is one.

A device has only what the checker sends to it. What this file does for the learner's
function, the function could also undo: nothing here is trusted by the checker.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import importlib.util
import io
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

import numpy

IDLE, ANSWER, END, ERROR, BLANK = -1, -2, -3, -4, -5  # kinds of messages, else: to whom
HEADER = struct.Struct("<qq")
MAGIC = re.compile(r"(?P<start>\s*(\w+\s*=\s*)?)([%!].*|[^#]*\?\s*$)")
DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")


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
        if not text.startswith(PYTHON_CELLS):
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
    loads, binds = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            binds.add(step.argval)
        elif re.match("LOAD_(NAME|GLOBAL|FROM_DICT_OR_GLOBALS)", step.opname):
            loads.add(step.argval)
    for inner in code.co_consts:
        if hasattr(inner, "co_code"):
            loads |= names(inner)[0]
    return loads, binds


def load(name: str, data: bytes, function: str) -> tuple[dict, list[str]]:
    """Run the statements of a program that a function needs; return what they set.

    So a measurement is not repeated by each device, and a broken cell costs only the
    functions that use it. Returns the errors of these statements, too.
    """
    parts, problems, space = [], [], {"__name__": "learner", "__file__": name}
    short, wanted = os.path.basename(name), {function}
    for title, text in cells(short, data):
        try:
            for node in statements(title, text):
                parts.append((compile(ast.Module([node], []), title, "exec"), node))
        except (SyntaxError, ValueError) as error:
            problems.append(told(error, short))
    uses, sets, chosen, defined = [], [], set(), set()
    for code, node in parts:
        loads, binds = names(code)
        if isinstance(node, DEFINITIONS):
            defined |= binds
        elif not (binds and isinstance(node, ast.Assign)):
            binds |= loads - defined  # a statement such as TABLE[k] = v
        uses.append(loads)
        sets.append(binds)
    for _ in parts:
        for k, (_, node) in enumerate(parts):
            star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
            if star or function not in set().union(*sets) or sets[k] & wanted:
                chosen.add(k)
                wanted |= uses[k]
    for k in sorted(chosen):
        try:
            exec(parts[k][0], space)
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


class Tail(io.TextIOBase):
    """Keeps the last lines that a learner's function prints."""

    text = ""

    def write(self, text: str) -> int:
        self.text = (self.text + text)[-400:]
        return len(text)


def run(channel: socket.socket) -> None:
    """Be a device: load the learner's program, and answer calls of its function."""

    def say(kind: int, data: bytes = b"") -> None:
        channel.sendall(HEADER.pack(kind, len(data)) + data)

    def say_array(kind: int, array) -> None:
        file = io.BytesIO()
        numpy.save(file, array, allow_pickle=False)
        say(kind, file.getvalue())

    def hear():
        (size,) = struct.unpack("<q", coming.read(8))
        return pickle.loads(coming.read(size))  # of the checker

    def exchange(array=None, to=None):
        """Send an array to device `to`, or nothing; return what arrives, or None."""
        if to is None:
            say(IDLE)
        else:
            array = numpy.asarray(array)
            is_count = array.dtype.kind in "iub"
            say_array(int(to), array.astype("int64" if is_count else dtype))
        return hear()

    def of_checker(value):
        """What a function of this device's own data is, from its text."""
        if isinstance(value, dict):
            return eval(value.pop("lambda"), {"numpy": numpy, **value})
        return value

    coming, printed = channel.makefile("rb"), Tail()
    name, data, function = hear()
    sys.stdout = sys.stderr = printed
    try:
        space, problems = load(name, data, function)
    except (Exception, SystemExit) as error:
        space, problems = {}, [told(error, os.path.basename(name))]
    while True:
        args, dtype, outputs = hear()
        printed.text = ""
        try:
            if not callable(space.get(function)):
                raise NotImplementedError(f"write {function}")
            args = [of_checker(value) for value in args]
            found = space[function](*args, *([exchange] if dtype else []))
            if isinstance(outputs, tuple):  # of arguments that are changed in place
                found = [args[k] for k in outputs]
                found = [a for x in found for a in (x if isinstance(x, list) else [x])]
            for array in [found] if outputs == 1 else found:
                say_array(ANSWER, numpy.asarray([] if array is None else array))
            say(END, printed.text.encode())
        except NotImplementedError as error:
            text = "; ".join([str(error) or f"write {function}", *problems])
            say(BLANK, text.encode())
        except (Exception, SystemExit) as error:
            texts = [told(error, os.path.basename(name)), *problems]
            say(ERROR, "; ".join(texts).encode(errors="replace"))


def too_long(*_) -> None:
    raise TimeoutError("more CPU time than a test has")


def become_a_device(uid: int, limits: dict[str, int]) -> None:
    """Give up the rights of root, and be limited in time and memory."""
    os.setsid()
    for signum in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
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


def serve(control: socket.socket) -> None:
    """Start and end devices, as the checker asks; one import of NumPy serves all."""
    started: list[int] = []
    while True:
        text, fds, _, _ = socket.recv_fds(control, 4096, 1)
        if not text:
            return
        order = json.loads(text)
        if order["do"] == "start":
            pid = os.fork()
            if pid == 0:
                try:
                    control.close()
                    become_a_device(order["uid"], order["limits"])
                    run(socket.socket(fileno=fds[0]))
                finally:
                    os._exit(1)
            started.append(pid)
            os.close(fds[0])
        else:
            for pid in started:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            for uid in order["uids"]:  # each has a device of its own, and no one else
                if (pid := os.fork()) == 0:
                    try:
                        os.setuid(uid)
                        os.kill(-1, signal.SIGKILL)
                    finally:
                        os._exit(0)
                os.waitpid(pid, 0)
            for pid in started:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            started.clear()
        control.sendall(b".")


if __name__ == "__main__":
    del sys.path[0]  # a learner's import finds nothing of the checker beside this file
    serve(socket.socket(fileno=int(sys.argv[1])))

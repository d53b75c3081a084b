"""Right solutions are right; cheats and mistakes are neither right nor endless."""

import os
from contextlib import suppress
from pathlib import Path

import numpy
import psutil
import pytest
from puzzles import devices
from puzzles.__main__ import FOLDER, main
from puzzles.cases import PUZZLES
from puzzles.devices import Program, Wrong, check

SOLUTIONS = Path(__file__).parents[1] / "support" / "puzzle_solutions.py"
SOLVED = SOLUTIONS.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def program():
    """One process that starts devices serves all texts here."""
    with Program(SOLUTIONS) as program:
        yield program


@pytest.fixture
def verdict(program):
    """What the check says against a function of a text, or "" if it is right."""

    def verdict(text, name):
        program.name, program.data = "mine.py", text.encode()
        try:
            check(program, name, PUZZLES[name], (2, 3))
        except Wrong as error:
            return str(error)
        return ""

    return verdict


@pytest.mark.parametrize("half", [[*PUZZLES][::2], [*PUZZLES][1::2]])
def test_all_solutions_are_right(half, capsys):
    assert main([str(SOLUTIONS), *half]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(": right")[0] for line in said[:-1]] == half
    assert "ring" not in half or "ring: right, 8 devices" in str(said)


def test_no_task_is_right_as_it_stands(capsys):
    assert main([str(FOLDER / "tasks.py")]) == 1
    said = capsys.readouterr().out
    assert said.count("NotImplementedError") == len(PUZZLES) - 2
    assert "rebinding: wrong with 2 devices" in said and "who_divides: wrong" in said


def test_numbers_differ_in_each_run():
    cases = [PUZZLES["ring"](2, 5, numpy.random.default_rng()) for _ in range(2)]
    assert not numpy.allclose(cases[0].args[0][2], cases[1].args[0][2])


def test_each_puzzle_has_three_hints_a_task_and_a_picture(
    capsys, tmp_path, monkeypatch
):
    for name in PUZZLES:
        assert main(["--hint", name, "3"]) == 0
    capsys.readouterr()
    assert main([]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[: len(PUZZLES)]] == [*PUZZLES]
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(["--draw", str(SOLUTIONS), "tree"]) == 0
    assert (tmp_path / "tree.png").stat().st_size > 5000


MISTAKES = [
    ("ring", "rank - turn - 1, n, array)] +=", "rank - turn - 1, n, array)] -=", "has"),
    ("central", "array[...] = copy", "array = copy", "has"),
    ("zero1", "lr * velocity", "lr * grad[own]", "has"),
    ("clip", "norm > most", "norm < most", "has"),
    ("who_divides", "everything[:-1] / everything[-1]", "everything[:-1] / n", "has"),
    ("central", "copy = exchange(array, k) if", "copy = exchange(array, k + 1) if",
     "which has returned|may not send|has"),
]  # fmt: skip


@pytest.mark.parametrize("name, right, wrong, says", MISTAKES)
def test_a_mistake_is_found(verdict, name, right, wrong, says):
    assert right in SOLVED
    said = verdict(SOLVED.replace(right, wrong), name)
    assert any(word in said for word in says.split("|")), said


RAW = """
import gc, os, pickle, socket, struct, sys, time, numpy
def ring(rank, n, array, exchange):
    sockets = [o for o in gc.get_objects() if isinstance(o, socket.socket)]
    channel = next(o for o in sockets if o.fileno() >= 0)
    def say(kind, data):
        channel.sendall(struct.pack("<qq", kind, len(data)) + data)
"""
ROUNDS = """
    for turn in range(2 * (n - 1)):
        exchange(numpy.zeros(-(-len(array) // n)), (rank + 1) % n)
"""
CHEATS = {
    "ends after 'right'": (
        "import os\ndef ring(*args):\n    os.write(1, b'ring: right'); os._exit(0)",
        "its process has ended",
    ),
    "exits": ("def ring(*args):\n    raise SystemExit(0)", "SystemExit: 0"),
    "nothing sent": ("def ring(*args): pass", "device 0 has"),
    "nan": ("def ring(rank, n, array, exchange):\n    array *= float('nan')", "nan"),
    "a pickle": (
        RAW + """
    class Runs:
        def __reduce__(self):
            return exec, ("import puzzles.devices as d; d.compare = lambda *a: ''",)
    say(-2, pickle.dumps(Runs()))
""", "no array of numbers"),
    "a huge header": (
        RAW + "    channel.sendall(struct.pack('<qq', -2, 2**60))", "bytes"),
    "a huge shape": (
        RAW + """
    head = "{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }" % 10**13
    head = head.ljust(117).encode() + b"\\n"
    say(-2, b"\\x93NUMPY\\x01\\x00" + struct.pack("<H", len(head)) + head)
""", "no array of numbers"),
    "answers without end": (
        RAW + "    while True: say(-2, b'')", "no array of numbers|arrays, wanted"),
    "a flood that reads nothing": (
        RAW + "    while True: say(-1, b'')", "no answer in time|rounds"),
    "an endless round": (RAW + "    while True: exchange()", "more than 1000 rounds"),
    "memory": (
        """
import gc, numpy
def ring(rank, n, array, exchange):
    for other in gc.get_objects():
        if type(other) is numpy.ndarray and other.shape == array.shape:
            array += other
""", "device 0 has"),
    "the whole array": (
        """
def ring(rank, n, array, exchange):
    moving = total = array.copy()
    for turn in range(n - 1):
        moving = exchange(moving, (rank + 1) % n)
        total = total + moving
    array[:] = total
""", "over the busiest link|numbers are sent"),
    "two numbers in one": (
        RAW + """
    half = numpy.append(array, numpy.zeros(len(array) % 2, "float32")).view("int64")
    array += exchange(half, (rank + 1) % n).view("float32")[:len(array)]
""", "sends int64"),
    "numbers in a shape": (
        """
import numpy
def ring(rank, n, array, exchange):
    copy = exchange(numpy.empty((77, 0)), (rank + 1) % n)
    raise ValueError(f"arrived: {copy.shape}")
""", "arrived: (0,)"),
    "to itself": (
        "def ring(rank, n, array, exchange):\n    exchange(array, rank)",
        "may not send to 0"),
    "numbers from files": (
        "import numpy, os, time\ndef ring(rank, n, array, exchange):" + ROUNDS + """
    total = sum(share(rank, n, array, exchange))
    array[:] = total
calls = [0] * 9
def share(rank, n, array, exchange):
    calls[n] += 1
    own = f"/tmp/d2lpar-test-{os.getppid()}-{n}-{calls[n]}-"
    numpy.save(own + f"{rank}.part.npy", array)
    os.replace(own + f"{rank}.part.npy", own + f"{rank}.npy")
    for k in range(n):
        while not os.path.exists(own + f"{k}.npy"):
            time.sleep(0.001)
    return [numpy.load(own + f"{k}.npy") for k in range(n)]
""", "does not come from what arrives"),
    "all memory": (
        "import numpy\ndef ring(*args):\n    numpy.ones(2**33)", "MemoryError"),
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_wrong(verdict, cheat, monkeypatch):
    if "flood" in cheat:
        monkeypatch.setattr(devices, "WALL", 3)
    text, says = CHEATS[cheat]
    said = verdict(text, "ring")
    for file in Path("/tmp").glob("d2lpar-test-*"):
        file.unlink()
    assert any(word in said for word in says.split("|")), said


@pytest.mark.parametrize(
    "body, wall, says",
    [("    while True: pass", 60, "more CPU"), ("    time.sleep(99)", 3, "no answer")],
)
def test_what_does_not_end_is_ended(verdict, body, wall, says, monkeypatch):
    monkeypatch.setattr(devices, "WALL", wall)
    monkeypatch.setitem(devices.LIMITS, "RLIMIT_CPU", 1)
    assert says in verdict(f"import time\ndef ring(*args):\n{body}", "ring")


LEAVES = """
import os, signal, subprocess, sys
def ring(rank, n, array, exchange):
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    code = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep({0})"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:  # a child of a child of a child ...
                if os.fork():
                    os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_no_process_is_left_not_even_in_a_session_of_its_own(verdict, program):
    marker = f"{os.getpid()}.125"
    assert verdict(LEAVES.replace("{0}", marker), "ring")
    left = psutil.Process(program.process.pid).children(recursive=True)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            left += [process] * (marker in " ".join(process.cmdline()))
    assert left == []


def test_what_is_printed_is_shown_with_a_wrong_answer(verdict):
    text = "def ring(rank, n, array, exchange):\n    print(f'rank {rank} of {n}')"
    assert "printed: rank 0 of 2" in verdict(text, "ring")

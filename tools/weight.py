"""How heavy the package is: files of a main-job run, helpers with one caller, lines.

    python tools/weight.py

"Files of a run" are the modules of which `d2lpar run multiple_gpus --dry-run` calls a
function, in its own process and in those that measure.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "d2lpar"
# Put before everything else in each process: notes the files whose functions ran.
TRACE = """
import atexit, os, sys
seen = set()
def trace(frame, event, arg):
    code = frame.f_code
    if code.co_flags & 1:  # a function, not the body of a module or class
        seen.add(code.co_filename)
def write():
    with open(os.path.join(os.environ["WEIGHT"], str(os.getpid())), "w") as f:
        f.write("\\n".join(name for name in seen if "d2lpar" in name))
sys.setprofile(trace)
atexit.register(write)
"""


def files_of_a_run() -> set[str]:
    """The package's files whose functions a dry run of multiple_gpus calls."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(TRACE)
        notes = Path(folder, "notes")
        notes.mkdir()
        paths = os.pathsep.join([folder, str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": paths, "WEIGHT": str(notes)}
        words = [
            "run",
            "multiple_gpus",
            "--dry-run",
            "--devices=cpu:1",
            "--data=sample",
        ]
        command = [sys.executable, "-m", "d2lpar", *words, f"--out={folder}/runs"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, env=environment, check=True, **quiet)
        found = {
            Path(x) for note in notes.iterdir() for x in note.read_text().split("\n")
        }
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.is_relative_to(PACKAGE) and path.suffix == ".py"
    }


def helpers_with_one_caller() -> list[str]:
    """Private functions that are named once besides their definition."""
    names, defined = Counter(), {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                if not node.name.startswith("__"):
                    defined[node.name] = f"{path.relative_to(ROOT)}:{node.name}"
            elif isinstance(node, ast.Name):
                names[node.id] += 1
            elif isinstance(node, ast.Attribute):
                names[node.attr] += 1
    return [where for name, where in defined.items() if names[name] == 1]


def lines(folder: str) -> int:
    """Lines of the Python files below a folder."""
    paths = (ROOT / folder).rglob("*.py")
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main() -> None:
    run = files_of_a_run()
    print(f"{len(run):6,} files of a main-job run")
    print(f"{len(helpers_with_one_caller()):6,} private helpers with one caller")
    for folder in ("d2lpar", "tests", "benchmarks", "peers", "tools"):
        print(f"{lines(folder):6,} lines of {folder}/")
    print("\n".join(sorted(run)))


if __name__ == "__main__":
    main()

"""The programs in subjects/: what is wrong with each, and where it was reported.

    python tests/verify/programs.py

runs them all, and writes the tables of docs/verify-evidence.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

SUBJECTS = Path(__file__).parent / "subjects"
PAGE = Path(__file__).parents[2] / "docs" / "verify-evidence.md"
# JAX and MXNet want different NumPys: a Python of its own may have JAX.
PYTHON_WITH_JAX = os.environ.get("D2LPAR_JAX_PYTHON", sys.executable)

TABLE = Path(__file__).with_name("programs.tsv").read_text("utf-8").splitlines()


class Program(NamedTuple):
    """What a program is, the mistake that is to be named, and a report of it."""

    verdict: str
    framework: str
    name: str
    mistake: str
    report: str
    about: str


PROGRAMS = [Program(*line.split("\t")) for line in TABLE[1:]]
RIGHT = [program for program in PROGRAMS if program.verdict == "right"]
DEVICES = {("mxnet", "two_loops_in_one"): 3}  # all others: 2


def python_of(framework: str) -> str:
    return PYTHON_WITH_JAX if framework == "jax" else sys.executable


def needs(framework: str) -> None:
    """Skip a test of a program whose framework is not here."""
    code = "from d2lpar import mx" if framework == "mxnet" else f"import {framework}"
    command = [python_of(framework), "-c", code]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{framework} is not installed")


def environment(program: Program) -> dict[str, str]:
    """The variables with which a file of subjects/ is this program."""
    double = {"D2LPAR_DTYPE": "float64"} if program.name == "single_allreduce" else {}
    return {**os.environ, "D2LPAR_PROGRAM": program.name, **double}


def judge(program: Program) -> list:
    """The checks of a program."""
    from d2lpar.verify import Check

    code = (
        "import json, sys; from d2lpar.verify import verify; "
        "checks = verify(sys.argv[1], int(sys.argv[2]), timeout=float(sys.argv[3])); "
        "print(json.dumps(checks))"
    )
    devices = "3" if program.name == "two_loops_in_one" else "2"
    timeout = "100" if program.name == "idle_process" else "200"  # it hangs
    words = [f"steps_{program.framework}.py", devices, timeout]
    done = subprocess.run(
        [python_of(program.framework), "-c", code, *words],
        cwd=SUBJECTS,
        env=environment(program),
        capture_output=True,
        text=True,
    )
    return [Check(*check) for check in json.loads(done.stdout)]


def row(program: Program, checks: list) -> str:
    """A row of the table: the program, what it does, a report, what the tool names."""
    report = program.report
    if report.startswith("discuss"):
        report = f" ([report](https://{report}))"
    elif report:
        address = f"https://github.com/{report.replace('#', '/issues/')}"
        report = f" ([{report}]({address}))"
    *rest, last = checks
    first = next((check for check in rest if check.verdict == last.verdict), last)
    if last.verdict == "right":
        first = next((c for c in rest if c.mistake == "not divided"), last)
    said = first.mistake or re.split("[,;]", first.line)[0]
    if first is not last and not first.what.endswith("against one"):
        said = f"*{first.what}*: {said}"
    title = f"{program.framework} {program.name}"
    return f"| {title}: {program.about}{report} | {said} |"


def main() -> None:
    text = PAGE.read_text("utf-8")
    for title in ("wrong", "right"):
        head, start, rest = text.partition(f"<!-- programs: {title} -->\n")
        _, end, tail = rest.partition("<!-- end -->\n")
        table = ["| program | what `verify` says |", "|---|---|"]
        for program in PROGRAMS:
            if (program.verdict == "wrong") == (title == "wrong"):
                table.append(row(program, judge(program)))
                print(table[-1], flush=True)
        text = "\n".join([f"{head}{start}", *table, "", f"{end}{tail}"])
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

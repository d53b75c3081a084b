"""The programs of evidence.md get their verdicts and their names.

D2LPAR_JAX_PYTHON may name a Python with JAX, which wants another NumPy than MXNet.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROW = re.compile(r"^\| (right|wrong|unjudged) \| (\w+) \| (.+?) \| (.*?) \|", re.M)
PROGRAMS = ROW.findall((HERE / "evidence.md").read_text("utf-8"))
CODE = """
import json, sys
from d2lpar.verify import verify
from d2lpar.verify.program import judge_program
file, program, timeout = sys.argv[1:]
if file == "steps_whole.py":
    command = f"whole_torch.py --batch-size 64 {program}"
    print(json.dumps(judge_program(command, 2, "--batch-size 32")))
else:
    print(json.dumps(verify(file, timeout=float(timeout))))
"""


def python_of(framework):
    """A Python that has the framework; without one the test is skipped."""
    python = os.environ.get("D2LPAR_JAX_PYTHON", sys.executable)
    python = python if framework == "jax" else sys.executable
    name = {"whole": "torch", "mxnet": "d2lpar.parallel"}.get(framework, framework)
    if subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode:
        pytest.skip(f"{framework} is not installed")
    return python


MARKS = {"mxnet": [pytest.mark.slow]}
SLOW = [pytest.mark.parity, pytest.mark.slow]


@pytest.mark.parametrize("row", [
    pytest.param(row, marks=MARKS.get(row[1], SLOW), id=" ".join(row[1:3]))
    for row in PROGRAMS
])  # fmt: skip
def test_a_program_gets_its_verdict_and_its_name(row):
    verdict, framework, program, mistake = row
    words = [f"steps_{framework}.py", program, "60" if mistake != "hangs" else "20"]
    done = subprocess.run(
        [python_of(framework), "-c", CODE, *words],
        cwd=HERE / "subjects",
        env={**os.environ, "D2LPAR_PROGRAM": program},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    checks = json.loads(done.stdout)
    assert checks[-1][1] == verdict, checks
    assert mistake in {check[3] for check in checks}, checks

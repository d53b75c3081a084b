"""Chapters 7 to 13 as lessons: their frame, and what their cells print."""

import os
import re
import subprocess
import sys

import jupytext
import pytest

from d2lpar.cli import main

LESSONS = (
    "least_squares",
    "least_squares_large",
    "gan",
    "memory",
    "low_precision",
    "kernels",
    "multiple_machines",
)
# In the order of the cells: what a cell must have printed, as a pattern. All numbers
# that are compared with the package's are compared by assertions in the cells.
PRINTED = {
    "least_squares": [
        r"epoch 5, independent=True: 8\.9145",
        r"x_hat after x -= 1: \[-1\. -1\. -1\.\]",
        r"2000 steps: 8\.8397\d*, replicas agree: True",
        r"here: 8\.839787 after 1\d steps",
        r"on the diagonal: 8\.839787",
        r"tsqr: x is off by \de-1\d\nnormal: x is off by \de-0[3-6]",
        "use method tsqr",
    ],
    "least_squares_large": [
        r"100,000 x 1,000: sqrt\(\(m - n\) / 12\) = 90\.83, the notes print 90\.83",
        r"blocks of 100 rows: 20\.589389464 after 1\d passes",
        r"numpy_lstsq .* MiB more  116\.056643",
        r"d2lpar_cgls .* MiB more  116\.056643",
    ],
    "gan": [
        r"sigmoid, then log: \[\[inf\]\] both in one: \[120\.\]",
        r"loss of D: 0\.69\d+, of G: 0\.7\d+",
        r"normalised over both: differs by \de-0[5-7]",
        r"epoch 5: ",
    ],
    "memory": [
        r"40,370 numbers per image, 129,068 parameters",
        r"per image: measured \d+ kB, kept 161 kB",
        "gone, and its memory with it",
        r"asked for cuda: ran on |skipped: XGBoost is not installed",
    ],
    "low_precision": [
        r"0100000001001001 0000111111011011  ->  3\.140625",
        r"int8-naive: test acc 0\.\d+, agrees with float32 0\.9\d+",
        r"int8-naive by hand 0\.\d+, MXNet 0\.\d+",
        r"BERT, SQuAD 1\.1 \(F1\), wiki +6\.43  0\.67 \(GELU10\)",
        r"LeNet with an outlier .* \(equalised\)",
    ],
    "kernels": [
        r"as in the post: x = \[1 1 1 1 1 1 1 1 1 1\], y = \[0 0 0 0 0 0 0 0 0 0\]",
        r"6\.9646916 +3\.8613935 +4\.2685146 +8\.513147 +11\.19469",
        r"as the post printed: True",
        r"my_sgd is MXNet's sgd, to the bit: True",
    ],
    "multiple_machines": [
        r"a pull waits until every worker has pushed",
        r"6 workers: replicas agree True",
        r"worker 1 pulled the gradient of the whole batch: True",
        r"after 100 steps of .*: \[ 0\.02 +-0\.295 +0\.5 +\] per step arrived",
    ],
}


@pytest.fixture(params=LESSONS)
def lesson(request):
    return main.chapter_files()[request.param]


def test_a_lesson_has_its_frame(lesson):
    cells = jupytext.read(lesson).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert "**What you will learn.**" in text
    assert re.search(r"^<https://\S+>", cells[0].source, re.MULTILINE)
    assert len(re.findall(r"\*Predict before you run\*:\s", text)) >= 3
    _, after = text.split("## Summary\n")
    _, *exercises = re.split(
        r"^\d\. \*\*", after.split("## Exercises\n")[1], flags=re.M
    )
    assert 4 <= len(exercises) <= 6
    for exercise in exercises:
        assert "*(You should find" in " ".join(exercise.split())
        assert exercise.rstrip().endswith(")*")


@pytest.mark.slow
def test_the_cells_of_a_lesson_print_what_they_teach(lesson, tmp_path):
    """As a script; the last cell with --help, so that nothing is measured."""
    done = subprocess.run(
        [sys.executable, str(lesson), "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(lesson.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    printed = done.stdout
    for pattern in PRINTED[lesson.stem]:
        assert re.search(pattern, printed), f"{pattern} in\n{printed}"

"""The chapters' cells, run once each in a fresh kernel: what they print and write.

Their last cells measure a few batches of generated data. `make notebooks` runs all of
it, and for longer.
"""

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("ipykernel", reason="no notebook kernel: extra test")
nbformat = pytest.importorskip("nbformat", reason="no nbformat: extra docs")

from d2lpar.experiments import EXPERIMENTS  # noqa: E402

TOOL = Path(__file__).parents[2] / "tools" / "make_notebooks.py"
pytestmark = pytest.mark.slow
if not TOOL.is_file():
    pytest.skip("not a checkout", allow_module_level=True)
TOOLS = runpy.run_path(str(TOOL))
FILES = TOOLS["FILES"]
BRIEFLY = """
import functools
from d2lpar import chapter
flags = dict(dry_run=True, devices="cpu:2", num_devices=COUNTS, **DATA)
chapter.measure = functools.partial(chapter.measure, **flags)
"""
NEED_BOTH_COUNTS = ("timing", "scaling")  # they compare one device with two
ROUNDING = r"(0\.0e\+00|\d\.\de-(0[6-9]|1\d))"  # of a step, or of ten
# Results that cells print but do not assert, as patterns, in any order.
PRINTED = {
    "multiple_gpus": [
        r"(?s)after allreduce:.*\[\[3\. 3\.\]\].*\[\[3\. 3\.\]\]",
        "replicas agree: True",
        f"one device to 2: {ROUNDING}, ours to the package's: {ROUNDING}\n",
    ],
    "devices": ["operations for an H200: 7"],
    "communication": [
        r"early sums in groups of 15: 0",
        "one by one: [1-8] of 8 sums",
        r"4 devices, ring +: the busiest sends +6,000 of 24,000 bytes",
    ],
    "multiple_gpus_concise": [
        f"Gluon against Chapter 1 on .*: {ROUNDING}\n",
        r"synchronised=True: two devices differ by \d\.\de-0[5-8]",
    ],
    "gan": [r"loss of D: 0\.69\d+, of G: 0\.7\d+"],
    "memory": [
        r"40,370 numbers per image",
        rf"data parallelism differs by {ROUNDING}",
        r"times the bytes of an all-reduce: 1\.50",
        r"(?s) at \d{4} MiB.*arrays dropped: \d+ MiB",
    ],
    "low_precision": [r"0100000001001001 0000111111011011  ->  3\.140625"],
    "kernels": [r"as the post printed: True"],
    "multiple_machines": [
        r"worker 1, images 3 to 4: its sum is \de-0[5-9] from the gradient",
        r"changes nothing without clipping: E",
        "B -> .*times as far",
        "E -> .*clips its own gradient",
    ],
}


# Of what the last cells must have written, by the chapter; the others write nothing.
WRITTEN = {
    "timing": {"results.txt"},
    **dict.fromkeys(
        ("multiple_gpus", "multiple_gpus_concise"),
        {"cpu2.jsonl", "seconds.png"},
    ),
    "multiple_machines": {"cpu2.jsonl"},
    "scaling": {"concise-cpu2.jsonl", "steps.png", "results.txt"},
    "least_squares": {"cgls-cpu2.jsonl", "results.txt"},
    "gan": {"film.gif", "samples.png"},
    "low_precision": {"results.txt", "cpu1-precision.png"},
}


@pytest.mark.parametrize("name", FILES)
def test_the_cells_of_a_lesson_print_what_they_teach(name, tmp_path):
    notebook = TOOLS["converted"](FILES[name])
    datasets = EXPERIMENTS[name].datasets if name in EXPERIMENTS else ()
    offline = {"data": datasets[-1]} if datasets else {}
    counts = "1,2" if name in NEED_BOTH_COUNTS else "2"
    code = BRIEFLY.replace("DATA", repr(offline)).replace("COUNTS", repr(counts))
    notebook.cells.insert(0, nbformat.v4.new_code_cell(code))
    TOOLS["execute"](notebook, TOOLS["environment_of"](name, tmp_path), tmp_path)
    assert TOOLS["wrong_with"](notebook) == []
    text = "".join(TOOLS["texts"](notebook))
    for pattern in PRINTED.get(name, ()):
        assert re.search(pattern, text), f"{pattern} in\n{text}"
    assert {path.name for path in tmp_path.rglob("*")} >= WRITTEN.get(name, set())

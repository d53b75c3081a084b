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
# Before the first cell of some chapters: what takes long, and is tested elsewhere.
ALSO = {
    # Faces are judged by few features.
    "gan": """
from d2lpar.gan import measures
measures.CHANNELS = (3, 8, 16, 32)
""",
    # Precisions are measured in the kernel, not in a process each.
    "low_precision": """
from d2lpar import mx, process
from d2lpar.errors import RunError
from d2lpar.low_precision.measure import infer

def in_the_kernel(function, job):
    try:
        return infer(**job)
    except mx.MXNetError as error:
        raise RunError(str(error).splitlines()[0])

process.answer = in_the_kernel
""",
}
# Sizes in the cells, and smaller ones.
SMALLER = {
    "gan": {'"num_epochs": 4': '"num_epochs": 2'},
    "least_squares_large": {"[40_000, 80_000, 160_000]": "[20_000, 80_000]"},
    "low_precision": {
        'datasets.load("sample")': 'datasets.load("sample", n_train=2_000)',
        "repeats=5,": "repeats=1,",
    },
}
NEED_BOTH_COUNTS = ("timing", "scaling")  # they compare one device with two
ROUNDING = r"(0\.0e\+00|\d\.\de-(0[6-9]|1\d))"  # of a step, or of ten
# Results that cells print but do not assert, as patterns, in any order.
PRINTED = {
    "multiple_gpus": [
        r"(?s)\[\[1\. 1\.\]\].*\[\[2\. 2\.\]\].*after allreduce:.*\[\[3\. 3\.\]\].*"
        r"\[\[3\. 3\.\]\]",
        "(?s)replicas agree: True.*replicas agree: True",
        f"one device against 2: {ROUNDING}\n",
        f"ours against the package's: {ROUNDING}\n",
        "four shards: the trainings end equal",
        "cpu:2: epoch 1/1, loss",  # with the curves
    ],
    "communication": [
        r"after the reduce:\n\[10( 10){7}\]\n\[2( 2){7}\]\n\[3",
        r"after the all-reduce:\n(\[10( 10){7}\]\n){4}",
        r"after the reduce-scatter:\n\[10 10( +1){6}\]\n\[ 2  2 10 10( +2){4}\]",
        r"after the all-gather:\n(\[10( 10){7}\]\n){4}",
        r"plain +: 1,032,544 bytes sent per step, m and v take 1,032,544 bytes",
        f"after 10 steps the parameters differ by {ROUNDING}\n",
        f"against data parallelism, after 10 steps: {ROUNDING}\n",
        r"4 devices, ring +: the busiest sends +6,000 bytes",
        r"early sums in groups of 15: 0",
        "one by one: [1-8] of 8 sums",
        "1,032,544 bytes sent per step, m and v take 516,272 bytes",
    ],
    "multiple_gpus_concise": [
        "replicas agree: True",
        f"Gluon against Chapter 1, after a step: {ROUNDING}\n",
    ],
    "scaling": [
        "steps on two cores: below, inside or above: above",
        r"break-even: above [\d,]+(, at most \d+)? images",
    ],
    "least_squares": [
        r"independent +9\.855858 +8\.914526",
        r"ADMM, 400 rounds: 8\.839786978",
        r"here: 8\.839787 after 1\d steps",
        r"d2lpar normal +\de-\d\d +\de-\d\d +\de-(09|10) ",
    ],
    "least_squares_large": [r"d2lpar_cgls .* MiB more  82\.197301"],
    "gan": [
        r"loss of D: 0\.69\d+, of G: 0\.7\d+",
        r"normalised over both: differs by \de-0[5-7]",
        r"the same vectors: (\S+) \1\n +after a step: (\S+) \2 weights apart by 0\.0",
    ],
    "memory": [
        r"40,370 numbers per image, 129,068 parameters",
        r"(?s)errors kept: .*2000: failed .*500: trained .*errors kept, release: ",
    ],
    "low_precision": [
        r"0100000001001001 0000111111011011  ->  3\.140625",
        r"int8-naive: test acc 0\.\d+, agrees with float32 0\.9\d+",
    ],
    "kernels": [
        r"as the post printed: True",
        r"my_sgd differs from MXNet.s sgd by at most 0.0\n",
    ],
    "multiple_machines": [
        r"6 workers: replicas agree True",
        "sum of the pushes = whole batch: True",
        r"worker 1: 2 images; its sum is the whole batch.s: True",
    ],
}


# Of what the last cells must have written, by the chapter; the others write nothing.
WRITTEN = {
    "timing": {"roofline.png", "results.txt"},
    **dict.fromkeys(
        ("multiple_gpus", "multiple_gpus_concise"),
        {"cpu2.jsonl", "seconds.png"},
    ),
    "multiple_machines": {"cpu2.jsonl"},
    "scaling": {"concise-cpu2.jsonl", "steps.png", "results.txt"},
    **dict.fromkeys(
        ("least_squares", "least_squares_large"),
        {"cgls-cpu2.jsonl", "results.txt"},
    ),
    "gan": {"film.gif", "samples.png"},
    "low_precision": {
        "results.txt",
        "cpu1-precision.png",
    },
}


@pytest.mark.parametrize("name", FILES)
def test_the_cells_of_a_lesson_print_what_they_teach(name, tmp_path):
    notebook = TOOLS["converted"](FILES[name])
    datasets = EXPERIMENTS[name].datasets if name in EXPERIMENTS else ()
    offline = {"data": datasets[-1]} if datasets else {}
    counts = "1,2" if name in NEED_BOTH_COUNTS else "2"
    code = BRIEFLY.replace("DATA", repr(offline)).replace("COUNTS", repr(counts))
    code += ALSO.get(name, "")
    for written, smaller in SMALLER.get(name, {}).items():
        (cell,) = [cell for cell in notebook.cells if written in cell.source]
        cell.source = cell.source.replace(written, smaller)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(code))
    TOOLS["execute"](notebook, TOOLS["environment_of"](name, tmp_path), tmp_path)
    assert TOOLS["wrong_with"](notebook) == []
    text = "".join(TOOLS["texts"](notebook))
    for pattern in PRINTED.get(name, ()):
        assert re.search(pattern, text), f"{pattern} in\n{text}"
    assert {path.name for path in tmp_path.rglob("*")} >= WRITTEN.get(name, set())

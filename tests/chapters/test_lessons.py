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
# What the cells must have printed, as patterns, in any order. All numbers that are
# compared with the package's are compared by assertions in the cells.
PRINTED = {
    "devices": [r"a run on 2 devices uses cpu\(0\)", "40 x 64 = 2,560"],
    "arrays": [
        r"1,000 numbers on cpu\(1\)",
        r"\[ 2\.  4\.  6\.  8\. 10\.\]",
        r"transposed, ravelled  \(24,\)",
        r"x \+ y .*\[2\. 3\. 4\.\].*\[2\. 3\. 4\.\]",
        r"x \*\* z .*\[1\. 4\. 9\.\].*\[1\. 4\. 9\.\]",
        r"z - x .*\[ 1\.  0\. -1\.\].*\[ 1\.  0\. -1\.\]",
    ],
    "timing": [
        r"in an old one : .* page faults",
        "A clock that does not wait reads ",
        r"product, GPU: 0\.457 s are 15\.9 TFLOP/s",
        r"batch 256: 256,016 images/s, MFU 5\.2%",
    ],
    "multiple_gpus": [
        r"(?s)\[\[1\. 1\.\]\].*\[\[2\. 2\.\]\].*after allreduce:.*\[\[3\. 3\.\]\].*"
        r"\[\[3\. 3\.\]\]",
        r"(?s)output =.*\[ 6\.  7\.  8\.  9\. 10\. 11\.\].*\[\[12\..*"
        r"\[18\. 19\. 20\. 21\. 22\. 23\.\].*labels =",
        "replicas agree: True",
        "Training ends at test accuracy: 0",
        r"h200/multiple_gpus/book-gpu2: 0\.446 s per epoch, accuracy 0\.814",
    ],
    "communication": [
        r"4 devices, ring +: the busiest sends +6,000 bytes",
        r"early sums in groups of 15: 0",
        "early sums one by one: [1-8]",
        "1,032,544 bytes sent per step, m and v take 516,272 bytes",
        r"H = 16, outer momentum +\d+\.\d MB sent, accuracy 0\.\d+",
    ],
    "multiple_gpus_concise": [
        "replicas agree: True",
        r"(?s)1024 image\(s\).*with static memory: .* ms, +\d+ pages",
        "ResNet-18 on one H200: 4.60 s per epoch, n = 18",
        "Training ends at test accuracy: 0",
    ],
    "scaling": [
        r"% of a step of 16 images: \d+",
        r"verdicts contradicted: 0",
        r"s = 0\.17, speedup by Amdahl's law 2\.63, measured 3\.56",
        "Nothing to compare",  # one sample each
    ],
    "least_squares": [
        r"independent +9\.855858 +8\.914526",
        r"1 local steps between averages: .* is -?\d\.\de[+-]\d+ too large",
        r"500 local steps between averages: .* is 5\.6e-03 too large",
        r"ADMM, 400 rounds: 8\.839786978",
        r"100,000 x 1,000: expected 90\.87, the notes print 90\.83",
        r"100,000 x 1,000: averaging as published  125\.73, least .* 90\.\d\d",
        r"10,000 x 1,000: averaging +33\.13",
        r"x_hat after x -= 1: \[-1\. -1\. -1\.\]",
        r"2000 steps: 8\.8397\d*, replicas agree: True",
        r"here: 8\.839787 after 1\d steps",
        r"on the diagonal: 8\.839787",
        r"tsqr: x is off by \de-1\d\nnormal: x is off by \de-0[3-6]",
        r"cgls, tol=1e-10: x is off by 4e-01 after 1\d steps",
        r"cgls from the residual: x is off by \de-1\d after",
        r"10,000 x 1,000: the notes' 1\.053 .* program 1\.051, mended 1\.217",
    ],
    "least_squares_large": [
        r"blocks of 100 rows: 20\.589389464 after 1\d passes",
        r"numpy_lstsq .* MiB more  82\.197301",
        r"d2lpar_cgls .* MiB more  82\.197301",
        r"d2lpar_normal .* MiB more  82\.197301",
        r"more than 50 MiB more for four times the rows: numpy_lstsq",
        r"normal on two contexts: memory of +\d+\.\d matrices of n x n",
    ],
    "gan": [
        r"sigmoid, then log: \[\[inf\]\] both in one: \[120\.\]",
        r"loss of D: 0\.69\d+, of G: 0\.7\d+",
        r"normalised over both: differs by \de-0[5-7]",
        r"the same vectors: (\S+) \1\n +after a step: (\S+) \2 weights apart by 0\.0",
        r"batch, seed 1 +Fréchet +\d+\.\d, coverage 0\.00",
        r"wide, spectral: coverage 0\.\d+ to 0\.\d+, 3 seeds",
        r"  2 GPUs +8\.39 \(8\.15-8\.65, n=16\)",
        r"The Fréchet distance to real faces is \d+",
        r"data: drawn faces",
    ],
    "memory": [
        r"40,370 numbers per image, 129,068 parameters",
        r"per image: 161 kB of outputs, with two gradients 270 kB, measured \d+ kB",
        r"31,204 of 40,370 outputs per image are kept at the same time",
        r"(?s)errors kept: .*2000: failed .*500: trained .*errors kept, release: ",
        r"out of memory on cpu\(0\): .*Conv2D 1, float32 \(2000, ",
    ],
    "low_precision": [
        r"0100000001001001 0000111111011011  ->  3\.140625",
        r"int8-naive: test acc 0\.\d+, agrees with float32 0\.9\d+",
        r"int8-naive by hand 0\.\d+, MXNet 0\.\d+",
        r"stretched int8-naive +lost 11\.55 points, sqrt\(d\) is 0\.45",
        r"points lost with the outlier: 11\.6",
        r"int8-naive: .*the number of channel must be multiple of 4",
    ],
    "kernels": [
        r"as in the post: x = \[1 1 1 1 1 1 1 1 1 1\], y = \[0 0 0 0 0 0 0 0 0 0\]",
        r"6\.9646916 +3\.8613935 +4\.2685146 +8\.513147 +11\.19469",
        r"as the post printed: True",
        r"my_sgd differs from MXNet.s sgd by at most 0.0\n",
        r"in place / y = 2 x: \d\.\d\d \d",
    ],
    "multiple_machines": [
        r"6 workers: replicas agree True",
        "sum of the pushes = whole batch: True",
        r"\[\[0\], \[1\], \[\]\]",
        r"worker 1 pulled the gradient of the whole batch: True",
        r"after 100 steps of .*: \[ 0\.02 +-0\.295 +0\.5 +\] per step arrived",
        r"push and pull overlapped: 8\.3 ms, break-even at a batch of 70",
        r"batch 256: one process 14\.\d+ .* two workers 15\.\d+ .* do not overlap",
        r"2 bits per gradient 260 MB and 17\.\d+ ",
        "Training ends at test accuracy: 0",
    ],
}


# Of what the last cells must have written, by the chapter; the others write nothing.
WRITTEN = {
    "timing": {"dry-run-roofline.png", "dry-run-results.txt"},
    **dict.fromkeys(
        ("multiple_gpus", "multiple_gpus_concise"),
        {"dry-run-sample-cpu2.jsonl", "dry-run-sample-seconds.png"},
    ),
    "multiple_machines": {"dry-run-sample-cpu2.jsonl"},
    "scaling": {
        "dry-run-sample-1thread-concise-cpu2.jsonl",  # on one device, too
        "dry-run-sample-1thread-speedup.png",
        "dry-run-sample-1thread-results.txt",
    },
    **dict.fromkeys(
        ("least_squares", "least_squares_large"),
        {"dry-run-cgls-cpu2.jsonl", "dry-run-results.txt"},
    ),
    "gan": {"dry-run-synthetic.gif", "dry-run-synthetic-samples.png"},
    "low_precision": {
        "dry-run-sample-results.txt",
        "dry-run-sample-cpu1-precision.png",
    },
}


@pytest.mark.parametrize("name", FILES)
def test_the_cells_of_a_lesson_print_what_they_teach(name, tmp_path):
    notebook = TOOLS["converted"](FILES[name])
    datasets = EXPERIMENTS[name].datasets
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
    for pattern in PRINTED[name]:
        assert re.search(pattern, text), f"{pattern} in\n{text}"
    assert {path.name for path in tmp_path.rglob("*")} >= WRITTEN.get(name, set())

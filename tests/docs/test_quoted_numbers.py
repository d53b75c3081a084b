"""The guard of measured numbers: one number, one record, one cell."""

import json
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "tools" / "quoted_numbers.py").is_file():
    pytest.skip("not a checkout", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tools"))

import quoted_numbers  # noqa: E402

DOCUMENTS = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{page}.md"
        for page in (
            "api",
            "d2l-exercises",
            "peers",
            "second-gpu",
            "several-machines",
            "usage",
            "why-mxnet",
        )
    ),
    *sorted(ROOT.glob("chapters/*.py")),
]
TABLE = "figures/h200/scaling/book-1thread-results.txt"
PEERS = "figures/h200/peers/custom-gpu2.jsonl"
ARM = "d2l's notebook loop, 1 GPU"
TWO = "d2l's notebook loop, 2 GPUs"
LENET = "figures/multiple_gpus/book-1thread-cpu1.jsonl"
SOLVERS = "figures/benchmarks/least_squares.jsonl"
CAPTION = f'Epochs, on H200s ([record]({PEERS} "rows")).\n\n'


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_measured_number_is_that_of_its_record(path):
    assert quoted_numbers.wrong_in(path) == []


def test_what_contributors_read_links_the_right_cells():
    """Most of its measurements have no record; those that link one must agree."""
    found = quoted_numbers.wrong_in(ROOT / "benchmarks" / "SPEED.md")
    assert [line for line in found if "names no record" not in line] == []


def refused(text):
    return list(quoted_numbers.refused(text, ROOT))


@pytest.mark.parametrize(
    "text",
    [
        f'One needs [1.14 ms]({TABLE} "concise 256 | ms on 1"), not more.',
        f'One needs [1,140 us]({TABLE} "concise 256 | ms on 1").',
        f'It is [0.75]({TABLE} "concise 256 | speedup of 2") times as fast.',
        f'Ten epochs, each [18.8 s]({LENET} "seconds per epoch").',
        f'Of the images [80.3 %]({LENET} "accuracy") are recognised.',
        f'Two take [1.71 times]({PEERS} "{TWO} / {ARM}") as long.',
        f'It takes [0.357 s]({SOLVERS} "10,000 x 1,000 | normal on 1 context").',
        CAPTION
        + f"| | seconds | times {ARM} |\n|---|---|---|\n| {TWO} | 1.74 | 1.71 |",
        "Published: 15.7 TFLOPS (<https://example.org>).",
        "A set of notes [1] prints 1.8 s.",
        "| | s |\n|---|---|\n| [d2l](https://example.org) | 1.8 |",
        "`1.8 / 235 = 7.7 ms`, and $x = 3$ ms",
        "*Predict before you run*: 5 ms or 10 ms?",
        "3. *On paper.* A step takes 80 ms on one device. *(`80 / 2 = 40 ms`.)*",
        "Images have 28 x 28 pixels, and 256 of them are a batch with y = 2 x.",
        "```\nstep  3 ms\n\nstep  4 ms\n```",
    ],
)
def test_a_right_number_is_accepted(text):
    assert refused(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        # another digit, another cell, no such cell
        (f'[1.15 ms]({TABLE} "concise 256 | ms on 1")', "the record has 1.14"),
        (f'[1.14 ms]({TABLE} "concise 512 | ms on 1")', "the record has 1.72"),
        (f'[1.14 ms]({TABLE} "concise 256 | ms on 2")', "the record has 1.5"),
        (f'[1.14 ms]({TABLE} "concise 300 | ms on 1")', "no such row"),
        (f'[1.14 ms]({TABLE} "concise 256 | ms on 9")', "no such row"),
        (f'[0.83 ms]({TABLE} "concise | ms on 1")', "13 such row"),
        (f'[1.10 ms]({TABLE} "concise 256 | quartiles")', "2 columns are"),
        (f"[1.14 ms]({TABLE})", "no such row"),
        (f'[0 ms]({TABLE} "concise 256 | ms on 1")', "the record has 1.14"),
        ('[1.14 ms](figures/nothing.jsonl "concise")', "No such file"),
        (f'[1.02 s]({PEERS} "d2l")', '0 arms are "d2l"'),
        (f'[1.05 s]({PEERS} "{ARM}")', "the record has 1.0"),
        (f'[1.71 times]({PEERS} "{ARM} / {TWO}")', "the record has 0.585"),
        (f'[0.357 s]({SOLVERS} "numpy")', '6 arms are "numpy"'),
        (f'[19.8 s]({LENET} "seconds per epoch")', "the record has 18.7"),
        (f'[0.9]({LENET} "accuracy")', "the record has 0.8"),
        # another unit
        (f'[1.14 s]({TABLE} "concise 256 | ms on 1")', "the record has 0.00114"),
        (f'[1.14]({TABLE} "concise 256 | ms on 1")', "its unit is one of"),
        (f'[0.75 ms]({TABLE} "concise 256 | speedup of 2")', "its unit is one of"),
        (f'[1.02 ms]({PEERS} "{ARM}")', "the record has 10"),
        (f'[1.02]({PEERS} "{ARM}")', "its unit is one of"),
        (f'[0.803 s]({LENET} "accuracy")', "its unit is one of"),
        # a link to a page that has the number somewhere, or to another one
        (f"It takes 1.14 ms ([record]({TABLE})).", "names no record"),
        ("It takes [1.14 ms](figures/README.md).", "names no record"),
        ('It takes [1.14 ms](#measured "concise").', "names no record"),
        ("Its accuracy: [0.803](docs/peers.md).", "names no record"),
        # in alt texts, captions, answers, beside questions
        ("![a step that takes 3 ms](x.png)", "names no record"),
        ('![a step](x.png "It takes 3 ms")', "names no record"),
        ("1. How long? *(About 3 ms.)*", "names no record"),
        ("1. *On paper.* How long? *(About 3 ms.)*", "names no record"),
        ("*Predict before you run*: which? We measured 3 ms.", "names no record"),
        ("1. A step:\n   first\n\n    It takes 3 ms.", "names no record"),
        # in other units and forms
        ("It is 5 times as fast.", "names no record"),
        ("It is several times as fast.", "names no record"),
        ("It loses 3.4 points, or 12 %.", "names no record"),
        ("It loses -3 %.", "names no record"),
        ("It gains 3 percentage points.", "names no record"),
        ("It takes 3 µs, after 40 milliseconds.", "names no record"),
        ("It reads 500 images per second.", "names no record"),
        ("It is 2.2x as fast.", "names no record"),
        ("A 2-fold gain.", "names no record"),
        ("A speedup of 1.13.", "names no record"),
        ("It reaches an accuracy of 0.803.", "names no record"),
        ("It takes **3.4** ms.", "names no record"),
        ("It takes `3.4 ms`.", "names no record"),
        ("It takes $3.4$ ms.", "names no record"),
        ("It prints `step 3.4 ms`.", "names no record"),
        ("It holds 103 MiB.", "names no record"),
        ("| peak |\n|---|\n| 103 MiB |", "in a table"),
        ("| | MiB |\n|---|---|\n| peak | 103 |", "in a table"),
        # beside published numbers
        ("As in [1], we need 3 ms.", "names no record"),
        ("A set of notes [1] prints 1.8 s. Here it takes 3 ms.", "names no record"),
        ("As in [1], we measure:\n\n| | s |\n|---|---|\n| a | 3 |", "in a table"),
        ("It takes 3.4&nbsp;ms, or 3.4\u00a0ms.", "names no record"),
        # in tables
        ("| CGLS | 0.29 |", "in a table"),
        ("| | seconds |\n|---|---|\n| CGLS | 29 |", "in a table"),
        ("| [a](https://x.org) | 1.8 |\n|---|---|\n| b | 2.5 |", "in a table"),
        (CAPTION + f"| | seconds |\n|---|---|\n| {TWO} | 1.02 |", "record has 1.74"),
        (CAPTION + "| | seconds |\n|---|---|\n| me | 1.02 |", '0 arms are "me"'),
        (CAPTION + f"| | times {ARM} |\n|---|---|\n| {TWO} | 1.8 |", "has 1.70"),
    ],
)
def test_a_wrong_number_of_each_kind_is_refused(text, why):
    assert why in " ".join(map(str, refused(text)))


def test_hardly_a_random_number_is_accepted():
    """Random two-digit numbers in links to records, beside them and in tables."""
    draw = random.Random(0)
    arms = [arm.name for arm in quoted_numbers.arm_times(read(PEERS)) if arm.seconds]
    rows = [
        f"{form} {2**k:,}" for form in ("concise", "from scratch") for k in range(1, 14)
    ]
    texts = []
    for _ in range(300):
        number = f"{draw.randint(10, 99) / 10 ** draw.randint(0, 2):g}"
        unit = draw.choice(["us", "ms", "s"])
        column = draw.choice(["ms on 1", "ms on 2"])
        arm, row = draw.choice(arms), draw.choice(rows)
        texts += [
            f'[{number} {unit}]({PEERS} "{arm}")',
            f'[{number} ms]({TABLE} "{row} | {column}")',
            f'[{number} times]({PEERS} "{arm} / {draw.choice(arms)}")',
            f"It takes {number} {unit} ([record]({PEERS}), [table]({TABLE})).",
            CAPTION + f"| | seconds |\n|---|---|\n| {arm} | {number} |",
        ]
    accepted = sum(refused(text) == [] for text in texts)
    assert accepted <= 0.03 * len(texts)


def read(record):
    return quoted_numbers.files.read(ROOT / record)


def test_the_prose_of_scripts_and_notebooks_is_checked_and_outputs_are_no_evidence(
    tmp_path,
):
    prose = "# %% [markdown]\n# It takes 3 ms.\n\n# %%\nprint('3 ms')\n"
    (tmp_path / "lesson.py").write_text(prose)
    shown = {"output_type": "stream", "name": "stdout", "text": ["3 ms"]}
    cells = [
        {"cell_type": "markdown", "source": ["It takes\n", "3 ms."]},
        {"cell_type": "code", "source": ["print('3 ms')"], "outputs": [shown]},
    ]
    (tmp_path / "lesson.ipynb").write_text(json.dumps({"cells": cells}))
    for name in ("lesson.py", "lesson.ipynb"):
        assert quoted_numbers.wrong_in(tmp_path / name) == ['"3 ms" names no record']

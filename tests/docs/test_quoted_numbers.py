"""The guard of measured numbers: one number, one record, one cell."""

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
    ROOT / "docs" / "second-gpu.md",
    *sorted(ROOT.glob("chapters/*.py")),
]
TABLE = "figures/h200/scaling/book-1thread-results.txt"
PEERS = "figures/h200/peers/custom-gpu2.jsonl"
ARM = "d2l's notebook loop, 1 GPU"
LENET = "figures/multiple_gpus/book-1thread-cpu1.jsonl"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_measured_number_is_that_of_its_record(path):
    assert quoted_numbers.wrong_in(path) == []


def refused(text):
    return list(quoted_numbers.refused(text, ROOT))


@pytest.mark.parametrize(
    "text",
    [
        f'One needs [1.14 ms]({TABLE} "concise 256 | ms on 1"), not more.',
        f'It is [0.75]({TABLE} "concise 256 | speedup of 2") times as fast.',
        f'Ten epochs, each [24.7 s]({LENET} "seconds per epoch").',
        "Published: 15.7 TFLOPS (<https://example.org>).",
        "A set of notes [1] prints 1.8 s.",
        "`1.8 / 235 = 7.7 ms`, and $x = 3$ ms",
        "*Predict before you run*: 5 ms or 10 ms?",
        "3. *On paper.* A step takes 80 ms on one device.",
        "Images have 28 x 28 pixels, and 256 of them are a batch.",
    ],
)
def test_a_right_number_is_accepted(text):
    assert refused(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'[1.15 ms]({TABLE} "concise 256 | ms on 1")', "the record has 1.14"),
        (f'[1.14 ms]({TABLE} "concise 512 | ms on 1")', "the record has 1.72"),
        (f'[1.14 ms]({TABLE} "concise 256 | ms on 2")', "the record has 1.5"),
        (f'[1.14 ms]({TABLE} "concise 300 | ms on 1")', "no such row"),
        (f'[1.14 ms]({TABLE} "concise 256 | ms on 9")', "no such row"),
        (f"[1.14 ms]({TABLE})", "no such row"),
        (f"It takes 1.14 ms ([record]({TABLE})).", "names no record"),
        (f'[1.02 s]({PEERS} "d2l")', "no arm of this name"),
        (f'[1.05 s]({PEERS} "{ARM}")', "the record has 1.0"),
        (f'[1.02 ms]({PEERS} "{ARM}")', "the record has 10"),
        (f'[1.02]({PEERS} "{ARM}")', "this is a time"),
        (f'[25.7 s]({LENET} "seconds per epoch")', "the record has 24.6"),
        (f'[0.9]({LENET} "accuracy")', "the record has 0.8"),
        ('[1.14 ms](figures/nothing.jsonl "concise")', "No such file"),
        ("![a step that takes 3 ms](x.png)", "names no record"),
        ("1. How long? *(About 3 ms.)*", "names no record"),
        ("It is 5 times as fast.", "names no record"),
        ("It loses 3.4 points, or 12 %.", "names no record"),
        ("| CGLS | 0.29 |", "in a table"),
    ],
)
def test_a_wrong_number_of_each_kind_is_refused(text, why):
    assert why in " ".join(map(str, refused(text)))


def test_hardly_a_random_number_is_accepted():
    draw = random.Random(0)
    texts = [
        f'[{draw.randint(10, 99) / 10} ms]({TABLE} "concise 256 | ms on 1")'
        for _ in range(200)
    ]
    accepted = sum(refused(text) == [] for text in texts)
    assert accepted <= 10  # 1.1 is right

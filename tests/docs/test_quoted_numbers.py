"""The guard of measured numbers: a number that links a record is the record's."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "tools" / "quoted_numbers.py").is_file():
    pytest.skip("not a checkout", allow_module_level=True)

import quoted_numbers  # noqa: E402

DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "figures").glob("*.md")),
    ROOT / "benchmarks" / "SPEED.md",
    *(path for name in ("docs/*.md", "chapters/*.py") for path in ROOT.glob(name)),
]
TABLE = "figures/gpus/scaling/book-1thread-results.txt"
PEERS = "figures/gpus/peers_d2l/custom-gpu2.jsonl"
ARM, TWO = "d2l's notebook loop, 1 GPU", "d2l's notebook loop, 2 GPUs"
LENET = "figures/multiple_gpus/book-1thread-cpu1.jsonl"
SEEDS = "figures/seeds/multiple_gpus/book-cpu1.jsonl"
CAPTION = f'Epochs, on H100s ([record]({PEERS} "rows")).\n\n'
HEAD = f"| | seconds | times {ARM} |\n|---|---|---|\n"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_number_that_links_a_record_is_the_records(path):
    assert quoted_numbers.wrong_in(path) == []


def test_every_number_of_the_first_page_links_its_record():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    number = r"\[(\d[\d.]+(?: s)?)\]"
    quoted = re.findall(number + "(?!:)", text)
    linked = re.findall(f"^{number}: figures/", text, re.MULTILINE)
    assert sorted(quoted) == sorted(linked) and linked


def wrong(text):
    return list(quoted_numbers.wrong(text, ROOT))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'[18.7 s]({SEEDS} "seconds per epoch, least")', "the record has 19.6"),
        (f'[1.17 ms]({TABLE} "concise 256 | ms on 1")', "the record has 0.83"),
        (f'[0.88 ms]({TABLE} "concise | ms on 1")', "13 cells are"),
        (f'[1.16]({TABLE} "concise 256 | ms on 1")', "its unit is one of"),
        ('[1.16 ms](figures/nothing.jsonl "concise")', "No such file"),
        (f'[1.02 s]({PEERS} "d2l")', '0 arms are "d2l"'),
        (f'[1.71 times]({PEERS} "{ARM} / {TWO}")', "the record has 0.568"),
        (f'[19.8 s].\n\n[19.8 s]: {LENET} "seconds per epoch"', "the record has 18.7"),
        (f"{CAPTION}{HEAD}| {TWO} | 1.02 | 1.71 |\n", "the record has 1.76"),
    ],
)
def test_a_wrong_number_of_each_kind_is_refused(text, why):
    assert why in " ".join(wrong(text))

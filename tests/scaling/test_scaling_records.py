"""What chapter 6 and documents say of the committed scaling records."""

import re
from pathlib import Path

import pytest

from d2lpar.records import files
from d2lpar.scaling.model import studies
from d2lpar.text import number

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "figures"
CHAPTER = ROOT / "chapters" / "scaling.py"
if not (FIGURES.is_dir() and CHAPTER.is_file()):
    pytest.skip("not a checkout", allow_module_level=True)


def study_of(folder, name):
    runs = [files.read(path) for path in sorted((FIGURES / folder).glob("*.jsonl"))]
    (study,) = [study for study in studies(runs) if study.name == name]
    return study


def test_the_chapter_fits_what_the_h200s_record_says():
    study = study_of("h200/scaling", "concise")
    cell = r"^ +(\d+): \(([\d.]+), ([\d.]+)\),$"
    text = CHAPTER.read_text(encoding="utf-8")
    rows = re.findall(cell, text, re.MULTILINE)
    assert len(rows) == 8
    for batch, one, two in rows:
        key = int(batch)
        assert one == number(study.milliseconds(1, key).median)
        assert two == number(study.milliseconds(2, key).median)
    issue, exchange = 1e3 * study.model.issue, 1e3 * study.model.exchange
    assert f"issue={issue:.3f}e-3, exchange={exchange:.3f}e-3" in text


@pytest.mark.parametrize("half", [512, 1024, 2048, 4096])
def test_two_gpus_take_what_one_takes_for_half_and_little_more(half):
    """Chapter 6 says 0.2 ms more."""
    study = study_of("h200/scaling", "concise")
    assert 0.15e-3 < study.steps[2, 2 * half] - study.steps[1, half] < 0.25e-3

"""What chapter 6 and documents say of the committed scaling records."""

import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from d2lpar.records import files
from d2lpar.scaling.model import fit_step, studies
from d2lpar.text import number

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "figures"
CHAPTER = ROOT / "chapters" / "scaling.py"
if not (FIGURES.is_dir() and CHAPTER.is_file()):
    pytest.skip("not a checkout", allow_module_level=True)
NAMES = {"Gluon": "concise", "from scratch": "from scratch"}


def study_of(folder, name):
    runs = [files.read(path) for path in sorted((FIGURES / folder).glob("*.jsonl"))]
    (study,) = [study for study in studies(runs) if study.name == name]
    return study


def a_sum(study):
    """The model that adds up what chapter 6 says goes on at the same time."""
    one = {batch: s for (n, batch), s in study.steps.items() if n == 1}
    line = fit_step(one, issue=0.0)
    fixed, exchange = line.fixed, study.model.exchange
    return lambda b: 2 * fixed + line.per_sample * b / 2 + exchange


def missed(study, seconds):
    """Percent by which `seconds` of a batch misses the steps on two devices."""
    errors = [
        100 * abs(seconds(batch) / measured - 1)
        for (n, batch), measured in study.steps.items()
        if n == 2
    ]
    return f"{median(errors):.0f} %, {max(errors):.0f} %"


ROWS = re.findall(
    r"^# \| two (H200s|CPU contexts), (.+?) \| (.+?) \| (.*?) \| (.*?) ?\|$",
    CHAPTER.read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_the_chapter_compares_four_records():
    assert len(ROWS) == 4


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:2]))
def test_the_chapter_says_by_how_much_each_form_of_the_model_misses(row):
    where, name, the_sum, of_two, with_cores = (cell.strip("*") for cell in row)
    folder = "h200/scaling" if where == "H200s" else "scaling"
    study = study_of(folder, NAMES[name])
    of_gpus = replace(study.model, cores=math.inf)
    assert the_sum == missed(study, a_sum(study))
    assert of_two == missed(study, lambda b: of_gpus.seconds(2, b))
    if where == "H200s":
        assert study.model == of_gpus and with_cores == ""
    else:
        assert with_cores == missed(study, lambda b: study.model.seconds(2, b))


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

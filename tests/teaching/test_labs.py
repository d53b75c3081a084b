"""Lab sheets, the exam and the answer key are complete, and agree with the chapters."""

import re

import answer_key
import make_exam
import numpy
import pytest
from make_notebooks import FILES
from make_students import ROOT

from d2lpar.puzzles.cases import PUZZLES

LABS = (ROOT / "docs" / "labs.md").read_text(encoding="utf-8")
SHEETS = dict(re.findall(r"^## Lab \d+: (\w+)\n(.*?)(?=^## |\Z)", LABS, re.M | re.S))
TEACHING = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")


def test_each_chapter_has_a_sheet():
    assert SHEETS.keys() == FILES.keys()


@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet_has_five_tasks_of_45_minutes_about_its_chapter(name):
    sheet = SHEETS[name]
    tasks = re.findall(r"^(\d)\. \((\d+) min\)", sheet, re.M)
    assert [number for number, _ in tasks] == list("12345")
    assert sum(int(minutes) for _, minutes in tasks) == 45
    for part in ("Goal", "Hand in", "Full marks"):
        assert f"**{part}.**" in sheet
    chapter = FILES[name].read_text(encoding="utf-8")
    for heading in re.findall(r'"([A-Z0-9b][^"]+?):?" ?[:]', sheet):
        assert f"# ## {heading}" in chapter, heading
    exercises = chapter.partition("# ## Exercises")[2]
    words = " ".join(re.findall(r"[Ee]xercises? ([\d and]+)", sheet))
    for number in re.findall(r"\d", words):
        assert f"\n# {number}. " in exercises, f"exercise {number}"


def test_an_exam_has_its_numbers_and_an_answer_for_each_question():
    exams = [list(make_exam.questions(numpy.random.default_rng(k))) for k in (1, 1, 2)]
    assert exams[0] == exams[1] and exams[0] != exams[2]
    for exam in exams:
        assert sum(points for _, points, *_ in exam) == 70
        assert {chapter.split()[1] for chapter, *_ in exam} <= FILES.keys()
        for _, _, question, answer in exam:
            for left, right in re.findall(
                r"((?:[\d.e-]+ [*/] )+[\d.e-]+) = ([\d.]+)(?![\d,])", answer
            ):
                assert eval(left) == pytest.approx(float(right.rstrip(".")), rel=0.05)
            assert question.endswith(("?", ".")) and answer


def test_the_answer_key_is_that_of_the_notebooks():
    assert answer_key.main(["--check"]) == 0, "python tools/answer_key.py"
    assert answer_key.table() in TEACHING
    for words in ("digits", "off", "H200"):  # decided by rounding or a machine
        assert words not in answer_key.table()


def test_each_puzzle_has_its_points():
    rows = re.findall(r"^\| (\d) \| (`.*`) \|$", TEACHING, re.M)
    named = [name for _, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(named) == sorted(PUZZLES)

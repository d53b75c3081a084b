"""Guesses in a chapter: noted, judged, and kept in a file."""

import json
from pathlib import Path

import numpy
import pytest

from d2lpar import chapter


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chapter, "_guesses", {})
    monkeypatch.setattr(chapter, "_good", [])
    return tmp_path


@pytest.mark.parametrize(
    ("guess", "value", "good", "words"),
    [
        (5, 13, False, "you said 5: wrong, off by a factor of 2.6"),
        (13.5, 7.1, False, ": off by a factor of 1.9"),
        (6.0, 7.1, True, ": off by a factor of 1.2"),
        (19.0, 19.1, True, "you said 19: close"),
        # Typical misconceptions: with two devices nearly every error is a factor of 2.
        (3, 6, False, ": wrong, off by a factor of 2"),
        (12000, 12001, False, ": wrong, close"),
        (0, 0, True, "right"),
        (-1, 2, False, "off by 3"),
        ("Two", "two", True, "you said Two: right"),
        ("one", "two", False, "you said one: wrong"),
        (numpy.float32(2.5), 2.5, True, "you said 2.5: right"),
    ],
)
def test_a_guess_is_judged_and_kept(folder, capsys, guess, value, good, words):
    chapter.predict("ms per step", guess)
    chapter.answer("ms per step", value)
    assert words in capsys.readouterr().out
    (line,) = (folder / "runs" / "predictions.jsonl").read_text().splitlines()
    fact = json.loads(line, parse_constant=pytest.fail)
    expected = {"what": "ms per step", "guess": guess, "answer": value, "good": good}
    assert expected.items() <= fact.items()
    chapter.score()
    assert f"{int(good)} of 1 predictions" in capsys.readouterr().out


def test_without_a_guess_there_is_the_answer_alone(folder, capsys):
    chapter.predict("ms per step", 5)
    chapter.predict("ms per step", None)  # taken back
    chapter.answer("ms per step", 13.04)
    assert capsys.readouterr().out == "ms per step: 13.0\n"
    assert not (folder / "runs").exists()
    chapter.score()
    assert capsys.readouterr().out == ""


def test_a_committed_record_is_found_from_any_folder(folder):
    if not (Path(chapter.__file__).parents[1] / "figures").is_dir():
        pytest.skip("not a checkout")
    assert chapter.record("gpus/peers/one/custom-gpu1.jsonl").lines
    with pytest.raises(FileNotFoundError, match="none.jsonl"):
        chapter.record("none.jsonl")

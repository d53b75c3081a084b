"""Guesses in a chapter: noted, judged, kept in a file, and drawn for a class."""

import json

import pytest
from click.testing import CliRunner

from d2lpar import chapter
from d2lpar.cli.main import d2lpar
from d2lpar.errors import RecordError
from d2lpar.figures import predictions


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chapter, "_guesses", {})
    monkeypatch.setattr(chapter, "_good", [])
    return tmp_path


@pytest.mark.parametrize(
    ("guess", "value", "good", "words"),
    [
        (5, 13, False, "you said 5: off by 2.6 times"),
        (13, 7.0, True, "off by 1.9 times"),
        (7.0, 13, True, "off by 1.9 times"),
        (0, 0, True, "right"),
        (-1, 2, False, "off by 3"),
        ("Two", "two", True, "you said Two: right"),
        ("one", "two", False, "you said one: wrong"),
    ],
)
def test_a_guess_is_judged_and_kept(folder, capsys, guess, value, good, words):
    chapter.predict("ms per step", guess)
    chapter.answer("ms per step", value)
    assert words in capsys.readouterr().out
    (line,) = (folder / "runs" / "predictions.jsonl").read_text().splitlines()
    fact = json.loads(line)
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
    assert "no predictions" in capsys.readouterr().out


def test_a_class_is_drawn_and_counted(folder):
    for name, guess, word in (("a", 5, "one"), ("b", 20, "two"), ("c", 300, "two")):
        (folder / name).mkdir()
        with pytest.MonkeyPatch.context() as context:
            context.chdir(folder / name)
            for what, said, value in (("ms", guess, 13), ("which", word, "two")):
                chapter.predict(what, said)
                chapter.answer(what, value)
    files = [str(path) for path in folder.glob("?/runs/*.jsonl")]
    done = CliRunner().invoke(d2lpar, ["predictions", *files, "--out", "class"])
    assert done.exit_code == 0, done.output
    assert "1 of 3" in done.output and "2 of 3" in done.output
    assert (folder / "class" / "predictions.png").stat().st_size > 1000


@pytest.mark.parametrize("text", ["", "{}", "5", "not JSON"])
def test_what_is_no_prediction_is_refused(folder, text):
    path = folder / "guesses.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError, match="guesses.jsonl"):
        predictions.read([path])
    with pytest.raises(RecordError, match="nowhere.jsonl"):
        predictions.read([folder / "nowhere.jsonl"])

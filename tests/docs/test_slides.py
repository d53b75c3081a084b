"""Slides are the chapters' own text, open alone, and keep an answer for last."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import pytest

for module in ("nbformat", "markdown_it", "mdit_py_plugins", "pygments", "docutils"):
    pytest.importorskip(module, reason=f"no {module}: extra docs")
ROOT = Path(__file__).parents[2]
if not (ROOT / "tools" / "make_slides.py").is_file():
    pytest.skip("not a checkout", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tools"))
import make_slides  # noqa: E402
import nbformat  # noqa: E402

TAG = re.compile(r"<[^>]+>")


@pytest.fixture(scope="module")
def decks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slides")
    make_slides.write(folder)
    return {path.stem: path.read_text("utf-8") for path in folder.iterdir()}


def test_a_chapter_has_8_to_14_slides_in_a_file_that_requests_nothing(decks):
    assert decks.keys() == make_slides.LESSONS.keys()
    for deck in decks.values():
        assert 8 <= deck.count("<section") <= 14
        sources = re.findall(r"(?:src|href)=\"(.{12})", deck)
        assert sources
        assert {s for s in sources if not s.startswith("data:image/")} == set()
        assert "@import" not in deck and "url(" not in deck


def words(text: str) -> str:
    """The words and numbers of a text in HTML or Markdown, between blanks."""
    return f" {' '.join(re.findall(r'[a-z0-9]+', html.unescape(text).lower()))} "


@pytest.mark.parametrize("name", make_slides.LESSONS)
def test_each_sentence_of_a_slide_stands_in_the_chapter(decks, name):
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    text = "".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    chapter = words(make_slides.LINK.sub(r"\1", text))
    paragraphs = re.findall(r"<p>(.*?)</p>", decks[name], re.DOTALL)
    assert len(paragraphs) >= 8
    for paragraph in paragraphs:
        shown = " ".join(TAG.sub("", paragraph).split())
        for sentence in make_slides.SENTENCE.split(shown):
            assert words(sentence) in chapter


def test_what_a_cell_prints_comes_after_the_questions_that_it_answers(decks):
    kinds = re.findall(
        r'<section class="(\w+)[^>]*>(.*?)</section>', decks["gan"], re.S
    )
    outputs = [k for k, (_, text) in enumerate(kinds) if 'alt="The output"' in text]
    assert outputs and all(kinds[k - 1][0] == "predict" for k in outputs)
    folded = [text for kind, text in kinds if kind == "predict"]
    assert all(text.count("<details>") == text.count("<li>") == 1 for text in folded)

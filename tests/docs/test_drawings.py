"""The committed drawings are what docs/drawings/draw.py draws."""

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "drawings"
DRAWINGS = runpy.run_path(str(FOLDER / "draw.py"))["DRAWINGS"]


def test_every_committed_drawing_is_drawn():
    assert {path.name for path in FOLDER.glob("*.svg")} == set(DRAWINGS)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_committed_drawing_is_what_the_code_draws(name):
    text = (FOLDER / name).read_text("utf-8")
    assert text == DRAWINGS[name]().svg()
    root = ET.fromstring(text)
    assert root.find("{*}title").text and root.find("{*}desc").text
    _, _, width, height = map(float, root.get("viewBox").split())
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(box.get(key)) for key in ("x", "y", "width", "height"))
        line = float(box.get("stroke-width", 0)) / 2  # it stands half outside
        assert line <= min(x, y)
        assert x + w + line <= width and y + h + line <= height

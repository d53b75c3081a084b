"""The gallery: few pictures, each with a question, and an index that shows them."""

import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from gallery_pictures import FIGURES, PICTURES  # noqa: E402

from d2lpar import experiments  # noqa: E402
from d2lpar.records import files  # noqa: E402
from d2lpar.records.kinds import group  # noqa: E402


def test_there_are_few_and_every_file_is_one_of_them():
    there = {path.relative_to(FIGURES) for path in FIGURES.rglob("*.png")}
    assert there == {Path(f"{name}.png") for name in PICTURES}
    assert len(there) <= 28 and not list(FIGURES.rglob("*.svg"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_the_index_has_its_question_and_answer(name):
    path = FIGURES / f"{name}.png"
    assert path.stat().st_size <= 150_000
    with Image.open(path) as picture:
        title = picture.info["Title"]
    row = f"| [{name}]({name}.png) | {PICTURES[name].question} | {title} |"
    assert row in (FIGURES / "README.md").read_text(encoding="utf-8").splitlines()


def test_a_picture_says_what_its_records_say():
    entry = PICTURES["scaling/speedup"]
    with Image.open(FIGURES / f"{entry.file}.png") as picture:
        assert entry.draw().metadata.items() <= picture.info.items()


@pytest.mark.slow
def test_plot_draws_every_committed_record(tmp_path):
    runs = [files.read(path) for path in sorted(FIGURES.rglob("*.jsonl"))]
    for k, ((_, _, stem), sweep) in enumerate(group(runs, files.sweep_of).items()):
        drawn = experiments.draw(sweep, tmp_path / str(k), stem)
        assert drawn and all(path.stat().st_size > 100 for path in drawn)

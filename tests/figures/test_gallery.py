"""The gallery: few pictures; and every committed record can be drawn.

That the pictures say what their records say is for ``tools/gallery.py --check``.
"""

import sys
from pathlib import Path

import pytest

from d2lpar import experiments
from d2lpar.errors import RecordError
from d2lpar.records import files
from d2lpar.records.kinds import group

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from gallery_pictures import FIGURES, PICTURES, claim  # noqa: E402


def test_a_title_is_what_the_records_bear_out():
    title = claim("Two are {r:.1f} times as fast", when=1.52 > 1.2, r=1.52)
    assert title == "Two are 1.5 times as fast"
    with pytest.raises(RecordError, match="Two are 1.1 times as fast.*r = 1.07"):
        claim("Two are {r:.1f} times as fast", when=1.07 > 1.2, r=1.07)


def test_there_are_few_and_every_file_is_one_of_them():
    there = {path.relative_to(FIGURES) for path in FIGURES.rglob("*.png")}
    assert there == {Path(f"{name}.png") for name in PICTURES}
    assert len(there) <= 28


@pytest.mark.slow
def test_plot_draws_every_committed_record(tmp_path):
    runs = [files.read(path) for path in sorted(FIGURES.rglob("*.jsonl"))]
    for k, ((_, _, stem), sweep) in enumerate(group(runs, files.sweep_of).items()):
        drawn = experiments.draw(sweep, tmp_path / str(k), stem)
        assert drawn and all(path.stat().st_size > 100 for path in drawn)

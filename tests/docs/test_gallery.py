"""The gallery: few pictures, readable ones, and every committed record can be drawn.

That the pictures say what their records say is for ``tools/gallery.py --check``.
"""

import re
import sys
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from d2lpar import experiments
from d2lpar.errors import RecordError
from d2lpar.records import files
from d2lpar.records.kinds import BenchmarkHeader, group
from d2lpar.records.rule import compare, of_turns

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

import figure  # noqa: E402
from gallery_pictures import FIGURES, PICTURES, VERDICTS, claim  # noqa: E402

NUMBER = re.compile(r"[\d.,\u2212$\\{}^ ]*\d[\d.,\u2212$\\{}^ \u00d7]*(KiB|MiB|GiB)?")


@cache
def drawn(name):
    picture = PICTURES[name]()
    FigureCanvasAgg(picture).draw()  # where everything stands
    return picture


@pytest.fixture(params=PICTURES)
def picture(request):
    return drawn(request.param)


def shown(texts):
    return [t for t in texts if t.get_visible() and t.get_text().strip()]


def boxes(texts):
    """Words and their places, without the blank edge of a line."""
    return [(t.get_text(), t.get_window_extent().expanded(0.98, 0.7)) for t in texts]


def test_a_title_is_what_the_records_bear_out():
    title = claim("Two are {r:.1f} times as fast", when=1.52 > 1.2, r=1.52)
    assert title == "Two are 1.5 times as fast"
    with pytest.raises(RecordError, match="Two are 1.1 times as fast.*r = 1.07"):
        claim("Two are {r:.1f} times as fast", when=1.07 > 1.2, r=1.07)
    slow, near = of_turns([2.0, 2.1, 2.2, 2.3]), of_turns([2.0, 2.1, 2.2, 2.4])
    with pytest.raises(RecordError, match="a is faster"):
        claim("a is faster", when=True, by=[compare(slow, near)])


def numbers(text):
    """The numbers of a text, without those of names such as float32 and H100."""
    text = re.sub(r"\b[A-Za-z]+\d+\b", "", text)
    return set(re.findall(r"\d[\d,]*(?:\.\d+)?", text))


def printed_in(picture):
    """What is written in the panels of a picture, but for the ticks of its axes."""
    texts = []
    for axes in picture.axes:
        texts += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        texts += axes.get_legend().get_texts() if axes.get_legend() else []
        ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        texts += (t for t in ticks if re.search("[a-z]", t.get_text()))
    return " ".join(text.get_text() for text in texts)


def test_every_number_of_a_title_is_printed_in_its_picture(picture):
    assert numbers(picture.metadata["Title"]) <= numbers(printed_in(picture))


# Words by which a title ranks, or denies a difference.
RANKS = re.compile(
    r"times as (fast|long)|\b(faster|slower|fastest|slowest|sooner|pays?|saves?|costs?|"
    r"beats?|nothing|never|no)\b|less than"
)


def test_a_title_that_ranks_rests_on_the_rule(picture):
    title = picture.metadata["Title"]
    if RANKS.search(title):
        assert VERDICTS[title], title
    assert all(found.is_told for found in VERDICTS.get(title, []))


def test_there_are_few_and_every_file_is_one_of_them():
    there = {path.relative_to(FIGURES) for path in FIGURES.rglob("*.png")}
    assert there == {Path(f"{name}.png") for name in PICTURES}
    assert len(there) <= 12


def test_a_title_is_one_clause_and_no_text_has_more_than_two_lines(picture):
    assert 10 < len(picture.metadata["Title"]) <= 70
    for text in (picture._suptitle, picture._supxlabel):
        assert text.get_text().count("\n") <= 1
        assert not text.get_text().endswith("...")


def test_every_axis_with_numbers_has_a_label(picture):
    for axes in picture.axes:
        for axis in (axes.xaxis, axes.yaxis):
            names = [t.get_text() for t in shown(axis.get_ticklabels())]
            if any(NUMBER.fullmatch(name) for name in names):
                label = axis.label
                assert label.get_visible() and label.get_text(), (axes, names)
                box = label.get_window_extent()  # and it is not cut off
                assert picture.bbox.x0 <= box.x0 and box.x1 <= picture.bbox.x1
                assert picture.bbox.y0 <= box.y0 and box.y1 <= picture.bbox.y1


def test_no_text_is_on_a_legend_or_on_another_text(picture):
    for axes in picture.axes:
        texts = boxes(shown(axes.texts))
        for (one, a), (other, b) in combinations(texts, 2):
            assert not a.overlaps(b), (one, other)
        if legend := axes.get_legend():
            box = legend.get_window_extent()
            for words, place in [*texts, *boxes(shown([axes.title]))]:
                assert not box.overlaps(place), words
        inner = axes.get_window_extent()
        for words, place in boxes(shown(axes.texts)):
            assert place.x1 <= picture.bbox.x1 and place.x0 >= 0, words
            assert place.y0 >= inner.y0 - 1 and place.y1 <= picture.bbox.y1, words


@pytest.mark.slow
def test_every_committed_record_is_drawn(tmp_path):
    runs = [files.read(path) for path in sorted(FIGURES.rglob("*.jsonl"))]
    for k, sweep in enumerate(group(runs, files.sweep_of).values()):
        folder = tmp_path / str(k)
        if isinstance(sweep[0].header, BenchmarkHeader):
            out = [figure.draw(run, folder) for run in sweep]
        else:
            out = experiments.draw(sweep, folder)
        assert out and all(path.stat().st_size > 100 for path in out)

"""A benchmark's picture: a panel per work, a bar and its numbers per arm."""

from dataclasses import replace

import pytest

from d2lpar.errors import RecordError
from d2lpar.figures import bars, page
from d2lpar.records.kinds import ArmAbsent, ArmSample, BenchmarkHeader, Run

HEADER = BenchmarkHeader(
    benchmark="test",
    work="a test",
    command="python test.py",
    cpu_model="AMD EPYC",
    cores=2,
    versions={"python": "3.11.7", "numpy": "1.23.5"},
    git_commit="0123456789",
    git_dirty=False,
    date="2026-01-01T00:00:00+00:00",
    peers=["theirs"],
    note="Copies count.",
)


@pytest.fixture
def picture(tmp_path, monkeypatch):
    """Draw these lines; the figure, and the paths."""

    def draw(*lines):
        figures = {}
        save = page.save
        monkeypatch.setattr(
            page, "save", lambda f, out: figures.update(f) or save(f, out)
        )
        paths = bars.draw([Run(HEADER, lines)], tmp_path, "test")
        assert {path.name for path in paths} == {"test.png", "test.svg"}
        assert all(path.stat().st_size for path in paths)
        return figures["test"]

    return draw


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_panel_per_work_with_its_own_scale(picture):
    figure = picture(
        ArmSample("ours", 0, 9.0, "large"),
        ArmSample("theirs", 0, 4.0, "large"),
        ArmSample("ours", 0, 0.09, "small"),
        ArmSample("ours", 1, 0.01, "small"),
        ArmSample("ours", 0, 7.0, "third", warm_up=True),
    )
    large, small, third, empty = figure.axes
    assert [axes.get_title("left") for axes in figure.axes[:3]] == [
        "large",
        "small",
        "third",
    ]
    assert texts(large) == ["ours: 9 s (n=1)", "theirs: 4 s (n=1)"]
    assert [bar.get_width() for bar in large.patches] == [9.0, 4.0]
    assert large.patches[0].get_facecolor() != large.patches[1].get_facecolor()
    assert texts(small) == ["ours: 0.05 s (n=2)"]
    assert small.get_xlim()[1] < 0.1 and large.get_xlim()[1] > 9
    assert texts(third) == ["ours: only warmed up"]
    assert not empty.axison
    assert "ours and the peers" in figure.get_label()


def test_what_was_not_measured_stands_in_the_picture(picture):
    figure = picture(ArmAbsent("ours", 0, "no GPU"), ArmSample("other", 0, 1.0))
    (axes,) = figure.axes
    assert texts(axes) == ["ours: no GPU", "other: 1 s (n=1)"]
    assert "peers" not in figure.get_label()
    caption = texts(figure)[-1].replace("\n", " ")
    assert "Copies count. Hardware: AMD EPYC, 2 cores. Versions: numpy 1.23.5." in (
        caption
    )
    assert "2026-01-01, commit 0123456." in caption


def test_gpus_are_said_with_their_settings(picture, monkeypatch):
    gpus = {"on_gpus": ["NVIDIA H200"], "gpu_build": {"tf32": False}}
    monkeypatch.setitem(globals(), "HEADER", replace(HEADER, **gpus))
    caption = texts(picture(ArmSample("ours", 0, 1.0)))[-1].replace("\n", " ")
    assert "Hardware: NVIDIA H200; host: AMD EPYC, 2 cores." in caption
    assert "numpy 1.23.5; TF32 off." in caption


def test_a_record_in_which_nothing_ran_is_drawn(picture):
    (axes,) = picture(ArmAbsent("ours", 0, "no GPU")).axes
    assert texts(axes) == ["ours: no GPU"]


def test_two_records_of_one_benchmark_are_named(tmp_path):
    runs = [Run(HEADER, (), tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(RecordError, match=r"a\.jsonl and .*b\.jsonl: .* test; "):
        bars.draw(runs, tmp_path / "out", "test")
    assert not (tmp_path / "out").exists()

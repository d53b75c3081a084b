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


def names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


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
    assert texts(large) == ["4.00 s", "9.00 s"]  # the fastest first
    assert names(large) == ["theirs", "ours"]
    assert [bar.get_width() for bar in large.patches] == [4.0, 9.0]
    assert large.patches[0].get_facecolor() != large.patches[1].get_facecolor()
    assert texts(small) == ["50.0 ms"] and small.get_xlabel() == "milliseconds"
    assert small.get_xlim()[1] < 150 and large.get_xlim()[1] > 9
    assert texts(third) == ["not measured: only warmed up"]
    assert not empty.axison
    assert figure.get_label() == (
        "Ours are the fastest in 0 of 1; at large theirs is 2.25 times as fast as ours"
    )


def test_what_was_not_measured_stands_in_the_picture(picture):
    figure = picture(ArmAbsent("ours", 0, "no GPU"), ArmSample("other", 0, 1.0))
    (axes,) = figure.axes
    assert names(axes) == ["other", "ours"]
    assert texts(axes) == ["1.00 s", "not measured: no GPU"]
    title, subtitle, caption = texts(figure)
    assert title == "Other: 1.00 s"
    assert subtitle == "Seconds for a test \u00b7 AMD EPYC, 2 cores"
    assert "medians of n = 1" in caption and "2026-01-01, commit 0123456." in caption


def test_gpus_are_said_with_their_settings(picture, monkeypatch):
    gpus = {"on_gpus": ["NVIDIA H200"], "gpu_build": {"tf32": False}}
    monkeypatch.setitem(globals(), "HEADER", replace(HEADER, **gpus))
    _, subtitle, _ = texts(picture(ArmSample("ours", 0, 1.0)))
    assert subtitle.endswith("NVIDIA H200, TF32 off")


def test_a_record_in_which_nothing_ran_is_drawn(picture):
    (axes,) = picture(ArmAbsent("ours", 0, "no GPU")).axes
    assert texts(axes) == ["not measured: no GPU"]


def test_titles_name_the_fastest_and_its_rival():
    def run(benchmark, *arms, peers=("PyTorch",)):
        header = replace(HEADER, benchmark=benchmark, peers=list(peers))
        lines = [ArmSample(name, 0, seconds, work) for work, name, seconds in arms]
        works = bars.group(bars.arm_times(Run(header, tuple(lines))), lambda a: a.work)
        for found in works.values():
            found.sort(key=bars._fastest_first)
        return bars._title(benchmark, works)

    one = [("", "ours, 1", 3.0), ("", "ours, 2", 2.5), ("", "PyTorch", 2.0)]
    assert run("peers", *one) == (
        "PyTorch: 2.00 s, the fastest; ours, 2, takes 1.25 times as long"
    )
    assert run("x", *one[:2]) == (
        "Ours, 2: 2.50 s, the fastest; the slowest, ours, 1, takes 1.20 times as long"
    )
    kernels = [("x2", "kernel, 1", 1.1), ("x2", "loop in C, 1", 1.0),
               ("sgd", "kernel, 1", 0.95), ("sgd", "loop in C, 1", 1.0)]  # fmt: skip
    assert run("kernels", *kernels) == (
        "A kernel takes 0.95 to 1.10 of the time of a loop in C"
    )
    growth = [("", "concise, 6", 1.0), ("", "concise, 60", 1.1)]
    assert run("growth", *growth) == (
        "A sample costs the same in data of all sizes, within 10% concise"
    )
    workers = [("", "1 process, 2 contexts", 9.0), ("", "2 workers", 10.0)]
    assert run("workers", *workers) == (
        "Workers reach 90% of the throughput of contexts of one process"
    )
    assert run("x") == "Nothing could be measured"


def test_two_records_of_one_benchmark_are_named(tmp_path):
    runs = [Run(HEADER, (), tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(RecordError, match=r"a\.jsonl and .*b\.jsonl: .* test; "):
        bars.draw(runs, tmp_path / "out", "test")
    assert not (tmp_path / "out").exists()

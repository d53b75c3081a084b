"""figures: medians and curves of records, files all or none, without MXNet."""

import os
import subprocess
import sys

import numpy as np
import pytest
from factories import benchmark_header, epoch, header, training
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from PIL import Image

from d2lpar import experiments
from d2lpar.errors import RecordError
from d2lpar.figures import bars, live, page
from d2lpar.figures import training as figure
from d2lpar.records import files
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run

ONE = training(1)
TWO = training(2, seconds=(7.0, 1.25, 1.25, 1.25))


@pytest.fixture
def drawn(monkeypatch):
    """Figures by name as they are handed to `page.save`, which writes nothing."""
    kept = {}
    monkeypatch.setattr(page, "save", lambda figures, *_: kept.update(figures) or [])
    return kept


def words(picture):
    return [text.get_text() for text in picture.findobj(Text)]


def medians(axes):
    """The large dots of rows of samples, downwards."""
    large = [line for line in axes.lines if line.get_marker() == "o"]
    return [float(line.get_xdata()[0]) for line in large]


def test_a_title_is_what_the_records_bear_out():
    title = page.claim("Two are {r:.1f} times as fast", when=1.52 > 1.2, r=1.52)
    assert title == "Two are 1.5 times as fast"
    with pytest.raises(RecordError, match="Two are 1.1 times as fast.*r = 1.07"):
        page.claim("Two are {r:.1f} times as fast", when=1.07 > 1.2, r=1.07)


def test_two_pictures_that_say_where_they_are_from(tmp_path):
    paths = figure.draw([TWO, ONE], tmp_path, "book")
    assert [path.name for path in paths] == ["book-accuracy.png", "book-seconds.png"]
    for path in paths:
        assert imread(path).std() > 0.01
        with Image.open(path) as picture:
            said = picture.info
        assert said["Title"] and ONE.header.git_commit[:7] in said["Description"]


def test_accuracy_curves_are_medians_of_the_repeats(drawn, tmp_path):
    repeats = [
        epoch(k, repeat=r, test_acc=0.1 * k + 0.1 * r) for r in range(3) for k in (1, 2)
    ]
    run = Run(ONE.header, tuple(repeats), ONE.path)
    figure.draw([run, TWO], tmp_path, "book")
    (axes,) = drawn["accuracy"].axes
    ours = axes.get_lines()[0]
    assert list(ours.get_xdata()) == [1, 2]
    np.testing.assert_allclose(ours.get_ydata(), [0.2, 0.3])
    assert axes.get_ylabel() == "test accuracy" and axes.get_xlabel() == "epoch"


def test_bars_are_medians_without_the_warm_up(drawn, tmp_path):
    figure.draw([ONE, TWO], tmp_path, "book")
    (axes,) = drawn["seconds"].axes
    assert medians(axes) == [2.0, 1.25]
    assert axes.get_xlabel() == "seconds per epoch" and axes.get_xlim()[0] == 0
    assert any("1.60\u00d7" in text for text in words(drawn["seconds"]))


def test_milliseconds_are_called_so(drawn, tmp_path):
    fast = training(1, seconds=(0.09, 0.02, 0.018, 0.022))
    figure.draw([fast], tmp_path, "book")
    (axes,) = drawn["seconds"].axes
    assert medians(axes) == pytest.approx([20])
    assert axes.get_xlabel() == "milliseconds per epoch"
    assert any("20.0 ms" in text for text in words(drawn["seconds"]))


def test_rows_that_differ_more_than_tenfold_are_logarithmic(drawn, tmp_path):
    figure.draw([ONE, training(2, seconds=(9.0, 0.1, 0.1))], tmp_path, "book")
    assert drawn["seconds"].axes[0].get_xscale() == "log"


def test_from_scratch_and_gluon_share_their_pictures(drawn, tmp_path):
    concise = training(1, chapter="multiple_gpus_concise")
    figure.draw([ONE, concise, TWO], tmp_path, "book")
    assert len(drawn["accuracy"].axes) == 2
    assert len(medians(drawn["seconds"].axes[0])) == 3


def test_curves_are_told_apart_in_grey(drawn, tmp_path):
    figure.draw([ONE, TWO], tmp_path, "book")
    styles = {
        (str(line.get_linestyle()), line.get_marker())
        for line in drawn["accuracy"].axes[0].get_lines()[:2]
    }
    assert len(styles) == 2


def test_runs_that_cannot_share_a_picture(tmp_path):
    other_data = training(2, dataset_sha256="b" * 64)
    for runs, value in (
        ([ONE, ONE], "book-cpu1.jsonl"),
        ([ONE, other_data], "different data"),
        ([Run(header(), (), ONE.path)], "book-cpu1.jsonl"),
    ):
        with pytest.raises(RecordError, match=value):
            experiments.draw(runs, tmp_path, "book")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_earlier_pictures_as_they_were(tmp_path, monkeypatch):
    figure.draw([ONE], tmp_path, "book")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    calls = []

    def fails(drawing, path, **how):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        savefig(drawing, path, **how)

    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(OSError):
        figure.draw([ONE, TWO], tmp_path, "book")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_long_names_are_wrapped_and_dollars_are_no_formulas(drawn, tmp_path):
    run = training(1, cpu_model="A very long name of a CPU " * 9 + "at $3")
    figure.draw([run], tmp_path, "book")
    for text in words(drawn["seconds"]):
        assert text.count("\n") <= 1
        assert "$" not in text.replace(r"\$", "")


def test_pictures_do_not_depend_on_the_users_style(tmp_path):
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\n")
    figure.draw([ONE], tmp_path / "a", "book")
    code = (
        "import sys; from factories import training; "
        "from d2lpar.figures import training as figure; from pathlib import Path; "
        "figure.draw([training(1)], Path('b'), 'book'); "
        "print('mxnet' in sys.modules, 'd2lpar._mxnet' in sys.modules)"
    )
    folders = [os.path.dirname(os.path.dirname(__file__)), os.getcwd()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    environment.pop("DISPLAY", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "False False", done.stderr
    for name in ("book-accuracy.png", "book-seconds.png"):
        a, b = (imread(tmp_path / folder / name) for folder in "ab")
        np.testing.assert_array_equal(a, b)


def test_what_is_drawn_while_a_notebook_waits():
    points = [
        {"epoch": k, "training loss": 1 / k, "test accuracy": 0.1} for k in (1, 2)
    ]
    assert live.png([("1 device", points)], "epoch 2")[:4] == b"\x89PNG"


# Benchmarks


def sample(arm, seconds, work="small", **fields):
    return ArmSample(arm=arm, round=0, seconds=seconds, work=work, **fields)


def test_a_benchmark_has_a_panel_per_work_and_says_what_is_absent(drawn, tmp_path):
    lines = [
        sample("slow", 3.0),
        sample("fast", 9.0, warm_up=True),
        sample("fast", 1.0),
        sample("fast", 20.0, "large"),
        ArmAbsent(arm="PyTorch", round=0, why_not="no GPU", work="large"),
    ]
    run = Run(benchmark_header(peers=["PyTorch"]), tuple(lines), tmp_path / "b.jsonl")
    bars.draw([run], tmp_path, "b")
    (picture,) = drawn.values()
    small, large = picture.axes
    assert medians(small) == [3.0, 1.0]  # in the order they ran
    assert medians(large) == [20.0]
    assert any("no GPU" in text for text in words(picture))
    with pytest.raises(RecordError, match="b.jsonl"):
        bars.draw([run, run], tmp_path, "b")


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["benchmarks", "peers", "multiple_gpus"])
def test_committed_records_redraw(folder, tmp_path):
    from d2lpar.records.kinds import group

    root = os.path.join(os.path.dirname(__file__), "..", "..", "figures", folder)
    runs = [
        files.read(os.path.join(root, f)) for f in os.listdir(root) if f.endswith("l")
    ]
    for (_, _, stem), sweep in group(runs, files.sweep_of).items():
        assert experiments.draw(sweep, tmp_path, stem)

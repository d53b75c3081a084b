"""figures: files that can be read and looked at, from records alone, all or none."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from d2lpar.errors import RecordError
from d2lpar.figures import compare, drawing, page
from d2lpar.records import files, wording
from d2lpar.records.kinds import EpochRecord, Header, Run


def make_run(num_devices=1, seconds=(9.0, 2.0, 1.8, 2.2), repeats=1, **fields):
    """A run whose epochs took `seconds`; the first is the warm-up."""
    header = {
        "chapter": "multiple_gpus",
        "preset": "book",
        "num_devices": num_devices,
        "device_kind": "cpu",
        "devices": [f"cpu({i}) (1 thread of 2 cores)" for i in range(num_devices)],
        "threads_per_device": 2 // num_devices or 1,
        "cores": 2,
        "cpu_model": "Some CPU",
        "dataset": "fashion-mnist",
        "dataset_sha256": "a" * 64,
        "synthetic": False,
        "seed": 7,
        "settings": {"global_batch_size": 256, "lr": 0.2, "n_train": 60_000},
        "command": "d2lpar run multiple_gpus",
        "versions": {"mxnet": "1.9.1"},
        "git_commit": "0123456789abcdef",
        "git_dirty": True,
        "date": "2026-01-02T03:04:05+00:00",
        **fields,
    }
    epochs = tuple(
        EpochRecord(k, s, 60_000 / s, 1 / k, 0.2 * k + 0.01 * repeat, repeat=repeat)
        for repeat in range(repeats)
        for k, s in enumerate(seconds, 1)
    )
    return Run(Header(**header), epochs, Path(f"figures/book-cpu{num_devices}.jsonl"))


ONE = make_run(1)
TWO = make_run(2, seconds=(7.0, 1.25, 1.25, 1.25))


@pytest.fixture
def drawn(monkeypatch):
    """Figures by name; to be quick, their files stay empty."""
    found, save = {}, page.save

    def recorded(figures, folder, stem=""):
        found.update(figures)
        return save(figures, folder, stem)

    monkeypatch.setattr(page, "save", recorded)
    monkeypatch.setattr(page, "_write", lambda _, *paths: [p.touch() for p in paths])
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The pictures of two runs on generated data, and their paths as returned."""
    runs = [replace(r, header=replace(r.header, synthetic=True)) for r in (TWO, ONE)]
    out = tmp_path_factory.mktemp("figures") / "not" / "yet"
    return out, drawing.draw(runs, out, "book")


def words(svg: Path) -> str:
    """All text in an SVG, wrapped lines joined, without its metadata."""
    texts = ET.parse(svg).getroot().iter("{http://www.w3.org/2000/svg}text")
    return " ".join(" ".join("".join(text.itertext()).split()) for text in texts)


def assert_is_a_picture(png: Path) -> None:
    pixels = imread(png)[..., :3]
    assert pixels.shape[0] > 300 and pixels.shape[1] > 800
    ink = pixels.min(axis=2) < 0.9
    assert 0.01 < ink.mean() < 0.5
    # Nothing is cut off: no ink on the edges.
    for edge in (ink[:8], ink[-8:], ink[:, :8], ink[:, -8:]):
        assert not edge.any()


def test_two_pictures_in_two_formats(written):
    out, paths = written
    names = ["book-accuracy", "book-seconds"]
    assert [p.name for p in paths] == [
        f"{n}.{e}" for n in names for e in ("png", "svg")
    ]
    assert sorted(out.iterdir()) == sorted(paths)
    for path in paths:
        if path.suffix == ".png":
            assert_is_a_picture(path)
            assert path.stat().st_size < 200_000
        else:
            assert path.stat().st_size < 60_000


def test_a_title_says_what_was_found_and_the_rest_what_was_measured(written):
    out, paths = written
    for path in paths[1::2]:
        text = words(path)
        for part in (
            "LeNet on SYNTHETIC Fashion-MNIST, global batch 256 \u00b7 Some CPU, 2",
            "MXNet 1.9.1. 2026-01-02, commit 0123456 with local changes.",
        ):
            assert part in text, path.name
    accuracy, seconds = words(paths[1]), words(paths[3])
    assert "1 and 2 contexts end at the same test accuracy after 4 epochs" in accuracy
    assert "2 contexts train 1.60 times as fast as 1" in seconds
    assert "seconds per epoch" in seconds
    assert "Epochs timed: 3; the first of every" in seconds


def test_no_text_of_a_picture_is_longer_than_two_lines():
    title, subtitle, caption = (f"{word} " * 200 for word in ("title", "sub", "text"))
    figure = page.new(title, subtitle, caption).figure
    for text in figure.texts:
        assert text.get_text().count("\n") == 1
        assert text.get_text().endswith(" ...")


def test_labels_are_moved_apart_as_little_as_they_must():
    assert page._apart([0, 100], [10, 10]) == [0, 100]
    assert page._apart([50, 50, 50], [10, 10, 10]) == [40, 50, 60]
    assert page._apart([0, 4, 100], [10, 10, 10]) == [-3, 7, 100]
    assert page._overlapping([(0, 2), (5, 6), (1, 3)]) == [[0, 2], [1]]


def test_real_data_is_not_called_synthetic():
    assert "Data: fashion-mnist, 60,000" in wording.provenance([ONE, TWO])
    made = replace(TWO.header, synthetic=True, dataset="synthetic-fashion")
    text = wording.provenance([ONE, replace(TWO, header=made)])
    assert "fashion-mnist, 60,000 training samples and SYNTHETIC synthetic-f" in text


@pytest.mark.parametrize(
    ("sizes", "policy"),
    [
        ((256, 256), "Global batch 256 fixed (strong scaling), lr 0.2."),
        ((256, 512), "256 and 512, 256 per device fixed (weak scaling), lr 0.2."),
        ((256, 300), "Global batch 256 and 300, lr 0.2."),
        ((None, None), "Global batch not recorded, lr 0.2."),
    ],
)
def test_batch_policy(sizes, policy):
    runs = []
    for n, size in zip((1, 2), sizes):
        settings = {"global_batch_size": size, "lr": 0.2, "n_train": None}
        if size is None:
            del settings["global_batch_size"]
        runs.append(make_run(n, settings=settings))
    text = wording.provenance(runs)
    assert policy in text and "all training samples" in text


def test_accuracy_curves(drawn, tmp_path):
    drawing.draw([TWO, make_run(1, repeats=3)], tmp_path, "s")
    (axes,) = drawn["accuracy"].axes
    first, second = axes.get_lines()
    assert list(first.get_xdata()) == [1, 2, 3, 4]
    assert list(first.get_ydata()) == pytest.approx([0.21, 0.41, 0.61, 0.81])
    assert list(second.get_ydata()) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    (band,) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(0.82)
    low, high = axes.get_ylim()
    assert 0.1 < low < 0.2 and 0.82 < high < 0.95  # where the curves live
    ends = [text.get_text() for text in axes.texts]
    assert ends == ["1 context: 0.810", "2 contexts: 0.800"]
    assert "within 0.010 of each" in drawn["accuracy"].get_label()


def test_bars_are_medians_without_the_warm_up(drawn, tmp_path):
    drawing.draw([ONE, TWO], tmp_path, "s")
    (axes,) = drawn["seconds"].axes
    assert [bar.get_width() for bar in axes.patches] == [2.0, 1.25]
    written = [text.get_text() for text in axes.texts]
    assert written == ["2.00 s", "1.25 s  1.60\u00d7"]
    dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert [sorted(d.get_xdata()) for d in dots] == [[1.8, 2.0, 2.2], [1.25] * 3]
    assert axes.get_xlim()[1] < 7.0  # the warm-ups are not even in sight
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert ticks == ["1 context, 2 threads", "2 contexts, 1 thread each"]
    assert drawn["seconds"].get_label() == "2 contexts train 1.60 times as fast as 1"


def test_from_scratch_and_gluon_share_their_pictures(drawn, tmp_path):
    slow = make_run(2, chapter="multiple_gpus_concise", seconds=(9.0, 4.0, 4.0))
    gluon = [make_run(1, chapter="multiple_gpus_concise"), slow]
    drawing.draw([*gluon, TWO, ONE], tmp_path, "s")
    left, right = drawn["accuracy"].axes
    assert [axes.get_title("left") for axes in (left, right)] == [
        "from scratch",
        "in Gluon",
    ]
    assert [len(axes.get_lines()) for axes in (left, right)] == [2, 2]
    (axes,) = drawn["seconds"].axes
    assert [bar.get_width() for bar in axes.patches] == [2.0, 1.25, 2.0, 4.0]
    assert " ".join(drawn["seconds"].get_label().split()) == (
        "2 contexts train 1.60 times as fast from scratch and 2.00 times as slow in "
        "Gluon as 1"
    )


def test_one_run_has_no_speedup(drawn, tmp_path):
    paths = drawing.draw([ONE], tmp_path, "s")
    assert [p.name for p in paths[::2]] == ["s-accuracy.png", "s-seconds.png"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert drawn["seconds"].get_label() == "An epoch takes 2.00 s on 1 context"
    assert drawn["accuracy"].get_label() == "Test accuracy reaches 0.800 after 4 epochs"


def test_a_single_epoch_is_drawn_and_called_a_warm_up(drawn, tmp_path):
    drawing.draw([make_run(n, seconds=(2.0 / n,)) for n in (1, 2)], tmp_path, "s")
    figure = drawn["seconds"]
    assert [bar.get_width() for bar in figure.axes[0].patches] == [2.0, 1.0]
    caption = " ".join(figure.texts[2].get_text().split())
    assert "Epochs timed: 1; a warm-up counts where there is no other epoch." in caption


def test_the_only_epoch_after_a_checkpoint_is_called_a_warm_up():
    """The three before it were timed elsewhere."""
    run = make_run(seconds=(9.0, 2.0, 1.8, 7.0))
    marks = ("elsewhere",) * 3 + ("here",)
    lines = [replace(e, resumed=mark) for e, mark in zip(run.epochs, marks)]
    caption = wording.reading_bars([Run(run.header, tuple(lines))])
    assert "Epochs timed: 1; a warm-up counts where there is no other" in caption
    assert Run(run.header, tuple(lines)).summary().endswith("n=1) sec/epoch")


def test_curves_are_told_apart_in_grey(drawn, tmp_path):
    drawing.draw([make_run(n) for n in (1, 2, 3, 4, 6, 8, 12, 16)], tmp_path, "s")
    curves = drawn["accuracy"].axes[0].get_lines()
    assert len({curve.get_marker() for curve in curves}) == 8
    assert [curve.is_dashed() for curve in curves[:5]] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert len(set(page.LINES)) == 5


def test_libraries_have_their_color_everywhere():
    assert page.color_of("d2lpar concise, 2 contexts", is_peer=False) == page.OURS
    assert page.color_of("d2l's PyTorch tab, 2 threads") == page.D2L
    assert page.color_of("PyTorch DDP, 1 process") == page.PYTORCH
    assert page.color_of("CryptoPunks notebook (PyTorch)") == page.PYTORCH
    assert page.color_of("numpy") == page.NUMPY and page.color_of("dask") == page.OTHER
    assert not {page.D2L, page.PYTORCH, page.NUMPY} & {*page.COLORS, *page.COUNTS}


def test_long_names_are_wrapped_and_dollars_are_no_formulas(tmp_path):
    fields = {
        "cpu_model": f"A $CPU$ of $ {'long words ' * 20} {'endless-' * 40}",
        "device_kind": "gpu",
        "devices": [
            "gpu(0) NVIDIA $with$ a $ name that goes on for longer than the page is"
        ],
        "threads_per_device": None,
    }
    paths = drawing.draw([make_run(1, **fields)], tmp_path, "s")
    for png in paths[::2]:
        assert_is_a_picture(png)
    for svg in paths[1::2]:
        assert "NVIDIA $with$ a $ name that goes on for" in words(svg)


def test_a_caption_on_gpus_says_what_computed_there():
    gpus = {"device_kind": "gpu", "threads_per_device": None}
    one = {"build": "built from source", "tf32": False, "peer_access": None}
    two = {**one, "peer_access": True, "deterministic": True}
    version = {"versions": {"mxnet": "1.9.1, built from source"}}
    runs = [
        make_run(n, devices=[f"gpu({i}) H200" for i in range(n)], gpu_build=facts)
        for n, facts in ((1, one), (2, two))
    ]
    runs = [replace(run, header=replace(run.header, **gpus, **version)) for run in runs]
    text = wording.provenance(runs)
    assert "MXNet 1.9.1, built from source. TF32 off, peer access on, determ" in text
    assert wording.gpu_words(runs[0].header) == ["TF32 off"]
    assert wording.gpu_words(runs[1].header)[-1] == "deterministic"
    fast = replace(runs[0].header, gpu_build={**one, "tf32": True})
    assert wording.gpu_words(fast) == ["TF32 on"]
    assert "TF32" not in wording.provenance([ONE, TWO])


def test_pictures_do_not_depend_on_the_users_style(tmp_path):
    import matplotlib

    before = [p.read_bytes() for p in drawing.draw([ONE], tmp_path, "s")]
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path"}):
        after = [p.read_bytes() for p in drawing.draw([ONE], tmp_path, "s")]
        assert matplotlib.rcParams["font.size"] == 30
    assert after == before


def test_a_failure_leaves_earlier_pictures_as_they_were(tmp_path, monkeypatch):
    for name in ("s-accuracy.png", "s-accuracy.svg", "s-seconds.png"):
        (tmp_path / name).write_text("earlier")
    before = {p: p.read_text() for p in tmp_path.iterdir()}
    calls = itertools.count(1)

    def savefig(self, path, **kwargs):
        Path(path).write_text("half of it")
        if next(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Figure, "savefig", savefig)
    with pytest.raises(OSError, match="No space left"):
        drawing.draw([ONE, TWO], tmp_path, "s")
    assert {p: p.read_text() for p in tmp_path.iterdir()} == before
    monkeypatch.setattr(
        page, "_write", lambda figure, *paths: [p.touch() for p in paths]
    )
    drawing.draw([ONE, TWO], tmp_path, "s")  # the second call is over: now all are new
    assert {p.read_text() for p in tmp_path.iterdir()} == {""}


def test_runs_that_cannot_share_a_picture(tmp_path):
    with pytest.raises(RecordError, match="no runs"):
        drawing.draw([], tmp_path, "s")
    empty = replace(ONE, lines=(), path=Path("killed.jsonl"))
    for runs in ([empty], [TWO, empty]):
        with pytest.raises(RecordError, match=r"killed\.jsonl"):
            drawing.draw(runs, tmp_path, "s")
    twin = replace(ONE, path=Path("twin.jsonl"))
    with pytest.raises(
        RecordError, match=r"book-cpu1\.jsonl and twin\.jsonl.*1 device;"
    ):
        drawing.draw([ONE, TWO, twin], tmp_path, "s")
    other = make_run(4, dataset_sha256="b" * 64)
    with pytest.raises(
        RecordError, match=r"cpu1\.jsonl and .*cpu4\.jsonl.*different data"
    ):
        drawing.draw([ONE, TWO, other], tmp_path, "s")
    assert list(tmp_path.iterdir()) == []


def test_ways_to_share_have_a_picture_of_their_own(drawn, tmp_path):
    """Medians without the warm-up, of seconds and of bytes; a line of accuracy each."""
    runs = []
    for variant, sent in (("", 8e6), ("2bit", 5e6), ("async", None)):
        run = make_run(2, chapter="multiple_machines", workers=2, variant=variant)
        extra = {} if sent is None else {"wire_bytes": sent}
        epochs = tuple(replace(epoch, extra=extra) for epoch in run.epochs)
        runs.append(replace(run, lines=epochs))
    paths = drawing.draw(runs, tmp_path, "book-2workers")
    assert {path.name for path in paths} == {
        "book-2workers-sharing.png", "book-2workers-sharing.svg",
    }  # fmt: skip
    accuracy, seconds = drawn["sharing"].axes
    assert len(accuracy.get_lines()) == 3
    np.testing.assert_allclose(
        accuracy.get_lines()[0].get_ydata(), [0.2, 0.4, 0.6, 0.8]
    )
    assert [bar.get_width() for bar in seconds.patches] == [2.0] * 3
    # In the order of their names: sync, 2bit, async, which has no count of bytes.
    assert [text.get_text() for text in seconds.texts] == [
        "2.00 s  8.00 MB sent", "2.00 s  5.00 MB sent", "2.00 s",
    ]  # fmt: skip
    ticks = [label.get_text() for label in seconds.get_yticklabels()]
    assert ticks == ["sums (dist_sync)", "2 bits per gradient", "dist_async"]
    label = " ".join(drawn["sharing"].get_label().split())
    assert label == (
        "2 workers: 2-bit gradients send 62% of the bytes; async takes 100% of the time"
    )
    caption = drawn["sharing"].texts[2].get_text()
    assert "one training each, which says nothing of accuracy" in caption


def test_three_seeds_of_a_way_to_share_are_one_line(drawn, tmp_path):
    how = {"chapter": "multiple_machines", "workers": 2}
    runs = [
        make_run(2, seconds=(9.0, 2.0 + seed), seed=seed, variant=variant, **how)
        for variant in ("", "async")
        for seed in range(3)
    ]
    drawing.draw(runs, tmp_path, "book-2workers")
    accuracy, seconds = drawn["sharing"].axes
    assert len(accuracy.get_lines()) == len(accuracy.collections) == 2
    assert [bar.get_width() for bar in seconds.patches] == [3.0] * 2
    assert "medians of 3 seeds" in drawn["sharing"].texts[2].get_text()


def test_compare_picture(tmp_path):
    other = make_run(1, seconds=(7.0, 1.25, 1.25), seed=8, synthetic=True)
    png, svg = compare.draw(ONE, other, tmp_path, "compare-a-b")
    assert (png.name, svg.name) == ("compare-a-b.png", "compare-a-b.svg")
    assert sorted(tmp_path.iterdir()) == [png, svg]
    assert_is_a_picture(png)
    text = words(svg)
    assert "b trains 1.60 times as fast as a" in text
    assert "a: synthetic data no, seed 7" in text and "a: 0.800" in text
    assert "b: synthetic data yes, seed 8" in text and "b: 0.600" in text
    assert "in a and b: synthetic data: no and yes; seed: 7 and 8." in text
    with pytest.raises(RecordError, match=r"book-cpu1\.jsonl"):
        compare.draw(ONE, replace(ONE, lines=()), tmp_path, "c")


def test_compare_draws_both_runs(drawn, tmp_path):
    compare.draw(ONE, make_run(1, seconds=(7.0, 1.25)), tmp_path, "c")
    left, right = drawn["c"].axes
    assert [len(line.get_xdata()) for line in left.get_lines()] == [4, 2]
    assert [bar.get_width() for bar in right.patches] == [2.0, 1.25]


def test_drawing_needs_neither_mxnet_nor_a_display(tmp_path):
    paths = []
    for run in (ONE, TWO):
        paths.append(tmp_path / run.path.name)
        files.write(paths[-1], run.header, run.epochs)
    code = """if True:
        import sys
        from pathlib import Path
        from d2lpar.figures import drawing
        from d2lpar.records import comparison, files
        assert "matplotlib" not in sys.modules
        from d2lpar.figures import compare
        runs = [files.read(path) for path in sys.argv[2:]]
        drawing.draw(runs, Path(sys.argv[1]), "s")
        compare.draw(*runs, Path(sys.argv[1]), "c")
        comparison.comparison_table(comparison.compare(*runs))
        assert "mxnet" not in sys.modules
        assert "matplotlib.pyplot" not in sys.modules
    """
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::UserWarning:d2lpar.figures.drawing",
            "-c",
            code,
            tmp_path / "out",
            *paths,
        ],
        cwd=Path(drawing.__file__).parents[2],
        env={k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MPLBACKEND")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").iterdir())) == 6
    assert np.ptp(imread(tmp_path / "out" / "c.png")[..., :3]) > 0.9

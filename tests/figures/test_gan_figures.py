"""Pictures and the animation of a GAN's records: which are drawn, what they say."""

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

from d2lpar import datasets
from d2lpar.datasets import face_images, face_quality, punks
from d2lpar.errors import RecordError
from d2lpar.figures import animation, compare, drawing, page
from d2lpar.figures import gan as figures_gan
from d2lpar.records import comparison, files, kinds
from d2lpar.records.kinds import FrameRecord

N_TRAIN = 60
SEED = 3
PICTURES = ("losses", "quality", "strip", "samples", "nearest", "seconds")


@pytest.fixture(autouse=True, scope="module")
def nothing_in_reach(tmp_path_factory):
    """Of the faces that may be on this machine; nor is anything asked of a network."""
    empty = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(empty))
        patch.setenv("MXNET_HOME", str(empty))
        patch.delenv("D2LPAR_DATA", raising=False)
        no_urls = replace(punks.CRYPTOPUNKS, urls=())
        patch.setattr(punks, "CRYPTOPUNKS", no_urls)
        yield


@pytest.fixture(scope="module")
def data():
    return punks.load("synthetic", n_train=N_TRAIN, seed=SEED)


def generated(n):
    """Stand-ins for what a generator draws."""
    return datasets.synthetic_punks(n, seed=99)


def some_frames(epochs, data, n=25, repeats=1):
    drawn = generated(len(epochs))
    samples = generated(n)
    numbers, distances = face_quality.nearest(samples, data.X)
    last = {
        "samples": face_images.to_png(face_images.sheet(samples, 5)),
        "nearest": numbers.tolist(),
        "distances": distances.tolist(),
    }
    return [
        kinds.FrameRecord(
            epoch,
            face_images.to_png(face_images.sheet(drawn[k : k + 1], 1)),
            quality=0.4 / (1 + epoch) + repeat,
            repeat=repeat,
            **(last if epoch == epochs[-1] else {}),
        )
        for repeat in range(repeats)
        for k, epoch in enumerate(epochs)
    ]


@pytest.fixture(scope="module")
def a_run(tmp_path_factory, data):
    """Write a record and read it: a run of a GAN, as `d2lpar run gan` leaves it."""

    def a_run(num_devices=1, num_epochs=4, *, frames=None, repeats=1, **fields):
        settings = {"global_batch_size": 30, "lr": 2e-4, "n_train": N_TRAIN}
        settings.update(fields.pop("settings", {}))
        header = {
            "chapter": "gan",
            "preset": "quick",
            "num_devices": num_devices,
            "device_kind": "cpu",
            "devices": [f"cpu({k}) (1 thread of 2)" for k in range(num_devices)],
            "threads_per_device": 1,
            "cores": 2,
            "cpu_model": "A CPU",
            "dataset": data.name,
            "dataset_sha256": data.sha256,
            "synthetic": True,
            "seed": SEED,
            "settings": settings,
            "command": "d2lpar run gan",
            "versions": {"mxnet": "1.9.1"},
            "git_commit": None,
            "git_dirty": None,
            "date": "2026-01-01T00:00:00+00:00",
            **fields,
        }
        epochs = [
            kinds.GanEpochRecord(
                epoch, 2.0 / num_devices, 30.0 * num_devices,
                d_loss=0.6 + repeat, g_loss=0.8, d_real=0.6, d_fake=0.4, repeat=repeat,
            )
            for repeat in range(repeats)
            for epoch in range(1, num_epochs + 1)
        ]  # fmt: skip
        if frames is None:
            frames = some_frames(range(num_epochs + 1), data, repeats=repeats)
        header = kinds.Header(**header)
        path = tmp_path_factory.mktemp("run") / f"{files.run_name(header)}.jsonl"
        files.write(path, header, [*frames, *epochs])
        return files.read(path)

    return a_run


@pytest.fixture(scope="module")
def written(a_run, tmp_path_factory):
    """What is drawn of a run on one device and one on two: folder and paths."""
    out = tmp_path_factory.mktemp("figures") / "out"
    return out, drawing.draw([a_run(2), a_run(1)], out, "quick")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def words(path):
    texts = re.findall(r">([^<>]+)</text>", path.read_text())
    return unescape(" ".join(" ".join(texts).split()))


def said(figure):
    """All words of a picture, but those of its axes."""
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def names(paths):
    return [path.name for path in paths]


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "d2lpar"]


def both(*stems):
    return {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg")}


# Pictures


def test_all_pictures_of_two_runs(written):
    out, paths = written
    expected = both(*(f"quick-{name}" for name in PICTURES))
    assert set(names(paths)) == expected | {"quick.gif"}
    assert sorted(out.iterdir()) == sorted(paths) and len(set(paths)) == len(paths)
    for path in paths:
        if path.suffix == ".png":
            picture = imread(path)[..., :3]
            ink = picture.min(axis=2) < 0.9
            assert ink.mean() > 0.01
            for edge in (ink[:8], ink[-8:], ink[:, :8], ink[:, -8:]):
                assert not edge.any()  # nothing is cut off


def test_every_picture_says_what_it_is_of(written):
    for path in written[1]:
        if path.suffix == ".svg":
            text = words(path)
            assert "GAN on SYNTHETIC synthetic-punks, global batch 30" in text
            assert "A CPU, 2 cores" in text and "MXNet 1.9.1. 2026-01-01" in text


def test_losses_and_opinions(written):
    text = words(written[0] / "quick-losses.svg")
    for part in (
        "After 4 epochs D gives faces of the data 0.60 and generated ones 0.40",
        "mean loss (nats)",
        "mean opinion (0 generated, 1 of the data)",
        "D(x), 1 context",
        "D(G(z)), 2 contexts",
        "epoch",
    ):
        assert part in text
    assert "Vertical line" not in text and "median" not in text


def test_lines_are_the_records_and_told_apart_in_grey(a_run):
    runs = [a_run(1), a_run(2)]
    left, right = figures_gan._losses(runs).axes
    for axes, undecided, D, G in ((left, np.log(2), 0.6, 0.8), (right, 0.5, 0.6, 0.4)):
        grey, *lines = axes.get_lines()
        assert set(grey.get_ydata()) == {undecided}
        assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3, 4]] * 4
        assert [set(line.get_ydata()) for line in lines] == [{D}, {G}, {D}, {G}]
        for ink in (
            {(line.get_linestyle(), line.get_marker()) for line in lines},
            {line.get_color() for line in lines},
        ):
            assert len(ink) == 4
        low, high = axes.get_ylim()
        assert low == 0 and high >= max(D, G, undecided)


def test_a_long_run_is_drawn_by_means_of_neighbours(a_run):
    run = a_run(num_epochs=1_001, frames=[])
    epochs = [replace(e, d_loss=float(e.epoch)) for e in run.epochs]
    figure = figures_gan._losses([replace(run, lines=tuple(epochs))])
    assert "Points: means of 3 epochs." in said(figure)
    grey, D, G = figure.axes[0].get_lines()
    assert list(D.get_xdata()) == [*range(3, 1_000, 3), 1_001]  # the last epochs' are 2
    assert list(D.get_ydata()) == [*range(2, 999, 3), 1_000.5]
    assert list(G.get_ydata()) == pytest.approx([0.8] * 334)


def test_quality_begins_before_training(a_run, written):
    text = words(written[0] / "quick-quality.svg")
    assert "The distance to synthetic faces falls from 0.400 to 0.080 in 4 epo" in text
    assert "1 context: 0.080" in text and "2 contexts: 0.080" in text
    assert "Rabin et al., 2011" in text and "epoch 0 is before training" in text
    assert "Each device has its own BatchNorm." in text
    (axes,) = figures_gan._quality([a_run(1)]).axes
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [0, 1, 2, 3, 4]
    assert list(line.get_ydata()) == [0.4 / (1 + k) for k in range(5)]


def test_repeats_count_by_their_median(a_run):
    run = a_run(repeats=3)
    drawn = figures_gan.pictures([run], None)
    for name in ("losses", "quality"):
        assert "Curves: median of the repeats." in said(drawn[name])
    assert "from 1.400 to 1.080" in drawn["quality"].get_label()
    grey, D, G = drawn["losses"].axes[0].get_lines()
    assert list(D.get_xdata()) == [1, 2, 3, 4] and set(D.get_ydata()) == {1.6}


def test_the_distance_of_the_data_to_itself_is_the_floor(a_run, data):
    frames = some_frames(range(5), data)
    frames[0] = replace(frames[0], extra={"floor": 0.05})
    figure = figures_gan._quality([a_run(frames=frames)])
    assert "(synthetic to synthetic: 0.050)" in figure.get_label().replace("\n", " ")
    assert "Dashed: synthetic faces to other synthetic ones." in said(figure)
    assert [0.05, 0.05] in [list(x.get_ydata()) for x in figure.axes[0].get_lines()]
    assert "BatchNorm" not in said(figure)  # there is nothing to explain


def test_a_resumed_run_has_a_line_and_a_sentence(a_run):
    runs = [a_run(1, settings={"resumed_at": 2}), a_run(2)]
    drawn = figures_gan.pictures(runs, None)
    for name in ("losses", "quality"):
        assert "Vertical line: continued from a checkpoint." in said(drawn[name])
        for axes in drawn[name].axes:
            assert [2, 2] in [list(line.get_xdata()) for line in axes.get_lines()]


def test_a_run_without_frames_has_curves_only(a_run, out, caplog):
    run = a_run(frames=[])
    paths = drawing.draw([run], out, "quick")
    assert set(names(paths)) == both("quick-losses", "quick-quality", "quick-seconds")
    assert "No frames were recorded" in words(out / "quick-quality.svg")
    assert warnings_in(caplog) == [f"{run.path}: too few frames for an animation"]


def test_a_run_that_was_killed_has_no_samples_yet(a_run, out, data):
    frames = [replace(f, samples=None) for f in some_frames([0, 1], data)]
    paths = drawing.draw([a_run(frames=frames)], out, "quick")
    expected = both("quick-losses", "quick-quality", "quick-strip", "quick-seconds")
    assert set(names(paths)) == expected | {"quick.gif"}


# Faces


def test_samples_stand_beside_synthetic_faces(written, data):
    out, _ = written
    frame = "25 generated faces: the nearest synthetic ones differ by 0."
    assert frame in words(out / "quick-samples.svg")
    assert "after 4 epochs" in words(out / "quick-samples.svg")
    left, right = images_in(out / "quick-samples.svg")
    assert_shows(left, generated(25))
    assert_shows(right, data.X[:25])  # the data is synthetic, too


def test_a_strip_shows_one_noise_through_training(a_run, data):
    frames = some_frames([0, 1, 2, 3, 5, 7], data)
    figure = figures_gan._strip(a_run(num_epochs=7, frames=frames), frames)
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "epoch 0", "1", "2", "5", "7",
    ]  # fmt: skip
    for axes, k in zip(figure.axes, (0, 1, 2, 4, 5)):
        (image,) = axes.images
        face = face_images.from_png(frames[k].fixed)
        np.testing.assert_array_equal(image.get_array(), face)
    assert "distance to the data 0.400 at epoch 0, 0.050 at 7" in " ".join(
        figure.get_label().split()
    )


def images_in(svg):
    """The pictures in an SVG, RGB."""
    found = re.findall(r'href="data:image/png;base64,([^"]+)"', svg.read_text())
    return [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"))
        for text in found
    ]


def assert_shows(shown, drawn):
    """Each face in its place, with a white line between them, and nothing else."""
    columns, rows = 5, -(-len(drawn) // 5)
    expected = np.full((25 * rows - 1, 25 * columns - 1, 3), 255)
    for k, face in enumerate(drawn):
        y, x = 25 * (k // columns), 25 * (k % columns)
        expected[y : y + 24, x : x + 24] = face.transpose(1, 2, 0)
    np.testing.assert_array_equal(shown, expected)


def test_the_nearest_faces_are_below_the_generated_ones(a_run, written, data):
    out, _ = written
    frame = a_run().of(FrameRecord)[-1]
    (picture,) = images_in(out / "quick-nearest.svg")
    nearest = data.X[frame.nearest[:5]]
    assert_shows(picture, np.concatenate([generated(25)[:5], nearest]))
    text = words(out / "quick-nearest.svg")
    assert "The nearest synthetic faces, below, differ by 0." in text
    for distance in frame.distances[:5]:
        assert f"{distance:.2f}" in text
    # What that is to be compared with: the data's own neighbours.
    pairs = data.X[:25, None].astype(float) - data.X[None, 25:].astype(float)
    within = np.sqrt(np.mean(pairs**2, axis=(2, 3, 4))).min(axis=1) / 255
    assert f"nearest others it is {np.median(within):.2f} (median of 25)" in text


def test_fewer_faces_than_25(a_run, data):
    run = a_run(frames=some_frames(range(5), data, n=3))
    drawn = figures_gan.pictures([run], None)
    assert "3 generated faces: " in said(drawn["samples"])
    nearest = drawn["nearest"]
    assert [len(axes.images) for axes in nearest.axes] == [1]
    # The numbers are under their faces, which take three fifths of the width.
    left, right = nearest.axes[0].get_xlim()
    expected = left + (right - left) * (np.arange(3) + 0.5) / 5
    assert list(nearest.axes[0].get_xticks()) == pytest.approx(expected, abs=0.51)
    written = [label.get_text() for label in nearest.axes[0].get_xticklabels()]
    assert written == [f"{d:.2f}" for d in run.of(FrameRecord)[-1].distances]


@pytest.mark.parametrize(("n", "says"), [(1, ""), (3, "(median of 1)")])
def test_hardly_any_data(a_run, n, says):
    few = punks.load("synthetic", n_train=n, seed=SEED)
    drawn = figures_gan.pictures(
        [
            a_run(
                dataset_sha256=few.sha256,
                settings={"n_train": n},
                frames=some_frames(range(5), few),
            )
        ],
        None,
    )
    text = said(drawn["nearest"])
    assert "a copy differs by 0" in text and says in text
    assert ("nearest others" in text) == (n > 1)
    assert "25 generated faces" in said(drawn["samples"])


def test_without_the_real_faces_generated_ones_are_drawn_alone(a_run, out, caplog):
    run = a_run(synthetic=False, dataset="cryptopunks", dataset_sha256="0" * 64)
    paths = drawing.draw([run], out, "quick")
    expected = both(*(f"quick-{n}" for n in PICTURES if n != "nearest"))
    assert set(names(paths)) == expected | {"quick.gif"}
    (line,) = warnings_in(caplog)
    assert line == (
        f"the faces of {run.path} are not at hand (not found): only generated ones are "
        "drawn"
    )
    text = words(out / "quick-quality.svg")
    assert "The distance to real faces falls from" in text


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"dataset_sha256": "0" * 64}, "those found are others"),
        ({"seed": SEED + 1}, "those found are others"),
    ],
)
def test_other_faces_are_not_shown_for_the_real_ones(a_run, caplog, fields, why):
    drawn = figures_gan.pictures([a_run(**fields)], None)
    assert list(drawn) == ["losses", "quality", "strip", "samples"]
    (line,) = warnings_in(caplog)
    assert f"are not at hand ({why})" in line


def test_a_damaged_file_is_named_where_real_faces_are_missing(a_run, tmp_path, caplog):
    (tmp_path / "punks.png").write_bytes(b"")
    run = a_run(synthetic=False, dataset="cryptopunks")
    drawn = figures_gan.pictures([run], tmp_path)
    assert list(drawn) == ["losses", "quality", "strip", "samples"]
    (line,) = warnings_in(caplog)
    assert f"({tmp_path / 'punks.png'}: not an image; delete it)" in line


def test_real_faces_are_found_in_the_folder_that_is_named(
    a_run, data, tmp_path, monkeypatch
):
    read = []

    def read_tiles(path):
        read.append(path)
        return data.X

    read_by_us = replace(punks.CRYPTOPUNKS, read_file=read_tiles)
    monkeypatch.setattr(punks, "CRYPTOPUNKS", read_by_us)
    (tmp_path / "punks.png").touch()
    run = a_run(synthetic=False, dataset="cryptopunks")
    drawn = figures_gan.pictures([run], tmp_path)
    assert read == [tmp_path / "punks.png"]
    assert "25 generated faces: the nearest real ones" in said(drawn["real"])
    right = drawn["real"].axes[1]
    assert right.get_xlabel() == "real faces"
    np.testing.assert_array_equal(
        right.images[0].get_array()[:24, :24], data.X[0].transpose(1, 2, 0)
    )
    assert "The nearest real faces, below" in said(drawn["nearest"])
    # The samples that may be handed on show none of them.
    beside = drawn["samples"].axes[1]
    assert beside.get_xlabel() == "synthetic faces"


def test_real_faces_are_not_in_the_records(a_run, data):
    """They must not be redistributed: only their numbers are."""
    run = a_run()
    lines = [json.loads(line) for line in run.path.read_text().splitlines()]
    texts = [
        value
        for line in lines
        if line["kind"] == "frame"
        for value in (line["fixed"], line["samples"])
        if value
    ]
    real = {face.transpose(1, 2, 0).tobytes() for face in data.X}
    assert len(texts) == 6
    for text in texts:
        sheet = face_images.from_png(text)
        for y in range(0, len(sheet), 24):
            for x in range(0, sheet.shape[1], 24):
                assert sheet[y : y + 24, x : x + 24].tobytes() not in real


# The animation


def frames_of(gif):
    with Image.open(gif) as image:
        for k in range(image.n_frames):
            image.seek(k)
            yield image.info["duration"], np.asarray(image.convert("RGB")).astype(int)


def fixed_face(frame):
    return (
        face_images.from_png(frame.fixed)
        .repeat(8, axis=0)
        .repeat(8, axis=1)
        .astype(int)
    )


def test_a_gif_shows_every_frame(a_run, written):
    gif = written[0] / "quick.gif"
    with Image.open(gif) as image:
        assert (image.n_frames, image.size) == (5, (192, 192 + animation.BAND))
        assert image.info["loop"] == 0  # for ever
    durations, shown = zip(*frames_of(gif))
    assert durations == (100, 100, 100, 100, 1000)
    bands = set()
    for picture, frame in zip(shown, a_run(2).of(FrameRecord)):
        # A GIF has 256 colours, enough for these faces.
        assert np.abs(picture[:192] - fixed_face(frame)).max() <= 4
        bands.add(picture[192:].tobytes())
    assert len(bands) == 5  # below each is the number of its epoch


def test_the_run_on_most_devices_is_the_one_that_is_animated(a_run, data, monkeypatch):
    animated = []
    monkeypatch.setattr(page, "save", lambda *drawn: [])
    monkeypatch.setattr(
        animation, "animate", lambda run, *_, **__: animated.append(run) or []
    )
    two = a_run(2, frames=some_frames([0, 2, 4], data))
    assert drawing.draw([two, a_run(1)], "nowhere", "quick") == []
    assert animated == [two]


def test_a_long_run_makes_a_small_gif(a_run, out, data):
    """Of 400 frames 60 are shown: the first, the last, evenly spread."""
    run = a_run(num_epochs=400, frames=some_frames(range(400), data))
    (path,) = animation.animate(run, out, "long", mp4=False)
    assert path == out / "long.gif" and path.stat().st_size < 3e6
    shown = [picture for _, picture in frames_of(path)]
    shown = [picture[:192] for picture in shown]
    assert len(shown) == 60
    for k in (0, -1):
        assert np.abs(shown[k] - fixed_face(run.of(FrameRecord)[k])).max() <= 4
    faces = np.stack([fixed_face(frame)[::8, ::8] for frame in run.of(FrameRecord)])
    places = [
        np.abs(faces - picture[::8, ::8]).sum(axis=(1, 2, 3)).argmin()
        for picture in shown[::6]
    ]
    assert set(np.diff(places)) <= {40, 41}


def test_no_repeat_is_animated_twice(a_run, out):
    animation.animate(a_run(repeats=3), out, "quick", mp4=False)
    assert len(list(frames_of(out / "quick.gif"))) == 5


@pytest.fixture
def no_ffmpeg(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)


@pytest.mark.parametrize("frames", [None, []])
def test_an_mp4_without_ffmpeg_is_an_error_and_nothing_is_written(
    a_run, out, no_ffmpeg, frames
):
    with pytest.raises(RecordError) as caught:
        drawing.draw([a_run(frames=frames)], out, "quick", mp4=True)
    message = str(caught.value)
    assert message.startswith("--mp4: there is no ffmpeg here: pip install imageio-ff")
    assert "or leave --mp4 out" in message and "\n" not in message
    assert not out.exists()


def test_a_wheel_without_its_program_is_no_ffmpeg(a_run, out, no_ffmpeg, monkeypatch):
    class Wheel:
        @staticmethod
        def get_ffmpeg_exe():
            raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", Wheel)
    with pytest.raises(RecordError, match="there is no ffmpeg here"):
        drawing.draw([a_run()], out, "quick", mp4=True)
    assert not out.exists()


def test_an_ffmpeg_that_fails_leaves_everything_as_it_was(
    a_run, out, tmp_path, monkeypatch
):
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\ncat > /dev/null\necho Unknown encoder >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    out.mkdir()
    (out / "quick.gif").write_text("earlier")
    with pytest.raises(RecordError) as caught:
        drawing.draw([a_run()], out, "quick", mp4=True)
    assert "ffmpeg failed (Unknown encoder)" in str(caught.value)
    assert "leave --mp4 out" in str(caught.value) and "\n" not in str(caught.value)
    assert [path.name for path in out.iterdir()] == ["quick.gif"]
    assert (out / "quick.gif").read_text() == "earlier"


@pytest.fixture
def ffmpeg():
    """The program of the wheel imageio-ffmpeg."""
    wheel = pytest.importorskip(
        "imageio_ffmpeg", reason="imageio-ffmpeg is not installed: extra video"
    )
    return wheel.get_ffmpeg_exe()


def decoded(ffmpeg, path):
    """The film's frames (n, 216, 192, 3), as ffmpeg has them."""
    done = subprocess.run(
        [ffmpeg, "-loglevel", "error", "-i", path, "-f", "rawvideo", "-pix_fmt",
         "rgb24", "-"],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, 216, 192, 3).astype(int)


def test_a_film_of_all_frames(a_run, out, ffmpeg, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    run = a_run()
    paths = drawing.draw([run], out, "quick", mp4=True)
    assert names(paths)[-2:] == ["quick.gif", "quick.mp4"]
    assert sorted(out.iterdir()) == sorted(paths)
    film = decoded(ffmpeg, out / "quick.mp4")
    assert len(film) == len(run.of(FrameRecord)) == 5
    for shown, frame in zip(film, run.of(FrameRecord)):
        assert (
            np.abs(shown[:192] - fixed_face(frame)).mean() < 12
        )  # its colours are coarser


def test_a_long_film_is_small_too(a_run, out, ffmpeg, data):
    run = a_run(num_epochs=400, frames=some_frames(range(400), data))
    gif, film = animation.animate(run, out, "long", mp4=True)
    assert len(decoded(ffmpeg, film)) == 60 and film.stat().st_size < 3e6


def test_drawing_needs_no_mxnet(a_run, out):
    code = """if True:
        import sys
        from d2lpar.figures import drawing
        from d2lpar.records import files
        assert "matplotlib" not in sys.modules
        drawing.draw([files.read(sys.argv[1])], sys.argv[2], "quick")
        assert "mxnet" not in sys.modules
        assert "matplotlib.pyplot" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", code, a_run().path, out],
        cwd=Path(drawing.__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(out.iterdir())) == 2 * len(PICTURES) + 1


# Compared


def test_two_gans_are_compared_by_time_and_distance(a_run, out):
    one, two = a_run(1), a_run(2)
    compared = comparison.compare(one, two)
    assert compared.a.test_acc is None
    assert compared.a.quality == one.of(FrameRecord)[-1].quality
    assert "final distance" in comparison.comparison_table(compared)
    paths = compare.draw(one, two, out, "beside")
    said = words(next(path for path in paths if path.suffix == ".svg"))
    assert f"a: {one.of(FrameRecord)[-1].quality:.3f}" in said
    assert "distance to the data" in said and "test accuracy" not in said


def test_a_gan_is_not_compared_with_a_classifier(a_run):
    gan = a_run()
    epoch = kinds.EpochRecord(1, 1.0, 2.0, 0.5, 0.5)
    with pytest.raises(RecordError, match="only one of them is a GAN"):
        comparison.compare(kinds.Run(gan.header, (epoch,)), gan)

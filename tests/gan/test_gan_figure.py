"""Pictures and the animation of a GAN's records: which are drawn, of what numbers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import gan_epoch, header
from matplotlib.image import imread
from msgspec.structs import replace as changed
from PIL import Image

from d2lpar import experiments
from d2lpar.datasets import punks, synthetic_punks
from d2lpar.errors import RecordError
from d2lpar.figures import labels
from d2lpar.gan import figure
from d2lpar.records.kinds import FrameRecord, Run

N_TRAIN, SEED = 60, 3
PICTURES = ("losses", "quality", "strip", "samples", "nearest", "seconds")
# One of CPU contexts and one of a GPU.
RECORDS = sorted(Path(__file__).parents[2].glob("figures/**/gan/*pu1.jsonl"))


@pytest.fixture(autouse=True)
def nothing_in_reach(tmp_path, monkeypatch):
    """Of the faces that may be on this machine; nor is anything asked of a network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    monkeypatch.setattr(punks, "CRYPTOPUNKS", replace(punks.CRYPTOPUNKS, urls=()))


DATA = punks.load("synthetic", n_train=N_TRAIN, seed=SEED)
DRAWN = synthetic_punks(25, seed=99)  # in place of what a generator draws


REFERENCES = {
    name: {"frechet": frechet, "coverage": coverage, "density": 1.0, "distinct": 0.5}
    for name, frechet, coverage in (
        ("other real faces", 0.5, 0.97),
        ("noise", 27.0, 0.01),
        ("mean face", 41.0, 0.0),
    )
}


def fixed_faces(k):
    return DRAWN[np.arange(k, k + 8) % 25]


def some_frames(epochs, n=25, repeats=1):
    numbers, distances = punks.nearest(DRAWN[:n], DATA.X)
    last = {
        "samples": punks.to_png(punks.sheet(DRAWN[:n], 5)),
        "nearest": numbers.tolist(),
        "distances": distances.tolist(),
    }
    return [
        FrameRecord(
            epoch=epoch,
            num_steps=2 * epoch,
            fixed=punks.to_png(punks.sheet(fixed_faces(k), 8)),
            num_fixed=8,
            frechet=40 / (1 + epoch) + repeat,
            density=0.5,
            coverage=epoch / (1 + epoch),
            distinct=0.3,
            repeat=repeat,
            references={} if epoch else REFERENCES,
            **(last if epoch == epochs[-1] else {}),
        )
        for repeat in range(repeats)
        for k, epoch in enumerate(epochs)
    ]


def a_run(num_devices=1, num_epochs=4, *, frames=None, repeats=1, **fields):
    settings = {"global_batch_size": 30, "n_train": N_TRAIN}
    settings.update(fields.pop("settings", {}))
    values = {
        "dataset": DATA.name, "dataset_sha256": DATA.sha256, "synthetic": True,
        "seed": SEED, "settings": settings, **fields,
    }  # fmt: skip
    epochs = [
        gan_epoch(epoch, 2.0 / num_devices, repeat, d_loss=0.6 + repeat)
        for repeat in range(repeats)
        for epoch in range(1, num_epochs + 1)
    ]
    if frames is None:
        frames = some_frames(range(num_epochs + 1), repeats=repeats)
    return Run(header(num_devices, chapter="gan", **values), (*frames, *epochs))


def names(paths):
    return {path.name for path in paths}


def pngs(*stems):
    return {f"quick-{stem}.png" for stem in stems}


def image_in(axes):
    (image,) = axes.images
    return np.asarray(image.get_array())


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "d2lpar"]


# Pictures


def test_all_pictures_of_two_runs(tmp_path):
    runs = [a_run(2), a_run(1)]
    paths = experiments.draw(runs, tmp_path / "out", "quick")
    assert names(paths) == pngs(*PICTURES) | {"quick.gif"}
    assert sorted((tmp_path / "out").iterdir()) == sorted(paths)
    for path in paths:
        if path.suffix == ".png":
            ink = imread(path)[..., :3].min(axis=2) < 0.9
            assert ink.mean() > 0.01
            for edge in (ink[:8], ink[-8:], ink[:, :8], ink[:, -8:]):
                assert not edge.any()  # nothing is cut off
    strip = figure.pictures(runs)["strip"]
    words = " ".join(text.get_text() for text in strip.texts)
    assert labels.data_name(runs[0].header) in words and "2 cores" in words


def test_losses_are_the_records():
    drawn = figure.pictures([a_run(1), a_run(2, repeats=3)])
    left, right = drawn["losses"].axes
    for axes, undecided, first, second in (
        (left, np.log(2), 1.6, 0.8),  # the median of the repeats
        (right, 0.5, 0.6, 0.4),
    ):
        grey, *lines = axes.get_lines()
        assert set(grey.get_ydata()) == {undecided}
        assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3, 4]] * 2
        assert [set(line.get_ydata()) for line in lines] == [{first}, {second}]
        low, high = axes.get_ylim()
        assert low == 0 and high >= max(first, second, undecided)
    assert "0.60 and 0.40 after 4 epochs" in drawn["losses"].get_label()


def test_a_long_run_is_drawn_by_means_of_neighbours():
    run = a_run(num_epochs=1_001, frames=[])
    epochs = [changed(e, d_loss=float(e.epoch)) for e in run.epochs]
    drawn = figure.pictures([replace(run, lines=tuple(epochs))])
    _, D, G = drawn["losses"].axes[0].get_lines()
    assert list(D.get_xdata())[:2] == [3, 6] and D.get_xdata()[-1] == 1_001
    assert list(D.get_ydata())[:2] == [2, 5] and D.get_ydata()[-1] == 1_000.5
    assert list(G.get_ydata()) == pytest.approx([0.8] * 400)


def test_quality_begins_before_training_and_shows_its_references():
    runs = [a_run(1), a_run(2, settings={"resumed_at": 2})]
    drawn = figure.pictures(runs)["quality"]
    for axes, measure, values in zip(
        drawn.axes,
        ("frechet", "coverage"),
        ([40 / (1 + k) for k in range(5)], [k / (1 + k) for k in range(5)]),
    ):
        lines = [(list(x.get_xdata()), list(x.get_ydata())) for x in axes.get_lines()]
        assert lines.count(([0, 1, 2, 3, 4], values)) == 2
        for known in ("other real faces", "noise"):
            level = REFERENCES[known][measure]
            assert any(ys == [level, level] for _, ys in lines)
            assert known in [text.get_text() for text in axes.texts]
        assert any(xs == [2, 2] for xs, _ in lines)  # where a run was resumed
        assert axes.get_xlim()[0] < 0
    assert "80 % of the drawn faces are covered" in drawn.get_label()


def test_old_records_without_measures_are_drawn():
    frames = [
        changed(
            f,
            num_steps=None,
            frechet=None,
            density=None,
            coverage=None,
            distinct=None,
            references={},
        )
        for f in some_frames([0, 1, 4])
    ]
    drawn = figure.pictures([a_run(frames=frames)])
    assert "quality" not in drawn and "strip" in drawn
    assert "epoch 4" in drawn["strip"].get_label()


def test_runs_that_were_killed_have_fewer_pictures(tmp_path, caplog):
    frames = [changed(f, samples=None) for f in some_frames([0, 1])]
    assert list(figure.pictures([a_run(frames=frames)])) == [*PICTURES[:3]]
    run = a_run(frames=[])
    assert list(figure.pictures([run])) == ["losses"]
    assert figure.animate(run, tmp_path, "quick", mp4=False) == []
    assert len(warnings_in(caplog)) == 1


# Faces


def with_lines_between(faces):
    """Each face in its place, five in a row, with a white line between them."""
    rows = -(-len(faces) // 5)
    expected = np.full((25 * rows - 1, 124, 3), 255)
    for k, face in enumerate(faces):
        y, x = 25 * (k // 5), 25 * (k % 5)
        expected[y : y + 24, x : x + 24] = face.transpose(1, 2, 0)
    return expected


def test_samples_and_the_nearest_faces():
    run = a_run()
    frame = run.of(FrameRecord)[-1]
    drawn = figure.pictures([run])
    left, right = drawn["samples"].axes
    np.testing.assert_array_equal(image_in(left), with_lines_between(DRAWN))
    np.testing.assert_array_equal(image_in(right), with_lines_between(DATA.X[:25]))
    assert left.get_xlabel() == "generated, after 4 epochs"
    assert f"{np.median(frame.distances):.2f} from" in drawn["samples"].get_label()
    (axes,) = drawn["nearest"].axes
    faces = np.concatenate([DRAWN[:5], DATA.X[frame.nearest[:5]]])
    np.testing.assert_array_equal(image_in(axes), with_lines_between(faces))
    words = [label.get_text() for label in axes.get_xticklabels()]
    assert words == [f"{distance:.2f}" for distance in frame.distances[:5]]


def test_a_strip_shows_the_same_noises_through_training():
    """A row for the frame that is nearest to each of some steps, and the last."""
    frames = some_frames([0, 30, 70, 200, 480, 520, 700])
    strip = figure.pictures([a_run(num_epochs=7, frames=frames)])["strip"]
    (axes,) = strip.axes
    steps = [label.get_text() for label in axes.get_yticklabels()]
    assert steps == ["0", "60", "400", "960", "1,400"]
    for row, k in enumerate((0, 1, 3, 4, 6)):
        for column, face in enumerate(fixed_faces(k)):
            y, x = 25 * row, 25 * column
            shown = image_in(axes)[y : y + 24, x : x + 24]
            np.testing.assert_array_equal(shown, face.transpose(1, 2, 0))


@pytest.mark.parametrize("wrong", ["others", "absent", "damaged"])
def test_other_faces_are_not_shown_for_the_real_ones(tmp_path, caplog, wrong):
    run = a_run(synthetic=False, dataset="cryptopunks")
    if wrong == "others":
        run = a_run(dataset_sha256="0" * 64)
    elif wrong == "damaged":
        (tmp_path / "punks.png").write_bytes(b"")
    drawn = figure.pictures([run], tmp_path if wrong == "damaged" else None)
    assert list(drawn) == ["losses", "quality", "strip", "samples"]
    (line,) = warnings_in(caplog)
    assert (str(tmp_path / "punks.png") in line) == (wrong == "damaged")


def test_real_faces_are_found_in_the_folder_that_is_named(tmp_path, monkeypatch):
    published = replace(punks.CRYPTOPUNKS, read_file=lambda path: DATA.X)
    monkeypatch.setattr(punks, "CRYPTOPUNKS", published)
    (tmp_path / "punks.png").touch()
    run = a_run(synthetic=False, dataset="cryptopunks")
    drawn = figure.pictures([run], tmp_path)
    real, handed_on = (image_in(drawn[name].axes[1]) for name in ("real", "samples"))
    np.testing.assert_array_equal(real, with_lines_between(DATA.X[:25]))
    # The samples that may be handed on show faces that were drawn for it.
    others = punks.load("synthetic", n_train=25, seed=SEED).X
    np.testing.assert_array_equal(handed_on, with_lines_between(others))
    assert "real ones" in drawn["nearest"].get_label()


def test_records_that_were_altered_are_refused():
    *others, last = some_frames(range(5))
    for samples in ("AAAA", last.fixed):
        altered = changed(last, samples=samples)
        with pytest.raises(RecordError, match="of epoch 4"):
            figure.pictures([a_run(frames=[*others, altered])])


# The animation


def frames_of(gif):
    with Image.open(gif) as image:
        for k in range(image.n_frames):
            image.seek(k)
            yield image.info["duration"], np.asarray(image.convert("RGB")).astype(int)


HEIGHT, WIDTH = (n * punks.TILE * figure.SCALE for n in (2, 4))  # of the faces


def faces_in(frame):
    """Its eight faces in two rows, as they are animated."""
    row = punks.from_png(frame.fixed, 8, 1)
    two = np.concatenate([row[:, : 4 * punks.TILE], row[:, 4 * punks.TILE :]])
    return punks.enlarged(two, figure.SCALE).astype(int)


def test_a_gif_shows_every_frame_once(tmp_path):
    run = a_run(repeats=3)
    (gif,) = figure.animate(run, tmp_path, "quick", mp4=False)
    durations, shown = zip(*frames_of(gif))
    assert durations == (100, 100, 100, 100, 1000)
    assert shown[0].shape == (HEIGHT + figure.BAND, WIDTH, 3)
    for picture, frame in zip(shown, run.of(FrameRecord)):
        # A GIF has 256 colours, enough for these faces.
        assert np.abs(picture[:HEIGHT] - faces_in(frame)).max() <= 4
    # Below each is the number of its step.
    assert len({picture[HEIGHT:].tobytes() for picture in shown}) == 5
    with Image.open(gif) as image:
        assert "loop" not in image.info  # it plays once


def test_a_long_run_makes_a_small_gif(tmp_path, monkeypatch):
    """Of 400 frames 50 are shown: the first, the last, evenly spread."""
    shown, picture_of = [], figure.picture_of

    def noted(run, frame, *which):
        shown.append(frame.epoch)
        return picture_of(run, frame, *which)

    monkeypatch.setattr(figure, "picture_of", noted)
    run = a_run(num_epochs=400, frames=some_frames(range(400)))
    (path,) = figure.animate(run, tmp_path / "out", "long", mp4=False)
    assert path == tmp_path / "out" / "long.gif" and path.stat().st_size < 2e6
    assert len(list(frames_of(path))) == len(shown) == 50
    assert (shown[0], shown[-1]) == (0, 399) and set(np.diff(shown)) <= {8, 9}


@pytest.mark.parametrize("broken", ["no wheel", "no program", "a program that fails"])
def test_without_ffmpeg_everything_stays_as_it_was(tmp_path, monkeypatch, broken):
    if broken == "no wheel":
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    else:
        pytest.importorskip("imageio_ffmpeg", reason="no imageio-ffmpeg: extra video")
        program = tmp_path / "ffmpeg"
        if broken == "a program that fails":
            program.write_text("#!/bin/sh\necho Unknown encoder >&2\nexit 1\n")
            program.chmod(0o755)
        monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    out = tmp_path / "out"
    out.mkdir()
    (out / "quick.gif").write_text("earlier")
    with pytest.raises(RecordError, match="^--mp4: .*imageio-ffmpeg") as caught:
        experiments.draw([a_run()], out, "quick", mp4=True)
    assert "\n" not in str(caught.value)
    assert [path.name for path in out.iterdir()] == ["quick.gif"]
    assert (out / "quick.gif").read_text() == "earlier"


def test_a_film_of_all_frames(tmp_path):
    wheel = pytest.importorskip("imageio_ffmpeg", reason="no imageio-ffmpeg")
    run = a_run()
    gif, film = figure.animate(run, tmp_path, "quick", mp4=True)
    assert (gif.name, film.name) == ("quick.gif", "quick.mp4")
    reader = wheel.read_frames(film)
    assert next(reader)["size"] == (WIDTH, HEIGHT + figure.BAND)
    shown = [np.frombuffer(frame, np.uint8).reshape(-1, WIDTH, 3) for frame in reader]
    assert len(shown) == 5
    for picture, frame in zip(shown, run.of(FrameRecord)):
        # Its colours are coarser.
        assert np.abs(picture[:HEIGHT] - faces_in(frame)).mean() < 12


@pytest.mark.skipif(not RECORDS, reason="not a checkout")
def test_committed_records_are_drawn_without_mxnet():
    code = """if True:
        import sys
        from d2lpar.gan import figure
        from d2lpar.records import files
        for record in sys.argv[1:]:
            print(*figure.pictures([files.read(record)]))
        assert "mxnet" not in sys.modules
        assert "matplotlib.pyplot" not in sys.modules
    """
    command = [sys.executable, "-c", code, *map(str, RECORDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert set(line.split()) >= {"losses", "strip"}
    assert len(done.stdout.splitlines()) == len(RECORDS)

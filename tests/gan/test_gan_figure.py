"""Pictures and the animation of a GAN's records: which are drawn, of what numbers."""

import io

import numpy as np
from PIL import Image
from support.drawn import words
from support.factories import gan_epoch, header

from d2lpar import experiments
from d2lpar.datasets import punks, synthetic_punks
from d2lpar.gan import figure
from d2lpar.records.kinds import FrameRecord, Run

PICTURES = ("quality", "strip", "samples", "seconds")
DRAWN = synthetic_punks(25, seed=99)  # in place of what a generator draws
DISTANCES = [0.01 * k for k in range(1, 26)]
REFERENCES = {
    name: {"frechet": frechet, "coverage": coverage}
    for name, frechet, coverage in (("other real faces", 0.5, 0.97), ("noise", 27, 0.0))
}


def fixed_faces(k):
    return DRAWN[np.arange(k, k + 8) % 25]


def some_frames(epochs, repeats=1):
    samples = punks.to_png(punks.sheet(DRAWN, 5))
    last = {"samples": samples, "distances": DISTANCES}
    return [
        FrameRecord(
            epoch=epoch,
            num_steps=2 * epoch,
            fixed=punks.to_png(punks.sheet(fixed_faces(k), 8)),
            num_fixed=8,
            frechet=40 / (1 + epoch) + repeat,
            coverage=epoch / (1 + epoch),
            repeat=repeat,
            references={} if epoch else REFERENCES,
            **(last if epoch == epochs[-1] else {}),
        )
        for repeat in range(repeats)
        for k, epoch in enumerate(epochs)
    ]


def a_run(num_devices=1, num_epochs=4, *, frames=None, repeats=1, **settings):
    epochs = [
        gan_epoch(epoch, 2.0 / num_devices, repeat, d_loss=0.6 + repeat)
        for repeat in range(repeats)
        for epoch in range(1, num_epochs + 1)
    ]
    if frames is None:
        frames = some_frames(range(num_epochs + 1), repeats=repeats)
    head = header(
        num_devices, chapter="gan", dataset="synthetic-punks", synthetic=True, seed=3,
        settings={"global_batch_size": 30, **settings},
    )  # fmt: skip
    return Run(head, (*frames, *epochs))


def image_in(axes):
    (image,) = axes.images
    return np.asarray(image.get_array())


def test_all_pictures_of_two_runs(tmp_path):
    runs = [a_run(2), a_run(1)]
    paths = experiments.draw(runs, tmp_path / "out")
    expected = {f"{name}.png" for name in PICTURES} | {"film.gif"}
    assert {path.name for path in paths} == expected
    assert sorted((tmp_path / "out").iterdir()) == sorted(paths)
    strip = figure.pictures(runs)["strip"]
    assert "GAN on drawn faces, global batch 30" in " ".join(words(strip))


def test_quality_begins_before_training_and_shows_its_references():
    runs = [a_run(1), a_run(2, resumed_at=2)]
    panels = figure.pictures(runs)["quality"].axes
    expected = {
        "frechet": [40 / (1 + k) for k in range(5)],
        "coverage": [k / (1 + k) for k in range(5)],
    }
    for axes, (measure, values) in zip(panels, expected.items()):
        lines = [(list(x.get_xdata()), list(x.get_ydata())) for x in axes.get_lines()]
        assert lines.count(([0, 1, 2, 3, 4], values)) == 2
        for known in ("other real faces", "noise"):
            level = REFERENCES[known][measure]
            assert any(ys == [level, level] for _, ys in lines)
            names = [text.get_text() for text in axes.texts]
            assert known.replace("real", "drawn") in names
        beside = [text for text in axes.texts if "checkpoint" not in text.get_text()]
        heights = [text.get_position()[1] for text in beside]
        assert all(b - a > 0.05 for a, b in zip(heights, heights[1:]))
        assert any(xs == [2, 2] for xs, _ in lines)  # where a run was resumed
        assert axes.get_xlim()[0] < 0


def test_samples_are_the_last_faces_in_rows_of_five():
    picture = figure.pictures([a_run()])["samples"]
    (axes,) = picture.axes
    seventh = image_in(axes)[25:49, 25:49]
    np.testing.assert_array_equal(seventh, DRAWN[6].transpose(1, 2, 0))
    assert axes.get_xlabel() == "after 4 epochs"
    assert "0.13 from" in picture.metadata["Title"]


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


def test_a_gif_shows_every_frame_but_the_grey_first_one():
    run = a_run(repeats=3)
    height, width = (n * punks.TILE * figure.SCALE for n in (2, 4))  # of the faces
    steps = set()
    with Image.open(io.BytesIO(figure.animation(run))) as image:
        assert image.n_frames == 4 and image.size == (width, height + figure.BAND)
        assert "loop" not in image.info  # it plays once
        for k in range(image.n_frames):
            image.seek(k)
            assert image.info["duration"] == figure.FRAME_MS
            shown = np.asarray(image.convert("RGB")).astype(int)
            faces = punks.enlarged(punks.sheet(fixed_faces(k + 1), 4), figure.SCALE)
            # A GIF has 256 colours, enough for these faces.
            assert np.abs(shown[:height] - faces).max() <= 4
            steps.add(shown[height:].tobytes())
    assert figure.MAX_FRAMES * figure.FRAME_MS <= 5000  # WCAG 2.2.2
    assert len(steps) == 4  # below each is the number of its step

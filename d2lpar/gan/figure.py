"""A GAN's quality and faces, but no real ones: they must not be redistributed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import median

import numpy
from matplotlib.axes import Axes
from PIL import Image, ImageDraw, ImageFont

from d2lpar.datasets import punks
from d2lpar.figures import page, trainings
from d2lpar.records import labels, measurements
from d2lpar.records.kinds import FrameRecord, Run
from d2lpar.text import plural

SCALE = 5  # screen pixels along a pixel of the animated faces
BAND = 24  # pixels under the face, for the step
# Of an animation: at most 2 MB, and 5 s, after which motion needs a stop (WCAG 2.2.2).
MAX_FRAMES, FRAME_MS = 50, 100
STEPS = (0, 100, 300, 1_000, 3_000, 10_000)  # about which faces are shown


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture | bytes]:
    """Draw ``seconds``, ``quality``; of most devices ``strip``, ``samples``, a GIF."""
    last, drawn = runs[-1], {}
    title = "Fréchet distance and coverage of generated faces"
    title = page.answer(answers, "quality", title, inches=10.5)
    note = f"{trainings.workload(runs)}; dashed: sets to compare with"
    drawn["quality"] = picture = page.new(title, note, runs, (10.5, 4.2), columns=2)
    quality(picture.axes, runs)
    end = frames_of(last)[-1]
    note = f"{trainings.workload([last])}; {labels.count(last.header)}"
    title = f"What {plural(end.num_fixed, 'noise')} become by step {end.num_steps:,}"
    size = (max(7.6, 0.8 * end.num_fixed), 1.4 + 0.8 * len(shown_of(last)))
    drawn["strip"] = picture = page.new(title, note, [last], size)
    strip(picture.axes[0], last)
    if end.samples:  # the training was not interrupted
        away = f"{median(end.distances):.2f} from the nearest of the data"
        title = f"Generated faces, {away} (median)"
        note = f"{note}; a copy of a face has distance 0"
        drawn["samples"] = picture = page.new(title, note, [last], (7.6, 7))
        sheet = punks.from_png(end.samples, 5, -(-len(end.distances) // 5))
        show(picture.axes[0], sheet, f"after {plural(end.epoch, 'epoch')}")
    return {**drawn, "film": animation(last), **trainings.seconds(runs, answers)}


def frames_of(run: Run) -> list[FrameRecord]:
    """Return the frames of the first repeat."""
    return [frame for frame in run.lines_of(FrameRecord) if frame.repeat == 0]


def fixed_faces(frame: FrameRecord) -> numpy.ndarray:
    """Return the faces of the fixed noises in a row: uint8 (24, n * 24, 3)."""
    return punks.from_png(frame.fixed, frame.num_fixed, 1)


def quality(panels: Sequence[Axes], runs: Sequence[Run]) -> None:
    """Draw Fréchet distance and coverage through training, with those of known sets."""
    known = measurements.references(runs[-1])
    measures = {"frechet": "Fréchet distance", "coverage": "coverage"}
    kind = "drawn" if runs[-1].header.synthetic else "real"
    panels[0].set_yscale("log")
    for axes, (measure, label) in zip(panels, measures.items()):
        trainings.curves(axes, runs, measure, label)
        shown = {
            name.replace("real", kind): values[measure]
            for name, values in known.items()
            # The coverage of all others is 0 like that of noise.
            if measure == "frechet" or name in ("other real faces", "noise")
        }
        for value in shown.values():
            axes.axhline(value, **page.LIMIT)
        if measure == "coverage":
            axes.set_ylim(-0.03, 1.08)
            axes.get_legend().remove()
        page.name_beside(axes, shown)


def shown_of(run: Run) -> list[FrameRecord]:
    """Return the frames after about each of `STEPS`, and the last one."""
    frames = frames_of(run)
    last = frames[-1]
    nearest = [
        min(frames, key=lambda frame: abs(frame.num_steps - step))
        for step in STEPS
        if step < last.num_steps
    ]
    return list({frame.epoch: frame for frame in (*nearest, last)}.values())


def strip(axes: Axes, run: Run) -> None:
    """Draw the faces of the same noises, a row for each of some steps, and the last."""
    frames = shown_of(run)
    show(axes, numpy.concatenate([fixed_faces(frame) for frame in frames]))
    centres = [(punks.TILE + 1) * (k + 0.5) - 1 for k in range(len(frames))]
    axes.set_yticks(centres, [f"{frame.num_steps:,}" for frame in frames])
    axes.set_ylabel("steps of training")


def show(axes: Axes, sheet: numpy.ndarray, name: str = "") -> None:
    """Show a sheet of faces, with a white line, a pixel wide, between them."""
    height, width, _ = sheet.shape
    sheet = numpy.insert(sheet, range(punks.TILE, height, punks.TILE), 255, axis=0)
    sheet = numpy.insert(sheet, range(punks.TILE, width, punks.TILE), 255, axis=1)
    axes.imshow(sheet, interpolation="none")
    axes.set(xlabel=name, xticks=[], yticks=[], frame_on=False)
    axes.tick_params(length=0)
    axes.grid(False)


def animation(run: Run) -> bytes:
    """Return a GIF, which plays once, of the fixed noises' faces in training."""
    frames, shown = frames_of(run), []
    frames = frames[1:] or frames  # before the first step all are grey
    for k in numpy.linspace(0, len(frames) - 1, min(len(frames), MAX_FRAMES)).round():
        frame = frames[int(k)]
        two_rows = numpy.concatenate(numpy.split(fixed_faces(frame), 2, axis=1))
        faces = punks.enlarged(two_rows, SCALE)
        height, width, _ = faces.shape
        picture = Image.new("RGB", (width, height + BAND), "white")
        picture.paste(Image.fromarray(faces))
        words, font = f"step {frame.num_steps:,}", ImageFont.load_default(16)
        ImageDraw.Draw(picture).text((6, height + 2), words, fill="black", font=font)
        shown.append(picture)
    file, (first, *others) = io.BytesIO(), shown
    first.save(file, "gif", save_all=True, append_images=others, duration=FRAME_MS)
    return file.getvalue()

"""A GAN's training: losses, how good its faces are, the faces themselves, animation.

Real faces are not shown: the CryptoPunks must not be redistributed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import median

import numpy
from matplotlib.axes import Axes
from PIL import Image, ImageDraw, ImageFont

from d2lpar.datasets import punks
from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.lenet import figure as lenet_figure
from d2lpar.records import comparison
from d2lpar.records.kinds import FrameRecord, GanEpochRecord, Run, group
from d2lpar.text import plural

SCALE = 5  # screen pixels along a pixel of the animated faces
BAND = 24  # pixels under the face, for the epoch
MAX_FRAMES = 50  # of an animation: at most two megabytes, while faces are noisy
MILLISECONDS = 100  # of a frame
# About the steps whose faces are shown, with the last.
STEPS = (0, 100, 300, 1_000, 3_000, 10_000)


def pictures(
    runs: Sequence[Run], answers: Mapping[str, Sequence[str]] | None = None
) -> dict[str, page.Picture | bytes]:
    """Pictures by name of runs that differ in their device count.

    ``seconds`` per epoch and ``quality`` beside its references, of all runs. Of the one
    on the most devices ``losses``; ``strip``, the faces of some noises through
    training; ``samples``, 25 of the last; and "", an animation. `answers` holds the
    sentences that title the first two.
    """
    answers = answers or {}
    runs = lenet_figure.by_device_count(runs)
    for run in runs:
        if not comparison.is_gan(run):
            raise RecordError(f"{labels.where(run)}: holds no epochs of a GAN")
    last = runs[-1]
    drawn: dict[str, page.Picture | bytes] = {"losses": losses(last)}
    if all(comparison.quality_by_epoch(run) for run in runs):
        title = "Fréchet distance and coverage of generated faces"
        title = page.answer(answers.get("quality", ()), title, inches=10.5)
        note = f"{lenet_figure.workload(runs)}; dashed: sets to compare with"
        picture = page.new(title, note, runs, (10.5, 4.2), columns=2)
        drawn["quality"] = picture
        quality(picture.axes, runs)
    frames = frames_of(last)
    if len(frames) > 1:
        unit, n = unit_of(last), steps_of(frames[-1])
        noises = plural(frames[-1].num_fixed, "noise")
        size = (max(7.6, 0.8 * frames[-1].num_fixed), 1.4 + 0.8 * len(shown_of(last)))
        title = f"What {noises} become by {unit} {n:,}"
        picture = page.new(title, lenet_figure.workload([last]), [last], size)
        drawn["strip"] = picture
        strip(picture.axes[0], last)
        drawn[""] = animation(last)
    if frames and frames[-1].samples:
        away = f"{median(frames[-1].distances):.2f} from the nearest of the data"
        title = f"Generated faces, {away} (median; a copy: 0)"
        note = lenet_figure.workload([last])
        drawn["samples"] = picture = page.new(title, note, [last], (7.6, 7))
        sheet = punks.from_png(frames[-1].samples, 5, -(-len(frames[-1].nearest) // 5))
        after = f"after {plural(frames[-1].epoch, 'epoch')}"
        show(picture.axes[0], sheet, after)
    drawn["seconds"] = lenet_figure.times(runs, answers.get("seconds", ()))
    return drawn


def frames_of(run: Run) -> list[FrameRecord]:
    """The frames of the first repeat."""
    return [frame for frame in run.lines_of(FrameRecord) if frame.repeat == 0]


def steps_of(frame: FrameRecord) -> int:
    """After how many steps; of a record of 0.2, epochs."""
    return frame.epoch if frame.num_steps is None else frame.num_steps


def fixed_faces(frame: FrameRecord) -> numpy.ndarray:
    """The faces of the fixed noises in a row: uint8 (24, n * 24, 3).

    Raises :class:`~d2lpar.errors.DataError` for a record that was altered.
    """
    return punks.from_png(frame.fixed, frame.num_fixed, 1)


def unit_of(run: Run) -> str:
    """What :func:`steps_of` counts."""
    return "epoch" if frames_of(run)[-1].num_steps is None else "step"


def losses(run: Run) -> page.Picture:
    """Losses of both networks, and the discriminator's opinions of both kinds.

    The medians of the repeats.
    """
    end = run.lines_of(GanEpochRecord)[-1]
    title = f"D's opinions of the data and of generated faces: {end.d_real:.2f} and "
    title += f"{end.d_fake:.2f} after {plural(end.epoch, 'epoch')}"
    note = f"{lenet_figure.workload([run])}; grey: D cannot tell them apart"
    picture = page.new(title, note, [run], (10.5, 4.2), columns=2)
    left, right = picture.axes
    for axes, undecided, names in (
        (left, math.log(2), {"discriminator": "d_loss", "generator": "g_loss"}),
        (right, 0.5, {"of the data": "d_real", "of generated faces": "d_fake"}),
    ):
        axes.axhline(undecided, color="0.8", lw=2.5)
        for k, (label, name) in enumerate(names.items()):
            values = group(run.epochs, lambda e: e.epoch, attrgetter(name))
            style = page.look(k, label=label, markevery=max(1, len(values) // 10))
            axes.plot(list(values), list(map(median, values.values())), **style)
        page.epochs_along(axes, [run])
        axes.legend()
    left.set(ylabel="mean loss (nats)", ylim=(0, 1.05 * left.get_ylim()[1]))
    right.set(ylabel="mean opinion (0 generated, 1 of the data)", ylim=(0, 1))
    return picture


def quality(
    panels: Sequence[Axes], runs: Sequence[Run], names: Sequence[str] = ()
) -> None:
    """Fréchet distance and coverage through training, with those of known sets.

    Fréchet distance of features of random convolutions, 0 is best; coverage is the
    share of the data's faces with a generated one among their 5 nearest neighbours.
    """
    known = comparison.references(runs[-1])
    measures = {"frechet": "Fréchet distance", "coverage": "coverage"}
    for axes, (measure, label) in zip(panels, measures.items()):
        values_of = partial(comparison.quality_by_epoch, measure=measure)
        lenet_figure.curves(axes, runs, values_of, label, names)
        for name, values in known.items():
            if measure == "coverage" and name not in ("other real faces", "noise"):
                continue  # 0 like that of noise
            axes.axhline(values[measure], **page.LIMIT)
            place = {"transform": axes.get_yaxis_transform(), "ha": "right"}
            axes.text(1, values[measure], name, va="bottom", size=9, **place)
    panels[0].set(yscale="log")
    panels[1].set(ylim=(-0.03, 1.08))
    panels[1].get_legend().remove()


def shown_of(run: Run) -> list[FrameRecord]:
    """The frames after about each of `STEPS`, and the last one."""
    frames = frames_of(run)
    last = frames[-1]
    nearest = [
        min(frames, key=lambda frame: abs(steps_of(frame) - step))
        for step in STEPS
        if step < steps_of(last)
    ]
    shown = {frame.epoch: frame for frame in (*nearest, last)}
    return [shown[epoch] for epoch in sorted(shown)]


def strip(axes: Axes, run: Run) -> None:
    """The faces of the same noises, a row for each of some steps, and the last."""
    frames = shown_of(run)
    show(axes, numpy.concatenate([fixed_faces(frame) for frame in frames]))
    centres = [(punks.TILE + 1) * (k + 0.5) - 1 for k in range(len(frames))]
    axes.set_yticks(centres, [f"{steps_of(frame):,}" for frame in frames])
    axes.set_ylabel(f"{unit_of(run)}s of training")


def show(axes: Axes, sheet: numpy.ndarray, name: str = "") -> None:
    """A sheet of faces, with a white line, a pixel wide, between them."""
    height, width, _ = sheet.shape
    sheet = numpy.insert(sheet, range(punks.TILE, height, punks.TILE), 255, axis=0)
    sheet = numpy.insert(sheet, range(punks.TILE, width, punks.TILE), 255, axis=1)
    axes.imshow(sheet, interpolation="none")
    axes.set(xlabel=name, xticks=[], yticks=[], frame_on=False)
    axes.tick_params(length=0)
    axes.grid(False)


def animation(run: Run) -> bytes:
    """A GIF of the fixed noises' faces through training, at least two frames.

    At most 50 frames, evenly spread; it plays once and stops at the last, of which
    :func:`strip` is the still form.
    """
    frames, shown = frames_of(run), []
    for k in numpy.linspace(0, len(frames) - 1, min(len(frames), MAX_FRAMES)).round():
        frame = frames[int(k)]
        row = fixed_faces(frame)
        if frame.num_fixed == 8:  # as two rows of four
            row = numpy.concatenate(numpy.split(row, 2, axis=1))
        faces = punks.enlarged(row, SCALE)
        height, width, _ = faces.shape
        picture = Image.new("RGB", (width, height + BAND), "white")
        picture.paste(Image.fromarray(faces))
        words, font = f"{unit_of(run)} {steps_of(frame):,}", ImageFont.load_default()
        ImageDraw.Draw(picture).text((6, height + 6), words, fill="black", font=font)
        shown.append(picture)
    file = io.BytesIO()
    durations = [MILLISECONDS] * (len(shown) - 1)
    durations.append(1000)  # the last face stays in sight
    first, *others = shown
    first.save(file, "gif", save_all=True, append_images=others, duration=durations)
    return file.getvalue()

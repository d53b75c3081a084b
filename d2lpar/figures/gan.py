"""A GAN's training: losses, distance to the data, generated and real faces, animation.

Real faces are not in the records: the CryptoPunks must not be redistributed. The
pictures that show some (``<stem>-real``, ``<stem>-nearest``) are drawn where the faces
are found, checked against the record's hash of the data.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from d2lpar.datasets import face_images, face_quality, punks
from d2lpar.errors import DataError, SettingError
from d2lpar.figures import animation, page, training
from d2lpar.records import wording
from d2lpar.records.kinds import FrameRecord, Run, group

log = logging.getLogger("d2lpar")

MOST_POINTS = 400  # of a curve of losses: more make megabytes of an SVG


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """The pictures and the animation of runs that differ in their device count."""
    runs = training.by_device_count(runs)
    drawn = {**pictures(runs, data_dir), **training.times(runs)}
    animations = animation.animate(runs[-1], folder, stem, mp4=mp4)
    return [*page.save(drawn, folder, stem), *animations]


def pictures(runs: Sequence[Run], data_dir: str | Path | None) -> dict[str, Figure]:
    """Pictures by name of runs that differ in their device count, most devices last.

    ``losses`` and ``quality`` of all, ``samples`` of the last; where the real faces are
    found (``data_dir``, ``$D2LPAR_DATA``, the caches), ``real`` with 25 of them beside
    the samples, and ``nearest`` with the nearest one of each of five.
    """
    drawn = {"losses": _losses(runs), "quality": _quality(runs)}
    last, frames = runs[-1], runs[-1].of(FrameRecord)
    if not frames or not frames[-1].samples:
        return drawn
    frame = frames[-1]
    sheet = face_images.from_png(frame.samples)
    generated = (
        f"{wording.plural(len(frame.nearest), 'generated face')} after "
        f"{wording.plural(frame.epoch, 'epoch')}"
    )
    unseen = "Their noise is none that the generator was trained on. "
    drawn["samples"] = _sheets(last, generated, unseen, {"": sheet}, 0.04)
    faces = _real_faces(last, data_dir)
    if faces is not None:
        some = faces[:25]
        kind = "synthetic ones of the data" if last.header.synthetic else "real ones"
        title = f"{generated}, and {len(some)} {kind}"
        sheets = {"generated ones": sheet, kind: face_images.sheet(some, 5)}
        drawn["real"] = _sheets(last, title, "", sheets, 0.033)
        drawn["nearest"] = _nearest(last, sheet, faces)
    return drawn


def _losses(runs: Sequence[Run]) -> Figure:
    step = -(-max(e.epoch for run in runs for e in run.epochs) // MOST_POINTS)
    points = f"Points: means of {step} epochs. " if step > 1 else ""
    picture = page.new(
        runs,
        "Losses and opinions of the two networks",
        "Left: mean losses of the discriminator D, over faces x of the data and "
        "generated ones G(z), and of the generator G. Right: D's mean opinions, "
        "like the losses before each step. Grey: D cannot tell them apart "
        f"(losses 0.69, opinions 0.5). {points}{_reading(runs)}",
        panels=2,
        keys=[
            f"{what} (right), {wording.devices(run.header)}"
            for run in runs
            for what in ("D's loss (left) and D(x)", "G's loss (left) and D(G(z))")
        ],
    )
    left, right = picture.axes
    left.axhline(math.log(2), color="0.7", lw=2.5)
    right.axhline(0.5, color="0.7", lw=2.5)
    lines = []
    for k, run in enumerate(runs):
        for j, names in enumerate((("d_loss", "d_real"), ("g_loss", "d_fake"))):
            width = max(1.2, 2.4 - 0.5 * k)  # all are seen where they coincide
            style = page.look(k, lw=width, ms=max(3.5, 7 - 2 * k), markevery=0.1)
            style["color"] = page.COLORS[(2 * k + j) % len(page.COLORS)]
            if j == 0:  # only G's have marks, so that they differ without color too
                style["marker"] = ""
            for axes, name in zip(picture.axes, names):
                curve = axes.plot(*_thinned(_curve(run.epochs, name), step), **style)
            lines += curve
    left.set(ylabel="mean loss (nats)", ylim=(0, 1.05 * left.get_ylim()[1]))
    right.set(ylabel="mean opinion (0 generated, 1 of the data)", ylim=(0, 1))
    for axes in picture.axes:
        page.epochs_along(axes, wording.seams(runs))
    return picture.legend(lines)


def _quality(runs: Sequence[Run]) -> Figure:
    synthetic = any(run.header.synthetic for run in runs)
    faces = "synthetic faces of the data" if synthetic else "real faces"
    picture = page.new(
        runs,
        f"Distance of generated faces to {faces}",
        "Sliced Wasserstein distance (Rabin et al., 2011) by their pixels, of up to "
        "1,000 generated faces to as many of the data; epoch 0 is before training. "
        f"{_reading(runs)}",
        keys=[f"{wording.devices(run.header)}, {_first_and_last(run)}" for run in runs],
    )
    return picture.legend(quality_curves(picture.axes[0], runs))


def quality_curves(axes: Axes, runs: Sequence[Run]) -> list[Line2D]:
    """Distance to the faces of the data against epoch, a line per run."""
    lines = []
    for k, run in enumerate(runs):
        distances = _curve(run.of(FrameRecord), "quality")
        style = page.look(k, markevery=max(1, len(distances) // 20))
        lines += axes.plot(list(distances), list(distances.values()), **style)
    axes.set(ylim=(0, None), ylabel="sliced Wasserstein distance")
    page.epochs_along(axes, wording.seams(runs))
    return lines


def _curve(lines: Sequence, name: str) -> dict[int, float]:
    """By epoch, the median over the repeats of the lines' value of that name."""
    in_order = sorted(lines, key=lambda line: line.epoch)
    values = group(in_order, lambda line: line.epoch, lambda line: getattr(line, name))
    return {epoch: median(repeats) for epoch, repeats in values.items()}


def _thinned(curve: dict[int, float], step: int) -> tuple[list, list]:
    """The mean of every `step` values, at the last of their epochs."""
    epochs, values = list(curve), list(curve.values())
    slices = [slice(i, i + step) for i in range(0, len(epochs), step)]
    return [epochs[s][-1] for s in slices], [fmean(values[s]) for s in slices]


def _first_and_last(run: Run) -> str:
    distances = list(_curve(run.of(FrameRecord), "quality").values())
    if not distances:
        return "no frames"
    return (
        f"{wording.number(distances[0])} before, {wording.number(distances[-1])} after"
    )


def _reading(runs: Sequence[Run]) -> str:
    """What a caption says of curves, and where they come from."""
    repeated = any(e.repeat for run in runs for e in run.epochs)
    medians = "Curves: median of the repeats. " if repeated else ""
    return f"{medians}{wording.reading_seams(runs)}"


def _nearest(run: Run, sheet: np.ndarray, faces: np.ndarray) -> Figure:
    """Five generated faces over the nearest of the data to each of them."""
    frame = run.of(FrameRecord)[-1]
    below = face_images.sheet(faces[frame.nearest[:5]], 5)
    kind = "synthetic" if run.header.synthetic else "real"
    caption = (
        "Numbers: root mean square difference of the two faces' pixels, which lie in "
        "[0, 1]: a copy has 0. "
    )
    n = min(25, len(faces) // 2)
    if n:
        within = median(face_quality.nearest(faces[:n], faces[n:])[1])
        caption += f"From {kind} faces to their nearest others it is {within:.2f} "
        caption += f"(median of {n}). "
    title = f"Generated faces, and below each the nearest {kind} one"
    both = np.concatenate([sheet[: punks.TILE], below])
    figure = _sheets(run, title, caption, {"": both}, 0.05)
    centres = [(punks.TILE + 1) * (k + 0.5) - 1 for k in range(len(frame.distances))]
    words = [f"{distance:.2f}" for distance in frame.distances[:5]]
    figure.axes[0].set_xticks(centres[:5], words)
    return figure


def _sheets(
    run: Run,
    title: str,
    caption: str,
    sheets: dict[str, np.ndarray],
    inches_per_pixel: float,
) -> Figure:
    """Sheets of faces side by side, each above its name."""
    parted = [_parted(sheet) for sheet in sheets.values()]
    width = inches_per_pixel * sum(sheet.shape[1] for sheet in parted)
    height = inches_per_pixel * max(sheet.shape[0] for sheet in parted)
    figure = Figure((width + 0.4, height + 1.4), layout="constrained")
    page.label(figure, wording.title(title, [run]), caption + wording.provenance([run]))
    row = figure.subplots(1, len(sheets), squeeze=False)[0]
    for axes, name, sheet in zip(row, sheets, parted):
        # "none", not "nearest", which an SVG has at 72 pixels per inch.
        axes.imshow(sheet, interpolation="none")
        axes.set(xlabel=name, xticks=[], yticks=[], frame_on=False)
        axes.tick_params(length=0)
    return figure


def _parted(sheet: np.ndarray) -> np.ndarray:
    """The sheet with a white line, a pixel wide, between its faces."""
    height, width, _ = sheet.shape
    sheet = np.insert(sheet, range(punks.TILE, height, punks.TILE), 255, axis=0)
    return np.insert(sheet, range(punks.TILE, width, punks.TILE), 255, axis=1)


def _real_faces(run: Run, data_dir: str | Path | None) -> np.ndarray | None:
    """The faces that the run was trained on, or None if they are not found."""
    header = run.header
    why = "not found"
    try:
        n_train = header.settings.get("n_train")
        data = punks.on_disk(header.dataset, n_train, header.seed, data_dir)
        if data is not None:
            if data.sha256 == header.dataset_sha256:
                return data.X
            why = "those found are others"
    except (DataError, SettingError) as error:
        why = str(error)
    text = "the faces of %s are not at hand (%s): only generated ones are drawn"
    log.warning(text, wording.where(run), why)
    return None

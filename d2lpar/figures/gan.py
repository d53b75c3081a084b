"""A GAN's records to pictures: what it draws, what its networks think, an animation.

Only draws, like :mod:`d2lpar.figures.drawing`, whose :func:`~d2lpar.figures.drawing.draw` calls this
module for records of a GAN. Never imports MXNet.

Real faces are not in the records: the CryptoPunks must not be redistributed. The
pictures that show some (``<stem>-real``, ``<stem>-nearest``) are drawn where the faces
can be found, which a record's hash of the data decides.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from d2lpar.datasets import face_images, face_quality, punks
from d2lpar.errors import DataError, SettingError
from d2lpar.figures import animation, training
from d2lpar.figures.page import (
    COLORS,
    LARGE,
    LINES,
    MARGIN,
    MARKERS,
    SMALL,
    mark_seams,
    new_page,
    plain_style,
    save,
    wrap,
)
from d2lpar.records import wording
from d2lpar.records.kinds import FrameRecord, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

log = logging.getLogger("d2lpar")

MOST_POINTS = 400  # of a curve of losses


def draw(
    runs: Sequence[Run],
    folder: Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """The pictures and the animation of runs that differ in their device count."""
    runs = training._one_a_count(runs)
    with plain_style():
        drawn = {**pictures(runs, data_dir), **training.times(runs)}
        animations = animation.animate(runs[-1], folder, stem, mp4=mp4)
        named = {f"{stem}-{name}": figure for name, figure in drawn.items()}
        return [*save(named, folder), *animations]


def pictures(runs: Sequence[Run], data_dir: str | Path | None) -> dict[str, Figure]:
    """Pictures by name of runs that differ in their device count, most devices last.

    ``losses`` and ``quality`` of all, ``samples`` of the last; where the real faces are
    found (``data_dir``, ``$D2LPAR_DATA``, the caches), ``real`` with 25 of them beside
    the samples, and ``nearest`` with the nearest one of each of five.
    """
    found = {"losses": _losses(runs), "quality": _quality(runs)}
    last = runs[-1]
    if last.of(FrameRecord) and last.of(FrameRecord)[-1].samples:
        found["samples"] = _samples(last)
        faces = _real_faces(last, data_dir)
        if faces is not None:
            found["real"] = _beside_real(last, faces)
            found["nearest"] = _nearest(last, faces)
    return found


def _losses(runs: Sequence[Run]) -> Figure:
    # A point an epoch would make megabytes of an SVG.
    step = -(-max(e.epoch for run in runs for e in run.epochs) // MOST_POINTS)
    points = f"Points: means of {step} epochs. " if step > 1 else ""
    page = new_page(
        wording.title("Losses and opinions of the two networks", runs),
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
    left, right = page.axes
    lines = []
    for axes, undecided in ((left, math.log(2)), (right, 0.5)):
        axes.axhline(undecided, color="0.7", lw=2.5)
    for k, run in enumerate(runs):
        for j, names in enumerate((("d_loss", "d_real"), ("g_loss", "d_fake"))):
            style = {
                "color": COLORS[(2 * k + j) % len(COLORS)],
                "ls": LINES[k % len(LINES)],
                "lw": max(1.2, 2.4 - 0.5 * k),  # all are seen where they coincide
                # G's have marks, so that grey ink is enough to tell them from D's.
                "marker": MARKERS[k % len(MARKERS)] if j else "",
                "ms": max(3.5, 7 - 2 * k),
                "markevery": 0.1,
            }
            for axes, name in zip(page.axes, names):
                axes.plot(*_thinned(*_curve(run.epochs, name), step), **style)
            lines += left.get_lines()[-1:]
    left.set_ylabel("mean loss (nats)")
    left.set_ylim(0, 1.05 * left.get_ylim()[1])
    right.set_ylabel("mean opinion (0 generated, 1 of the data)")
    right.set_ylim(0, 1)
    for axes in page.axes:
        _epochs_along(axes, runs)
    page.legend(lines)
    return page.figure


def _quality(runs: Sequence[Run]) -> Figure:
    synthetic = any(run.header.synthetic for run in runs)
    faces = "synthetic faces of the data" if synthetic else "real faces"
    page = new_page(
        wording.title(f"Distance of generated faces to {faces}", runs),
        "Sliced Wasserstein distance (Rabin et al., 2011) by their pixels, of up to "
        "1,000 generated faces to as many of the data; epoch 0 is before training. "
        f"{_reading(runs)}",
        keys=[f"{wording.devices(run.header)}, {_first_and_last(run)}" for run in runs],
    )
    page.legend(quality_curves(page.axes[0], runs))
    return page.figure


def quality_curves(axes: Axes, runs: Sequence[Run]) -> list[Line2D]:
    """Distance to the faces of the data against epoch, a line a run."""
    lines = []
    for k, run in enumerate(runs):
        numbers, distances = _curve(run.of(FrameRecord), "quality")
        lines += axes.plot(
            numbers,
            distances,
            color=COLORS[k % len(COLORS)],
            ls=LINES[k % len(LINES)],
            marker=MARKERS[k % len(MARKERS)],
            ms=4,
            markevery=max(1, len(numbers) // 20),
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("sliced Wasserstein distance")
    _epochs_along(axes, runs)
    return lines


def _curve(lines: Sequence, name: str) -> tuple[list[int], list[float]]:
    """Epochs, and the median over the repeats of the lines' value of that name."""
    by_epoch: dict[int, list[float]] = {}
    for line in sorted(lines, key=lambda line: line.epoch):
        by_epoch.setdefault(line.epoch, []).append(getattr(line, name))
    return list(by_epoch), [median(values) for values in by_epoch.values()]


def _thinned(numbers: list[int], values: list[float], step: int) -> tuple[list, list]:
    """The mean of every `step` values, at the last of their numbers."""
    slices = [slice(i, i + step) for i in range(0, len(numbers), step)]
    return [numbers[s][-1] for s in slices], [fmean(values[s]) for s in slices]


def _first_and_last(run: Run) -> str:
    if not run.of(FrameRecord):
        return "no frames"
    _, distances = _curve(run.of(FrameRecord), "quality")
    first, last = (wording.number(distances[i]) for i in (0, -1))
    return f"{first} before, {last} after"


def _reading(runs: Sequence[Run]) -> str:
    """What a caption says of curves, and where they come from."""
    repeats = [len({e.repeat for e in run.epochs}) for run in runs]
    medians = "" if max(repeats) == 1 else "Curves: median of the repeats. "
    return f"{medians}{wording.reading_seams(runs)}{wording.provenance(runs)}"


def _epochs_along(axes: Axes, runs: Sequence[Run]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    mark_seams(axes, wording.seams(runs))


def _samples(run: Run) -> Figure:
    return _sheets(
        _generated(run),
        "Their noise is none that the generator was trained on. ",
        run,
        0.04,
        [(face_images.from_png(run.of(FrameRecord)[-1].samples), [])],
    )


def _beside_real(run: Run, faces: np.ndarray) -> Figure:
    frame = run.of(FrameRecord)[-1]
    some = faces[:25]
    kind = "synthetic ones of the data" if run.header.synthetic else "real ones"
    return _sheets(
        f"{_generated(run)}, and {len(some)} {kind}",
        "",
        run,
        0.033,
        [
            (face_images.from_png(frame.samples), ["generated ones"]),
            (face_images.sheet(some, 5), [kind]),
        ],
    )


def _nearest(run: Run, faces: np.ndarray) -> Figure:
    """Five generated faces over the nearest of the data to each of them."""
    frame = run.of(FrameRecord)[-1]
    above = face_images.from_png(frame.samples)[: punks.TILE]
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
    words = [f"{d:.2f}" for d in frame.distances[:5]]
    words += [""] * (5 - len(words))
    return _sheets(
        f"Generated faces, and below each the nearest {kind} one",
        caption,
        run,
        0.05,
        [(np.concatenate([above, below]), words)],
    )


def _generated(run: Run) -> str:
    frame = run.of(FrameRecord)[-1]
    after = wording.plural(frame.epoch, "epoch")
    return f"{wording.plural(len(frame.nearest), 'generated face')} after {after}"


def _sheets(
    title: str,
    caption: str,
    run: Run,
    pixel: float,
    sheets: Sequence[tuple[np.ndarray, Sequence[str]]],
) -> Figure:
    """Sheets of faces side by side, each with words below it, on a page that fits them.

    A pixel of the faces is `pixel` inches wide.
    """
    from matplotlib.figure import Figure

    pictures = [_parted(picture) for picture, _ in sheets]
    sizes = [(pixel * p.shape[1], pixel * p.shape[0]) for p in pictures]
    gap, words_height = 0.3, 0.25 if sheets[0][1] else 0.0
    width = sum(w + gap for w, _ in sizes) - gap + 2 * MARGIN
    title, title_height = wrap(wording.title(title, [run]), width - 2 * MARGIN, LARGE)
    caption += wording.provenance([run])
    caption, caption_height = wrap(caption, width - 2 * MARGIN, SMALL)
    bottom = MARGIN + caption_height + 0.12 + words_height
    height = bottom + max(h for _, h in sizes) + 0.1 + title_height + MARGIN

    figure = Figure(figsize=(width, height))
    figure.set_label(title)
    figure.text(MARGIN / width, 1 - MARGIN / height, title, size=LARGE, va="top")
    figure.text(MARGIN / width, MARGIN / height, caption, size=SMALL, va="bottom")
    left = MARGIN
    for picture, (w, h), (_, words) in zip(pictures, sizes, sheets):
        place = (left / width, bottom / height, w / width, h / height)
        axes = figure.add_axes(place, frameon=False, xticks=[], yticks=[])
        # "none", not "nearest", which an SVG has at 72 pixels an inch.
        axes.imshow(picture, interpolation="none", aspect="auto")
        for k, word in enumerate(words):
            at = (left + w * (k + 0.5) / len(words)) / width
            figure.text(at, (bottom - 0.05) / height, word, ha="center", va="top")
        left += w + gap
    return figure


def _parted(sheet: np.ndarray) -> np.ndarray:
    """The sheet with a white line, a pixel wide, between its faces."""
    height, width, _ = sheet.shape
    sheet = np.insert(sheet, range(punks.TILE, height, punks.TILE), 255, axis=0)
    return np.insert(sheet, range(punks.TILE, width, punks.TILE), 255, axis=1)


def _real_faces(run: Run, data_dir: str | Path | None) -> np.ndarray | None:
    """The faces that the run was trained on, or None where they are not at hand."""
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
    log.warning(
        "the faces of %s are not at hand (%s): only generated ones are drawn",
        wording.where(run),
        why,
    )
    return None

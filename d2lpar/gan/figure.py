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

from d2lpar.datasets import face_images, face_quality, punks
from d2lpar.errors import DataError, RecordError, SettingError
from d2lpar.figures import labels, page, training
from d2lpar.gan import animation
from d2lpar.records.kinds import FrameRecord, Run, group
from d2lpar.text import plural

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

    ``losses`` and ``quality`` of all. Of the last, ``strip``, the face of one noise
    through training, and ``samples`` beside synthetic faces, which may be handed on;
    where the real faces are found (``data_dir``, ``$D2LPAR_DATA``, the caches),
    ``real`` with 25 of them, and ``nearest`` with the nearest one of each of five.
    """
    drawn = {"losses": _losses(runs), "quality": _quality(runs)}
    last, frames = runs[-1], [f for f in runs[-1].of(FrameRecord) if f.repeat == 0]
    if len(frames) > 1:
        drawn["strip"] = _strip(last, frames)
    if not frames or not frames[-1].samples:
        return drawn
    frame = frames[-1]
    sheet = animation.picture_of(last, frame, "samples", 5)
    faces = _real_faces(last, data_dir)
    synthetic = last.header.synthetic
    like = faces if synthetic and faces is not None else _synthetic(last)
    words = f"after {plural(frame.epoch, 'epoch')}"
    beside = {words: sheet, "synthetic faces": face_images.sheet(like[:25], 5)}
    drawn["samples"] = _sheets(last, _samples_title(frame, synthetic), beside)
    if faces is not None:
        if not synthetic:
            beside = {words: sheet, "real faces": face_images.sheet(faces[:25], 5)}
            title = _samples_title(frame, synthetic)
            drawn["real"] = _sheets(last, title, beside)
        drawn["nearest"] = _nearest(last, sheet, faces)
    return drawn


def _samples_title(frame: FrameRecord, synthetic: bool) -> str:
    kind = "synthetic" if synthetic else "real"
    return (
        f"{plural(len(frame.nearest), 'generated face')}: the nearest {kind} "
        f"ones differ by {median(frame.distances):.2f} (median; a copy by 0)"
    )


def _synthetic(run: Run) -> np.ndarray:
    """25 faces that d2lpar drew, which stand for real ones where those may not."""
    return punks.load("synthetic", n_train=25, seed=run.header.seed).X


def _losses(runs: Sequence[Run]) -> Figure:
    """Losses of both networks, and the discriminator's opinions of both kinds."""
    step = -(-max(e.epoch for run in runs for e in run.epochs) // MOST_POINTS)
    points = f"Points: means of {step} epochs. " if step > 1 else ""
    picture = page.new(
        _losses_title(runs[-1]),
        training.workload(runs),
        "D: discriminator, of faces x; G: generator, of noise z. Grey: D cannot tell "
        f"them apart (losses 0.69, opinions 0.5). {points}{_reading(runs)}"
        f"{labels.stamp([run.header for run in runs])}",
        panels=2,
        size=(10.6, page.TALL),
    )
    left, right = picture.axes
    left.axhline(math.log(2), color="0.8", lw=2.5)
    right.axhline(0.5, color="0.8", lw=2.5)
    ends: list[list] = [[], []]
    for k, run in enumerate(runs):
        for j, names in enumerate((("d_loss", "d_real"), ("g_loss", "d_fake"))):
            width = max(1.2, 2.6 - 0.7 * k)  # all are seen where they coincide
            style = page.look(2 * k + j, lw=width, ms=max(3.5, 6 - 2 * k))
            style["markevery"] = 0.1
            for i, (axes, name) in enumerate(zip(picture.axes, names)):
                epochs, values = _thinned(_curve(run.epochs, name), step)
                axes.plot(epochs, values, **style)
                what = (("D", "G"), ("D(x)", "D(G(z))"))[i][j]
                label = f"{what}, {_count(run)}" if len(runs) > 1 else what
                ends[i].append((epochs[-1], values[-1], label))
    left.set(ylabel="mean loss (nats)", ylim=(0, 1.05 * left.get_ylim()[1]))
    right.set(ylabel="mean opinion (0 generated, 1 of the data)", ylim=(0, 1))
    for axes, named in zip(picture.axes, ends):
        page.epochs_along(axes, labels.resume_epochs(runs))
        page.beside(axes, named)
    return picture.figure


def _count(run: Run) -> str:
    return plural(run.header.num_devices, labels.device_word(run.header))


def _losses_title(run: Run) -> str:
    last = run.epochs[-1]
    return (
        f"After {plural(last.epoch, 'epoch')} D gives faces of the data "
        f"{last.d_real:.2f} and generated ones {last.d_fake:.2f}"
    )


def _quality(runs: Sequence[Run]) -> Figure:
    """Distance to the faces of the data, with that of these among themselves below."""
    kind = "synthetic" if any(run.header.synthetic for run in runs) else "real"
    floors = [f.floor for r in runs for f in r.of(FrameRecord) if f.floor]
    floor = f"Dashed: {kind} faces to other {kind} ones. " if floors else ""
    picture = page.new(
        _quality_title(runs, kind, floors),
        training.workload(runs),
        "Sliced Wasserstein distance (Rabin et al., 2011) of up to 1,000 faces; epoch "
        f"0 is before training. {floor}{_own_batch_norm(runs)}"
        f"{_reading(runs)}{labels.stamp([run.header for run in runs])}",
    )
    (axes,) = picture.axes
    if floors:
        axes.axhline(median(floors), **page.DASHED)
    quality_curves(axes, runs)
    return picture.figure


def _own_batch_norm(runs: Sequence[Run]) -> str:
    """Why runs on several device counts do not compute the same."""
    counts = {run.header.num_devices for run in runs}
    if len(counts) == 1 or runs[0].header.settings.get("sync_batch_norm"):
        return ""
    return "Each device has its own BatchNorm. "


def _quality_title(runs: Sequence[Run], kind: str, floors: Sequence[float]) -> str:
    distances = list(_curve(runs[-1].of(FrameRecord), "quality").values())
    if not distances:
        return "No frames were recorded, so no distance is known"
    epochs = plural(max(e.epoch for e in runs[-1].epochs), "epoch")
    least = f" ({kind} to {kind}: {median(floors):.3f})" if floors else ""
    return (
        f"The distance to {kind} faces falls from {distances[0]:.3f} to "
        f"{distances[-1]:.3f} in {epochs}{least}"
    )


def quality_curves(axes: Axes, runs: Sequence[Run], names: Sequence[str] = ()) -> None:
    """Distance to the faces of the data against epoch, a line per run.

    Labelled at their ends by `names`, or else by the runs' device counts.
    """
    ends = []
    for k, run in enumerate(runs):
        distances = _curve(run.of(FrameRecord), "quality")
        style = page.look(k, markevery=max(1, len(distances) // 20))
        style["color"] = page.count_color(k + (len(runs) == 1))
        axes.plot(list(distances), list(distances.values()), **style)
        if distances:
            name, (at, last) = (
                names[k] if names else _count(run),
                [*distances.items()][-1],
            )
            ends.append((at, last, f"{name}: {last:.3f}"))
    axes.set(ylim=(0, None), ylabel="distance to the data")
    page.epochs_along(axes, labels.resume_epochs(runs))
    page.beside(axes, ends)


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


def _reading(runs: Sequence[Run]) -> str:
    """What a caption says of curves, and where they come from."""
    repeated = any(e.repeat for run in runs for e in run.epochs)
    medians = "Curves: median of the repeats. " if repeated else ""
    return f"{medians}"


def _strip(run: Run, frames: Sequence[FrameRecord]) -> Figure:
    """The face of one noise after 0, 1, 2, 5, 10, 20, ... epochs, and the last."""
    rounds = {0} | {m * 10**k for k in range(6) for m in (1, 2, 5)}
    shown = [f for f in frames if f.epoch in rounds or f is frames[-1]]
    faces = [animation.picture_of(run, frame, "fixed", 1) for frame in shown]
    title = (
        f"One noise through training: distance to the data {shown[0].quality:.3f} at "
        f"epoch {shown[0].epoch}, {shown[-1].quality:.3f} at {shown[-1].epoch:,}"
    )
    picture = page.new(
        title,
        training.workload([run]),
        f"The same noise after each epoch. {labels.stamp([run.header])}",
        panels=len(shown),
        size=(max(page.WIDE, 0.95 * len(shown)), 1.35),
    )
    for axes, frame, face in zip(picture.axes, shown, faces):
        _show(axes, face, f"{frame.epoch:,}")
    picture.axes[0].set_xlabel(f"epoch {shown[0].epoch:,}")
    return picture.figure


def _nearest(run: Run, sheet: np.ndarray, faces: np.ndarray) -> Figure:
    """Five generated faces over the nearest of the data to each of them."""
    frame = run.of(FrameRecord)[-1]
    if max(frame.nearest) >= len(faces):
        raise RecordError(
            f"{labels.where(run)}: nearest of epoch {frame.epoch} names face "
            f"{max(frame.nearest)} of {len(faces):,}"
        )
    below = face_images.sheet(faces[frame.nearest[:5]], 5)
    kind = "synthetic" if run.header.synthetic else "real"
    caption = "Numbers: root mean square difference of pixels in [0, 1]. "
    n = min(25, len(faces) // 2)
    if n:
        within = median(face_quality.nearest(faces[:n], faces[n:])[1])
        caption += f"From {kind} faces to their nearest others it is {within:.2f} "
        caption += f"(median of {n}). "
    distances = frame.distances[:5]
    title = (
        f"The nearest {kind} faces, below, differ by {min(distances):.2f} to "
        f"{max(distances):.2f}; a copy differs by 0"
    )
    both = np.concatenate([sheet[: punks.TILE], below])
    figure = _sheets(run, title, {"": both}, caption)
    centres = [(punks.TILE + 1) * (k + 0.5) - 1 for k in range(len(distances))]
    words = [f"{distance:.2f}" for distance in distances]
    figure.axes[0].set_xticks(centres[:5], words)
    return figure


def _sheets(
    run: Run, title: str, sheets: dict[str, np.ndarray], caption: str = ""
) -> Figure:
    """Sheets of faces side by side, each above its name."""
    height = max(sheet.shape[0] for sheet in sheets.values())
    picture = page.new(
        title,
        training.workload([run]),
        f"{caption}{labels.stamp([run.header])}",
        panels=len(sheets),
        size=(page.WIDE, 0.4 + 0.026 * height * (1.4 if len(sheets) == 1 else 1)),
    )
    for axes, name, sheet in zip(picture.axes, sheets, sheets.values()):
        _show(axes, sheet, name)
    return picture.figure


def _show(axes: Axes, sheet: np.ndarray, name: str) -> None:
    # "none", not "nearest", which an SVG has at 72 pixels per inch.
    axes.imshow(_parted(sheet), interpolation="none")
    axes.set(xlabel=name, xticks=[], yticks=[], frame_on=False)
    axes.tick_params(length=0)
    axes.grid(False)


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
        if n_train and n_train > punks.TILES**2:
            raise DataError(f"n_train {n_train:,} of {punks.TILES**2:,}")
        data = punks.on_disk(header.dataset, n_train, header.seed, data_dir)
        if data is not None:
            if data.sha256 == header.dataset_sha256:
                return data.X
            why = "those found are others"
    except (DataError, SettingError) as error:
        why = str(error)
    text = "the faces of %s are not at hand (%s): only generated ones are drawn"
    log.warning(text, labels.where(run), why)
    return None

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
from PIL import Image, ImageDraw, ImageFont

from d2lpar.datasets import punks
from d2lpar.errors import DataError, RecordError, SettingError
from d2lpar.figures import labels, page, training
from d2lpar.records import comparison
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import FrameRecord, Run, group
from d2lpar.text import plural

log = logging.getLogger("d2lpar")

MAX_POINTS = 400  # of a curve of losses: more make megabytes of an SVG
SCALE = 8  # screen pixels along a pixel of the animated face
BAND = 24  # pixels under the face, for the epoch; even, as films need it
MAX_FRAMES = 60  # of an animation: half a megabyte
FRAMES_PER_SECOND = 10


@page.plain_style()
def draw(
    runs: Sequence[Run],
    folder: Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """The pictures and the animation of runs that differ in their device count.

    Seconds per epoch and the distance to the data of all runs; the losses, the faces
    and the animation of the one on the most devices. Real faces are looked for in
    `data_dir`, ``$D2LPAR_DATA`` and the caches.
    """
    runs = training.by_device_count(runs)
    drawn = {**pictures(runs, data_dir), **training.times(runs)}
    animations = animate(runs[-1], folder, stem, mp4=mp4)
    return [*page.save(drawn, folder, stem), *animations]


def pictures(
    runs: Sequence[Run], data_dir: str | Path | None = None
) -> dict[str, Figure]:
    """Pictures by name of runs that differ in their device count, most devices last.

    ``losses``; ``quality``, the distance to the data; ``strip``, the face of one noise
    through training; ``samples`` beside synthetic faces, which may be handed on; where
    the data is found ``real``, with 25 real faces, and ``nearest``.
    """
    last = runs[-1]
    frames = [frame for frame in last.of(FrameRecord) if frame.repeat == 0]
    drawn = {"losses": _losses(last)}
    if frames:
        drawn["quality"] = _quality([run for run in runs if run.of(FrameRecord)])
    if len(frames) > 1:
        drawn["strip"] = _strip(last, frames)
    if not frames or not frames[-1].samples:
        return drawn
    others = punks.load("synthetic", n_train=25, seed=last.header.seed).X
    drawn["samples"] = _samples(last, frames[-1], "synthetic faces", others)
    faces = _data(last, data_dir)
    if faces is not None:
        if not last.header.synthetic:
            drawn["real"] = _samples(last, frames[-1], "real faces", faces)
        drawn["nearest"] = _nearest(last, frames[-1], faces)
    return drawn


def _kind(run: Run) -> str:
    return "synthetic" if run.header.synthetic else "real"


def _losses(run: Run) -> Figure:
    """Losses of both networks, and the discriminator's opinions of both kinds.

    The medians of the repeats.
    """
    end = run.epochs[-1]
    picture = page.new(
        f"Losses, and D's opinions of {_kind(run)} and of generated faces, "
        f"{end.d_real:.2f} and {end.d_fake:.2f} after {plural(end.epoch, 'epoch')}",
        training.workload([run]),
        "D: discriminator, of faces x; G: generator, of noise z. Grey: D cannot tell "
        f"them apart. {labels.stamp([run.header])}",
        panels=2,
        size=(10.6, page.TALL),
    )
    left, right = picture.axes
    left.axhline(math.log(2), color="0.8", lw=2.5)
    right.axhline(0.5, color="0.8", lw=2.5)
    curves = (
        (left, {"D": "d_loss", "G": "g_loss"}),
        (right, {"D(x)": "d_real", "D(G(z))": "d_fake"}),
    )
    by_epoch = group(sorted(run.epochs, key=lambda e: e.epoch), lambda e: e.epoch)
    epochs = list(by_epoch)
    # Of more than 400 epochs the means of neighbours, at the last of them.
    points = np.array_split(epochs, min(len(epochs), MAX_POINTS))
    shown = [point[-1] for point in points]
    for axes, names in curves:
        ends = []
        for k, (label, name) in enumerate(names.items()):
            medians = {n: median(getattr(e, name) for e in by_epoch[n]) for n in epochs}
            values = [fmean(medians[n] for n in point) for point in points]
            axes.plot(shown, values, **page.look(k, markevery=0.1))
            ends.append((shown[-1], values[-1], label))
        page.epochs_along(axes, labels.resume_epochs([run]))
        page.beside(axes, ends)
    left.set(ylabel="mean loss (nats)", ylim=(0, 1.05 * left.get_ylim()[1]))
    right.set(ylabel="mean opinion (0 generated, 1 of the data)", ylim=(0, 1))
    return picture.figure


def _quality(runs: Sequence[Run]) -> Figure:
    """Distance to the faces of the data, with that of these among themselves below."""
    last, kind = runs[-1], _kind(runs[-1])
    frames = [frame for run in runs for frame in run.of(FrameRecord)]
    floors = [frame.floor for frame in frames if frame.floor is not None]
    dashed = f"Dashed: {kind} faces to other {kind} ones. " if floors else ""
    epochs = plural(max(frame.epoch for frame in last.of(FrameRecord)), "epoch")
    where = plural(last.header.num_devices, labels.device_word(last.header))
    picture = page.new(
        f"Distance to {kind} faces after {epochs} on {where}: "
        f"{comparison.final_quality(last):.3f}",
        training.workload(runs),
        f"Sliced Wasserstein distance; epoch 0 is before training. {dashed}"
        f"{labels.stamp([run.header for run in runs])}",
    )
    (axes,) = picture.axes
    if floors:
        axes.axhline(median(floors), **page.DASHED)
    training.accuracy_curves(axes, runs)
    axes.set_xlim(left=-axes.get_xlim()[1] / 50)
    axes.set(ylim=(0, 1.05 * axes.get_ylim()[1]), ylabel=f"distance to {kind} faces")
    return picture.figure


def _strip(run: Run, frames: Sequence[FrameRecord]) -> Figure:
    """The face of one noise after 0, 1, 2, 5, 10, 20, ... epochs, and the last."""
    rounds = {0} | {m * 10**k for k in range(6) for m in (1, 2, 5)}
    shown = [f for f in frames if f.epoch in rounds or f is frames[-1]]
    picture = page.new(
        f"What one noise becomes, from epoch {shown[0].epoch:,} to {shown[-1].epoch:,}",
        training.workload([run]),
        labels.stamp([run.header]),
        panels=len(shown),
        size=(max(page.WIDE, 0.95 * len(shown)), 1.35),
    )
    for axes, frame in zip(picture.axes, shown):
        _show(axes, picture_of(run, frame, "fixed", 1), f"{frame.epoch:,}")
    picture.axes[0].set_xlabel(f"epoch {shown[0].epoch:,}")
    return picture.figure


def _samples(run: Run, frame: FrameRecord, name: str, faces: np.ndarray) -> Figure:
    """The last frame's samples beside 25 other faces."""
    sheets = {
        f"after {plural(frame.epoch, 'epoch')}": picture_of(run, frame, "samples", 5),
        name: punks.sheet(faces[:25], 5),
    }
    picture = page.new(
        f"Generated faces, {median(frame.distances):.2f} from the nearest {_kind(run)} "
        "ones (median; a copy: 0)",
        training.workload([run]),
        labels.stamp([run.header]),
        panels=2,
        size=(page.WIDE, 0.4 + 0.026 * max(map(len, sheets.values()))),
    )
    for axes, (words, sheet) in zip(picture.axes, sheets.items()):
        _show(axes, sheet, words)
    return picture.figure


def _nearest(run: Run, frame: FrameRecord, faces: np.ndarray) -> Figure:
    """Five generated faces over the nearest of the data to each of them."""
    distances = frame.distances[:5]
    above = picture_of(run, frame, "samples", 5)[: punks.TILE]
    below = punks.sheet(faces[frame.nearest[:5]], 5)
    picture = page.new(
        f"Generated faces, and below them the nearest {_kind(run)} ones: "
        f"{min(distances):.2f} away or more",
        training.workload([run]),
        "Numbers: root mean square difference of pixels in [0, 1], 0 for a copy. "
        f"{labels.stamp([run.header])}",
        size=(page.WIDE, 2.2),
    )
    (axes,) = picture.axes
    _show(axes, np.concatenate([above, below]))
    centres = [(punks.TILE + 1) * (k + 0.5) - 1 for k in range(len(distances))]
    axes.set_xticks(centres, [f"{distance:.2f}" for distance in distances])
    return picture.figure


def _show(axes: Axes, sheet: np.ndarray, name: str = "") -> None:
    """A sheet of faces, with a white line, a pixel wide, between them."""
    height, width, _ = sheet.shape
    sheet = np.insert(sheet, range(punks.TILE, height, punks.TILE), 255, axis=0)
    sheet = np.insert(sheet, range(punks.TILE, width, punks.TILE), 255, axis=1)
    # "none", not "nearest", which an SVG has at 72 pixels per inch.
    axes.imshow(sheet, interpolation="none")
    axes.set(xlabel=name, xticks=[], yticks=[], frame_on=False)
    axes.tick_params(length=0)
    axes.grid(False)


def _data(run: Run, data_dir: str | Path | None) -> np.ndarray | None:
    """The faces that the run was trained on, or None if they are not found."""
    header = run.header
    try:
        n_train = header.settings.get("n_train")
        data = punks.on_disk(header.dataset, n_train, header.seed, data_dir)
        if data is not None and data.sha256 == header.dataset_sha256:
            return data.X
        why = "no copy on disk" if data is None else "those on disk are others"
    except (DataError, SettingError) as error:
        why = str(error)
    log.warning("%s faces for %s not found (%s)", _kind(run), labels.where(run), why)
    return None


def animate(run: Run, folder: Path, stem: str, *, mp4: bool) -> list[Path]:
    """The fixed noise's face after each epoch: ``<stem>.gif``, with `mp4` an MP4 too.

    At most 60 frames, evenly spread; nothing for a run with fewer than two. Raises
    :class:`RecordError`, and writes nothing, if `mp4` is asked for and there is no
    ffmpeg, or it fails.
    """
    frames = [frame for frame in run.of(FrameRecord) if frame.repeat == 0]
    if len(frames) < 2:
        log.warning("%s: too few frames for an animation", labels.where(run))
        return []
    pictures, font = [], ImageFont.load_default()
    for k in np.linspace(0, len(frames) - 1, min(len(frames), MAX_FRAMES)).round():
        frame = frames[int(k)]
        face = punks.enlarged(picture_of(run, frame, "fixed", 1), SCALE)
        height, width, _ = face.shape
        picture = Image.new("RGB", (width, height + BAND), "white")
        picture.paste(Image.fromarray(face))
        words, place = f"epoch {frame.epoch:,}", (6, height + 6)
        ImageDraw.Draw(picture).text(place, words, fill="black", font=font)
        pictures.append(picture)
    gif, film = folder / f"{stem}.gif", folder / f"{stem}.mp4"
    if mp4:  # first, because it may fail
        with replacing(film) as tmp:
            _write_mp4(pictures, tmp)
    milliseconds = [1000 // FRAMES_PER_SECOND] * (len(pictures) - 1)
    with replacing(gif) as tmp:
        pictures[0].save(
            tmp,
            format="gif",
            save_all=True,
            append_images=pictures[1:],
            duration=[*milliseconds, 1000],  # the last face stays in sight
            loop=0,
        )
    return [gif, film] if mp4 else [gif]


def _write_mp4(pictures: Sequence[Image.Image], path: Path) -> None:
    """Write a film of pictures, by the ffmpeg of imageio-ffmpeg, or RecordError."""
    try:
        import imageio_ffmpeg

        film = imageio_ffmpeg.write_frames(
            path, pictures[0].size, fps=FRAMES_PER_SECOND, codec="libx264",
            macro_block_size=2, ffmpeg_log_level="error",
        )  # fmt: skip
        film.send(None)
        for picture in pictures:
            film.send(picture.tobytes())
        film.close()
    except (ImportError, RuntimeError, OSError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise RecordError(
            f"--mp4: no film was written ({why}); pip install imageio-ffmpeg, or leave "
            "--mp4 out (the GIF needs no ffmpeg)"
        ) from None


def picture_of(run: Run, frame: FrameRecord, name: str, across: int) -> np.ndarray:
    """The picture in a field of a frame: its face, or its samples `across` in a row.

    uint8 (h, w, 3). Raises :class:`RecordError` unless the field holds such a PNG file.
    """
    rows = 1 if across == 1 else -(-len(frame.nearest) // across)
    try:
        return punks.from_png(getattr(frame, name), across, rows)
    except DataError as error:
        where = f"{labels.where(run)}: {name} of epoch {frame.epoch}"
        raise RecordError(f"{where}: {error}") from None

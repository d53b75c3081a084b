"""A GAN's training: losses, how good its faces are, the faces themselves, animation.

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
from PIL import Image, ImageDraw, ImageFont

from d2lpar.datasets import punks
from d2lpar.errors import DataError, RecordError, SettingError
from d2lpar.figures import labels, page, training
from d2lpar.records import comparison
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import FrameRecord, Run, group
from d2lpar.text import plural

log = logging.getLogger("d2lpar")

MAX_POINTS = 400  # of a curve of losses: more are a caterpillar
SCALE = 5  # screen pixels along a pixel of the animated faces
BAND = 24  # pixels under the face, for the epoch; even, as films need it
MAX_FRAMES = 50  # of an animation: at most two megabytes, while faces are noisy
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

    Seconds per epoch and the quality of all runs; the losses, the faces and the
    animation of the one on the most devices. Real faces are looked for in
    `data_dir`, ``$D2LPAR_DATA`` and the caches.
    """
    runs = training.by_device_count(runs)
    drawn = {**pictures(runs, data_dir), "seconds": training.times(runs)}
    animations = animate(runs[-1], folder, stem, mp4=mp4)
    return [*page.save(drawn, folder, stem), *animations]


def pictures(
    runs: Sequence[Run], data_dir: str | Path | None = None
) -> dict[str, page.Picture]:
    """Pictures by name of runs that differ in their device count, most devices last.

    ``losses``; ``quality``, two measures beside their references; ``strip``, the faces
    of some noises through training; ``samples``, 25 of the last; where the data is
    found ``real``, with 25 real faces, and ``nearest``.
    """
    last = runs[-1]
    frames = [frame for frame in last.of(FrameRecord) if frame.repeat == 0]
    drawn = {"losses": _losses(last)}
    if all(comparison.quality_by_epoch(run) for run in runs):
        drawn["quality"] = page.new(
            f"{100 * comparison.final_quality(last, 'coverage'):.0f} % of the "
            f"{_kind(last)} faces are covered by generated ones",
            f"{training.workload(runs)}; dashed: sets to compare with",
            runs,
            (10.5, 4.2),
            columns=2,
        )
        quality(drawn["quality"].axes, runs)
    if len(frames) > 1:
        drawn["strip"] = strip(last)
    if not frames or not frames[-1].samples:
        return drawn
    drawn["samples"] = samples(last)
    faces = _data(last, data_dir)
    if faces is not None:
        if not last.header.synthetic:
            drawn["real"] = samples(last, beside=("real faces", faces))
        drawn["nearest"] = _nearest(last, frames[-1], faces)
    return drawn


def _kind(run: Run) -> str:
    return "drawn" if run.header.synthetic else "real"


def _losses(run: Run) -> page.Picture:
    """Losses of both networks, and the discriminator's opinions of both kinds.

    The medians of the repeats.
    """
    end = run.epochs[-1]
    picture = page.new(
        f"D's opinions of {_kind(run)} and of generated faces: {end.d_real:.2f} and "
        f"{end.d_fake:.2f} after {plural(end.epoch, 'epoch')}",
        f"{training.workload([run])}; grey: D cannot tell them apart",
        [run],
        (10.5, 4.2),
        columns=2,
    )
    left, right = picture.axes
    left.axhline(math.log(2), color="0.8", lw=2.5)
    right.axhline(0.5, color="0.8", lw=2.5)
    curves = (
        (left, {"discriminator": "d_loss", "generator": "g_loss"}),
        (right, {f"of {_kind(run)} faces": "d_real", "of generated ones": "d_fake"}),
    )
    by_epoch = group(sorted(run.epochs, key=lambda e: e.epoch), lambda e: e.epoch)
    epochs = list(by_epoch)
    # Of more than 400 epochs the means of neighbours, at the last of them.
    points = np.array_split(epochs, min(len(epochs), MAX_POINTS))
    shown = [point[-1] for point in points]
    for axes, names in curves:
        for k, (label, name) in enumerate(names.items()):
            medians = {n: median(getattr(e, name) for e in by_epoch[n]) for n in epochs}
            values = [fmean(medians[n] for n in point) for point in points]
            axes.plot(
                shown,
                values,
                **page.look(k, label=label, markevery=max(1, len(shown) // 10)),
            )
        page.epochs_along(axes, labels.resume_epochs([run]))
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
        training.curves(
            axes, runs, lambda r, m=measure: comparison.quality_by_epoch(r, m), label,
            names,
        )  # fmt: skip
        for name, values in known.items():
            if measure == "coverage" and name not in ("other real faces", "noise"):
                continue  # 0 like that of noise
            axes.axhline(values[measure], **page.LIMIT)
            place = {"transform": axes.get_yaxis_transform(), "ha": "right"}
            axes.text(1, values[measure], name, va="bottom", size=9, **place)
    panels[0].set(yscale="log")
    panels[1].set(ylim=(-0.03, 1.08))
    panels[1].get_legend().remove()


# About the steps whose faces are shown, with the last.
STEPS = (0, 100, 300, 1_000, 3_000, 10_000)


def strip(run: Run, title: str = "") -> page.Picture:
    """The faces of the same noises, a row for each of some steps, and the last."""
    frames = [frame for frame in run.of(FrameRecord) if frame.repeat == 0]
    last = frames[-1]
    shown = [
        min(frames, key=lambda frame, step=step: abs(_step(frame) - step))
        for step in STEPS
        if step < _step(last)
    ]
    shown = list({frame.epoch: frame for frame in [*shown, last]}.values())
    rows = [picture_of(run, frame, "fixed") for frame in shown]
    unit = "epoch" if last.num_steps is None else "step"
    picture = page.new(
        title
        or f"What {plural(last.num_fixed, 'noise')} become by {unit} {_step(last):,}",
        training.workload([run]),
        [run],
        (max(7.6, 0.8 * last.num_fixed), 1.4 + 0.8 * len(shown)),
    )
    (axes,) = picture.axes
    _show(axes, np.concatenate(rows))
    centres = [(punks.TILE + 1) * (k + 0.5) - 1 for k in range(len(shown))]
    axes.set_yticks(centres, [f"{_step(frame):,}" for frame in shown])
    axes.set_ylabel(f"{unit}s of training")
    return picture


def _step(frame: FrameRecord) -> int:
    """After how many steps; of a record of 0.2, epochs."""
    return frame.epoch if frame.num_steps is None else frame.num_steps


def samples(
    run: Run, title: str = "", beside: tuple[str, np.ndarray] | None = None
) -> page.Picture:
    """The last frame's samples beside others: by default faces that d2lpar draws."""
    frame = [frame for frame in run.of(FrameRecord) if frame.repeat == 0][-1]
    if beside is None:
        others = punks.load("synthetic", n_train=25, seed=run.header.seed).X
        beside = ("drawn by d2lpar, not by the GAN", others)
    sheets = {
        f"generated, after {plural(frame.epoch, 'epoch')}": picture_of(
            run, frame, "samples"
        ),
        beside[0]: punks.sheet(beside[1][:25], 5),
    }
    picture = page.new(
        title
        or f"Generated faces, {median(frame.distances):.2f} from the nearest "
        f"{_kind(run)} ones (median; a copy: 0)",
        training.workload([run]),
        [run],
        (7.6, 1.5 + 0.026 * max(map(len, sheets.values()))),
        columns=2,
    )
    for axes, (words, sheet) in zip(picture.axes, sheets.items()):
        _show(axes, sheet, words)
    return picture


def _nearest(run: Run, frame: FrameRecord, faces: np.ndarray) -> page.Picture:
    """Five generated faces over the nearest of the data to each of them."""
    distances = frame.distances[:5]
    above = picture_of(run, frame, "samples")[: punks.TILE]
    if max(frame.nearest) >= len(faces):
        raise RecordError(
            f"{labels.where(run)}: names face {max(frame.nearest):,} of {len(faces):,}"
        )
    below = punks.sheet(faces[frame.nearest[:5]], 5)
    picture = page.new(
        f"Generated faces, and below them the nearest {_kind(run)} ones: "
        f"{min(distances):.2f} away or more",
        f"{training.workload([run])}; numbers: root mean square difference of pixels",
        [run],
        (7.6, 3.4),
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
    """The fixed noises' faces through training: ``<stem>.gif``, with `mp4` an MP4 too.

    At most 50 frames, evenly spread; it plays once and stops at the last, of which the
    picture ``strip`` is the still form. Nothing for a run with fewer than two frames.
    Raises :class:`RecordError`, and writes nothing, if `mp4` is asked for and there is
    no ffmpeg, or it fails.
    """
    frames = [frame for frame in run.of(FrameRecord) if frame.repeat == 0]
    if len(frames) < 2:
        log.warning("%s: too few frames for an animation", labels.where(run))
        return []
    pictures, font = [], ImageFont.load_default()
    for k in np.linspace(0, len(frames) - 1, min(len(frames), MAX_FRAMES)).round():
        frame = frames[int(k)]
        row = picture_of(run, frame, "fixed")
        if frame.num_fixed == 8:  # as two rows of four
            row = np.concatenate(np.split(row, 2, axis=1))
        faces = punks.enlarged(row, SCALE)
        height, width, _ = faces.shape
        picture = Image.new("RGB", (width, height + BAND), "white")
        picture.paste(Image.fromarray(faces))
        unit = "epoch" if frame.num_steps is None else "step"
        words, place = f"{unit} {_step(frame):,}", (6, height + 6)
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


def picture_of(run: Run, frame: FrameRecord, name: str) -> np.ndarray:
    """The picture in a field of a frame: `fixed` faces in a row, or `samples` in fives.

    uint8 (h, w, 3). Raises :class:`RecordError` unless the field holds such a PNG file.
    """
    size = (frame.num_fixed, 1)
    if name == "samples":
        size = (5, -(-len(frame.nearest) // 5))
    try:
        return punks.from_png(getattr(frame, name), *size)
    except DataError as error:
        where = f"{labels.where(run)}: {name} of epoch {frame.epoch}"
        raise RecordError(f"{where}: {error}") from None

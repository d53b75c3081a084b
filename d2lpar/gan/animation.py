"""A face through a GAN's training: an animated GIF and, if asked for, an MP4."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from d2lpar.datasets import face_images, punks
from d2lpar.errors import DataError, RecordError
from d2lpar.figures import labels
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import FrameRecord, Run

log = logging.getLogger("d2lpar")

SCALE = 8  # screen pixels along a face's pixel
BAND = 24  # pixels under the face, for the epoch; even, as films need it
MAX_FRAMES = 60  # of an animation: half a megabyte
FRAMES_PER_SECOND = 10


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
    kept = np.unique(np.linspace(0, len(frames) - 1, MAX_FRAMES).round().astype(int))
    faces = [_with_epoch(run, frames[k]) for k in kept]
    writers = {"gif": _write_gif, "mp4": _write_mp4} if mp4 else {"gif": _write_gif}
    paths = {ending: folder / f"{stem}.{ending}" for ending in writers}
    with ExitStack() as renames:
        for ending, write in writers.items():
            write(faces, renames.enter_context(replacing(paths[ending])))
    return list(paths.values())


def picture_of(run: Run, frame: FrameRecord, name: str, across: int) -> np.ndarray:
    """The picture in a field of a frame: its face, or its samples `across` in a row.

    uint8 (h, w, 3). Raises :class:`RecordError` unless the field holds such a PNG file.
    """
    rows = 1 if across == 1 else -(-len(frame.nearest) // across)
    try:
        picture = face_images.from_png(getattr(frame, name))
        if picture.shape != (rows * punks.TILE, across * punks.TILE, 3):
            height, width, _ = picture.shape
            raise DataError(f"a PNG of {width} x {height} pixels")
    except DataError as error:
        raise RecordError(
            f"{labels.where(run)}: {name} of epoch {frame.epoch} is {error}, not a "
            f"sheet of {across} x {rows} faces of {punks.TILE} pixels"
        ) from None
    return picture


def _with_epoch(run: Run, frame: FrameRecord) -> np.ndarray:
    """The enlarged face above the number of its epoch, uint8 (h, w, 3)."""
    from PIL import Image, ImageDraw, ImageFont

    face = face_images.enlarged(picture_of(run, frame, "fixed", 1), SCALE)
    height, width, _ = face.shape
    picture = Image.new("RGB", (width, height + BAND), "white")
    picture.paste(Image.fromarray(face))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default()
    pen.text((6, height + 6), f"epoch {frame.epoch:,}", fill="black", font=font)
    return np.asarray(picture)


def _write_gif(faces: Sequence[np.ndarray], path: Path) -> None:
    from PIL import Image

    first, *others = map(Image.fromarray, faces)
    milliseconds = [1000 // FRAMES_PER_SECOND] * len(others)
    first.save(
        path,
        save_all=True,
        append_images=others,
        duration=[*milliseconds, 1000],  # the last face stays in sight
        loop=0,
    )


def _write_mp4(faces: Sequence[np.ndarray], path: Path) -> None:
    try:
        import imageio_ffmpeg

        height, width, _ = faces[0].shape
        film = imageio_ffmpeg.write_frames(
            path, (width, height), fps=FRAMES_PER_SECOND, codec="libx264",
            macro_block_size=2, ffmpeg_log_level="error",
        )  # fmt: skip
        film.send(None)
        for face in faces:
            film.send(face.tobytes())
        film.close()
    except (ImportError, RuntimeError, OSError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise RecordError(
            f"--mp4: no film was written ({why}); pip install imageio-ffmpeg, or leave "
            "--mp4 out (the GIF needs no ffmpeg)"
        ) from None

"""A face through a GAN's training: an animated GIF and, if asked for, an MP4."""

from __future__ import annotations

import logging
import shutil
import subprocess
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
MOST_FRAMES = 60  # of an animation: half a megabyte
MILLISECONDS = 100  # per frame


def animate(run: Run, folder: Path, stem: str, *, mp4: bool) -> list[Path]:
    """The fixed noise's face after each epoch: ``<stem>.gif``, with `mp4` an MP4 too.

    The epoch stands below it. At most 60 frames, evenly spread; nothing for a run with
    fewer than two. Raises :class:`RecordError`, and writes nothing, if `mp4` is asked
    for and ffmpeg is missing or fails.
    """
    ffmpeg = _ffmpeg() if mp4 else None
    frames = [f for f in run.of(FrameRecord) if f.repeat == 0]
    if len(frames) < 2:
        log.warning("%s: too few frames for an animation", labels.where(run))
        return []
    kept = np.unique(np.linspace(0, len(frames) - 1, MOST_FRAMES).round().astype(int))
    faces = [_counted(run, frames[i]) for i in kept]
    with ExitStack() as renames:
        paths = [folder / f"{stem}.gif"]
        _write_gif(faces, renames.enter_context(replacing(paths[0])))
        if ffmpeg:
            paths.append(folder / f"{stem}.mp4")
            _write_mp4(faces, renames.enter_context(replacing(paths[1])), ffmpeg)
    return paths


def _counted(run: Run, frame: FrameRecord) -> np.ndarray:
    """The enlarged face above the number of its epoch, uint8 (h, w, 3)."""
    from PIL import Image, ImageDraw, ImageFont

    face = face_images.enlarged(picture_of(run, frame, "fixed", 1), SCALE)
    height, width, _ = face.shape
    picture = Image.new("RGB", (width, height + BAND), "white")
    picture.paste(Image.fromarray(face))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default()
    pen.text((6, height + 6), f"epoch {frame.epoch:,}", fill="black", font=font)
    return np.asarray(picture)


def picture_of(run: Run, frame: FrameRecord, name: str, across: int) -> np.ndarray:
    """The picture in a field of a frame: its face, or its samples `across` in a row.

    uint8 (h, w, 3). Raises :class:`RecordError` unless the field holds such a PNG file.
    """
    rows = 1 if across == 1 else -(-len(frame.nearest) // across)
    try:
        picture = face_images.from_png(getattr(frame, name))
        height, width, _ = picture.shape
        if width != across * punks.TILE or height != rows * punks.TILE:
            raise DataError(f"a PNG of {width} x {height} pixels")
    except DataError as error:
        raise RecordError(
            f"{labels.where(run)}: {name} of epoch {frame.epoch} is {error}, not a "
            f"sheet of {across} x {rows} faces of {punks.TILE} pixels"
        ) from None
    return picture


def _write_gif(faces: list[np.ndarray], path: Path) -> None:
    from PIL import Image

    first, *others = map(Image.fromarray, faces)
    durations = [MILLISECONDS] * len(others) + [1000]  # the last face stays in sight
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0)


def _write_mp4(faces: list[np.ndarray], path: Path, ffmpeg: str) -> None:
    height, width, _ = faces[0].shape
    command = [
        ffmpeg, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
        "-s", f"{width}x{height}", "-r", str(1000 // MILLISECONDS), "-i", "-",
        "-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart",
        str(path),
    ]  # fmt: skip
    done = subprocess.run(command, input=np.stack(faces).tobytes(), capture_output=True)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").replace(f"{path}: ", "")
        last = (said.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RecordError(
            f"--mp4: {ffmpeg} failed ({last}); leave --mp4 out (the GIF needs no "
            "ffmpeg)"
        )


def _ffmpeg() -> str:
    """The system's ffmpeg, or that of the wheel imageio-ffmpeg."""
    if path := shutil.which("ffmpeg"):
        return path
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        raise RecordError(
            "--mp4: there is no ffmpeg here: pip install imageio-ffmpeg, or leave "
            "--mp4 out (the GIF needs none)"
        ) from None

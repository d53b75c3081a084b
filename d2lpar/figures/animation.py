"""TODO: one idea."""

from __future__ import annotations

import base64
import logging
import shutil
import subprocess
from contextlib import ExitStack
from html import escape
from pathlib import Path

import numpy as np

from d2lpar.datasets import face_images
from d2lpar.errors import RecordError
from d2lpar.records import wording
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import FrameRecord, Run

log = logging.getLogger("d2lpar")

SCALE = 8  # screen pixels along a face's pixel
MOST_FRAMES = 200  # of an animation: some megabytes at most
MILLISECONDS = 50  # a frame, as in the seed


def animate(run: Run, out: Path, stem: str, mp4: bool) -> list[Path]:
    """The fixed noise's face through the training: ``<stem>.gif``.

    With `mp4` also ``<stem>.mp4``, and ``<stem>.html``, a page that holds and plays it.
    At most 200 frames, evenly spread; none of a run that has less than two. Raises
    :class:`RecordError`, and writes nothing, where there is no ffmpeg for the MP4 or it
    fails.
    """
    ffmpeg = _ffmpeg() if mp4 else ""
    frames = [f for f in run.of(FrameRecord) if f.repeat == 0]
    if len(frames) < 2:
        log.warning("%s: too few frames for an animation", wording.where(run))
        return []
    kept = np.unique(np.linspace(0, len(frames) - 1, MOST_FRAMES).round().astype(int))
    faces = [
        face_images.enlarged(face_images.from_png(frames[i].fixed), SCALE) for i in kept
    ]
    paths = [out / f"{stem}.{ending}" for ending in ("gif", "mp4", "html")]
    if not mp4:
        del paths[1:]
    with ExitStack() as renames:
        gif, *film = (renames.enter_context(replacing(path)) for path in paths)
        _write_gif(faces, gif)
        if mp4:
            _write_mp4(faces, film[0], ffmpeg)
            film[1].write_text(_page(film[0], stem, run), encoding="utf-8")
    return paths


def _write_gif(faces: list[np.ndarray], path: Path) -> None:
    from PIL import Image

    first, *others = map(Image.fromarray, faces)
    first.save(
        path,
        save_all=True,
        append_images=others,
        # The last one stays for a second, as the seed has it.
        duration=[MILLISECONDS] * len(others) + [1000],
        loop=0,
    )


def _write_mp4(faces: list[np.ndarray], path: Path, ffmpeg: str) -> None:
    height, width, _ = faces[0].shape
    command = [
        ffmpeg, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
        "-s", f"{width}x{height}", "-r", str(1000 // MILLISECONDS), "-i", "-",
        "-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart",
    ]  # fmt: skip
    done = subprocess.run(
        [*command, str(path)], input=np.stack(faces).tobytes(), capture_output=True
    )
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RecordError(
            f"--mp4: {ffmpeg} failed ({' '.join(last)}); leave --mp4 out (the GIF "
            "needs no ffmpeg)"
        )


def _page(film: Path, stem: str, run: Run) -> str:
    """A page that plays the film, which it holds itself, and says where it is from."""
    title = wording.title("A face through the training", [run])
    data = base64.b64encode(film.read_bytes()).decode()
    return (
        "<!DOCTYPE html>\n<html lang='en'><meta charset='utf-8'>"
        f"<title>{escape(stem)}</title>\n<h1>{escape(title)}</h1>\n"
        "<video controls autoplay loop muted width='384' "
        f"src='data:video/mp4;base64,{data}'></video>\n"
        "<p>What the generator makes of one and the same noise. "
        f"{escape(wording.provenance([run]))}</p>\n</html>\n"
    )


def _ffmpeg() -> str:
    """The system's ffmpeg, or the one that the wheel imageio-ffmpeg brings."""
    found = shutil.which("ffmpeg")
    if found is None:
        try:
            import imageio_ffmpeg

            found = imageio_ffmpeg.get_ffmpeg_exe()
        except (ImportError, RuntimeError):
            raise RecordError(
                "--mp4: there is no ffmpeg here: pip install imageio-ffmpeg, or leave "
                "--mp4 out (the GIF needs none)"
            ) from None
    return found

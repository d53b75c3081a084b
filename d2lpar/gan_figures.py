"""A GAN's records to pictures: what it draws, what its networks think, an animation.

Only draws, like :mod:`d2lpar.figures`, whose :func:`~d2lpar.figures.draw` calls this
module for records of a GAN. Never imports MXNet.

Real faces are not in the records: the CryptoPunks must not be redistributed. The
pictures that show some (``<stem>-real``, ``<stem>-nearest``) are drawn where the faces
can be found, which a record's hash of the data decides.
"""

from __future__ import annotations

import base64
import logging
import math
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from d2lpar import captions, face_quality, pixels, punks
from d2lpar.errors import DataError, RecordError, SettingError
from d2lpar.page import (
    COLORS,
    LARGE,
    LINES,
    MARGIN,
    MARKERS,
    SMALL,
    mark_seams,
    new_page,
    wrap,
)
from d2lpar.records import Run, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

log = logging.getLogger("d2lpar")

MOST_POINTS = 400  # of a curve of losses
MOST_FRAMES = 200  # of an animation: some megabytes at most
SCALE = 8  # screen pixels along a face's pixel
MILLISECONDS = 50  # a frame, as in the seed


def pictures(runs: Sequence[Run], data_dir: str | Path | None) -> dict[str, Figure]:
    """Pictures by name of runs that differ in their device count, most devices last.

    ``losses`` and ``quality`` of all, ``samples`` of the last; where the real faces are
    found (``data_dir``, ``$D2LPAR_DATA``, the caches), ``real`` with 25 of them beside
    the samples, and ``nearest`` with the nearest one of each of five.
    """
    found = {"losses": _losses(runs), "quality": _quality(runs)}
    last = runs[-1]
    if last.frames and last.frames[-1].samples:
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
        captions.title("Losses and opinions of the two networks", runs),
        "Left: mean losses of the discriminator D, over faces x of the data and "
        "generated ones G(z), and of the generator G. Right: D's mean opinions, "
        "like the losses before each step. Grey: D cannot tell them apart "
        f"(losses 0.69, opinions 0.5). {points}{_reading(runs)}",
        panels=2,
        keys=[
            f"{what} (right), {captions.devices(run.header)}"
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
        captions.title(f"Distance of generated faces to {faces}", runs),
        "Sliced Wasserstein distance (Rabin et al., 2011) by their pixels, of up to "
        "1,000 generated faces to as many of the data; epoch 0 is before training. "
        f"{_reading(runs)}",
        keys=[
            f"{captions.devices(run.header)}, {_first_and_last(run)}" for run in runs
        ],
    )
    page.legend(quality_curves(page.axes[0], runs))
    return page.figure


def quality_curves(axes: Axes, runs: Sequence[Run]) -> list[Line2D]:
    """Distance to the faces of the data against epoch, a line a run."""
    lines = []
    for k, run in enumerate(runs):
        numbers, distances = _curve(run.frames, "quality")
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
    if not run.frames:
        return "no frames"
    _, distances = _curve(run.frames, "quality")
    first, last = (captions.number(distances[i]) for i in (0, -1))
    return f"{first} before, {last} after"


def _reading(runs: Sequence[Run]) -> str:
    """What a caption says of curves, and where they come from."""
    repeats = [len({e.repeat for e in run.epochs}) for run in runs]
    medians = "" if max(repeats) == 1 else "Curves: median of the repeats. "
    return f"{medians}{captions.reading_seams(runs)}{captions.provenance(runs)}"


def _epochs_along(axes: Axes, runs: Sequence[Run]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    mark_seams(axes, captions.seams(runs))


def _samples(run: Run) -> Figure:
    return _sheets(
        _generated(run),
        "Their noise is none that the generator was trained on. ",
        run,
        0.04,
        [(pixels.from_png(run.frames[-1].samples), [])],
    )


def _beside_real(run: Run, faces: np.ndarray) -> Figure:
    frame = run.frames[-1]
    some = faces[:25]
    kind = "synthetic ones of the data" if run.header.synthetic else "real ones"
    return _sheets(
        f"{_generated(run)}, and {len(some)} {kind}",
        "",
        run,
        0.033,
        [
            (pixels.from_png(frame.samples), ["generated ones"]),
            (pixels.sheet(some, 5), [kind]),
        ],
    )


def _nearest(run: Run, faces: np.ndarray) -> Figure:
    """Five generated faces over the nearest of the data to each of them."""
    frame = run.frames[-1]
    above = pixels.from_png(frame.samples)[: punks.TILE]
    below = pixels.sheet(faces[frame.nearest[:5]], 5)
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
    frame = run.frames[-1]
    after = captions.plural(frame.epoch, "epoch")
    return f"{captions.plural(len(frame.nearest), 'generated face')} after {after}"


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
    title, title_height = wrap(captions.title(title, [run]), width - 2 * MARGIN, LARGE)
    caption += captions.provenance([run])
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
        captions.where(run),
        why,
    )
    return None


def animate(run: Run, out: Path, stem: str, mp4: bool) -> list[Path]:
    """The fixed noise's face through the training: ``<stem>.gif``.

    With `mp4` also ``<stem>.mp4``, and ``<stem>.html``, a page that holds and plays it.
    At most 200 frames, evenly spread; none of a run that has less than two. Raises
    :class:`RecordError`, and writes nothing, where there is no ffmpeg for the MP4 or it
    fails.
    """
    ffmpeg = _ffmpeg() if mp4 else ""
    frames = [f for f in run.frames if f.repeat == 0]
    if len(frames) < 2:
        log.warning("%s: too few frames for an animation", captions.where(run))
        return []
    kept = np.unique(np.linspace(0, len(frames) - 1, MOST_FRAMES).round().astype(int))
    faces = [pixels.enlarged(pixels.from_png(frames[i].fixed), SCALE) for i in kept]
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
    title = captions.title("A face through the training", [run])
    data = base64.b64encode(film.read_bytes()).decode()
    return (
        "<!DOCTYPE html>\n<html lang='en'><meta charset='utf-8'>"
        f"<title>{escape(stem)}</title>\n<h1>{escape(title)}</h1>\n"
        "<video controls autoplay loop muted width='384' "
        f"src='data:video/mp4;base64,{data}'></video>\n"
        "<p>What the generator makes of one and the same noise. "
        f"{escape(captions.provenance([run]))}</p>\n</html>\n"
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

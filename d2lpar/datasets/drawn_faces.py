"""Pixel faces put together at random from the sprites of ``data/sprites.png``.

It has a row of tiles for each of :data:`LAYERS`. In its palette 0 is transparent, 1
erases what is below, and :data:`TONES` change from face to face.
"""

from __future__ import annotations

from pathlib import Path

import numpy
from PIL import Image

SPRITES = Path(__file__).parent / "data" / "sprites.png"
SIDE = 24  # pixels along each side of a sprite and of a face
CHUNK = 500  # faces are drawn in whole chunks, so that more of them begin alike

# From back to front: how many sprites a layer has, and how many of the faces have one.
LAYERS = {
    "head": (1, 1.0),
    "clothes": (8, 0.9),
    "nose": (4, 1.0),
    "mark": (8, 0.25),
    "beard": (8, 0.35),
    "mouth": (8, 1.0),
    "eyes": (8, 1.0),
    "brows": (6, 0.9),
    "hair": (16, 0.9),
    "eyewear": (12, 0.3),
    "earring": (4, 0.2),
    "hat": (12, 0.3),
    "prop": (8, 0.15),
}
# By entries of the palette (tone, darker, lighter): tones of which a face has one.
# fmt: off
TONES = {
    # skin, hair
    (13, 14, 15): "f7dac4 efc49c e0aa78 cf9560 b97f4c a0683a 855030 754528 5f3826"
                  "9cbc7c",
    (16, 17, 18): "4a3a34 6b4526 8f5f2f b98542 e3bf62 f0e2a4 b4532a d8702e 9a9aa2"
                  "e2e2e2 d8457a 3f86d8 3fae6a 8a56c8",
    # clothes, hat, lips
    (19, 20): "c8504a 4a78b8 4f9a6a d8a840 8a5aa8 5c6672 e0dcd0 d87a4a 3fa0a0 a8486a",
    (21, 22, 23): "d0473f 3f6fc0 3f9a58 e0b040 7c4fb0 6a5f58 4c5a6c e07a3c 2f9c9c"
                  "d86a9c",
    (24, 25): "b0413e d05a6a c8407c 9a4a3a e07a6a 7a3a5a",
    # glass, pupils, make-up, frames
    (26, 27, 28): "59c3d8 e8704a 7a4fb8 3c4a5c e0b83c 58b070",
    (29,): "3a2a20 2f5f9a 3f7a4a 5a5a66 7a4a20",
    (30,): "7a52c0 3f9ad0 d05090 40a878 e0a030",
    (31,): "c03a3a e07ab0 e8e4dc 3f6fb0 9a6a3a",
}
# fmt: on


def synthetic_punks(n: int = 10_000, seed: int = 0) -> numpy.ndarray:
    """Draw `n` faces, uint8 (n, 3, 24, 24), in RGB.

    The first k of a seed are the same for every n >= k.
    """
    with Image.open(SPRITES) as picture:
        sprites = numpy.asarray(picture).reshape(len(LAYERS), SIDE, -1, SIDE)
        palette = numpy.array(picture.getpalette(), numpy.uint8).reshape(-1, 3)
    sprites = sprites.swapaxes(1, 2)  # (layers, tiles, 24, 24), entries of the palette
    # Half of the heads are slim, without two columns of the cheek and a row of the
    # forehead, so that every sprite fits both.
    rows = [0, *(r for r in range(SIDE) if r != 7)]
    columns = [0, *(c for c in range(SIDE) if c not in (15, 16)), SIDE - 1]
    chunks = []
    for number in range(-(-n // CHUNK)):
        rng = numpy.random.default_rng([seed, number])
        faces = numpy.full((CHUNK, SIDE, SIDE), 1, numpy.uint8)
        for row, (count, share) in zip(sprites, LAYERS.values()):
            chosen = row[rng.integers(count, size=CHUNK)]
            seen = (rng.random((CHUNK, 1, 1)) < share) & (chosen != 0)
            numpy.copyto(faces, chosen, where=seen)
        palettes = numpy.tile(palette, (CHUNK, 1, 1))
        for entries, colours in TONES.items():
            tones = numpy.frombuffer(bytes.fromhex(colours), numpy.uint8).reshape(-1, 3)
            tone = tones[rng.integers(len(tones), size=CHUNK)]
            shades = tone, 0.76 * tone, 0.7 * tone + 0.3 * 255
            for entry, shade in zip(entries, shades):
                palettes[:, entry] = shade
        slim = rng.random(CHUNK) < 0.5
        faces[slim] = faces[slim][:, rows][:, :, columns]
        pixels = palettes[numpy.arange(CHUNK)[:, None, None], faces]
        chunks.append(numpy.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return numpy.concatenate(chunks)[:n]

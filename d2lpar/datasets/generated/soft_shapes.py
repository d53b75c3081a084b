"""Soft shapes and cloth, with random measures, from which garments are painted.

A shape is given by the inside distance of each pixel: how far it is from the edge,
negative outside. :func:`soft` makes a mask of it: the coverage of each pixel, between 0
and 1. All pictures of a batch are computed at once, in arrays of shape (n, 28, 28); a
shape's measures are random numbers of shape (n, 1, 1).

Lengths are in pixels. ``u`` grows to the right and ``v`` downwards. Both are zero in
the middle of the garment, so that the frame is about -14..14 in each direction.
"""

from __future__ import annotations

from functools import reduce

import numpy as np


def soft(distance):
    """Coverage of pixels whose centres are ``distance`` inside an edge."""
    return np.clip(distance + np.float32(0.5), 0, 1)


def within(*distances):
    """Inside distance of the intersection of several shapes."""
    return reduce(np.minimum, distances)


def ramp(t, *points):
    """Piecewise-linear function of ``t`` through (knot, value) points, flat outside."""
    out = points[0][1]
    for (k0, a), (k1, b) in zip(points, points[1:]):
        out = out + (b - a) / (k1 - k0) * np.clip(t - k0, 0, k1 - k0)
    return out


def limb(a, v, *, origin, angle, length, widths):
    """Inside distance of a blunt limb that begins at ``origin`` (a, v).

    ``angle`` is from downwards, and half its width goes from ``widths[0]`` to
    ``widths[1]``.
    """
    (x, y), (start, end) = origin, widths
    sin, cos = np.sin(angle), np.cos(angle)
    along = (a - x) * sin + (v - y) * cos
    across = np.abs((a - x) * cos - (v - y) * sin)
    width = start + (end - start) * np.clip(along / length, 0, 1)
    return within(width - across, length - along, along + start)


def oval(u, v, width, height, pointed=0.0):
    """Inside distance of an ellipse, or (``pointed`` = 1) of a diamond."""
    p, q = np.abs(u / width), np.abs(v / height)
    radius = np.sqrt(p * p + q * q)
    radius += pointed * (p + q - radius)
    return (1 - radius) * np.minimum(width, height)


def contrast(tone):
    """A tone that stands out from ``tone``."""
    return np.where(tone > 0.58, np.float32(0.12), np.float32(0.95))


def box(u, v, width, height, corner):
    """Inside distance of a box with rounded corners."""
    p, q = np.abs(u) - width + corner, np.abs(v) - height + corner
    outside = np.sqrt(np.maximum(p, 0) ** 2 + np.maximum(q, 0) ** 2)
    return corner - outside - np.minimum(np.maximum(p, q), 0)


class Batch:
    """``n`` pictures of one cut being painted, with the randomness to do it."""

    def __init__(self, rng: np.random.Generator, n: int):
        self.rng, self.n = rng, n
        self.img = np.zeros((n, 28, 28), np.float32)
        y, x = np.mgrid[-13.5:14.5, -13.5:14.5].astype(np.float32)
        x, y = x - self.uni(-0.8, 0.8), y - self.uni(-0.6, 0.6)
        turn, bend = self.normal(0.02), self.normal(0.35)
        size_u, size_v = self.uni(0.93, 1.05), self.uni(0.94, 1.03)
        self.u = (x + turn * y) / size_u
        self.v = (y - turn * x) / size_v
        self.u += bend * np.square(self.v / 14)

    # The next four draw measures: one random number per picture, of shape (n, 1, 1).

    def uni(self, low, high):
        """Uniform in [low, high)."""
        return low + (high - low) * self.rng.random((self.n, 1, 1), np.float32)

    def normal(self, scale):
        """Normal, with mean 0 and standard deviation ``scale``."""
        return scale * self.rng.standard_normal((self.n, 1, 1), np.float32)

    def flip(self, chance):
        """1 with the given chance, else 0."""
        return (self.rng.random((self.n, 1, 1)) < chance).astype(np.float32)

    def pick(self, chances, *measures):
        """Choose a kind per picture, then draw each measure from the kind's range."""
        edges = np.cumsum(chances)[:-1]
        kind = np.searchsorted(edges, self.rng.random((self.n, 1, 1)))
        table = np.asarray(measures, np.float32)
        return [self.uni(t[kind, 0], t[kind, 1]) for t in table]

    def paint(self, mask, tone):
        """Lay ``tone`` over the pictures where ``mask`` (0 to 1) covers them."""
        self.img += mask * (tone - self.img)

    def stripes(self, period, angle, phase=0.0):
        """A wave between -1 and 1, with edges as sharp as those of stripes."""
        t = self.u * np.sin(angle) + self.v * np.cos(angle)
        return np.clip(2.5 * np.sin(t * (2 * np.pi / period) + phase), -1, 1)

    def cloth(self, plain=0.5):
        """Tones of a random cloth: base, light, folds, stripes, checks and prints."""
        u, v = self.u, self.v
        base = 0.2 + 0.8 * np.sqrt(self.uni(0, 1))
        light = 1 - self.uni(0, 0.25) * np.square(u / 13) + self.normal(0.08) * v / 14
        slant = self.normal(0.25)
        light += self.uni(0, 0.08) * np.sin((u + slant * v) * self.uni(0.5, 1.3))
        rest = (1 - plain) / 5
        # One row per amount, one column per kind of cloth.
        stripes, cross, print_, graphic = self.pick(
            (plain, rest, rest, rest, rest, rest),
            ((0, 0), (0.15, 0.5), (0.1, 0.25), (0, 0), (0, 0), (0, 0)),
            ((0, 0), (0, 0), (0.1, 0.25), (0, 0), (0, 0), (0, 0)),
            ((0, 0), (0, 0), (0, 0), (0.15, 0.5), (0, 0), (0.05, 0.15)),
            ((0, 0), (0, 0), (0, 0), (0, 0), (0.3, 0.9), (0, 0)),
        )
        period, angle = self.uni(2.6, 8), self.flip(0.3) * np.float32(np.pi / 2)
        tone = base * light
        tone *= 1 - stripes * (1 + self.stripes(period, angle, self.uni(0, 6)))
        tone *= 1 - cross * (1 + self.stripes(period, angle + np.float32(np.pi / 2)))
        blots = self.blots()
        tone *= 1 - print_ * 2 * blots
        motif = oval(u, v + self.uni(1, 5), self.uni(1.5, 4), self.uni(1, 3.5))
        ink = contrast(base) * (1 - 0.4 * blots)
        tone += soft(motif) * graphic * (ink - tone)
        return tone

    def blots(self):
        """Spots between 0 and 1, a few pixels wide."""
        dots = self.rng.random((self.n, 30, 30), np.float32)
        dots = dots[:, 1:] + dots[:, :-1]
        dots = dots[:, :, 2:] + dots[:, :, 1:-1] + dots[:, :, :-2]
        return np.clip(0.7 * dots[:, 1:] - 1.6, 0, 1)

    def finish(self):
        """The pictures as uint8, with a grain on all but the black background."""
        grain = self.rng.standard_normal(self.img.shape, np.float32)
        self.img *= 1 + self.uni(0.01, 0.07) * grain
        return np.rint(np.clip(self.img, 0, 1) * 255).astype(np.uint8)

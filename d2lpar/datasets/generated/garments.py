"""Pictures of garments, drawn from a small seeded grammar.

A garment is made of a few soft shapes (a trunk, sleeves, a sole, a handle, ...) with
random measures, painted one over the other with a random cloth. Units and axes are
those of :mod:`d2lpar.datasets.generated.soft_shapes`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from d2lpar.datasets.generated.soft_shapes import (
    Batch,
    box,
    contrast,
    limb,
    oval,
    ramp,
    soft,
    within,
)


class _Cut(NamedTuple):
    """The differences between upper garments: ranges of lengths, and chances."""

    shoulder: tuple = (6.8, 8.6)
    waist: tuple = (0.78, 0.96)  # of the shoulder, as is the hem
    hem: tuple = (0.82, 1.0)
    waist_at: tuple = (0, 4)
    bottom: tuple = (11.5, 13.5)
    sleeves: tuple = (0.1, 0.8, 0.1, 0.0)  # none, short, to the elbow, long
    sleeve_width: tuple = (2.2, 3.0)  # half of it
    neck: tuple = (1.5, 4.5)
    vneck: float = 0.2
    collar: float = 0.05
    hood: float = 0.0
    placket: float = 0.05
    open_front: float = 0.0
    rib: float = 0.0
    pockets: float = 0.0
    belt: float = 0.0
    plain: float = 0.65


# fmt: off
_CUTS = {
    "t-shirt/top": _Cut(),
    "pullover": _Cut(
        shoulder=(6.6, 8.4), waist=(0.68, 0.9), hem=(0.7, 0.95), neck=(1.2, 2.8),
        sleeves=(0.02, 0.02, 0.06, 0.9), hood=0.12, rib=0.75,
    ),
    "dress": _Cut(
        shoulder=(3.9, 5.8), waist=(0.65, 0.95), hem=(0.8, 1.8), neck=(1.5, 5),
        sleeves=(0.5, 0.28, 0.1, 0.12), vneck=0.35, belt=0.35,
        waist_at=(-4, 0), bottom=(12.5, 14),
    ),
    "coat": _Cut(
        shoulder=(6.4, 8.2), waist=(0.74, 0.95), hem=(0.82, 1.1), neck=(2.5, 8),
        sleeves=(0.04, 0.0, 0.02, 0.94), vneck=0.75, belt=0.12, bottom=(12.5, 14),
        sleeve_width=(2.5, 3.4), collar=0.7, hood=0.2, placket=0.85, open_front=0.2,
        pockets=0.65, plain=0.75,
    ),
    "shirt": _Cut(
        shoulder=(6.6, 8.6), waist=(0.7, 0.92), hem=(0.74, 0.98), vneck=0.5,
        sleeves=(0.04, 0.24, 0.1, 0.62), collar=0.75, placket=0.85, plain=0.45,
    ),
}
# fmt: on


def _upper(b: Batch, cut: _Cut):
    """T-shirt, pullover, dress, coat or shirt: a trunk, two sleeves, a front."""
    a, v = np.abs(b.u), b.v
    hood = b.flip(cut.hood)
    top, bottom = -13.3 + 3.2 * hood, b.uni(*cut.bottom)
    shoulder, neck_width = b.uni(*cut.shoulder), b.uni(2.2, 3.6)
    length, angle, cuff = b.pick(
        cut.sleeves,
        ((0.1, 0.5), (3.5, 7), (9, 13), (19, 22.5)),
        ((0.3, 0.5), (0.45, 1.05), (0.2, 0.45), (0.06, 0.26)),
        ((0.4, 0.8), (1.8, 3.0), (1.6, 2.4), (1.3, 1.9)),
    )
    tone = b.cloth(cut.plain)
    thick = np.minimum(b.uni(*cut.sleeve_width), cuff + 1.5)
    slope = b.uni(0.25, 0.6)
    arm_y = top + slope * (shoulder - neck_width) + thick * 0.8
    sleeve = limb(
        a, v, origin=(shoulder - thick, arm_y), angle=angle, length=length + thick,
        widths=(thick, cuff),
    )  # fmt: skip
    b.paint(soft(sleeve), tone * (b.uni(0.75, 1.05) + b.flip(0.08) * b.normal(0.3)))

    waist = (b.uni(*cut.waist_at), shoulder * b.uni(*cut.waist))
    hem = (bottom, shoulder * b.uni(*cut.hem))
    half = ramp(v, (arm_y, shoulder), waist, hem)
    hem_line = bottom - b.normal(0.02) * a * a
    trunk = within(half - a, hem_line - v, v - top - slope * (a - neck_width))
    inside = soft(trunk)
    b.paint(inside, tone * (1 - b.uni(0.1, 0.6) * np.clip(1.4 - trunk, 0, 1)))

    rib = b.flip(cut.rib) * b.uni(0.1, 0.35)
    b.paint(inside * soft(v - bottom + 2) * rib, tone * 0.2)
    belt = soft(0.9 - np.abs(v - waist[0])) * b.flip(cut.belt)
    b.paint(inside * belt, tone * b.uni(0.2, 0.7))
    _front(b, cut, tone, inside, top)
    _neck(b, cut, tone, top=top, width=neck_width, hood=hood)


def _front(b, cut, tone, inside, top):
    """Button or zip line, an open front, pockets."""
    u, v, a = b.u, b.v, np.abs(b.u)
    line = soft(0.5 - np.abs(u - b.uni(-0.6, 0.6))) * b.flip(cut.placket)
    dots = np.clip(b.stripes(b.uni(2.5, 5), np.float32(0)), b.flip(0.4), 1)
    b.paint(inside * line * (0.35 + 0.4 * dots), b.flip(0.3) * b.uni(0.6, 1))
    gap = np.clip(v - top - b.uni(1, 6), 0, 30) * b.uni(0.05, 0.16)
    b.paint(soft(gap - a) * b.flip(cut.open_front), tone * b.uni(0, 0.4))
    pocket_v, pocket_u = b.uni(2, 7), b.uni(2.6, 4.2)
    slant, size = b.uni(-2.2, -1.5), b.uni(1.5, 3)
    pocket = limb(
        a, v, origin=(pocket_u, pocket_v), angle=slant, length=size, widths=(0.6, 0.6)
    )
    b.paint(inside * soft(pocket) * b.flip(cut.pockets), tone * b.uni(0.2, 0.7))


def _neck(b, cut, tone, *, top, width, hood):
    """The neckline with the back of the garment behind it; a collar; a hood."""
    u, v = b.u, b.v - top
    depth, pointed = b.uni(*cut.neck), b.flip(cut.vneck)
    hole = oval(u, v, width, depth, pointed)
    collar = b.flip(cut.collar)
    back = soft(v - b.uni(0.4, 1.6) * (1 - collar)) * b.uni(0.2, 0.7)
    b.paint(soft(hole), tone * back)
    reach, angle = b.uni(2.5, 5), b.uni(-0.5, 0.3)
    flap = limb(
        np.abs(u), v, origin=(width - 0.3, 0.6), angle=angle, length=reach,
        widths=(b.uni(1, 1.9), 0.7),
    )  # fmt: skip
    b.paint(soft(flap + 1) * (v > 0.5) * collar, tone * b.uni(0.2, 0.6))
    b.paint(soft(flap) * collar, tone * b.uni(0.85, 1.25))
    shape = oval(u, v - 0.5, width + b.uni(0.6, 1.8), b.uni(3.8, 4.6))
    b.paint(soft(shape) * hood, tone * b.uni(0.8, 1))
    b.paint(soft(shape - 1.6) * hood, tone * b.uni(0.15, 0.5))


def _trouser(b: Batch):
    """Two legs under a waistband."""
    a, v = np.abs(b.u), b.v
    tone = b.cloth(plain=0.75)
    top, bottom = np.float32(-13.4), b.uni(11.5, 14)
    waist, crotch = b.uni(4.2, 6.2), b.uni(-6.5, -1.5)
    hips = ((top, waist * b.uni(0.8, 0.95)), (crotch - 1, waist * b.uni(1.0, 1.2)))
    outer = ramp(v, *hips, (bottom, waist * b.uni(0.9, 1.4)))
    fork = ((crotch - 1, np.float32(-1.5)), (crotch + 1, 0.3))
    inner = ramp(v, *fork, (bottom, b.uni(0.6, 2.6)))
    legs = within(outer - a, a - inner, bottom - v, v - top)
    b.paint(soft(legs), tone * (1 - b.uni(0, 0.45) * np.clip(1.6 - legs, 0, 1)))
    waistband = soft(0.5 - np.abs(v - top - b.uni(1.5, 3)))
    lines = np.maximum(soft(0.5 - a) * (v < crotch), waistband)
    b.paint(soft(legs) * lines * b.uni(0, 0.5), tone * 0.3)


class _Foot(NamedTuple):
    """Shared measures of a shoe seen from its left side, toe to the left."""

    s: np.ndarray  # along the shoe, -13 at the toe and 13 at the heel
    h: np.ndarray  # height over the ground
    arch: np.ndarray  # height of the foot bed over the ground at s


def _foot(b: Batch, height, heel, half_length):
    """A foot raised by ``heel`` at its back, centred for a shoe of ``height``."""
    s = b.u * (13 / half_length)
    h = height / 2 - b.v
    low, high = b.uni(-5, -2), b.uni(5, 8)
    return _Foot(s, h, ramp(s, (low, np.float32(0)), (high, heel)))


def _heel(b, foot, heel, wedge, tone):
    """Fill below the foot bed: a block at the back, or a whole wedge."""
    front = 13 - b.pick((0.5, 0.5), ((1.2, 2.5), (3, 7)))[0]
    front = front * (1 - wedge) - 13 * wedge + foot.h * b.uni(-0.1, 0.3)
    under = within(foot.arch + 0.6 - foot.h, foot.h)
    block = within(foot.s - front, 12.8 - foot.s, under)
    b.paint(soft(block) * (heel > 0.8), tone)


def _low_upper(b, foot, throat, collar):
    """Inside distance of a low shoe: its outline rises from toe to throat to heel."""
    s, rise = foot.s, foot.h - foot.arch
    toe, throat_at = b.uni(0.42, 0.6) * throat, b.uni(-2.5, 2.5)
    outline = ramp(
        s,
        (np.float32(-13.4), toe * 0.2),
        (np.float32(-12.2), toe * 0.75),
        (np.float32(-9.5), toe),
        (throat_at - 3.5, np.maximum(toe, throat * b.uni(0.62, 0.78))),
        (throat_at, throat),
        (b.uni(5, 7), collar),
        (np.float32(11.5), collar + b.uni(0.3, 2)),
        (np.float32(13), collar - 0.5),
    )
    heel_edge = 12.9 - s - b.uni(0, 0.1) * rise
    return within(outline - rise, heel_edge, rise), throat_at


def _sneaker(b: Batch):
    """A low shoe with a thick sole, laces and a mark on its side."""
    high_top = b.flip(0.12)
    throat = b.uni(7.5, 10.5) + high_top * b.uni(1, 4)
    collar = throat - b.uni(0.4, 2.4) + high_top * b.uni(0, 1.5)
    foot = _foot(b, throat + 1.5, b.uni(0, 0.8), np.float32(13))
    tone = b.cloth(plain=0.7)
    upper, throat_at = _low_upper(b, foot, throat, collar)
    body = soft(upper)
    b.paint(body, tone * (1 - 0.3 * np.clip(1.5 - upper, 0, 1)))

    s, h = foot.s, foot.h
    mark_at, lean = b.uni(-2, 4), b.uni(-1.2, 1.2)
    t = s - mark_at + lean * (h - 4)
    bars = np.clip(2 * np.sin(t * b.uni(1.2, 2.6)), 0, 1)
    bars *= soft(b.uni(0.8, 3.2) - np.abs(t))
    ink = contrast(tone)
    b.paint(soft(upper - 1) * bars * b.flip(0.65) * b.uni(0.3, 0.9), ink)
    lace_zone = soft(2.2 - upper) * soft(3 - np.abs(s - throat_at + 3.5)) * (h > 3)
    laces = lace_zone * (b.stripes(b.uni(1.8, 2.6), np.float32(1.2)) > 0)
    b.paint(body * laces * b.uni(0, 0.8), ink)

    thick = b.uni(1.2, 2.6)
    sole = within(thick - h, h + 0.3, 13.3 - np.abs(s))
    b.paint(soft(sole), b.uni(0.1, 1))
    b.paint(body * soft(0.4 - np.abs(h - thick - 0.4)) * b.uni(0, 0.8), tone * 0.2)


def _boot(b: Batch):
    """A shoe with a shaft over the ankle, on a flat, block or high heel."""
    heel, shaft, half = b.pick(
        (0.6, 0.4),
        ((0.2, 2.2), (3.5, 8)),
        ((15, 24), (12, 19)),
        ((11.5, 13.2), (9.5, 12)),
    )
    height = np.minimum(heel + shaft, 26.8)
    foot = _foot(b, height, heel, half)
    tone = b.cloth(plain=0.85)
    throat = b.uni(7, 9.5)
    upper, throat_at = _low_upper(b, foot, throat, throat + 1)
    s, h = foot.s, foot.h
    front = throat_at - b.uni(1.5, 3.5) + b.uni(-0.1, 0.25) * (h - 8)
    back = 12.6 - b.uni(0, 0.12) * (h - heel)
    brim = height - b.normal(0.08) * s
    leg = within(s - front, back - s, brim - h, h - foot.arch - 1)
    body = np.maximum(upper, leg)
    inside = soft(body)
    b.paint(inside, tone * (1 - 0.35 * np.clip(1.6 - body, 0, 1)))

    seam = soft(0.5 - np.abs(s - b.uni(1, 8) - b.uni(-0.3, 0.3) * h)) * b.flip(0.4)
    strap = soft(0.8 - np.abs(h - heel - b.uni(4, 10) + 0.15 * s)) * b.flip(0.3)
    b.paint(inside * np.maximum(seam, strap) * b.uni(0.3, 0.9), tone * 0.25)
    laces = soft(1.8 - np.abs(s - front - 1.4)) * (b.stripes(2.2, b.uni(-0.3, 0)) > 0)
    ink = contrast(tone)
    b.paint(inside * laces * (h > foot.arch + 4) * b.flip(0.45) * b.uni(0.3, 0.8), ink)

    _heel(b, foot, heel, b.flip(0.1), tone * b.uni(0.3, 1))
    rise = h - foot.arch
    sole = within(b.uni(0.6, 2) - rise, rise + 0.4, 13.2 - np.abs(s))
    b.paint(soft(sole), b.uni(0.1, 0.9))


def _sandal(b: Batch):
    """A bare sole with a few straps: flat, wedge or high heel."""
    heel, half, throat, ankle = b.pick(
        (0.45, 0.2, 0.35),
        ((0, 1), (2.5, 6), (7, 12)),
        ((12.6, 13.4), (11.5, 13), (9.5, 12)),
        ((5, 9), (5, 8), (5, 8)),
        ((0, 5), (1, 6), (3, 9)),
    )
    height = np.minimum(heel + ankle + 5, 26.5)
    foot = _foot(b, height, heel, half)
    tone = b.cloth(plain=0.8)
    s, rise = foot.s, foot.h - foot.arch
    upper, _ = _low_upper(b, foot, throat, throat * b.uni(0.5, 1))
    straps = np.zeros_like(s)
    for chance, low, high in ((1.0, -11, -7), (0.75, -7, -1), (0.4, -2, 5)):
        t = s - b.uni(low, high) - b.uni(-0.7, 0.7) * rise
        straps = np.maximum(straps, soft(b.uni(0.8, 2.2) - np.abs(t)) * b.flip(chance))
    edge = soft(b.uni(0.2, 0.8) - np.abs(upper - 0.7)) * (s > b.uni(-9, 2))
    straps = np.maximum(straps, edge * b.flip(0.6)) * soft(upper)
    b.paint(straps, tone)

    ring_u, ring_h = s - b.uni(7, 9), rise - 2.5 - ankle * 0.8
    ring = np.abs(oval(ring_u, ring_h, b.uni(3, 4.2), b.uni(1, 2.2)))
    post = within(b.uni(0.5, 1) - np.abs(s - 11.2), -ring_h)
    bound = np.maximum(soft(0.6 - ring), soft(post)) * b.flip(0.6) * (rise > 0)
    b.paint(bound, tone * b.uni(0.7, 1.1))

    wedge = np.where(heel < 6.5, b.flip(0.8), b.flip(0.15))
    _heel(b, foot, heel, wedge, tone * b.uni(0.4, 1.1))
    sole = within(b.uni(1.2, 3) - rise, rise + 0.4, 13.2 - np.abs(s))
    b.paint(soft(sole), tone * b.uni(0.5, 1.1))


def _bag(b: Batch):
    """A body with a handle, a pair of straps, a shoulder strap, or none."""
    width, tall, arch, arch_width = b.pick(
        (0.3, 0.25, 0.25, 0.2),  # handbag, tote, shoulder bag, clutch
        ((11, 13.8), (8.5, 12), (10.5, 13.5), (12.5, 13.8)),
        ((7, 9.5), (8.5, 10), (7, 9.5), (7, 11)),
        ((4, 8), (7, 10), (4, 9), (0.1, 0.2)),
        ((3, 6), (2.5, 4.5), (10, 13), (3, 5)),
    )
    tone = b.cloth(plain=0.55)
    u, v = b.u, b.v - arch / 2
    ring = oval(u, v + tall - 1, arch_width, arch + 1)
    handle = soft(b.uni(0.5, 1.1) - np.abs(ring)) * (v < 1 - tall) * (arch > 1)
    b.paint(handle, tone * b.uni(0.5, 1.1))

    taper = 1 + b.uni(-0.02, 0.25) * np.clip(v / tall, -1, 1) * 0.5
    body = box(u / taper, v, width * 0.92, tall, b.uni(0.5, 4))
    inside = soft(body)
    b.paint(inside, tone * (1 - b.uni(0, 0.5) * np.clip(1.5 - body, 0, 1)))
    line_at = b.uni(-0.8, 0.3) * tall + b.flip(0.4) * b.normal(0.2) * np.abs(u)
    line = soft(0.5 - np.abs(v - line_at))
    b.paint(inside * line * b.uni(0, 0.8), tone * 0.2)
    b.paint(inside * soft(line_at - v) * b.uni(0, 0.4), tone * b.uni(0.4, 1.3))
    clasp = oval(u, v - line_at, b.uni(0.8, 1.8), b.uni(0.8, 1.8))
    b.paint(soft(clasp) * b.flip(0.5), b.flip(0.6))


_RENDERERS = {
    "trouser": _trouser,
    "sandal": _sandal,
    "sneaker": _sneaker,
    "bag": _bag,
    "ankle boot": _boot,
}


def draw(cut: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """`n` pictures uint8 (n, 28, 28) of garments cut like `cut`, a class's name."""
    batch = Batch(rng, n)
    if cut in _CUTS:
        _upper(batch, _CUTS[cut])
    else:
        _RENDERERS[cut](batch)
    return batch.finish()

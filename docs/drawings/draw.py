"""Draw the ideas of the chapters as SVG, beside this file.

    python docs/drawings/draw.py

All text stands on a filled box, so that the drawings can be read on a white page and on
a dark one. They are narrow, with large letters, for the screen of a phone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
BLUE, ORANGE = "#1f5fa8", "#a3480a"  # devices 0 and 1, under white letters
GREEN, SLATE = "#1b6b45", "#46505c"  # what all devices share; data
LINE, PAPER, INK = "#808890", "#eceff3", "#1d2430"


class Drawing:
    """Boxes, arrows and labels, collected as SVG elements. Units are pixels."""

    def __init__(self, width: int, height: int, title: str, text: str) -> None:
        self.size, self.title, self.text = (width, height), title, text
        self.elements: list[str] = []

    def box(self, x, y, w, h, lines: str, fill: str, *, color: str = "#fff") -> None:
        """A rounded box with one or more centred lines of text."""
        self.elements.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7" fill="{fill}"/>'
        )
        rows = lines.split("\n")
        first = y + h / 2 - 11 * (len(rows) - 1) + 6
        for k, row in enumerate(rows):
            self.elements.append(
                f'<text x="{x + w / 2:g}" y="{first + 22 * k:g}" fill="{color}">'
                f"{escape(row)}</text>"
            )

    def label(self, x, y, w, h, lines: str) -> None:
        """A pale box that explains what is beside it."""
        self.box(x, y, w, h, lines, PAPER, color=INK)

    def frame(self, x, y, w, h, color: str) -> None:
        """The border of one device, process or machine."""
        self.elements.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="10" fill="none" '
            f'stroke="{color}" stroke-width="2"/>'
        )

    def arrow(self, x1, y1, x2, y2, *, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 5"' * dashed
        self.elements.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" '
            f'stroke-width="2.5"{dash} marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        width, height = self.size
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} '
                f'{height}" width="{width}" height="{height}" role="img" '
                'font-family="system-ui, Helvetica, Arial, sans-serif" '
                'font-size="16" text-anchor="middle">',
                f"<title>{escape(self.title)}</title>",
                f"<desc>{escape(self.text)}</desc>",
                '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" '
                'markerWidth="5" markerHeight="5" orient="auto-start-reverse">'
                f'<path d="M0 0 L10 5 L0 10 z" fill="{LINE}"/></marker></defs>',
                *self.elements,
                "</svg>\n",
            ]
        )


def split_allreduce_update() -> Drawing:
    """One step of data-parallel training on two devices, from top to bottom."""
    d = Drawing(
        620, 560, "One step of data-parallel training on two devices",
        "The batch of 256 is split into two shards of 128. Each device computes the "
        "gradient of its shard, forward and backward. All-reduce gives every device "
        "the sum of the gradients. Each device takes the same step, so that the "
        "replicas stay equal.",
    )  # fmt: skip
    d.box(190, 0, 240, 48, "global batch: 256 images", SLATE)
    left, right = (20, BLUE, 0), (330, ORANGE, 1)
    for x, color, k in (left, right):
        middle = x + 135
        d.arrow(270 if k == 0 else 350, 48, middle, 96)
        d.frame(x, 98, 270, 462, color)
        d.box(x + 16, 112, 238, 54, f"device {k}: its shard\n128 images", color)
        d.arrow(middle, 166, middle, 194)
        d.box(
            x + 16,
            196,
            238,
            76,
            f"2. forward, backward\nwith its replica of w:\ng{k} = gradient of Σ loss",
            color,
        )
        d.arrow(middle, 272, middle, 316)
        d.arrow(middle, 380, middle, 424)
        d.box(x + 16, 426, 238, 54, "4. update w by\n− lr · (g0 + g1) / 256", color)
        d.label(x + 16, 494, 238, 54, "the same w\non both devices")
    d.label(246, 58, 128, 32, "1. split")
    d.box(
        36,
        318,
        548,
        62,
        "3. all-reduce: both devices get the sum g0 + g1\n"
        "the only communication of the step",
        GREEN,
    )
    return d


def rows_over_devices() -> Drawing:
    """Least squares: every device keeps some rows of A and b."""
    d = Drawing(
        620, 540, "Least squares with the rows of A on two devices",
        "A has many rows and few columns. Device 0 holds the upper half of the rows of "
        "A and b, device 1 the lower half. Each makes something small of its rows, "
        "with n or n x n numbers. All-reduce adds these up; no row ever moves.",
    )  # fmt: skip
    d.label(20, 0, 270, 34, "A: m rows, n columns")
    d.label(310, 0, 90, 34, "x: n")
    d.label(420, 0, 70, 34, "b: m")
    for k, (y, color) in enumerate(((46, BLUE), (142, ORANGE))):
        d.box(20, y, 270, 92, f"A{k}\nthe rows of device {k}", color)
        d.box(420, y, 70, 92, f"b{k}", color)
    d.box(330, 46, 50, 92, "x", GREEN)
    d.label(500, 118, 120, 52, "find x with\nA x ≈ b")
    d.label(396, 70, 18, 34, "≈")
    d.label(301, 70, 18, 34, "·")
    for x, color, k in ((20, BLUE, 0), (330, ORANGE, 1)):
        middle = x + 135
        d.frame(x, 254, 270, 132, color)
        d.box(
            x + 12,
            266,
            246,
            108,
            f"device {k} makes of its rows\n"
            f"normal: A{k}ᵀA{k} and A{k}ᵀb{k}\n"
            f"cgls: A{k}ᵀ(A{k} p), every time\n"
            f"tsqr: R{k} of A{k} = Q{k} R{k}",
            color,
        )
        d.arrow(middle, 386, middle, 426)
    d.box(
        20,
        428,
        580,
        56,
        "all devices together: n × n or n numbers of each\n"
        "added up (normal, cgls) or factorised once more (tsqr)",
        GREEN,
    )
    d.arrow(310, 484, 310, 504)
    d.label(150, 506, 320, 34, "x, the same on every device")
    return d


def parameter_server() -> Drawing:
    """Workers push gradients to servers and pull their sums."""
    d = Drawing(
        620, 500, "Several machines: workers and a parameter server",
        "Two workers, each with two devices, take their part of every batch. Each "
        "pushes the sum of its gradients to the server. The server waits for all "
        "workers, adds up what they pushed, and they pull the sum. A scheduler "
        "introduces all of them to each other.",
    )  # fmt: skip
    d.box(
        150,
        0,
        320,
        84,
        "server\nwaits for the push of every worker,\nthen adds them up: G = G0 + G1",
        GREEN,
    )
    d.label(500, 0, 120, 84, "scheduler\nknows where\nall are")
    d.arrow(500, 42, 472, 42, dashed=True)
    for x, color, k in ((20, BLUE, 0), (330, ORANGE, 1)):
        up, down = (200, 250) if k == 0 else (420, 370)
        d.arrow(up, 196, up, 86)
        d.arrow(down, 86, down, 196)
        d.frame(x, 198, 270, 302, color)
        d.box(x + 16, 212, 238, 54, f"worker {k}: a process\non any machine", color)
        d.label(x + 16, 276, 238, 54, "its part of each batch,\nsplit over its devices")
        for j in (0, 1):
            d.box(x + 16 + 123 * j, 340, 115, 54, f"device {j}\ngradient", color)
        d.label(x + 16, 404, 238, 34, f"sum of its devices: G{k}")
        d.box(x + 16, 448, 238, 40, "w ← w − lr · G / batch", color)
    d.label(100, 124, 90, 34, "push G0")
    d.label(260, 124, 100, 34, "pull G")
    d.label(430, 124, 90, 34, "push G1")
    return d


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "split-allreduce-update.svg": split_allreduce_update,
    "rows-over-devices.svg": rows_over_devices,
    "parameter-server.svg": parameter_server,
}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (HERE / name).write_text(draw().svg(), encoding="utf-8")

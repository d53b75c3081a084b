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
        rows = lines.split("\n") if lines else []
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


def ways_to_split() -> Drawing:
    """A network of three layers on two devices, split in three ways."""
    d = Drawing(
        620, 372, "Three ways to split a training over two devices",
        "By layers: device 0 has the first layers, device 1 the last ones; the outputs "
        "travel from one to the other. By channels: each device has half of every "
        "layer; the outputs of every layer travel. By data: each device has all layers "
        "and half of the images; only the gradients travel, once per step.",
    )  # fmt: skip
    d.label(0, 0, 196, 34, "by layers")
    d.label(212, 0, 196, 34, "by channels")
    d.label(424, 0, 196, 34, "by data")
    for x in (0, 212):
        d.box(x, 44, 196, 34, "all images", SLATE)
    for x, k in ((424, 0), (524, 1)):
        d.box(x, 44, 96, 34, f"half {k}", SLATE)
    for row in range(3):
        y, layer = 92 + 78 * row, f"layer {row + 1}"
        d.box(0, y, 196, 44, layer, (BLUE, BLUE, ORANGE)[row])
        d.box(212, y, 96, 44, layer, BLUE)
        d.box(312, y, 96, 44, layer, ORANGE)
        d.box(424, y, 96, 44, layer, BLUE)
        d.box(524, y, 96, 44, layer, ORANGE)
        d.box(212, y + 48, 196, 26, "outputs", GREEN)
    d.box(0, 218, 196, 26, "outputs", GREEN)
    d.box(424, 296, 196, 26, "gradients", GREEN)
    d.box(0, 338, 144, 34, "device 0", BLUE)
    d.box(154, 338, 144, 34, "device 1", ORANGE)
    d.box(308, 338, 312, 34, "what travels between them", GREEN)
    return d


def collectives() -> Drawing:
    """Five operations on arrays of three devices: before and after."""
    d = Drawing(
        620, 318, "Five collectives on three devices, before and after",
        "A, B and C are the arrays of devices 0, 1 and 2, and S is A + B + C. "
        "Broadcast: all get A. Reduce: device 0 gets S. All-reduce: all get S. "
        "Reduce-scatter: device k gets part k of S. All-gather: all get "
        "all parts, which are S.",
    )  # fmt: skip
    d.label(0, 0, 138, 40, "S = A + B + C")
    d.label(148, 0, 214, 40, "before: devices 0, 1, 2")
    d.label(406, 0, 214, 40, "after: devices 0, 1, 2")
    parts = ("S0", "S1", "S2")
    for row, (name, before, after) in enumerate(
        (
            ("broadcast", ("A", "", ""), ("A", "A", "A")),
            ("reduce", ("A", "B", "C"), ("S", "", "")),
            ("all-reduce", ("A", "B", "C"), ("S", "S", "S")),
            ("reduce-scatter", ("A", "B", "C"), parts),
            ("all-gather", parts, ("S", "S", "S")),
        )
    ):
        y = 54 + 54 * row
        d.label(0, y, 138, 42, name)
        for k, color in enumerate((BLUE, ORANGE, SLATE)):
            d.box(148 + 72 * k, y, 70, 42, before[k], color if before[k] else PAPER)
            d.box(
                406 + 72 * k,
                y,
                70,
                42,
                after[k],
                (GREEN if "S" in after[k] else BLUE) if after[k] else PAPER,
            )
        d.arrow(368, y + 21, 400, y + 21)
    return d


def split_allreduce_update() -> Drawing:
    """One step of data-parallel training on two devices, from top to bottom."""
    d = Drawing(
        620, 576, "One step of data-parallel training on two devices",
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
        d.frame(x, 98, 270, 476, color)
        d.box(x + 16, 112, 238, 54, f"device {k}: its shard\n128 images", color)
        d.arrow(middle, 166, middle, 194)
        d.box(
            x + 16,
            196,
            238,
            84,
            f"2. forward, backward\nwith its replica of w:\ng{k} = gradient of Σ loss",
            color,
        )
        d.arrow(middle, 280, middle, 324)
        d.arrow(middle, 392, middle, 434)
        d.box(x + 16, 436, 238, 56, "4. update w by\n− lr · (g0 + g1) / 256", color)
        d.label(x + 16, 504, 238, 56, "the same w\non both devices")
    d.label(246, 58, 128, 32, "1. split")
    d.box(
        36,
        326,
        548,
        66,
        "3. all-reduce: both devices get the sum g0 + g1\n"
        "the only communication of the step",
        GREEN,
    )
    return d


def rows_over_devices() -> Drawing:
    """Least squares: every device keeps some rows of A and b."""
    d = Drawing(
        620, 550, "Least squares with the rows of A on two devices",
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
        d.frame(x, 254, 270, 142, color)
        d.box(
            x + 12,
            266,
            246,
            118,
            f"device {k} makes of its rows\n"
            f"normal: A{k}ᵀA{k} and A{k}ᵀb{k}\n"
            f"cgls: A{k}ᵀ(A{k} p), every time\n"
            f"tsqr: R{k} of A{k} = Q{k} R{k}",
            color,
        )
        d.arrow(middle, 396, middle, 434)
    d.box(
        20,
        436,
        580,
        58,
        "all devices together: n × n or n numbers of each\n"
        "added up (normal, cgls) or factorised once more (tsqr)",
        GREEN,
    )
    d.arrow(310, 494, 310, 514)
    d.label(150, 516, 320, 34, "x, the same on every device")
    return d


def parameter_server() -> Drawing:
    """Workers push gradients to servers and pull their sums."""
    d = Drawing(
        620, 502, "Several machines: workers and a parameter server",
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


def host_and_device() -> Drawing:
    """Two memories and the link between them, with the numbers of a T4."""
    d = Drawing(
        620, 404, "A host and a device: two memories with a slow link between them",
        "The host has a memory of its own, and so has the device. A copy between them "
        "goes over a link of at most 16 GB/s. The cores of a T4 read the T4's memory "
        "at 320 GB/s, 20 times as fast.",
    )  # fmt: skip
    for x, color, name, cores in (
        (20, BLUE, "the host", "a few cores\nPython and NumPy\nrun here"),
        (370, ORANGE, "a device, here a T4", "2,560 simple cores"),
    ):
        middle = x + 115
        d.frame(x, 2, 230, 400, color)
        d.label(x + 15, 14, 200, 34, name)
        d.box(x + 15, 62, 200, 76, cores, color)
        d.arrow(middle, 180, middle, 140)
        d.arrow(middle, 216, middle, 256)
    d.label(55, 181, 160, 34, "its own memory")
    d.label(405, 181, 160, 34, "320 GB/s")
    d.box(35, 258, 200, 126, "host memory\nx\na NumPy array", BLUE)
    d.box(385, 258, 200, 126, "device memory\nx_device\nan array of its own", ORANGE)
    d.arrow(235, 282, 383, 282)
    d.arrow(385, 360, 237, 360)
    d.label(256, 292, 108, 58, "the link:\n16 GB/s")
    return d


def asynchronous_call() -> Drawing:
    """What two clocks measure around a call that returns before its work is done."""
    d = Drawing(
        620, 330, "A call returns before the device has done the work",
        "Time goes from left to right. Python asks for a tangent, which takes a "
        "moment, and goes on. The device computes for much longer. A clock that is "
        "read when the call has returned measures the asking. A clock that is read "
        "after waiting measures the work.",
    )  # fmt: skip
    d.label(0, 20, 96, 54, "Python")
    d.label(0, 124, 96, 54, "device")
    d.box(110, 20, 86, 54, "np.tan(x)", BLUE)
    d.box(204, 20, 106, 54, "free to do\nother things", SLATE)
    d.box(318, 20, 200, 54, "npx.waitall()\nwaits", BLUE)
    d.box(150, 124, 360, 54, "computes the tangents", ORANGE)
    d.arrow(160, 74, 160, 122)
    d.arrow(506, 124, 506, 76)
    d.arrow(110, 200, 196, 200)
    d.label(110, 212, 280, 40, "the naive clock: time to ask")
    d.arrow(110, 274, 518, 274)
    d.label(110, 286, 408, 40, "the right clock: time until it is done")
    return d


def step_costs() -> Drawing:
    """Three steps in a row, with a small batch and with a large one."""
    d = Drawing(
        620, 504, "Three steps on one device and on two",
        "Python issues the work of one device after the other and goes on to the next "
        "step, while the devices compute side by side. With a small batch Python takes "
        "longer, and two devices need twice its time. With a large batch the devices "
        "take longer, and two need little more than half.",
    )  # fmt: skip
    for y, work, batch in (
        (0, 30, "small batch: Python takes longer"),
        (254, 160, "large batch: the devices take longer"),
    ):
        d.label(0, y, 620, 34, f"{batch}; 1, 2, 3: the steps; green: all-reduce")
        _three_steps(d, y + 42, 1, work)
        _three_steps(d, y + 118, 2, work // 2)
    return d


def _three_steps(d: Drawing, top: int, num_devices: int, work: int) -> None:
    """A lane for Python and one for each device; a shard takes `work` pixels."""
    issue, python, free = 38, 96, 0
    for k, name in enumerate(["Python", "device 0", "device 1"][: num_devices + 1]):
        d.label(0, top + 35 * k, 86, 33, name)
    for step in "123":
        starts = []
        for k in range(num_devices):
            d.box(python, top, issue - 2, 33, step, SLATE)
            python += issue
            starts.append(max(python, free))
            d.box(starts[k], top + 35 * (k + 1), work - 2, 33, step, (BLUE, ORANGE)[k])
        free = max(starts) + work
        if num_devices > 1:
            d.box(free, top + 35, 12, 68, "", GREEN)
            free += 14


def outlier_steps() -> Drawing:
    """How the steps of an integer type are shared out, without an outlier and with."""
    d = Drawing(
        620, 300, "One outlier takes up the steps of all numbers",
        "Eight steps between 0 and the largest number. Without an outlier the numbers "
        "use all eight. With one number that is eight times as large, all others fall "
        "into the first step, and six steps are used by no number.",
    )  # fmt: skip
    for y, words, used, most in (
        (0, "without an outlier: all steps are used", range(8), "1"),
        (160, "with an outlier: the others share one step", (0, 7), "8"),
    ):
        d.label(0, y, 620, 34, words)
        for k in range(8):
            fill = (ORANGE if (y and k == 7) else BLUE) if k in used else LINE
            d.box(10 + 75 * k, y + 46, 71, 44, str(k) if k in used else "", fill)
        d.label(10, y + 100, 71, 34, "0")
        d.label(535, y + 100, 71, 34, most)
    return d


def gan_step() -> Drawing:
    """The two updates of a GAN's step, as every device takes part in them."""
    d = Drawing(
        620, 442, "One step of a GAN on several devices",
        "Each device has a shard of the noise and of the real faces. Its replica of "
        "the generator G makes fakes once. The discriminator D judges real faces and "
        "fakes, and the gradient stops at the fakes. The gradients of D are "
        "all-reduced and D is updated. The updated D judges the same fakes, and the "
        "gradient goes through it into G, whose gradients are all-reduced before its "
        "update.",
    )  # fmt: skip
    d.box(20, 0, 270, 54, "noise z\nthe shard of a device", SLATE)
    d.box(330, 0, 270, 54, "real faces X\nthe shard of a device", SLATE)
    d.arrow(155, 54, 155, 84)
    d.box(20, 86, 270, 40, "1. G makes fakes, once", ORANGE)
    d.arrow(155, 126, 155, 156)
    d.arrow(465, 54, 465, 156)
    d.box(
        20,
        158,
        580,
        54,
        "2. D judges X and the fakes, which are detached:\nno gradient reaches G",
        BLUE,
    )
    d.arrow(310, 212, 310, 242)
    d.box(20, 244, 580, 40, "3. all-reduce the gradients of D; Adam updates D", GREEN)
    d.arrow(310, 284, 310, 314)
    d.box(
        20,
        316,
        580,
        54,
        "4. the updated D judges the same fakes:\nthe gradient goes through D into G",
        ORANGE,
    )
    d.arrow(310, 370, 310, 400)
    d.box(20, 402, 580, 40, "5. all-reduce the gradients of G; Adam updates G", GREEN)
    return d


def queues_of_devices() -> Drawing:
    """What a device is: a queue of work, with cores and memory behind it."""
    d = Drawing(
        620, 476, "Two kinds of device: a CPU context and a GPU, each with a queue",
        "Python hands work to a device and goes on. Each device has a queue of its own "
        "and computes what is in it, in order. A CPU context computes with threads "
        "of the host and shares the host's memory. A GPU has thousands of cores and a "
        "memory of its own, behind a link that is slow beside it. A training uses "
        "several devices of one kind.",
    )  # fmt: skip
    d.box(10, 0, 600, 62, "Python: hands work to a device, and goes on\n"
          "without waiting for the result", SLATE)  # fmt: skip
    for x, color, name, cores, memory in (
        (10, BLUE, "mx.cpu(0)", "a few fast cores:\nthreads of the host",
         "the host's memory, which\nall CPU contexts share"),
        (364, ORANGE, "mx.gpu(0)", "thousands of simple\ncores of its own",
         "a memory of its own,\nsmaller and faster"),
    ):  # fmt: skip
        middle = x + 123
        d.arrow(middle, 62, middle, 102)
        d.frame(x, 104, 246, 370, color)
        d.box(x + 12, 118, 222, 38, f"device {name}", color)
        d.label(x + 12, 168, 222, 34, "its queue, in order")
        for k, work in enumerate(("copy", "× 2", "sum")):
            d.box(x + 12 + 76 * k, 212, 70, 38, work, color)
        d.arrow(middle, 250, middle, 282)
        d.box(x + 12, 284, 222, 64, cores, color)
        d.arrow(middle, 348, middle, 380)
        d.box(x + 12, 382, 222, 64, memory, color)
    d.label(258, 118, 104, 60, "one kind,\nor the other")
    d.label(274, 340, 72, 54, "slow\nlink")
    d.arrow(260, 410, 360, 410)
    d.arrow(360, 428, 260, 428)
    return d


def memory_of_a_device() -> Drawing:
    """What a training keeps on a device, to scale, and what a second device halves."""
    outputs, gradients, images, parameters = 39.4, 26.4, 0.8, 1.0  # MiB, counted
    d = Drawing(
        620, 442, "What takes the memory of a device, on one device and on two",
        "LeNet with a batch of 256, to scale: the outputs of all layers take 39.4 MiB, "
        "their gradients 26.4 MiB, the images 0.8 MiB. On two devices each keeps half "
        "of that. Parameters and their gradients take 1.0 MiB on every device.",
    )  # fmt: skip
    for x, title, shard in ((10, "one device: 256 images", 1),
                            (320, "each of two: 128 images", 2)):  # fmt: skip
        d.label(x, 0, 290, 38, title)
        d.frame(x, 48, 290, 332, SLATE)
        y = lowest = 60
        for size, lines, color in (
            (outputs / shard, "outputs, kept", ORANGE),
            (gradients / shard, "their gradients", ORANGE),
            (images / shard, "images", ORANGE),
            (parameters, "weights, grads", BLUE),
        ):
            height = round(4 * size)
            d.box(x + 12, y, 56, max(height - 1, 1), "", color)
            lowest = max(lowest, round(y + height / 2 - 15))
            d.label(x + 76, lowest, 204, 30, f"{lines}: {size:.1f} MiB")
            lowest += 34
            y += height
    d.box(10, 390, 290, 50, "the same on every device,\nwhatever the batch", BLUE)
    d.box(320, 390, 290, 50, "grows with the shard,\nhalf on each of two", ORANGE)
    return d


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "queues-of-devices.svg": queues_of_devices,
    "memory-of-a-device.svg": memory_of_a_device,
    "ways-to-split.svg": ways_to_split,
    "collectives.svg": collectives,
    "split-allreduce-update.svg": split_allreduce_update,
    "rows-over-devices.svg": rows_over_devices,
    "parameter-server.svg": parameter_server,
    "host-and-device.svg": host_and_device,
    "asynchronous-call.svg": asynchronous_call,
    "step-costs.svg": step_costs,
    "gan-step.svg": gan_step,
    "outlier-steps.svg": outlier_steps,
}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (HERE / name).write_text(draw().svg(), encoding="utf-8")

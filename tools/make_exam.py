"""An exam with numbers of its own for each year, and the answers for lecturers.

    python tools/make_exam.py [--seed 2027]

Writes build/exam/exam.md and build/exam/answers.md. The questions are none of the
exercises in the chapters. Each can be answered on paper with a calculator.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy

FOLDER = Path(__file__).parents[1] / "build" / "exam"
HEAD = "# Data-parallel training: {what} of {seed}\n\n"


def questions(rng: numpy.random.Generator) -> Iterator[tuple[str, int, str, str]]:
    """Yield chapter, points, question and answer."""

    def one_of(*values):
        return values[rng.integers(len(values))]

    counts = one_of((4, 2, 1), (5, 3, 2), (3, 3, 1), (6, 2, 1))
    means = [int(m) for m in rng.choice(range(2, 20), size=3, replace=False)]
    n = sum(counts)
    total = sum(c * m for c, m in zip(counts, means))
    yield (
        "1 multiple_gpus", 6,
        f"Three devices have {counts} samples and the mean gradients {tuple(means)}. "
        "What is the gradient of the mean loss? What does the plain average of the "
        "three give?",
        f"{total} / {n} = {total / n:.3f}; the plain average is {sum(means) / 3:.3f}.",
    )  # fmt: skip
    devices, lr = int(one_of(2, 4, 8)), one_of(0.05, 0.1, 0.2)
    yield (
        "1 multiple_gpus", 4,
        f"A program divides the sum of the gradients by the shard's size, on {devices} "
        f"devices with equal shards and a learning rate of {lr}. Which program on one "
        "device does it equal?",
        f"That with a learning rate of {devices} * {lr} = {devices * lr:g}.",
    )  # fmt: skip
    shares = [int(s) for s in rng.choice(range(30, 96, 5), size=3)]
    yield (
        "2 devices", 4,
        f"Three GPUs are busy for {', '.join(map(str, shares))} % of a step. How many "
        "times as fast as one GPU that is always busy can they be?",
        f"At most {sum(shares) / 100:.2f} times.",
    )  # fmt: skip
    host, device, copy = one_of(6.0, 9.0, 12.0), one_of(0.4, 0.6), one_of(4.0, 7.0)
    most = math.floor(2 * copy / (host - device)) + 1
    yield (
        "3 arrays", 5,
        f"An operation takes {host:g} ms on the host and {device:g} ms on the device, "
        f"and each of the two copies {copy:g} ms. From how many operations in a row on "
        "is the device faster?",
        f"2 * {copy:g} / ({host:g} - {device:g}) = {2 * copy / (host - device):.2f}: "
        f"from {most} on.",
    )  # fmt: skip
    size, bandwidth = int(one_of(10, 20, 40)), int(one_of(300, 900, 2000))
    least = 2 * 4 * size / bandwidth
    yield (
        "4 timing", 5,
        f"Someone multiplies {size},000,000 float32 numbers by 2 in place on a GPU "
        f"with {bandwidth} GB/s and reports {least / 20:.2g} ms. What do you answer?",
        f"{size}e6 numbers are read and written: "
        f"1e3 * 2 * 4 * {size}e6 / {bandwidth}e9 = {least:.2g} ms at least. "
        "The clock did not wait, or the numbers stayed in a cache.",
    )  # fmt: skip
    fixed, more, per_image = one_of(0.8, 1.0), one_of(0.6, 1.1), one_of(4, 6, 10)
    start = math.floor(1e3 * more / (per_image / 2)) + 1
    one = fixed + per_image * 4 * start / 1e3
    two = fixed + more + per_image / 2 * 4 * start / 1e3
    yield (
        "6 scaling", 6,
        f"A step of b images takes {fixed:g} ms + {per_image} us * b on one device, "
        f"and {fixed + more:g} ms + {per_image / 2:g} us * b on two. From which b on "
        "do two pay? What is their speedup at four times this b?",
        f"{more:g} ms / {per_image / 2:g} us = {1e3 * more / (per_image / 2):.0f}, so "
        f"from {start} on. At {4 * start}: {one / two:.2f}.",
    )  # fmt: skip
    devices, parameters = int(one_of(4, 8, 16)), int(one_of(3, 7, 70))
    sent = 2 * (devices - 1) / devices * 2 * parameters
    yield (
        "7 communication", 6,
        f"A model of {parameters} billion parameters has gradients in 2 bytes on "
        f"{devices} devices. How many GB does each device send in a ring? How many GB "
        "of Adam's two means in float32 does each hold, whole and in pieces?",
        f"2 * {devices - 1} / {devices} * 2 * {parameters} = {sent:.1f} GB; "
        f"{8 * parameters} GB, and {8 * parameters / devices:.1f} GB.",
    )  # fmt: skip
    condition, digits = int(one_of(30, 50, 200)), int(one_of(4, 6))
    descent = condition**2 * digits * math.log(10)
    yield (
        "8 least_squares", 6,
        f"A has a condition of {condition}. About how many steps of gradient descent "
        f"with the step 1 / largest eigenvalue reduce the error by 1e-{digits}? Which "
        "bound holds for CGLS?",
        f"condition^2 ln(1e{digits}) = {descent:,.0f}. CGLS: condition / 2 * ln(2e"
        f"{digits}) = {condition / 2 * math.log(2 * 10**digits):.0f}.",
    )  # fmt: skip
    rows, columns = int(one_of(2, 5, 8)), int(one_of(1000, 4000))
    yield (
        "9 least_squares_large", 4,
        f"A file has {rows},000,000 x {columns} float64 numbers, and a machine 16 GB. "
        "Which bytes do normal equations in blocks of 1,000 rows need, in one pass?",
        f"A block 1e-6 * 8 * 1e3 * {columns} = {8e3 * columns / 1e6:.0f} MB, and the "
        f"Gram matrix 1e-6 * 8 * {columns} * {columns} = "
        f"{8 * columns**2 / 1e6:.0f} MB. The file's "
        f"{rows * columns * 8 / 1e3:.0f} GB stay on disk.",
    )  # fmt: skip
    left, right = int(one_of(1, 2, 3)), int(one_of(7, 9))
    yield (
        "10 gan", 4,
        f"A layer with BatchNorm gets the values {left}, {left} on one device and "
        f"{right}, {right} on another. What is normalised to what, with statistics per "
        "device and with synchronised ones?",
        "Per device the variance is 0, so both become 0. Synchronised: the mean is "
        f"{(left + right) / 2:g}, the deviation {(right - left) / 2:g}: -1 and 1.",
    )  # fmt: skip
    width, batch = int(one_of(1000, 5000)), int(one_of(64, 256))
    yield (
        "11 memory", 5,
        f"A network has {width:,} outputs per image and 20,000 parameters, in float32, "
        f"and trains by SGD with a batch of {batch} on two devices. How many bytes are "
        "outputs, parameters and gradients on each device?",
        f"4 * {batch // 2} * {width:,} = {2 * batch * width:,}, and twice 80,000.",
    )  # fmt: skip
    largest = one_of(2.54, 5.08, 12.7)
    value = round(largest * one_of(0.111, 0.222, 0.333), 3)
    step = largest / 127
    yield (
        "12 low_precision", 5,
        f"A tensor's largest magnitude is {largest}. What is a step of INT8 with a "
        f"sign, and what becomes of {value}?",
        f"{largest} / 127 = {step:.3g}; {round(value / step)} steps, which is "
        f"{round(value / step) * step:.4g}.",
    )  # fmt: skip
    nx, ny = int(rng.integers(100, 400)), int(rng.integers(100, 400))
    blocks = math.ceil(nx / 32), math.ceil(ny / 8)
    yield (
        "13 kernels", 5,
        f"Blocks of 32 x 8 threads cover an array of {nx} columns and {ny} rows. How "
        "many blocks are there, and how many threads are idle?",
        f"{blocks[0]} x {blocks[1]} = {math.prod(blocks)} blocks, "
        f"{256 * math.prod(blocks) - nx * ny:,} idle threads.",
    )  # fmt: skip
    workers, megabytes, gigabits = int(one_of(4, 6)), one_of(0.5, 2), int(one_of(1, 10))
    each = workers * megabytes * 8 / gigabits
    yield (
        "14 multiple_machines", 5,
        f"{workers} workers push gradients of {megabytes} MB to one server over a link "
        f"of {gigabits} Gbit/s. How many ms does a step's traffic take each way? What "
        "if the number of workers doubles?",
        f"{workers} * {megabytes} * 8 / {gigabits} = {each:g} ms; twice as many.",
    )  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=2027)
    seed = parser.parse_args(words).seed
    exam, answers = (
        HEAD.format(what="exam", seed=seed),
        HEAD.format(what="answers", seed=seed),
    )
    total = 0
    for number, (chapter, points, question, answer) in enumerate(
        questions(numpy.random.default_rng(seed)), 1
    ):
        exam += f"{number}. ({points} points) {question}\n\n"
        answers += f"{number}. (chapter {chapter}, {points} points) {answer}\n\n"
        total += points
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in (("exam", exam), ("answers", answers)):
        path = FOLDER / f"{name}.md"
        path.write_text(f"{text}{total} points in all.\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()

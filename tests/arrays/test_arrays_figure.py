"""Pictures and tables of timings: which are drawn, and from which numbers."""

import msgspec
import pytest
from support import factories
from support.drawn import medians

from d2lpar.arrays import figure, result
from d2lpar.records.kinds import Run, TimingRecord


def a_line(operation, library, form, ms, shape=(1000,), num_bytes=8000, flops=1000):
    naive = 0.1 if library == "MXNet" else ms
    return TimingRecord(
        operation=operation,
        library=library,
        version="1",
        form=form,
        dtype="float32",
        shape=list(shape),
        num_bytes=num_bytes,
        flops=flops,
        seconds=[ms * f / 1e3 for f in (0.9, 1, 1.2)],
        naive_seconds=[naive / 1e3] * 3,
        warmup_seconds=[5 * ms / 1e3],
        devices=["gpu(0)" if library == "MXNet" else "host (2 threads)"],
        threads=2,
    )


def a_run(n, only=None, **header):
    lines = [
        a_line("x2", "MXNet", "as written", 4 / n),
        a_line("x2", "MXNet", "one kernel", 2 / n),
        a_line("copy", "MXNet", "copyto", 1 / n, flops=0),
        a_line("product", "MXNet", "dot", 20 / n, (64, 64), 50_000, 500_000),
    ]
    if n == 1:
        lines += [
            a_line("x2", "NumPy", "as written", 4),
            a_line("product", "PyTorch", "as written", 25, (64, 64), 50_000, 500_000),
        ]
    for size in (4096, 16384):
        for operation in result.TRANSFERS:
            lines.append(a_line(operation, "MXNet", "c", 0.1, (size // 4,), size, 0))
    lines = [line for line in lines if only in (None, line.operation)]
    return Run(factories.header(n, chapter="timing", **header), tuple(lines))


def test_pictures_and_text():
    runs = [a_run(2), a_run(1)]
    found = result.result(runs)
    text = [" ".join(line.split()) for line in found.full_text("").splitlines()]
    # 8,000 bytes and 1,000 operations in 2 / 2 ms
    row = "x2 1,000 MXNet one kernel 2 1.00 0.900-1.20 3 0.100 0.00800 0.00100"
    assert row in text
    # Both devices copy 16,384 bytes in 0.1 ms.
    row = "device to host 4,096 MXNet c 2 0.100 0.0900-0.120 3 0.100 0.328 0"
    assert row in text
    assert "reads 0.100 ms for product, dot, on 1 device" in found.sentences[0]
    assert set(figure.pictures(runs)) == {"clocks"}
    assert figure.pictures([a_run(1, "copy")]) == {}


def test_the_naive_clock_is_drawn_beside_the_synchronised_one():
    (axes,) = figure.pictures([a_run(1, "x2")])["clocks"].axes
    ticks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "|"]
    assert ticks == pytest.approx([0.1, 4])  # of the fastest form in each library
    assert medians(axes) == pytest.approx([2, 4])
    assert axes.get_xlabel() == "milliseconds"


def test_repeats_count_together_and_the_host_is_a_device_beside_gpus():
    run = a_run(1, "x2", device_kind="gpu", threads_per_device=None)
    first = run.lines[0]
    again = msgspec.structs.replace(first, seconds=[1.0] * 4)
    rows = result.rows([Run(run.header, (*run.lines, again))])
    assert rows[0].seconds.n == 7 and rows[0].seconds.median == 1.0
    assert [row.where for row in rows] == ["1 device (GPU)", "1 device (GPU)", "CPU"]

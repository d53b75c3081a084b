"""Pictures and tables of timings: which are drawn, and what they say."""

import dataclasses
import re
import subprocess
import sys

import pytest

from d2lpar.errors import RecordError
from d2lpar.figures import timings
from d2lpar.records import kinds, timing_table
from d2lpar.records.kinds import TimingRecord


def a_line(operation, library, form, ms, shape=(1000,), num_bytes=8000, flops=1000):
    naive = 0.1 if library == "MXNet" else ms
    return TimingRecord(
        operation=operation, library=library, version=f"1-{library}", form=form,
        dtype="float32", shape=list(shape), num_bytes=num_bytes, flops=flops,
        seconds=[ms * f / 1e3 for f in (0.9, 1, 1.2)],
        naive_seconds=[naive / 1e3] * 3, warmup_seconds=[5 * ms / 1e3],
        devices=["x"], threads=2, repeat=0,
    )  # fmt: skip


def a_run(n, only=None):
    header = kinds.Header(
        chapter="timing", preset="book", num_devices=n, device_kind="cpu",
        devices=[f"cpu({k}) ({2 // n} thread of 2 cores)" for k in range(n)],
        threads_per_device=2 // n, cores=2, cpu_model="A CPU", dataset="random numbers",
        dataset_sha256="0" * 64, synthetic=False, seed=0, settings={},
        command="d2lpar run timing", versions={"mxnet": "1.9.1"}, git_commit=None,
        git_dirty=None, date="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    lines = [
        a_line("x2", "MXNet", "as written", 4 / n),
        a_line("x2", "MXNet", "one kernel", 2 / n),
        a_line("copy", "MXNet", "copyto", 1 / n, flops=0),
        a_line("sum", "MXNet", "as written", 8 / n, (100, 10), 4000),
        a_line("trig", "MXNet", "one kernel", 3 / n, (50, 50), 10_000, 15_000),
        a_line("product", "MXNet", "dot", 20 / n, (64, 64), 50_000, 500_000),
    ]
    if n == 1:
        lines += [
            a_line("x2", "NumPy", "as written", 4),
            a_line("copy", "NumPy", "copyto", 5, flops=0),
            a_line("trig", "NumPy", "as written, float64", 9, (50, 50), 20_000, 15_000),
            a_line("product", "PyTorch", "as written", 25, (64, 64), 50_000, 500_000),
        ]
    for size in (4096, 16384):
        for operation in ("host to device", "device to host", "device to device"):
            lines.append(a_line(operation, "MXNet", "c", 0.1, (size // 4,), size, 0))
        if n > 1:
            lines.append(a_line("all-reduce", "MXNet", "c", 0.2, (size // 4,), size, 9))
    lines = [line for line in lines if only in (None, line.operation)]
    return kinds.Run(header, tuple(lines))


def words(path):
    return " ".join(re.findall(r">([^<>]+)</text>", path.read_text()))


def test_all_pictures(tmp_path):
    paths = timings.draw([a_run(2), a_run(1)], tmp_path, "book")
    pictures = ("x2", "sum", "trig", "product", "roofline", "copies")
    assert {path.name for path in paths} == {
        f"book-{name}.{ending}" for name in pictures for ending in ("png", "svg")
    } | {"book-results.txt"}
    assert all(path.is_file() for path in paths)
    x2 = words(tmp_path / "book-x2.svg")
    assert "diamonds: calls have returned" in x2 and "2 devices" in x2
    # the fastest copy is of 2 devices: 8,000 bytes in 0.5 ms
    assert "its bytes at a copy's 0.0160 GB/s" in x2
    # 1 ms on two devices, and NumPy's 4
    assert "MXNet, one kernel, 2 devices is the fastest at x\u00a0\u00d7\u00a02" in x2
    assert "4 times as fast as NumPy, as written" in x2
    assert "a copy's" not in words(tmp_path / "book-product.svg")
    roofline = words(tmp_path / "book-roofline.svg")
    # 1,000 operations on 8,000 bytes in 1 ms; the copy takes half of that
    assert "fastest forms reach: x\u00a0\u00d7\u00a02 50%" in roofline
    copies = words(tmp_path / "book-copies.svg")
    assert "0.0819 GB/s" in copies  # 16 KiB in 0.2 ms
    # two devices copy 16 KiB each in 0.1 ms
    assert "0.328 GB/s" in copies and "an all-reduce 0.0819 GB/s" in copies


def test_the_naive_clock_is_drawn_below_the_synchronised_one():
    figure = timings.pictures([a_run(1)])["x2"]
    (axes,) = figure.axes
    marks = [float(x.get_xdata()[0]) for x in axes.lines if x.get_marker() == "D"]
    assert marks == pytest.approx([0.1, 0.1, 4])  # the fastest first
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([2, 4, 4])
    assert axes.get_xscale() == "linear" and axes.get_xlabel() == "milliseconds"


def test_points_lie_under_the_roof_that_is_drawn():
    (axes,) = timings.pictures([a_run(1)])["roofline"].axes
    slope, roof = axes.lines[:2]
    assert slope.get_ydata()[1] == pytest.approx(roof.get_ydata()[0])
    assert slope.get_ydata()[1] / slope.get_xdata()[1] == pytest.approx(0.008)
    assert roof.get_ydata()[1] == pytest.approx(500_000 / 20e-3 / 1e9)


def test_the_host_does_not_count_under_the_roof_of_gpus(tmp_path):
    """What it reads out of its caches is no share of what the GPU's memory allows."""
    host = a_line("sum", "PyTorch", "as written", 0.01, (100, 10), 4000)
    run = a_run(1)
    run = dataclasses.replace(run, lines=(*run.lines, host))
    gpu = dataclasses.replace(run.header, device_kind="gpu", devices=["gpu(0) A GPU"])
    for name, header in (("cpu", run.header), ("gpu", gpu)):
        timings.draw([dataclasses.replace(run, header=header)], tmp_path, name)
    on_cpu, on_gpu = (words(tmp_path / f"{n}-roofline.svg") for n in ("cpu", "gpu"))
    assert "sum 5000%" in on_cpu and "PyTorch, CPU" not in on_cpu
    assert "sum 6%" in on_gpu and "PyTorch, CPU" in on_gpu


def test_one_device_count_has_no_all_reduce(tmp_path):
    timings.draw([a_run(1)], tmp_path, "book")
    text = words(tmp_path / "book-copies.svg")
    assert "all-reduce " not in text and "GB/s by size on 1 context" in text


def test_only_what_was_measured_is_drawn():
    assert set(timings.pictures([a_run(1, only="x2")])) == {"x2"}


def test_results():
    text = timing_table.results([a_run(1), a_run(2)])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    # 8,000 bytes and 1,000 operations in 2 ms
    assert (
        "x2 1,000 MXNet one kernel 2 1.00 (0.95-1.1, n=3) 0.100 5.00 0.00800 0.00100"
        in lines
    )
    faster = "x2: MXNet, one kernel, 2 devices, takes 0.250 times as long as NumPy"
    assert f"{faster}, as written" in lines
    assert any(line.endswith("33.6 ms 4.00 ms for 1,000") for line in lines)
    assert any(line.endswith("4.12 s 9.00 ms for 50 x 50") for line in lines)
    assert any(line.endswith("0.7 ms -") for line in lines)  # there is no GPU here


def test_repeats_count_together():
    run = a_run(1, only="x2")
    first = run.of(TimingRecord)[0]
    both = kinds.Run(run.header, (first, dataclasses.replace(first, seconds=[1.0] * 4)))
    (row,) = timing_table.rows([both])
    assert row.seconds.n == 7 and row.seconds.median == 1.0


def test_a_run_without_timings_is_named(tmp_path):
    empty = a_run(1, only="nothing")
    with pytest.raises(RecordError, match="holds no timings"):
        timings.draw([empty], tmp_path / "out", "book")
    assert not (tmp_path / "out").exists()


def test_imports_no_mxnet():
    code = "import sys, d2lpar.figures.timings; print('mxnet' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr

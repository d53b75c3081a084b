"""Pictures and tables of solvers: which are drawn, and what they say."""

import dataclasses
import re

import pytest
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import drawing, solvers
from d2lpar.records import files, kinds
from d2lpar.records.kinds import PointRecord


def a_run(tmp_path, variant="cgls", num_devices=2, distance=True, points=3):
    header = kinds.Header(
        chapter="least_squares", preset="book", num_devices=num_devices,
        device_kind="cpu",
        devices=[f"cpu({k}) (1 thread of 2 cores)" for k in range(num_devices)],
        threads_per_device=1, cores=2, cpu_model="A CPU", dataset="uniform-100x10",
        dataset_sha256="0" * 64, synthetic=False, seed=0,
        settings={"rows": 100, "columns": 10, "method": variant},
        command="d2lpar run least_squares", versions={"mxnet": "1.9.1"},
        git_commit=None, git_dirty=None, date="2026-01-01T00:00:00+00:00",
        variant=variant,
    )  # fmt: skip
    lines = [
        kinds.PointRecord(
            i, 0.5 * i / num_devices, 30.0 / i, [20.0 / i] * num_devices,
            distance=10.0**-i if distance else None,
            extra={"x_begins": [0.25, -1.5]} if i == points else {},
        )
        for i in range(1, points + 1)
    ]  # fmt: skip
    path = tmp_path / f"{files.run_name(header)}.jsonl"
    files.write(path, header, lines)
    return files.read(path)


def words(path):
    return " ".join(re.findall(r">([^<>]+)</text>", path.read_text()))


def test_all_pictures(tmp_path):
    runs = [
        a_run(tmp_path, variant, n)
        for variant in ("averaging", "averaging-as-published", "cgls", "normal")
        for n in (1, 2)
    ]
    paths = drawing.draw(runs, tmp_path / "out", "book")
    names = {path.name for path in paths}
    assert names == {
        f"book-{what}.{ending}"
        for what in ("devices", "distance", "error")
        for ending in ("png", "svg")
    } | {"book-results.txt"}
    assert all(path.is_file() for path in paths)
    devices = words(tmp_path / "out" / "book-devices.svg")
    assert "1.50 s" in devices and "0.750 s  2.00\u00d7" in devices
    assert "2 contexts solve 2.00 times as fast as 1" in devices
    assert "averaging," not in devices  # it does more work on more devices
    assert "A of 100 \u00d7 10" in devices and "Global batch" not in devices
    error = words(tmp_path / "out" / "book-error.svg")
    assert "error of cpu(0)'s x" in error and "error of cpu(1)'s x" in error
    assert "ends 0% above the optimum, after 3 epochs" in error
    distance = words(tmp_path / "out" / "book-distance.svg")
    assert "normal" in distance and "is the first to end" in distance


def test_without_the_optimum_the_residual_is_drawn(tmp_path):
    runs = [a_run(tmp_path, n, 2, distance=False) for n in ("cgls", "gradient")]
    paths = drawing.draw(runs, tmp_path / "out", "book")
    names = {path.name for path in paths}
    assert names == {"book-residual.png", "book-residual.svg", "book-results.txt"}
    residual = words(tmp_path / "out" / "book-residual.svg")
    assert "CGLS reaches ||A x - b|| = 10.00 in 0.750 s and 3 iterations" in residual
    # sqrt((100 - 10) / 12)
    assert "sqrt((m - n) / 12) = 2.74 is expected" in residual
    assert "cgls: 10.00" in residual and "gradient: 10.00" in residual


def test_one_device_count_makes_no_picture_of_devices(tmp_path):
    names = [p.name for p in drawing.draw([a_run(tmp_path)], tmp_path / "out", "book")]
    assert names == ["book-distance.png", "book-distance.svg", "book-results.txt"]


def test_averaging_is_left_out_of_time_only_where_there_is_more(tmp_path):
    runs = [a_run(tmp_path, "averaging", n) for n in (1, 2)]
    drawing.draw(runs, tmp_path / "out", "book")
    devices = words(tmp_path / "out" / "book-devices.svg")
    assert "averaging, 2 contexts" in devices and "left out" not in devices


def test_results_of_the_least_squares_notes(tmp_path):
    """Error, optimum, each device's error and x, of every method."""
    runs = [a_run(tmp_path, "averaging"), a_run(tmp_path, "cgls", distance=False)]
    text = solvers.results(runs)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[:2] == [
        "least_squares, preset book",
        "least ||A x - b|| of all runs: 10",
    ]
    assert "averaging 2 3 0.750 10 1.0e-03" in lines
    assert "cgls 2 3 0.750 10 not known" in lines
    at = lines.index("averaging, 2 devices: error of each device's x")
    assert list(map(float, lines[at + 1].split())) == [pytest.approx(20 / 3)] * 2
    assert "cgls, 2 devices: error of each device's x" not in lines
    at = lines.index("cgls, 2 devices: x begins")
    assert lines[at + 1 : at + 3] == ["0.25 -1.5", ""]
    assert "Hardware: A CPU, 2 cores." in text and max(map(len, lines)) <= 88


def test_results_of_old_records_have_no_x(tmp_path):
    run = a_run(tmp_path)
    points = tuple(
        kinds.PointRecord(1, 1.0, 3.0, [2.0, 2.0]) for _ in run.of(PointRecord)
    )
    text = solvers.results([kinds.Run(run.header, points, run.path)])
    assert "x begins" not in text


def test_what_fails_leaves_earlier_results_as_they_were(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    runs = [a_run(tmp_path)]
    drawing.draw(runs, tmp_path / "out", "book")
    table = tmp_path / "out" / "book-results.txt"
    table.write_text("earlier")
    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        drawing.draw(runs, tmp_path / "out", "book")
    assert table.read_text() == "earlier"
    assert not [path for path in table.parent.iterdir() if path.name.startswith(".")]


def test_repeats_count_by_their_median(tmp_path):
    run = a_run(tmp_path, points=1)
    other = a_run(tmp_path, num_devices=1)
    more = [
        kinds.PointRecord(1, seconds, 30.0, [20.0] * 2, 0.1, repeat=repeat)
        for repeat, seconds in enumerate((1.0, 9.0, 3.0))
    ]
    run = kinds.Run(run.header, tuple(more), run.path)
    drawing.draw([run, other], tmp_path / "out", "book")
    text = words(tmp_path / "out" / "book-devices.svg")
    assert "1.50 s" in text and "3.00 s  0.50\u00d7" in text
    assert "2 contexts solve 0.50 times as fast as 1" in text


def test_the_whole_x_is_shown_where_it_was_recorded(tmp_path):
    run = a_run(tmp_path, "averaging")
    last = dataclasses.replace(
        run.lines[-1], extra={"x": [1.5, 2.25], "x_begins": [1.5]}
    )
    text = solvers.results([kinds.Run(run.header, (*run.lines[:-1], last), run.path)])
    assert "averaging, 2 devices: x\n1.5 2.25\n" in text and "x begins" not in text


def test_a_run_without_points_is_named(tmp_path):
    empty = a_run(tmp_path, points=0)
    whole = a_run(tmp_path, "normal")
    with pytest.raises(RecordError, match="cgls-cpu2.jsonl: holds no points"):
        drawing.draw([whole, empty], tmp_path / "out", "book")
    assert not (tmp_path / "out").exists()

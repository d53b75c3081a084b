"""Pictures of solvers: which are drawn, and what they say."""

import re

import pytest

from d2lpar import figures, records
from d2lpar.errors import RecordError


def a_run(tmp_path, variant="cgls", num_devices=2, distance=True, points=3):
    header = records.Header(
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
        records.PointRecord(
            i, 0.5 * i / num_devices, 30.0 / i, [20.0 / i] * num_devices,
            distance=10.0**-i if distance else None,
        )
        for i in range(1, points + 1)
    ]  # fmt: skip
    path = tmp_path / f"{records.run_name(header)}.jsonl"
    records.write(path, header, lines)
    return records.read(path)


def words(path):
    return " ".join(re.findall(r">([^<>]+)</text>", path.read_text()))


def test_all_pictures(tmp_path):
    runs = [
        a_run(tmp_path, variant, n)
        for variant in ("averaging", "averaging-as-the-seed", "cgls", "normal")
        for n in (1, 2)
    ]
    paths = figures.draw(runs, tmp_path / "out", "book")
    names = {path.name for path in paths}
    assert names == {
        f"book-{what}.{ending}"
        for what in ("devices", "distance", "error")
        for ending in ("png", "svg")
    }
    devices = words(tmp_path / "out" / "book-devices.svg")
    assert "cgls: 1.50 s on 1, 0.750 s on 2" in devices
    assert "averaging:" not in devices  # it does more work on more devices
    assert "100 rows, 10 columns" in devices and "Global batch" not in devices
    error = words(tmp_path / "out" / "book-error.svg")
    assert "epoch on cpu(0)" in error and "epoch on cpu(1)" in error
    distance = words(tmp_path / "out" / "book-distance.svg")
    assert "normal, 2 devices" in distance


def test_what_is_not_known_is_not_drawn(tmp_path):
    runs = [a_run(tmp_path, distance=False)]
    names = {path.name for path in figures.draw(runs, tmp_path / "out", "book")}
    assert names == {"book-devices.png", "book-devices.svg"}


def test_repeats_count_by_their_median(tmp_path):
    run = a_run(tmp_path, points=1)
    (point,) = run.points
    more = [
        records.PointRecord(1, seconds, 30.0, [20.0] * 2, 0.1, repeat=repeat)
        for repeat, seconds in enumerate((1.0, 9.0, 3.0))
    ]
    run = records.Run(run.header, (), run.path, tuple(more))
    figures.draw([run], tmp_path / "out", "book")
    assert "cgls: 3.00 s on 2" in words(tmp_path / "out" / "book-devices.svg")


def test_a_run_without_points_is_named(tmp_path):
    empty = a_run(tmp_path, points=0)
    whole = a_run(tmp_path, "normal")
    with pytest.raises(RecordError, match="cgls-cpu2.jsonl: holds no points"):
        figures.draw([whole, empty], tmp_path / "out", "book")
    assert not (tmp_path / "out").exists()

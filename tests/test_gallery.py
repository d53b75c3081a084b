"""The gallery: every picture and every number of it comes from the record beside it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import gallery  # noqa: E402
import gallery_tables  # noqa: E402

GALLERY = gallery.FIGURES
README = (GALLERY / "README.md").read_text(encoding="utf-8")
DRAWN = {".png", ".svg", ".gif", ".txt"}
SWEEPS = gallery.sweeps()
WITHOUT = set(gallery.WITHOUT_PICTURES)
BLOCKS = {match["what"]: match[0] for match in gallery_tables.BLOCK.finditer(README)}
LINK = re.compile(r"\]\(([^)]+\.jsonl)\)")


def committed(sweep: str) -> set[str]:
    """The names of the pictures and tables that belong to a sweep.

    Of two sweeps whose stems fit ("book", "book-1thread") it is the longer one.
    """
    folder, _, stem = sweep.rpartition("/")
    stems = [Path(other).name for other in SWEEPS if str(Path(other).parent) == folder]
    return {
        path.name
        for path in (GALLERY / folder).iterdir()
        if path.suffix in DRAWN
        and stem
        == max((s for s in stems if path.stem.startswith(s)), key=len, default="")
    }


# Pictures


def test_every_committed_picture_has_a_record():
    pictures = {
        path.relative_to(GALLERY) for path in GALLERY.rglob("*") if path.suffix in DRAWN
    }
    with_record = {
        Path(sweep).parent / name for sweep in SWEEPS for name in committed(sweep)
    }
    assert pictures == with_record
    assert {sweep for sweep in SWEEPS if not committed(sweep)} == WITHOUT


def title(png: Path) -> str:
    with Image.open(png) as picture:
        return picture.info["Title"]


@pytest.mark.parametrize("sweep", sorted(SWEEPS.keys() - WITHOUT))
def test_records_redraw_what_is_committed(sweep, tmp_path):
    """The same files, and the same findings in their titles."""
    gallery.draw(sweep, SWEEPS[sweep], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == committed(sweep)
    for png in tmp_path.glob("*.png"):
        assert title(png) == title((GALLERY / sweep).parent / png.name)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_small(suffix):
    large = {p: p.stat().st_size for p in GALLERY.rglob(f"*.{suffix}")}
    assert {p: size for p, size in large.items() if size > 200_000} == {}


# Tables


def test_the_readme_is_what_the_records_say():
    assert gallery_tables.rendered(README) == README


def test_every_picture_and_every_record_stands_in_the_readme():
    shown = set(re.findall(r"\]\(([^)]+)\)", README))
    there = {p.relative_to(GALLERY).as_posix() for p in GALLERY.rglob("*.png")}
    there |= {p.relative_to(GALLERY).as_posix() for p in GALLERY.rglob("*.jsonl")}
    assert there <= shown
    for link in shown:
        assert (GALLERY / link.partition("#")[0]).exists(), link


def test_prose_has_no_measured_number():
    """Outside of the blocks no number has a decimal point, but versions and rates."""
    prose = gallery_tables.BLOCK.sub("", README)
    allowed = {
        "1.9.1",
        "0.02",
        "0.2",
        "0.7",
        "90.83",
        "124.77",
    }  # versions, rates, notes'
    assert set(re.findall(r"\d+\.\d+(?:\.\d+)?", prose)) <= allowed


def rows_of(block: str) -> tuple[list[str], list[list[str]]]:
    lines = [x for x in block.splitlines() if x.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return cells[0], [row[:-1] + [row[-1].rstrip("|").strip()] for row in cells[2:]]


def records(cell: str) -> list[list[dict]]:
    """The raw lines of the records that a cell links to."""
    paths = [GALLERY / link for link in LINK.findall(cell)]
    return [
        [json.loads(line) for line in path.read_text().splitlines()] for path in paths
    ]


def of(lines: list[dict], *kinds: str) -> list[dict]:
    return [line for line in lines if line["kind"] in kinds]


def says(cell: str, value: float) -> bool:
    """Whether a cell shows the value, rounded as the cell is."""
    text = re.search(r"-?[\d,]+\.?\d*(?:e[+-]\d+)?", cell)[0].replace(",", "")
    if "e" in text:
        return f"{value:.1e}" == text
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5001 * 10.0**-digits


def check_spread(cells: list[str], seconds: list[float]) -> None:
    """Median, quartiles and n, as numpy has them."""
    q1, middle, q3 = np.percentile(seconds, (25, 50, 75))
    low, _, high = cells[1].partition(" to ")
    assert says(cells[0], middle) and says(low, q1) and says(high, q3)
    assert int(cells[2]) == len(seconds)


def timed(lines: list[dict]) -> list[float]:
    return [e["seconds"] for e in of(lines, "epoch", "gan-epoch") if e["epoch"] > 1]


def check_training(row: list[str], before: list[list[str]]) -> None:
    (lines,) = records(row[-1])
    check_spread(row[1:4], timed(lines))
    chapter = row[0].partition(",")[0]
    first = next(r for r in [*before, row] if r[0].partition(",")[0] == chapter)
    (base,) = records(first[-1])
    assert says(row[4], median(timed(base)) / median(timed(lines)))
    by_repeat = {e["repeat"]: e["test_acc"] for e in of(lines, "epoch")}
    assert says(row[5], median(by_repeat.values()))
    assert f"{lines[0]['num_devices']} " in row[0]


def check_solvers(row: list[str], before: list[list[str]]) -> None:
    (lines,) = records(row[-1])
    last = {}
    for point in of(lines, "point"):
        last[point["repeat"]] = point
    check_spread(row[2:5], [point["seconds"] for point in last.values()])
    assert int(row[1]) == last[0]["iteration"]
    assert says(row[5], last[0]["residual_norm"])
    if row[6] != "-":
        assert says(row[6], last[0]["distance"])
    assert row[0].startswith(lines[0]["variant"] + ",")


def check_arms(row: list[str], before: list[list[str]]) -> None:
    (lines,) = records(row[-1])
    if not any(s["work"] for s in of(lines, "arm-sample")):
        row, before = ["", *row], [["", *other] for other in before]
    work, name = row[0], row[1].strip("*")
    same = [s for s in of(lines, "arm-sample") if s["work"] == work]
    seconds = {}
    for sample in same:
        if not sample["warm_up"]:
            seconds.setdefault(sample["arm"], []).append(sample["seconds"])
    if row[2].startswith("not measured"):
        assert name not in seconds
        return
    check_spread(row[2:5], seconds[name])
    fastest = min(seconds, key=lambda arm: median(seconds[arm]))
    assert row[1].startswith("**") == (name == fastest)
    equal = gallery_tables.threads_of(name) == gallery_tables.threads_of(fastest)
    if equal:
        assert says(row[5], median(seconds[name]) / median(seconds[fastest]))
    else:
        assert row[5] == "-"
    errors = [s["error"] for s in same if s["arm"] == name and "error" in s]
    if errors:
        assert says(row[6], median(errors))
    # All arms of the work stand in the table, the fastest first.
    shown = [r for r in before if r[0] == work]
    assert len(shown) == sum(
        median(s) < median(seconds[name]) for s in seconds.values()
    )


def check_steps(row: list[str], before: list[list[str]]) -> None:
    batch, by_count, in_turn = int(row[1].replace(",", "")), {}, False
    for lines in records(row[-1]):
        assert row[0] == lines[0]["variant"]
        for step in of(lines, "step"):
            if step["global_batch_size"] == batch:
                in_turn = step.get("num_devices", 0) > 0
                count = step.get("num_devices") or lines[0]["num_devices"]
                by_count[count] = [1e3 * second for second in step["seconds"]]
    one = by_count.pop(1, None)
    expected = [one and median(one)]
    for _, many in sorted(by_count.items()):
        ratio = one and median(one) / median(many)
        if in_turn and one:
            ratio = median(a / b for a, b in zip(one, many))
        expected += [median(many), ratio]
    for cell, value in zip(row[2:-1], expected):
        assert cell == "-" if value is None else says(cell, value)
    assert sum(c != "-" for c in row[2:-1]) == sum(v is not None for v in expected)


def check_precision(row: list[str], before: list[list[str]]) -> None:
    (lines,) = records(row[-1])
    every = {(x["weights"], x["precision"]): x for x in of(lines, "precision")}
    line, base = every[row[0], row[1]], every["trained", "float32"]
    if row[2].startswith("not supported"):
        assert line["why_not"]
        return
    assert says(row[2], line["test_acc"]) and int(row[4]) == line["n"]
    assert says(row[3], line["images_per_sec"])
    assert says(row[5], line["images_per_sec"] / base["images_per_sec"])


def check_timing(row: list[str], before: list[list[str]]) -> None:
    every = [line for lines in records(row[-1]) for line in of(lines, "timing")]
    operation = row[0].partition(",")[0]
    pooled: dict[tuple, list] = {}
    for line in every:
        if line["operation"] == operation:
            n = len(line["devices"]) if line["library"] == "MXNet" else 0
            key = (line["library"], line["form"], n)
            pooled.setdefault(key, []).extend(1e3 * s for s in line["seconds"])
    ours = [median(s) for key, s in pooled.items() if key[0] == "MXNet"]
    assert says(row[4], min(ours))
    if row[3] != "-":
        others = [median(s) for key, s in pooled.items() if key[0] != "MXNet"]
        assert any(says(row[3], ms) for ms in others)


def check_sharing(row: list[str], before: list[list[str]]) -> None:
    found = records(row[-1])
    check_spread(row[1:4], [s for lines in found for s in timed(lines)])
    sent = [
        e["wire_bytes"] / 1e6
        for lines in found
        for e in of(lines, "epoch")
        if e["epoch"] > 1 and e.get("wire_bytes") is not None
    ]
    assert says(row[4], median(sent)) if sent else row[4] == "-"
    for cell, lines in zip(row[5].split(", "), found):
        assert says(cell, of(lines, "epoch")[-1]["test_acc"])


def check_faces(row: list[str], before: list[list[str]]) -> None:
    (lines,) = records(row[-1])
    check_spread(row[2:5], timed(lines))
    frames = [frame for frame in of(lines, "frame") if frame["repeat"] == 0]
    assert says(row[5], frames[0]["quality"]) and says(row[6], frames[-1]["quality"])
    assert int(row[1].replace(",", "")) == of(lines, "gan-epoch")[-1]["epoch"]


CHECKS = {
    "training": check_training, "solvers": check_solvers, "arms": check_arms,
    "steps": check_steps, "precision": check_precision, "timing": check_timing,
    "sharing": check_sharing, "faces": check_faces,
}  # fmt: skip


@pytest.mark.parametrize("what", [w for w in BLOCKS if not w.startswith("pictures")])
def test_every_number_of_a_table_is_its_records(what):
    """Computed again from the record's own lines, which each row links to."""
    _, rows = rows_of(BLOCKS[what])
    assert rows
    for k, row in enumerate(rows):
        CHECKS[what.split()[0]](row, rows[:k])


@pytest.mark.parametrize("what", [w for w in BLOCKS if not w.startswith("pictures")])
def test_every_record_of_a_table_stands_beside_its_command(what):
    sources = [x for x in BLOCKS[what].splitlines() if x.startswith("- `")]
    linked = set()
    for line in sources:
        command = line[3:].partition("`")[0]
        for link in LINK.findall(line):
            header, *lines = map(json.loads, (GALLERY / link).read_text().splitlines())
            assert header["command"] == command
            if any("PyTorch" in x["arm"] for x in of(lines, "arm-sample")):
                assert f"PyTorch {header['versions']['torch']}" in line
            linked.add(link)
    rows = [x for x in BLOCKS[what].splitlines() if x.startswith("|")]
    assert {link for row in rows for link in LINK.findall(row)} == linked


def test_a_wrong_number_is_found():
    """The checks above fail for a table that differs from its record."""
    what = next(w for w in BLOCKS if w.startswith("training"))
    _, rows = rows_of(BLOCKS[what])
    check_training(rows[0], [])
    wrong = [*rows[0]]
    wrong[1] = f"{float(wrong[1]) * 1.1:.1f}"
    with pytest.raises(AssertionError):
        check_training(wrong, [])


# Measuring


def test_every_part_names_its_records_once():
    names = [name for part in gallery.parts() for name in part.records]
    assert len(names) == len(set(names)) > 30
    assert all(part.minutes > 0 and part.commands for part in gallery.parts())
    assert len({part.name for part in gallery.parts()}) == len(gallery.parts())


def test_a_record_is_measured_again_if_its_code_has_changed(monkeypatch):
    path = GALLERY / "multiple_gpus" / "book-cpu1.jsonl"
    assert gallery.why_to_measure(GALLERY / "none.jsonl") == "not measured"

    changed = ["d2lpar/lenet.py"]
    monkeypatch.setattr(gallery, "changed_since", lambda *args: changed[0])
    commit = gallery.files.read(path).header.git_commit[:7]
    why = f"d2lpar/lenet.py has changed since commit {commit}"
    assert gallery.why_to_measure(path) == why
    changed[0] = ""
    assert gallery.why_to_measure(path) == ""
    dirty = GALLERY / "benchmarks" / "growth.jsonl"
    if json.loads(dirty.read_text().splitlines()[0])["git_dirty"]:
        assert "not committed" in gallery.why_to_measure(dirty)


def test_a_disturbed_part_is_measured_again_and_then_deleted(monkeypatch, tmp_path):
    monkeypatch.setattr(gallery, "FIGURES", tmp_path)
    monkeypatch.setattr(gallery, "wait_until_quiet", lambda: None)
    record, shares = tmp_path / "x.jsonl", [50.0, 1.0, 50.0, 50.0]

    def run_commands(part):
        record.touch()
        return shares.pop(0)

    monkeypatch.setattr(gallery, "run_commands", run_commands)
    part = gallery.Part("x", 1, ("python -c pass",), ("x.jsonl",))
    gallery.measure(part)
    assert record.exists() and len(shares) == 2
    with pytest.raises(gallery.RunError, match="x: disturbed twice"):
        gallery.measure(part)
    assert not record.exists()


def test_other_work_is_what_our_commands_did_not_do(monkeypatch):
    """30 of 60 seconds of 2 cores were busy, 24 of them for our command."""
    clocks = {"busy_seconds": [100.0, 130.0], "own_seconds": [5.0, 29.0]}
    for name, values in clocks.items():
        monkeypatch.setattr(gallery, name, lambda values=values: values.pop(0))
    monkeypatch.setattr(gallery.psutil, "cpu_count", lambda: 2)
    ticks = iter([0.0, 0.0, 30.0, 30.0])
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr(gallery, "time", clock)
    part = gallery.Part("x", 1, ("python -c pass",), ())
    assert gallery.run_commands(part) == pytest.approx(100 * 6 / 60)


def test_a_command_that_fails_ends_the_gallery(monkeypatch):
    part = gallery.Part("x", 1, ("python -c 'raise SystemExit(3)'",), ())
    with pytest.raises(gallery.RunError, match="ended with status 3"):
        gallery.run_commands(part)

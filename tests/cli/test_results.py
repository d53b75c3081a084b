"""What runs found: the table, and the sentence that answers the chapter's question."""

import dataclasses
from pathlib import Path

import pytest
from support.factories import header, point, training

from d2lpar.cli import index
from d2lpar.cli.results import result
from d2lpar.records import files
from d2lpar.records.kinds import Header, Run, StepRecord, group

COMMITTED = Path(__file__).parents[2] / "figures"


@pytest.mark.parametrize(
    "seconds, answer",
    [
        ((9.0, 1.0, 1.0, 1.1), "2 contexts train 2.0 times as fast as 1 context."),
        ((9.0, 4.0, 4.1, 4.0), "2 contexts take 2.0 times as long as 1 context."),
        ((9.0, 2.1, 1.9, 2.2), "2 contexts train about as fast as 1 context"),
    ],
)
def test_a_ratio_only_where_the_quartiles_do_not_overlap(seconds, answer):
    one, two = training(1), training(2, seconds)
    found = result([two, one])  # in any order
    assert found.answer.startswith(answer)
    assert "the same test accuracy: 0.800 and 0.800" in found.answer
    assert [line.split()[0] for line in found.table.splitlines()[1:]] == ["1", "2"]


def test_one_device_alone_has_no_ratio():
    found = result([training(1)])
    assert "times" not in found.answer and "0.800" in found.answer


def test_a_solver_names_the_methods_that_reach_the_least_residual():
    runs = [
        Run(header(n, variant=method), (point(iteration, n),))
        for n in (1, 2)
        for method, iteration in (("cgls", 30), ("normal", 30), ("gradient", 3))
    ]
    answer = result(runs).answer
    assert answer == (
        "cgls and normal reach the least residual, 1, within 1 %; the others do not."
    )


def steps(speedups):
    """A run whose steps take 1 s on one device, and 1 / speedup on two."""
    lines = [
        StepRecord(
            global_batch_size=batch,
            steps=1,
            seconds=[1.0 if n == 1 else 1 / speedup],
            issue_seconds=[0.1],
            num_devices=n,
        )
        for batch, speedup in speedups.items()
        for n in (1, 2)
    ]
    return [Run(header(2, chapter="scaling", variant="concise"), tuple(lines))]


@pytest.mark.parametrize(
    "speedups, answer",
    [
        ({2: 0.5, 4: 0.8, 8: 1.2}, "begin to pay between 4 and 8 images"),
        ({2: 0.5, 4: 1.1, 8: 0.9, 16: 1.5}, "begin to pay between 2 and 16 images"),
        ({2: 1.1, 4: 1.8}, "pay at every measured batch, from 2 images on"),
        ({2: 0.5, 4: 0.8}, "do not pay at batches of up to 4 images"),
    ],
)
def test_a_break_even_is_a_range_of_measured_batches(speedups, answer):
    assert answer in result(steps(speedups)).answer


def test_every_committed_record_has_an_answer():
    runs = [files.read(path) for path in sorted(COMMITTED.rglob("*.jsonl"))]
    runs = [run for run in runs if isinstance(run.header, Header)]
    assert len(runs) > 40
    for same in group(runs, files.sweep_of).values():
        found = str(result(same))
        assert found.endswith((".", ".)")) and "nan" not in found
        assert max(map(len, found.splitlines())) <= 100


def test_the_page_shows_each_sweep_with_its_own_pictures(tmp_path):
    folder = tmp_path / "multiple_gpus"
    folder.mkdir()
    for preset in ("quick", "quick-b"):
        run = training(1, preset=preset)
        lines = [run.header, *run.lines]
        texts = [files.to_line(line) + "\n" for line in lines]
        (folder / f"{preset}-cpu1.jsonl").write_text("".join(texts))
        (folder / f"{preset}-seconds.png").write_bytes(b"")
    (folder / "broken-cpu1.jsonl").write_text("{")
    page = index.write(tmp_path)
    text = page.read_text()
    assert text.count('src="multiple_gpus/quick-seconds.png"') == 1
    assert text.count('src="multiple_gpus/quick-b-seconds.png"') == 1
    assert text.count("<h2>") == 2 and "0.800" in text
    assert dataclasses.astuple(result([training(1)]))[0] in text

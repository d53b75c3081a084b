"""What runs found: the table, and the sentence that answers the chapter's question."""

import re
import textwrap
from html import escape
from pathlib import Path

import pytest
from PIL import Image
from support.factories import (
    benchmark_header,
    epoch,
    gan_epoch,
    header,
    point,
    training,
)

from d2lpar import experiments
from d2lpar.cli import report
from d2lpar.errors import D2lparError, RecordError
from d2lpar.experiments import result
from d2lpar.figures import page
from d2lpar.records import files, kinds
from d2lpar.records.kinds import (
    AllReduceRecord,
    FrameRecord,
    Header,
    PrecisionRecord,
    Run,
    StepRecord,
    TimingRecord,
    group,
)

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
    assert found.sentences[0].startswith(answer)
    assert "the same test accuracy: 0.800 and 0.800" in found.sentences[1]
    assert [row[0][0] for row in found.table.rows] == ["1", "2"]


def test_a_single_sample_has_no_ratio():
    found = result([training(1, (9.0,)), training(2, (1.0,))])
    assert found.sentences[0].startswith("Too few epochs")
    solved = [
        Run(
            header(n, variant="cgls", chapter="least_squares"),
            (point(9, n, seconds=float(n)),),
        )
        for n in (1, 2)
    ]
    (reached,) = result(solved).sentences
    assert "times" not in reached


def test_one_device_alone_has_no_ratio():
    (answer,) = result([training(1)]).sentences
    assert "times" not in answer and "0.800" in answer


def test_workers_are_compared_with_those_that_wait_for_each_other():
    ways = {"2bit": 2.0, "async": 1.0, "": 4.0}
    runs = [
        training(2, (9.0, s, s), workers=2, variant=way, chapter="multiple_machines")
        for way, s in ways.items()
    ]
    found = result(runs)
    assert [row[4] for row in found.table.rows] == ["1.00", "2.00", "4.00"]
    assert "2 workers (async) train 4.0 times as fast as" in found.answers["sharing"][1]


def test_seeds_and_repeats_count_together():
    runs = [training(1, (9.0, s, s), seed=k) for k, s in enumerate((1.0, 2.0, 4.0))]
    (row,) = result(runs).table.rows
    assert row[1] == "2.00" and row[3] == "6"


def test_a_solver_names_the_methods_that_reach_the_least_residual():
    runs = [
        Run(
            header(n, variant=method, chapter="least_squares"),
            tuple(point(iteration, n, repeat=repeat) for repeat in (0, 1)),
        )
        for n in (1, 2)
        for method, iteration in (("cgls", 30), ("normal", 30), ("gradient", 3))
    ]
    devices, reached = result(runs).sentences
    assert reached == (
        "cgls and normal reach the least residual, 1, within 1 %; the other methods do "
        "not."
    )
    assert "about as fast" in devices and "times" not in devices


def steps(speedups):
    """A run whose steps take 1 s on one device, and 1 / speedup on two."""
    lines = [
        StepRecord(
            global_batch_size=batch,
            steps=1,
            seconds=[1.0 if n == 1 else 1 / speedup] * 2,
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
        ({2: 0.5, 4: 1.5, 8: 0.9}, "pay at no measured batch but 4 images"),
        ({2: 1.5, 4: 0.9, 8: 1.2}, "pay at no measured batch but 2 and 8 images"),
    ],
)
def test_a_break_even_is_a_range_of_measured_batches(speedups, answer):
    (found,) = result(steps(speedups)).sentences
    assert answer in found


def test_every_committed_record_has_an_answer():
    runs = [files.read(path) for path in sorted(COMMITTED.rglob("*.jsonl"))]
    runs = [run for run in runs if isinstance(run.header, Header)]
    assert len(runs) > 40
    for same in group(runs, files.sweep_of).values():
        found = result(same)
        text = str(found)
        assert text.endswith((".", ".)")) and "nan" not in text
        assert max(map(len, text.splitlines())) <= 110
        assert found.answers and len({len(row) for row in found.table.rows}) == 1


def timing(library, operation="x2", **fields):
    values = {"version": "1", "form": "as written", "dtype": "float32", "shape": [8],
              "num_bytes": 64, "flops": 8, "seconds": [1e-3], "naive_seconds": [0.0],
              "warmup_seconds": [], "devices": ["host"], "threads": 2}  # fmt: skip
    return TimingRecord(operation=operation, library=library, **{**values, **fields})


def precision(name, **fields):
    return PrecisionRecord(
        precision=name, weights="trained", per_device_batch_size=8, **fields
    )


def frame(number, references=None, **measures):
    values = dict.fromkeys(("frechet", "density", "coverage", "distinct"), 0.5)
    values = {**values, **measures} if measures else {}
    return FrameRecord(epoch=number, fixed="", references=references or {}, **values)


MEASURED = {"test_acc": 0.8, "agreement": 1.0, "images_per_sec": 1.0, "n": 1,
            "images_per_sec_q1": 1.0, "images_per_sec_q3": 1.0,
            "weight_bytes": 8}  # fmt: skip
NOISE = dict.fromkeys(("frechet", "density", "coverage", "distinct"), 0.0)
REDUCED = AllReduceRecord(variant="book", num_arrays=1, num_bytes=8)
PARTS = dict.fromkeys(kinds.PARTS, 0.1)
STEPS = [
    StepRecord(
        global_batch_size=size, steps=1, seconds=[1.0], issue_seconds=[], parts=PARTS
    )
    for size in range(1, 3_000)
]
ODD = [
    # chapter, lines, what the answer says
    ("multiple_gpus", [gan_epoch(1)], "Nothing to compare"),
    ("multiple_gpus", [point(1)], "Nothing to compare"),
    ("multiple_gpus", [epoch(3, resumed="elsewhere")], "0.600"),
    ("timing", [timing("NumPy")], "Nothing to compare"),
    ("timing", [timing("NumPy", devices=[])], "Nothing to compare"),
    ("timing", [timing("MXNet", "copy")], "Nothing to compare"),
    ("timing", [timing("CuPy", devices=["gpu(0)"])], "Nothing to compare"),
    ("timing", [epoch(1)], "Nothing to compare"),
    ("low_precision", [precision("float16", why_not="refused")], "nothing to compare"),
    ("low_precision", [precision("float32", why_not="refused")], "nothing to compare"),
    ("low_precision", [precision("float32", **MEASURED)], "nothing to compare"),
    ("low_precision", [precision("float16", **MEASURED)], "nothing to compare"),
    ("low_precision", [epoch(1)], "Nothing to compare"),
    ("least_squares", [point(1, residual_norm=0.0)], "= 0."),
    ("least_squares", [point(1, x_begins=[0.0])], "= 30."),
    ("least_squares", [epoch(1)], "Nothing to compare"),
    ("scaling", [REDUCED], "Nothing to compare"),
    ("scaling", STEPS, "Nothing to compare"),
    ("scaling", [epoch(1)], "Nothing to compare"),
    ("gan", [gan_epoch(1)], "not measured"),
    ("gan", [gan_epoch(1), frame(0, {"noise": NOISE})], "not measured"),
    ("gan", [gan_epoch(1), frame(0, frechet=1.0)], "not measured"),
    ("gan", [gan_epoch(1), frame(0), frame(1, {"black": NOISE}, frechet=1)],
     "not measured"),
    ("gan", [epoch(1)], "Nothing to compare"),
]  # fmt: skip


@pytest.mark.parametrize("chapter, lines, answer", ODD)
def test_an_odd_record_has_an_answer_or_none(chapter, lines, answer):
    runs = [Run(header(n, chapter=chapter), tuple(lines)) for n in (1, 2, 3)]
    assert answer in str(result(runs[:1])).replace("\n", " ")
    assert str(result(runs[1:])).endswith((".", ".)"))


@pytest.mark.slow
@pytest.mark.parametrize("chapter, lines, answer", ODD)
def test_an_odd_record_is_drawn_or_refused(chapter, lines, answer, tmp_path):
    runs = [Run(header(n, chapter=chapter), tuple(lines)) for n in (1, 2)]
    try:
        experiments.draw(runs, tmp_path, "odd")
    except D2lparError:
        assert list(tmp_path.iterdir()) == []


def test_the_answer_is_the_title_of_the_picture_that_shows_it(tmp_path):
    runs = [training(1), training(2, (9.0, 1.0, 1.0, 1.1))]
    titles = {}
    for path in experiments.draw(runs, tmp_path, "book"):
        with Image.open(path) as picture:
            titles[path.stem] = picture.info["Title"]
    assert titles == {
        "book-seconds": "2 contexts train 2.0 times as fast as 1 context",
        "book-accuracy": "Training ends at the same test accuracy: 0.800 and 0.800",
    }


def test_a_title_holds_whole_sentences_on_two_lines():
    short, long = "Two are faster.", "One is slower, " * 4 + "in all."
    assert page.answer([short, long], "") == f"{short} {long}".removesuffix(".")
    title = page.answer([short, long, long], "")
    assert title == f"{short} {long}".removesuffix(".")
    assert len(textwrap.wrap(title, int(7.6 * page.LETTERS))) <= 2
    assert page.answer([3 * long, short], "Seconds") == "Seconds"
    assert page.answer([], "Seconds") == "Seconds"


def test_records_that_share_no_figure_are_named(tmp_path):
    lines = training(1).lines
    for other, name in (
        (Run(header(1, chapter="timing"), (timing("NumPy"),)), "timing"),
        (Run(header(1, chapter="unheard-of"), lines), "unheard-of"),
        (Run(header(1, chapter="devices"), lines), "devices"),
        (Run(benchmark_header(), lines), "''"),
    ):
        with pytest.raises(RecordError, match=name):
            experiments.draw([training(1), other], tmp_path, "book")


def test_the_page_leaves_out_what_it_cannot_show_and_names_it(
    tmp_path, monkeypatch, caplog
):
    """An odd record in the folder must not end the runs after it."""
    odd = header(chapter="timing")
    files.write(tmp_path / "timing" / "odd.jsonl", odd, [timing("NumPy")])
    files.write(tmp_path / "gan" / "good.jsonl", header(chapter="gan"), [gan_epoch(1)])
    known = experiments.result

    def fails(runs):
        if runs[0].header == odd:
            raise IndexError("list index out of range")
        return known(runs)

    monkeypatch.setattr(experiments, "result", fails)
    assert report.write_page(tmp_path).read_text().count("<h2 ") == 1
    (line,) = caplog.messages
    assert "timing/odd.jsonl (IndexError: list index" in line


def test_the_page_shows_each_sweep_with_its_own_pictures(tmp_path, caplog):
    folder = tmp_path / "multiple_gpus"
    folder.mkdir()
    for preset in ("quick", "quick-b"):
        run = training(1, preset=preset)
        lines = [run.header, *run.lines]
        texts = [files.to_line(line) + "\n" for line in lines]
        (folder / f"{preset}-cpu1.jsonl").write_text("".join(texts))
        experiments.draw([run], folder, preset)
        (folder / f"{preset}-results.txt").write_text("further")
    benchmark = header(2, chapter="gpu_scaling", variant="ddp")
    lines = steps({2: 0.5, 4: 1.5})[0].lines
    files.write(tmp_path / "gpu_scaling" / "book-ddp-gpu2.jsonl", benchmark, lines)
    unknown = [files.to_line(header(chapter="unheard-of")), files.to_line(epoch(1))]
    (folder / "unknown-cpu1.jsonl").write_text("\n".join([*unknown, ""]))
    (folder / "broken-cpu1.jsonl").write_text("{")
    text = report.write_page(tmp_path).read_text()
    assert "unknown-cpu1.jsonl: of chapter" in caplog.text
    assert "broken-cpu1.jsonl, line 1" in caplog.text
    assert text.count('src="multiple_gpus/quick-seconds.png"') == 1
    assert text.count('src="multiple_gpus/quick-b-seconds.png"') == 1
    assert text.count("<h2 ") == 3
    # In the order of the chapters: a benchmark stands where its chapter does.
    assert text.index("book-ddp-gpu2.jsonl") > text.index("quick-b-cpu1.jsonl")
    assert text.count('href="multiple_gpus/quick-results.txt"') == 1
    assert text.count('href="multiple_gpus/quick-cpu1.jsonl"') == 1
    # The answering picture is in sight, the other one in a fold; each says its title.
    folds = re.findall("<details>.*?</details>", text, re.DOTALL)
    assert len(folds) == 2 and all("accuracy.png" in fold for fold in folds)
    assert 'alt="Training ends at test accuracy: 0.800"' in text
    assert f"<code>{escape(run.header.command)}</code>" in text
    found = result([training(1)])
    for words in (*found.sentences, *found.table.columns, *found.table.rows[0]):
        assert escape(words) in text

"""What runs found: the table, and the sentence that answers the chapter's question."""

import re
from html import escape
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from PIL import Image
from support.a_study import step
from support.drawn import words
from support.factories import (
    benchmark_header,
    epoch,
    gan_epoch,
    header,
    point,
    training,
)

from d2lpar import experiments
from d2lpar.errors import RecordError
from d2lpar.experiments import result
from d2lpar.lenet import figure as lenet_figure
from d2lpar.records import files, labels
from d2lpar.records.kinds import FrameRecord, Header, Run, group
from d2lpar.records.result import Table
from d2lpar.runs import report, timed

COMMITTED = Path(__file__).parents[2] / "figures"
APART = (4.0, 4.1, 4.1, 4.2), (2.0, 2.05, 2.05, 2.1)
NEAR = (4.0, 4.1, 4.2, 4.3), (3.9, 4.1, 4.3, 4.4)


def trained(n, seconds):
    """A training in a process for each of the seconds, which took turns."""
    lines = [
        epoch(number, s, repeat)
        for repeat, s in enumerate(seconds)
        for number, s in ((1, 9.0), (2, s))
    ]
    head = header(n, recipe="book", turns=[1, 2])
    return Run(head, tuple(lines), Path(f"runs/cpu{n}.jsonl"))


def solver(n, variant):
    size = {"rows": 100, "columns": 10}
    return header(
        n, chapter="least_squares", variant=variant, settings=size, turns=[1, 2]
    )


def solved(n, seconds):
    lines = [point(9, n, seconds=s, repeat=k) for k, s in enumerate(seconds)]
    head = solver(n, "cgls")
    return Run(head, tuple(lines), Path(f"runs/cgls-cpu{n}.jsonl"))


@pytest.mark.parametrize(
    "samples, answer, cell",
    [
        (APART, "2.0 times as fast", "2.00"),
        (APART[::-1], "2.0 times as long", "0.50"),
        (NEAR, "within 15 % (0.99", "0.99="),
        (((4.0, 4.1, 4.2, 4.3), (1.0, 1.0, 1.0, 9.0)), "not told by 4 turns", "2.40?"),
        (((4.0, 4.1, 4.2), (2.0, 2.05, 2.1)), "in general: --repeats 4", "2.00?"),
    ],
)
@pytest.mark.parametrize("run", [trained, solved])
def test_table_sentence_and_picture_agree(run, samples, answer, cell):
    runs = [run(n, seconds) for n, seconds in zip((1, 2), samples)]
    found = result(runs[::-1])  # in any order
    assert answer in " ".join(found.sentences)
    for column in (k for k, c in enumerate(found.table.columns) if c == "speedup"):
        assert [row[column] for row in found.table.rows] == ["1", cell]
    room = experiments.measured_by(runs).room
    pictures = experiments.load(f"{room}.figure:pictures")(runs)
    marks = {"=": " (same)", "?": " (not told)"}
    shown = f"{float(cell[:4]):.2g}\u00d7{marks.get(cell[4:], '')}"
    (name,) = {"seconds", "devices"} & pictures.keys()
    assert any(shown in text for text in words(pictures[name]))


@pytest.mark.parametrize("second", [(3.0,), (3.0, 1.0, 1.0, 1.0)])
def test_a_warm_up_is_never_a_measurement(second):
    """Three runs of one epoch have three warm-ups, which nothing counts or compares."""
    runs = [training(n, of, repeats=3) for n, of in ((1, (9.0,)), (2, second))]
    found = result(runs)
    assert found.table.rows[0][1:5] == ["-", "-", "0", "-"]
    assert found.table.rows[1][4] == "-"
    assert "(-: one epoch, not timed)" in found.note
    assert "(one epoch, not timed)" in " ".join(found.sentences)
    assert "times as" not in str(found)
    shown = words(lenet_figure.pictures(runs)["seconds"])
    assert "not measured: one epoch, not timed" in shown
    assert not any("\u00d7" in text for text in shown)


def test_a_solver_names_the_methods_that_reach_the_least_residual():
    runs = [
        Run(solver(1, method), (point(iteration),))
        for method, iteration in (("cgls", 30), ("normal", 30), ("gradient", 3))
    ]
    assert result(runs).sentences == [
        "2 of 3 methods end within 1 % of the least ||A x - b||, 1: normal and cgls."
    ]


@pytest.mark.parametrize(
    "speedups, answer",
    [
        ({2: 0.5, 4: 0.7, 8: 1.4}, "pay from 8 images on, at most 1.4 times as fast, "
         "at 8 (1.4 to 1.4); slower at 2 and 4 images."),
        ({2: 0.5, 4: 1.4, 8: 0.7, 16: 1.5}, "pay at 4 and 16 images, at most 1.5"),
        ({2: 1.4, 4: 1.8}, "pay from 2 images on, at most 1.8 times as fast, at 4"),
        ({2: 0.5, 4: 0.7}, "2 devices: slower at 2 and 4 images."),
        ({2: 0.5, 4: 1.0, 8: 1.4}, "the same within 15 % at 4 images; slower at 2 im"),
        ({2: 1.0, 4: 1.0}, "2 devices: the same within 15 % at 2 and 4 images."),
    ],
)  # fmt: skip
def test_a_study_says_where_more_devices_pay(speedups, answer):
    lines = [
        step(batch, n, [1 / gain] * 4)
        for batch, ratio in speedups.items()
        for n, gain in ((1, 1.0), (2, ratio))
    ]
    run = Run(header(2, chapter="scaling", variant="concise"), tuple(lines))
    (found,) = result([run]).sentences
    assert answer in found
    few = [msgspec.structs.replace(line, seconds=line.seconds[:3]) for line in lines]
    (found,) = result([Run(run.header, tuple(few))]).sentences
    assert found.startswith("In this run 2 devices were at most ")


def test_every_committed_record_has_an_answer_and_rows_as_csv():
    runs = [files.read(path) for path in sorted(COMMITTED.rglob("*.jsonl"))]
    assert all("\n" in timed.as_csv([run]).strip() for run in runs)
    runs = [run for run in runs if isinstance(run.header, Header)]
    assert len(runs) > 40
    for same in group(runs, files.sweep_of).values():
        found = result(same)
        text = str(found)
        assert text.endswith((".", ".)")) and "nan" not in text
        assert max(map(len, text.splitlines())) <= 110
        assert found.answers and len({len(row) for row in found.table.rows}) == 1


def test_the_answer_is_the_title_of_the_picture_that_shows_it(tmp_path):
    runs = [trained(1, (2.0, 2.0, 1.9, 2.0)), trained(2, (1.0, 1.0, 1.1, 1.0))]
    titles = {}
    for path in experiments.draw(runs, tmp_path):
        with Image.open(path) as picture:
            titles[path.stem] = picture.info["Title"]
    assert titles == {
        "seconds": "Training on 2 devices is 1.9 times as fast as on 1 device (1.7 to "
        "2.2)",
        "accuracy": "Training ends at about the same test accuracy: 0.400 and 0.400",
    }


def test_an_accuracy_of_guessing_is_called_so_beside_one_that_is_not():
    learnt = training(1)
    lines = [msgspec.structs.replace(line, test_acc=0.108) for line in learnt.lines]
    found = result([learnt, Run(header(2), tuple(lines))])
    assert "test accuracy: 0.800 and 0.108 (guessing)" in str(found)
    assert "accuracy 0.800 and 0.108 (guessing)" in found.short


def test_the_trainings_of_several_seeds_are_one_row():
    """Each is a turn, whose median counts once."""
    near, far = (9.0, 1.0, 1.0, 9.0), (9.0, 5.0, 5.0, 5.0)
    trainings = (0.8, near), (0.6, near), (0.5, far)
    runs = [
        Run(header(seed=seed), tuple(
            msgspec.structs.replace(line, test_acc=accuracy, wire_bytes=3_000_000)
            for line in training(1, seconds).lines
        ))
        for seed, (accuracy, seconds) in enumerate(trainings)
    ]  # fmt: skip
    ((_, *found),) = result(runs).table.rows
    assert found[::2] == ["1.00", "9", "3.00"] and found[5] == "0.600 (0.500 to 0.800)"


def test_records_that_share_no_figure_are_named():
    lines = training(1).lines
    for other, name in (
        (Run(header(1, chapter="unheard-of"), lines), "unheard-of"),
        (Run(benchmark_header(), lines), "benchmarks/figure.py"),
    ):
        with pytest.raises(RecordError, match=name):
            result([other])


def test_the_page_leaves_out_what_it_cannot_show_and_names_it(tmp_path, caplog):
    """An odd record in the folder must not end the runs after it."""
    older = training(2, settings={"lr": 9}, date="2025-01-01")
    a_folder(tmp_path, "multiple_gpus", "quick", training(1), older)
    (tmp_path / "multiple_gpus" / "quick" / "broken.jsonl").write_text("{")
    page = report.write_page(tmp_path, report.sweeps(tmp_path))
    assert page.read_text().count("<h2>") == 1
    assert re.search("broken.jsonl, line 1.*differs in .*lr", caplog.text, re.DOTALL)


def test_a_wide_table_has_80_columns_on_a_terminal_and_loses_no_cell():
    columns = ["", "precision", *(f"column {k}" for k in range(7))]
    table = Table(columns, [["trained", "float32", *map(str, range(7))]], names=2)
    lines = table.in_lines(80).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines] == [
        ["precision", *"column 0 column 1 column 2 column 3 column 4 column 5".split()],
        ["trained", "float32", "0", "1", "2", "3", "4", "5"],
        [],
        ["precision", "column", "6"],
        ["trained", "float32", "6"],
    ]


def test_the_page_shows_each_sweep_with_its_own_pictures(tmp_path):
    """Two are in sight, each with its title; the others are links."""
    for recipe in ("quick", "quick,lr=0.1"):
        a_folder(tmp_path, "multiple_gpus", recipe, training(1))
        folder = tmp_path / "multiple_gpus" / recipe
        run = files.read(folder / "cpu1.jsonl")
        experiments.draw([run], folder)
    Image.new("RGB", (8, 8)).save(folder / "film.gif")
    found = experiments.result([run])
    text = report.write_page(tmp_path, report.sweeps(tmp_path)).read_text()
    assert text.count("<h2>") == 2 == text.count("<table>")
    grids = re.findall('<div class="pictures">(.*?)</div>', text, re.DOTALL)
    sources = [re.findall(r'src="\./multiple_gpus/(.*?)"', grid) for grid in grids]
    assert [{*map(unquote, paths)} for paths in sources] == [
        {f"{recipe}/seconds.png", f"{recipe}/accuracy.png"}
        for recipe in ("quick", "quick,lr=0.1")
    ]
    linked = {unquote(x) for x in re.findall(r'href="\./multiple_gpus/(.*?)"', text)}
    assert {"quick,lr=0.1/film.gif", "quick/cpu1.jsonl"} <= linked
    assert 'alt="Training ends at test accuracy: 0.800."' in text
    for expected in (*found.sentences, *found.table.columns, *found.table.rows[0]):
        assert escape(expected) in text
    # Machine, date and data come first.
    first = text.partition("<h1>Results</h1>\n<p>")[2].partition("</p>")[0]
    assert first == "Some CPU, 2 cores; 2026-01-02; Fashion-MNIST."


def test_runs_of_other_settings_are_never_compared_in_a_sentence():
    """One context at batch 10 beside two at 500 were "4 times as fast"."""
    one = training(1, settings={"global_batch_size": 10, "lr": 0.1, "num_epochs": 4})
    two = training(2, settings={"global_batch_size": 500, "lr": 0.3, "num_epochs": 4})
    words = "differ in global_batch_size, lr, .*d2lpar compare runs/.*cpu1"
    with pytest.raises(RecordError, match=words):
        result([two, one])
    # Of methods the settings differ, and counts of devices in a study.
    methods = [
        Run(header(1, chapter="least_squares", settings={"method": m}), (point(1),))
        for m in ("cgls", "normal")
    ]
    assert not experiments.differing_settings(methods)


def a_folder(out, chapter, recipe, *runs):
    """Write the records of a sweep, as a run does."""
    for run in runs:
        head = msgspec.structs.replace(run.header, chapter=chapter, recipe=recipe)
        name = "-".join(filter(None, (head.variant, f"cpu{head.num_devices}")))
        files.write(out / chapter / recipe / f"{name}.jsonl", head, run.lines)


def test_a_failed_method_comes_last_in_grey_and_names_no_picture(tmp_path):
    """One that stops far from the optimum is no faster on two devices."""
    runs = [
        Run(
            solver(n, method),
            tuple(
                point(steps, n, seconds=1 / n ** power, repeat=k) for k in range(4)
            ),
            tmp_path / f"{method}-cpu{n}.jsonl",
        )
        for method, steps, power in (("gradient", 3, 3), ("cgls", 30, 1))
        for n in (2, 1)
    ]  # fmt: skip
    found = result(runs)
    methods = [(row[0], row[3]) for row in found.table.rows]
    assert methods[0][0] == methods[1][0] == "cgls"
    assert methods[2:] == [("gradient", "not converged")] * 2
    (title,) = found.answers["devices"]
    assert "cgls" in title and "2.0 times as fast" in title
    assert found.short.startswith(
        "1 of 2 methods reach the optimum; 2 devices help cgls"
    )
    drawn = experiments.load("d2lpar.least_squares.figure:pictures")(runs)["devices"]
    (grey,) = (text for text in words(drawn) if text.startswith("gradient,"))
    assert "not converged" in grey


def test_a_gan_is_judged_beside_noise():
    known = {
        "other real faces": {"frechet": 1.0, "coverage": 0.9},
        "noise": {"frechet": 25.0, "coverage": 0.0},
    }
    for ends, said in (
        ((20, 22), "nearer to real faces than noise is"),
        ((20, 30), "still about as far from real faces as noise is"),
        ((30, 31), "still farther from real faces than noise is"),
    ):
        runs = []
        for n, end in zip((1, 2), ends):
            first, last = (
                FrameRecord(
                    epoch=epoch, fixed="", num_fixed=8, num_steps=9, frechet=distance,
                    coverage=0.1, references=known,
                )
                for epoch, distance in ((0, 500), (2, end))
            )  # fmt: skip
            lines = first, gan_epoch(1), gan_epoch(2), last
            runs.append(Run(header(n, chapter="gan"), lines, Path("x.jsonl")))
        found = result(runs)
        assert f"At the end the generated faces are {said}." in found.sentences
        assert found.short.startswith(f"after 9 steps the generated faces are {said}")


def test_the_counts_of_a_study_are_those_that_took_turns():
    study = header(4, chapter="scaling", settings={"device_counts": [1, 2, 4]})
    assert labels.counts([study]) == "1, 2 and 4 devices"
    assert labels.counts([header(1), header(1)]) == "1 device"


def test_the_end_says_what_was_learnt_and_leaves_dry_runs_out(tmp_path):
    trainings = [trained(n, s) for n, s in zip((1, 2), APART)]
    a_folder(tmp_path, "least_squares", "quick", solved(1, APART[0]))
    a_folder(tmp_path, "multiple_gpus", "quick", *trainings)
    older = msgspec.structs.replace(trainings[0].header, date="2025-01-01")
    a_folder(tmp_path, "multiple_gpus", "book", Run(older, trainings[0].lines))
    dry = msgspec.structs.replace(trainings[0].header, preset="dry-run", num_devices=4)
    a_folder(tmp_path, "multiple_gpus", "dry-run", Run(dry, trainings[0].lines))
    sweeps = report.sweeps(tmp_path)
    lines = report.in_short(sweeps).splitlines()
    assert lines[0].startswith("It ran on 1 and 2 devices. Some CPU, 2 cores")
    text = " ".join(" ".join(lines).split())
    assert "after epoch 2; 2 devices are 2.0 times as fast least_squares" in text
    assert text.index("multiple_gpus") < text.index("least_squares")
    assert "dry-run" not in report.write_page(tmp_path, sweeps).read_text()

"""Pictures and tables of solvers: which are drawn, and the numbers in them."""

from pathlib import Path

import msgspec
from support.drawn import words
from support.factories import header, point

from d2lpar.least_squares import figure
from d2lpar.least_squares.result import result
from d2lpar.records.kinds import Run


def run(variant="cgls", num_devices=2, distance=True, points=3, **fields):
    settings = {"rows": 100, "columns": 10, "method": variant}
    lines = [
        point(
            i, num_devices, seconds=0.5 * i / num_devices,
            distance=10.0**-i if distance else None, **fields,
        )
        for i in range(1, points + 1)
    ]  # fmt: skip
    head = header(
        num_devices, chapter="least_squares", settings=settings, variant=variant,
        dataset="uniform-100x10",
    )  # fmt: skip
    return Run(head, tuple(lines), Path(f"book-{variant}-cpu{num_devices}.jsonl"))


def names_in(axes):
    """What stands at the ends of lines, upwards."""
    return [text.get_text() for text in axes.texts]


def test_all_pictures():
    variants = ("averaging", "averaging-as-published", "cgls", "normal")
    drawn = figure.pictures([run(v, n) for v in variants for n in (1, 2)])
    assert set(drawn) == {"devices", "distance", "error"}
    (devices,) = drawn["devices"].axes  # averaging takes more steps on more devices
    once = {f"{name}, 2\u00d7 (not told)" for name in ("cgls", "normal")}
    assert set(names_in(devices)) == once
    (error,) = drawn["error"].axes
    assert names_in(error)[:2] == ["averaging, cpu(0)", "averaging, cpu(1)"]
    methods = {"averaging", "averaging as published", "cgls", "normal"}
    beside = {name[2:] for name in names_in(drawn["distance"].axes[0])}  # after a mark
    assert beside == methods
    assert "on 2 devices, 1 repeat" in " ".join(words(drawn["distance"]))
    alone = figure.pictures([run("averaging", n) for n in (1, 2)])
    assert names_in(alone["devices"].axes[0])[0].startswith("averaging, 2")


def test_the_error_is_that_of_each_devices_x_above_the_optimum():
    drawn = figure.pictures([run("averaging"), run("normal", residual_norm=0.25)])
    (axes,) = drawn["error"].axes
    for curve in axes.lines:
        assert list(curve.get_xdata()) == [1, 2, 3]
        assert list(curve.get_ydata()) == [0.75] * 3
    assert len(axes.lines) == 2 and axes.get_yscale() == "log"


def test_results_of_the_least_squares_notes():
    runs = [run("averaging"), run("cgls", distance=False)]
    text = result(runs).full_text("")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "least ||A x - b|| of all runs: 10" in lines
    assert "averaging 2 devices 0.750 - 3 1.0000" in lines
    assert "averaging 2 devices 10 1.0e-03" in lines
    assert "cgls 2 devices 10 -" in lines


def test_repeats_count_by_their_median():
    several = run(points=1, residual_norm=10.0)
    repeats = [
        msgspec.structs.replace(several.lines[0], seconds=seconds, repeat=repeat)
        for repeat, seconds in enumerate((1.0, 9.0, 3.0))
    ]
    several = Run(several.header, tuple(repeats), several.path)
    (axes,) = figure.pictures([several, run(num_devices=1)])["devices"].axes
    (line,) = (line for line in axes.lines if len(line.get_ydata()) == 2)
    assert list(line.get_ydata()) == [1.5, 3.0]  # from 1 to 9

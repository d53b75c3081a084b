"""A benchmark that times nothing, briefly; and the picture of a benchmark's record."""

import equivalence
import figure
from support.drawn import medians, words
from support.factories import benchmark_header

from d2lpar.records.kinds import ArmAbsent, ArmSample, Run


def test_two_devices_stay_near_one_in_float64():
    how = {"data": "sample", "batch_size": 32, "num_steps": 6, "seed": 0}
    errors = {}
    for dtype in ("float32", "float64"):
        lines = list(equivalence.distances(0.2, dtype, **how))
        assert [line["steps"] for line in lines] == [1, 2, 5, 6]
        errors[dtype] = lines[-1]["error"]
    assert 0 < errors["float64"] < 1e-13 < errors["float32"]


def test_a_benchmark_has_a_panel_per_work_and_says_what_is_absent():
    def sample(arm, seconds, work="small", **fields):
        return ArmSample(arm=arm, round=0, seconds=seconds, work=work, **fields)

    lines = [
        sample("slow", 3.0),
        sample("fast", 9.0, warm_up=True),
        sample("fast", 1.0),
        sample("fast", 20.0, "large"),
        ArmAbsent(arm="PyTorch", round=0, why_not="no GPU", work="large"),
    ]
    run = Run(benchmark_header(peers=["PyTorch"]), tuple(lines))
    picture = figure.drawn(run)
    small, large = picture.axes
    assert medians(small) == [3.0, 1.0]  # in the order they ran
    assert medians(large) == [20.0]
    assert any("no GPU" in text for text in words(picture))

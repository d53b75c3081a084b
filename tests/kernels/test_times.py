"""Kernels timed beside others, with answers that are checked."""

import pytest

from d2lpar._mxnet import mx
from d2lpar.errors import RunError
from d2lpar.kernels import times

CPUS = [mx.cpu(0), mx.cpu(1)]


def test_times_has_samples_of_every_way_and_checks_the_answers(monkeypatch):
    samples = times.times(CPUS, 1000, repeats=2)
    assert {work for work, _ in samples} == {"x2", "update"}
    assert {way for _, way in samples} == {"kernel", "MXNet", "NumPy", "loop in C"}
    assert all(len(s) == 2 and min(s) > 0 for s in samples.values())
    monkeypatch.setattr(times, "fused_sgd", lambda params, lr, batch_size: None)
    with pytest.raises(RunError, match=r"update by kernel on cpu\(0\)"):
        times.times(CPUS[:1], 1000, repeats=1)


def test_the_report_has_a_line_for_each():
    lines = list(times.report(CPUS[:1], 1000))
    assert len(lines) == 7 and all("1,000" in line for line in lines)

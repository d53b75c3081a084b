"""The report of the chapter on kernels: times of answers that are checked."""

import pytest

from d2lpar._mxnet import mx
from d2lpar.kernels import times
from d2lpar.timing import TimingError


def test_the_report_has_a_line_for_each_and_checks_the_answers(monkeypatch):
    lines = list(times.report([mx.cpu(0), mx.cpu(1)], 1000))
    assert len(lines) == 5 and all("1,000" in line for line in lines)
    monkeypatch.setattr(times, "fused_sgd", lambda params, lr, batch_size: None)
    with pytest.raises(TimingError, match="update by kernel"):
        list(times.report([mx.cpu(0)], 1000))

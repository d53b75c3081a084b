"""Profiles are whole, or there are none."""

import pytest

from d2lpar._mxnet import mx, np, npx
from d2lpar.runs import profile


def work():
    yield np.ones((10, 10)).sum()
    npx.waitall()


def test_a_trace_that_was_cut_short_is_refused(tmp_path, monkeypatch):
    """An earlier one stays. MXNet's profiler works once in a process."""
    trace, dump = tmp_path / "quick-cpu1.trace.json", mx.profiler.dump
    trace.write_text("an earlier one")

    def dump_on_a_full_disk():
        dump()
        (half,) = tmp_path.glob(".quick-cpu1.trace-*")
        half.write_bytes(half.read_bytes()[:-20])

    monkeypatch.setattr(mx.profiler, "dump", dump_on_a_full_disk)
    with pytest.raises(OSError, match=f"is the disk full.: '{trace}'"):
        list(profile.profiled(work(), tmp_path / "quick-cpu1"))
    assert trace.read_text() == "an earlier one"
    assert list(tmp_path.iterdir()) == [trace]

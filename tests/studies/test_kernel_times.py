"""Kernels timed beside others, with answers that are checked."""

import pytest

from d2lpar._mxnet import mx
from d2lpar.errors import RunError
from d2lpar.kernels import KernelError, on_cpu
from d2lpar.studies import kernel_times

try:
    on_cpu.compiler()
except KernelError as error:
    pytest.skip(str(error), allow_module_level=True)

CPUS = [mx.cpu(0), mx.cpu(1)]


def test_times_has_samples_of_every_way_and_checks_the_answers(monkeypatch):
    found = kernel_times.times(CPUS, 1000, repeats=2)
    assert {work for work, _ in found} == {"x2", "update"}
    assert {"kernel", "MXNet", "loop in C"} <= {way for _, way in found}
    assert all(len(samples) == 2 and min(samples) > 0 for samples in found.values())
    monkeypatch.setattr(kernel_times, "fused_sgd", lambda params, lr, batch_size: None)
    with pytest.raises(RunError, match="update by kernel on cpu.0. is not NumPy's"):
        kernel_times.times(CPUS[:1], 1000, repeats=1)

"""Contexts of this machine, and GPUs that are faked."""

from types import SimpleNamespace

import pytest

from d2lpar._mxnet import mx
from d2lpar.memory import estimate


@pytest.fixture
def cpus():
    """``cpus(n)``: the first n CPU contexts."""
    return lambda n: [mx.cpu(k) for k in range(n)]


@pytest.fixture
def gpus(monkeypatch):
    """Contexts of GPUs that have so much memory free, as NVML would say."""

    def make(*sizes):
        cards = [SimpleNamespace(number=i, memory_free=f) for i, f in enumerate(sizes)]
        monkeypatch.setattr(estimate, "gpu_cards", lambda: cards)
        return [mx.gpu(i) for i in range(len(sizes))]

    return make

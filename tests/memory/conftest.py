"""Processes of their own, contexts of this machine, and GPUs that are faked."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from d2lpar._mxnet import mx
from d2lpar.memory import estimate

ENVIRONMENT = {"MXNET_CPU_TEMP_COPY": "4", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def in_a_process():
    """What some code prints, run in a process of its own."""

    def run(code, **environment):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **ENVIRONMENT, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


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

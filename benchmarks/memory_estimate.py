"""The estimate of d2lpar.memory for what a sample of benchmarks/memory.py measured."""

from __future__ import annotations

from d2lpar.memory.estimate import lenet_need
from d2lpar.records.kinds import ArmSample, Run


def of_sample(run: Run, sample: ArmSample) -> int:
    """Bytes of a memory for what a sample of benchmarks/memory.py measured."""
    count, noun = sample.arm.split()
    need = lenet_need(
        sample.batch_size,
        int(count),
        n_train=run.header.settings["n_train"],
        n_test=200,
        kind="gpu" if noun.startswith("GPU") else "cpu",
    )
    return max(need.by_memory)

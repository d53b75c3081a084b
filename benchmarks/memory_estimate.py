"""The estimate of d2lpar.memory for what a sample of benchmarks/memory.py measured.

The shapes of LeNet are written down, so that pictures and tables of the records need no
MXNet; tests/memory compares them with the network's own.
"""

from __future__ import annotations

from d2lpar.memory.estimate import Layers, estimate
from d2lpar.records.kinds import ArmSample, Run

LENET = Layers(
    parameters=129_068,
    outputs=(
        ("input", (1, 28, 28)),
        ("Conv2D 1", (20, 26, 26)),
        ("activation 1", (20, 26, 26)),
        ("AvgPool2D 2", (20, 13, 13)),
        ("Conv2D 3", (50, 9, 9)),
        ("activation 3", (50, 9, 9)),
        ("AvgPool2D 4", (50, 4, 4)),
        ("Dense 5", (128,)),
        ("activation 5", (128,)),
        ("Dense 6", (10,)),
    ),
    input=(1, 28, 28),
    n_train=60_000,
    n_test=10_000,
)


def of_sample(run: Run, sample: ArmSample) -> int:
    """Bytes of a memory for what a sample of benchmarks/memory.py measured."""
    count, noun = sample.arm.split()
    need = estimate(
        lambda settings: LENET,
        {"global_batch_size": sample.batch_size},
        int(count),
        {"n_train": run.header.settings["n_train"], "n_test": 200},
        "gpu" if noun.startswith("GPU") else "cpu",
    )
    return max(need.by_memory)

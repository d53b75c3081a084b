"""A scaling study's records, made so that all costs of its steps are known."""

from d2lpar.records.kinds import PARTS, AllReduceRecord, Run, StepRecord
from support import factories


def header(n, variant="concise"):
    settings = {"implementation": "concise"}
    return factories.header(n, chapter="scaling", variant=variant, settings=settings)


def step(batch, n, seconds, parts=None):
    return StepRecord(
        global_batch_size=batch, steps=4, seconds=seconds, issue_seconds=[5e-3],
        parts=parts or {}, num_devices=n,
    )  # fmt: skip


def all_reduce(variant, arrays, num_bytes, **others):
    return AllReduceRecord(
        variant=variant, num_arrays=arrays, num_bytes=num_bytes, num_devices=2, **others
    )


BATCHES = (2, 4, 8, 16, 32, 128)


def made():
    """On each device 2 ms + 0.3 ms a sample + an all-reduce of 1 ms; Python needs 5 ms.

    Two cores are shared by two devices and Python.
    """
    lines = []
    for n in (1, 2):
        for batch in BATCHES:
            device = 2e-3 + 3e-4 * batch / n + 1e-3 * (n - 1)
            seconds = max(n * 5e-3, device, n * (5e-3 + device) / 2)
            parts = dict.fromkeys(PARTS, 1e-3) if batch == 32 else {}
            lines.append(step(batch, n, [seconds] * 4, parts=parts))
    for arrays, num_bytes in ((1, 4096), (1, 2**20), (1, 100_000), (8, 100_000)):
        seconds = [arrays * 1e-4 + num_bytes * 2e-9]
        for variant in ("kvstore local", "book"):
            own = (variant, arrays) == ("kvstore local", 8)
            lines.append(
                all_reduce(variant, arrays, num_bytes, seconds=seconds, in_steps=own)
            )
    lines.append(all_reduce("kvstore nccl", 1, 4096, why_not="compile with NCCL"))
    return Run(header(2), tuple(lines))

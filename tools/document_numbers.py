"""The ratios in benchmarks/SPEED.md beside the records that they are from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from d2lpar.records import comparison, files
from d2lpar.records.comparison import arm_times, summarize

ROOT = Path(__file__).parents[1]


def disagreements() -> list[str]:
    """What a document says and its record does not, one line each."""
    return list(speed())


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def medians(record: str) -> dict[str, float]:
    """Median seconds of a benchmark's arms, of their first work."""
    arms = arm_times(files.read(ROOT / "figures" / record))
    return {a.name: summarize(a.seconds).median for a in reversed(arms) if a.seconds}


def speed() -> Iterator[str]:
    """The ratios of whole epochs in benchmarks/SPEED.md."""
    both = "2 contexts, 1 thread each"
    epochs, gan = medians("peers/custom-cpu2.jsonl"), medians("benchmarks/gan.jsonl")
    concise, scratch = (
        epochs[f"d2lpar {way}, {both}"] for way in ("concise", "from scratch")
    )

    def seconds(name: str) -> float:
        record = files.read(ROOT / "figures/multiple_gpus_concise" / name)
        return comparison.seconds_per_epoch(record).median

    ratios = [
        concise / epochs["PyTorch, plain loop, 2 threads"],
        scratch / epochs["PyTorch, plain loop, 2 threads"],
        scratch / epochs["d2l's notebook loop, 2 threads"],
        scratch / epochs["d2l's notebook loop, as the book has it"],
        seconds("book-1thread-cpu1.jsonl") / seconds("book-1thread-cpu2.jsonl"),
        gan[both] / gan["CryptoPunks notebook (PyTorch), 2 threads"],
    ]
    table = text_of("benchmarks/SPEED.md").split("## Whole epochs")[1]
    rows = re.findall(r"^\| (.+) \| ([\d.]+) \|$", table, re.MULTILINE)
    said = [value for what, value in rows if "rounds" not in what]
    if said != [f"{ratio:.2f}" for ratio in ratios]:
        yield f"benchmarks/SPEED.md: {said}; records: {[f'{r:.2f}' for r in ratios]}"

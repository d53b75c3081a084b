"""The numbers of tables in docs/ beside the records that they are from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from d2lpar.records import comparison, files
from d2lpar.records.comparison import arm_times, summarize
from d2lpar.text import number

ROOT = Path(__file__).parents[1]


def disagreements() -> list[str]:
    """What a document says and its record does not, one line each."""
    return [*gpus(), *speed()]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def medians(record: str) -> dict[str, float]:
    """Median seconds of a benchmark's arms, of their first work."""
    arms = arm_times(files.read(ROOT / "figures" / record))
    return {a.name: summarize(a.seconds).median for a in reversed(arms) if a.seconds}


def gpus() -> Iterator[str]:
    """The table of docs/newer-gpus.md at batches of 256 and 8,192."""
    folders = {"256": "peers", "8,192": "peers_8192"}
    ours = {"concise": "d2lpar concise", "from scratch": "d2lpar from scratch"}
    row = r"^\| (.+?) \| (256|8,192) \| ([\d.]+) \| ([\d.]*) ?\|$"
    rows = re.findall(row, text_of("docs/newer-gpus.md"), re.MULTILINE)
    for name, batch, *cells in rows:
        measured = medians(f"h200/{folders[batch]}/custom-gpu2.jsonl")
        for count, value in zip(("1 GPU", "2 GPUs"), cells):
            seconds = measured.get(f"{ours.get(name, name)}, {count}")
            if value != ("" if seconds is None else number(seconds)):
                yield f"docs/newer-gpus.md: {name}, {batch}, {count}: {value}"


def speed() -> Iterator[str]:
    """The ratios of whole epochs in docs/speed.md."""
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
    table = text_of("docs/speed.md").split("## Whole epochs")[1]
    rows = re.findall(r"^\| (.+) \| ([\d.]+) \|$", table, re.MULTILINE)
    said = [value for what, value in rows if "rounds" not in what]
    if said != [f"{ratio:.2f}" for ratio in ratios]:
        yield f"docs/speed.md: {said}; records: {[f'{r:.2f}' for r in ratios]}"

"""Write the answers of the predictions that need no machine into docs/teaching.md.

    python tools/answer_key.py [--check]

The answers are those of the committed notebooks. The list leaves out every prediction
that a machine's speed or rounding, or random weights, decide.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "teaching.md"
BLOCK = re.compile("(<!-- begin answers -->\n).*(<!-- end answers -->)", re.DOTALL)
ON_PAPER = {
    "multiple_gpus": ["% of the gradient", "first number after two all-reduces"],
    "devices": ["try_gpu(7) returns", "nvidia-smi's number of gpu(1)",
                "contexts of cpu:64"],
    "arrays": ["the device sees the change", "ms that a T4 needs at least"],
    "timing": ["ms by a clock that does not wait", "pages of a new array",
               "TFLOP/s of the product"],
    "multiple_gpus_concise": ["for trainer.step",
                              "times LeNet's multiplications per parameter"],
    "communication": ["bytes that the busiest sends in the ring",
                      "bytes per step, in pieces", "bytes of m and v, in pieces"],
    "least_squares_large": ["times that the file is read", "ways whose memory grows"],
    "gan": ["the weights differ"],
    "memory": ["times as much for the outputs", "% of the outputs kept"],
    "low_precision": ["257 in bfloat16"],
    "kernels": ["sum of x_gpu", "idle threads"],
    "multiple_machines": ["ms of traffic each way", "0.02 arrives as",
                          "0.9 arrives as"],
}  # fmt: skip


def answers(name: str) -> dict[str, float | str]:
    """The answers in a chapter's notebook, by what was asked."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    facts = [o.get("data", {}).get("application/json") for o in outputs]
    return {fact["what"]: fact["answer"] for fact in facts if fact}


def table() -> str:
    """A row for each prediction."""
    rows = ["| chapter | prediction | answer |", "|---|---|---|"]
    for name, asked in ON_PAPER.items():
        found = answers(name)
        for what in asked:
            value = found[what]
            text = value if isinstance(value, str) else f"{value:,.4g}"
            if isinstance(value, int):
                text = f"{value:,}"
            rows.append(f"| {name} | {what} | {text} |")
    return "\n".join(rows) + "\n"


def main(words: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    new = BLOCK.sub(lambda m: m[1] + table() + m[2], page)
    if words == ["--check"]:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The measured numbers in a chapter's prose beside the output or record they are from.

    python tools/quoted_numbers.py notebooks/scaling.ipynb ...

A number with a unit (ms, s, %, times, GB/s, MiB, ...) must stand, rounded as the prose
rounds it, in the output of a cell above or in the notebook's code, or in a table of
figures/ to which the same paragraph links. A paragraph that links a page of the web
names its source there. Predictions are questions, and arithmetic in code spans and
formulas shows where its numbers come from: neither is looked at.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = (
    r"(?:[mu]?s|min|minutes|seconds|%|times|(?:[GTM]?FLOP|[KMG]i?B|[km]B|bytes|images)"
    r"(?:/s|S)?)(?![\w/])"
)
# "0.39 and 1.24 ms", "5 to 10 %"
QUOTED = re.compile(
    rf"(?<![\w.,/^-])({NUMBER}(?:(?:, | and | or | to | against |, and ){NUMBER})*)"
    rf"(?: |\n)?({UNIT})"
)
IGNORED = re.compile(
    r"```.*?```|^(?: {4}|\t).*?$|`[^`]*`|\$[^$]*\$|\*Predict before you run\*.*",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\]\((\S+?)\)")
# A time may be printed in seconds and quoted in ms, a share quoted in %.
SCALES = (1, 1e3, 1e-3, 1e6, 1e-6, 100)


def unfounded(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Numbers in prose that stand nowhere, one line for each."""
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    known = numbers(code)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            known |= numbers("\n".join(printed(cell)))
            continue
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", cell.source):
            yield from unfounded_in(paragraph, known)


def unfounded_in(paragraph: str, known: set[float]) -> Iterator[str]:
    links = LINK.findall(paragraph)
    if "<http" in paragraph or any(link.startswith("http") for link in links):
        return
    for link in links:
        file = ROOT / "notebooks" / link.partition("#")[0]
        if file.suffix in (".txt", ".md") and file.is_file():
            known = known | numbers(file.read_text(encoding="utf-8"))
    for found in QUOTED.finditer(IGNORED.sub("", paragraph)):
        for quoted in re.findall(NUMBER, found[1]):
            if not any(agrees(quoted, k * scale) for k in known for scale in SCALES):
                yield f'"{" ".join(found[0].split())}": {quoted} stands nowhere'


def printed(cell: nbformat.NotebookNode) -> Iterator[str]:
    """What a cell has printed or shown, as text."""
    for output in cell.outputs:
        yield output.get("text", "")
        data = output.get("data", {})
        yield from (data.get(kind, "") for kind in ("text/plain", "text/markdown"))


def numbers(text: str) -> set[float]:
    """All numbers in a text, and those of lists such as (1, 2) or of 1e-3."""
    found = re.findall(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)
    return {float(number.replace(",", "")) for number in found}


def agrees(quoted: str, value: float) -> bool:
    """Is this the value, rounded to the digits of the quoted number?"""
    plain = quoted.replace(",", "").rstrip(".")
    if "." in plain:
        unit = 10.0 ** -len(plain.partition(".")[2])
    else:  # zeros at the end do not count: "about 1,100"
        unit = 10.0 ** (len(plain) - len(plain.rstrip("0"))) if plain.strip("0") else 1
    return abs(float(plain) - value) <= unit / 2 * (1 + 1e-9)


def main(files: list[str]) -> int:
    count = 0
    for file in files:
        for line in unfounded(nbformat.read(file, as_version=4)):
            print(f"{Path(file).stem}: {line}")
            count += 1
    return 3 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

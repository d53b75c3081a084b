"""Count the project: lines of Python, words of prose. `make lint` calls it.

    python tools/lines.py             prints every count beside its ceiling
    python tools/lines.py --lower     lowers the ceilings to today's counts

A count above its ceiling in `lines.json` fails. Ceilings go down with each commit that
can lower them; who raises one by hand names in the commit the user who needs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = Path(__file__).with_name("lines.json")
PYTHON = ("d2lpar", "tests", "benchmarks", "tools", "teaching")
PROSE = ("README.md", "CHANGELOG.md", "docs", "figures", "chapters")


def files(place: str, ending: str) -> list[Path]:
    """Return the files of a place that git tracks, or would: not what it ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard", place],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    paths = {ROOT / name for name in listed if name.endswith(ending)}
    return sorted(path for path in paths if path.is_file())


def words(path: Path) -> int:
    """Return the words of a page, or of the Markdown cells of a chapter."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return len(text.split())
    cells = text.split("# %%")
    prose = [cell for cell in cells if cell.startswith(" [markdown]")]
    return sum(
        len(line.lstrip("# ").split())
        for cell in prose
        for line in cell.splitlines()[1:]
    )


def count() -> dict[str, int]:
    """Return lines of Python by folder, and words by page or folder."""
    found = {}
    for place in PYTHON:
        texts = [path.read_text(encoding="utf-8") for path in files(place, ".py")]
        found[f"{place}/ lines"] = sum(len(text.splitlines()) for text in texts)
    for place in PROSE:
        ending = ".py" if place == "chapters" else ".md"
        found[f"{place} words"] = sum(map(words, files(place, ending)))
    return found


def main() -> int:
    """Print the counts; return 1 if one is above its ceiling."""
    found = count()
    ceilings = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else found
    for name, number in found.items():
        print(f"{name:20} {number:7,} of {ceilings.get(name, number):7,}")
    over = [name for name in found if found[name] > ceilings.get(name, found[name])]
    if over:
        print(f"above the ceiling of tools/lines.json: {', '.join(over)}")
        return 1
    if sys.argv[1:] == ["--lower"]:
        CEILINGS.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

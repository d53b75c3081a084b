"""What runs found: on the terminal, and for all of them in ``runs/index.html``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from html import escape
from pathlib import Path

import click
from PIL import Image

from d2lpar import experiments
from d2lpar.errors import D2lparError, first_line
from d2lpar.figures import labels
from d2lpar.records import atomic, files
from d2lpar.records.kinds import Header, Run, group
from d2lpar.records.result import Table

log = logging.getLogger("d2lpar")

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; white-space: nowrap; }
th, td { padding: 0 1em 0 0; text-align: left; }
.number { text-align: right; }
img { max-width: 100%; background: white; display: block; margin: 1rem 0; }
code { overflow-wrap: anywhere; }
.about { opacity: 0.75; }
"""


def show(runs: Sequence[Run]) -> None:
    """Print what runs that were measured together found."""
    click.echo(f"\n{experiments.result(runs)}\n")


def write_page(out: Path) -> Path:
    """Write the page of all complete records in ``<out>/<chapter>/``; return its path.

    Records that cannot be read or shown, and those of chapters that this d2lpar does
    not know, are left out, which is logged.
    """
    runs = []
    for path in sorted(out.glob("*/*.jsonl")):
        try:
            run = files.read(path)
            if isinstance(run.header, Header) and run.lines:
                experiments.measured_by([run])
                runs.append(run)
        except (D2lparError, OSError) as error:
            log.warning("index.html leaves a record out: %s", error)
    sweeps = group(runs, files.sweep_of)
    ordered = sorted(
        sweeps.items(), key=lambda item: item[1][-1].header.date, reverse=True
    )
    ordered.sort(key=lambda item: experiments.measured_by(item[1]).number)
    stems = [(folder, stem) for folder, _, stem in sweeps]
    sections = []
    for (folder, _, stem), same in ordered:
        try:
            sections.append(_section(same, out, stem, files_of(folder, stem, stems)))
        except Exception as error:  # a stranger's record must not end a measurement
            names = ", ".join(str(run.path) for run in same)
            why = f"{type(error).__name__}: {first_line(error)}"
            log.warning("index.html leaves out %s (%s)", names, why)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>d2lpar: results</title><style>{STYLE}</style></head><body>\n"
        f"<h1>Results</h1>\n{''.join(sections)}</body></html>\n"
    )
    path = out / "index.html"
    with atomic.replacing(path) as tmp:
        tmp.write_text(page, encoding="utf-8")
    return path


def files_of(folder: Path, stem: str, stems: Sequence[tuple[Path, str]]) -> list[Path]:
    """The files that were written as ``<folder>/<stem>...``.

    "quick-sample-seconds.png" belongs to the stem "quick-sample", not to "quick".
    """
    longer = [s for f, s in stems if f == folder and s.startswith(f"{stem}-")]
    return [
        path
        for path in sorted(folder.glob(f"{stem}[-.]*"))
        if not path.name.startswith(tuple(longer))
    ]


def _section(runs: Sequence[Run], out: Path, stem: str, written: Sequence[Path]) -> str:
    """One sweep: answer, the picture that shows it, table, the rest, where from."""
    header, found = runs[0].header, experiments.result(runs)
    title = experiments.measured_by(runs).title
    shown = {
        path.stem.removeprefix(stem).removeprefix("-"): _image(path, out)
        for path in written
        if path.suffix in (".png", ".gif")
    }
    first = next((shown.pop(name) for name in found.answers if name in shown), "")
    others = "".join(shown.values())
    more = [run.path for run in runs if run.path]
    more += [path for path in written if path.suffix == ".txt"]
    links = ", ".join(
        f'<a href="{escape(_link(path, out))}">{escape(path.name)}</a>' for path in more
    )
    if others:
        others = f"<details><summary>More pictures</summary>{others}</details>\n"
    place = f"{header.chapter}-{stem}"
    return (
        f'<h2 id="{escape(place)}">{escape(title)}</h2>\n'
        f"<p>{escape(' '.join(found.sentences))}</p>\n{first}{_html(found.table)}"
        f'<p class="about">{escape(found.note)}. Preset {escape(header.preset)}. '
        f"{escape(labels.stamp([header]))} Records: {links}. "
        f"Again: <code>{escape(header.command)}</code></p>\n{others}"
    )


def _image(path: Path, out: Path) -> str:
    """A picture; its title is the text for those who do not see it."""
    with Image.open(path) as picture:
        title = str(picture.info.get("Title", path.stem))
    return f'<img src="{escape(_link(path, out))}" alt="{escape(title)}">\n'


def _link(path: Path, out: Path) -> str:
    return path.relative_to(out).as_posix()


def _html(table: Table) -> str:
    """A table, the cells after its names as numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        names, numbers = cells[: table.names], cells[table.names :]
        columns = [f"<{tag}>{escape(cell)}</{tag}>" for cell in names]
        columns += [f'<{tag} class="number">{escape(cell)}</{tag}>' for cell in numbers]
        return f"<tr>{''.join(columns)}</tr>\n"

    rows = "".join(row(cells, "td") for cells in table.rows)
    return (
        f'<div class="wide"><table>\n{row(table.columns, "th")}{rows}</table></div>\n'
    )

"""What all runs of a folder found: the page ``index.html``, and a few lines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from PIL import Image

from d2lpar import experiments
from d2lpar.errors import D2lparError, RecordError, first_line
from d2lpar.records import atomic, files, labels
from d2lpar.records.kinds import Header, Run
from d2lpar.records.result import Result, Table, listed
from d2lpar.text import filled

log = logging.getLogger("d2lpar")

HEAD = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>d2lpar: results</title><style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto;
       padding: 0 1rem; }
p, li { max-width: 50rem; }
.pictures { display: grid; gap: 0 1.5rem; align-items: start;
            grid-template-columns: repeat(auto-fit, minmax(min(100%, 32rem), 1fr)); }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid; font-weight: 600; }
.name { text-align: left; }
img { max-width: 100%; background: white; display: block; margin: 1rem 0; }
@media (prefers-color-scheme: dark) { img { filter: brightness(.85); } }
@media (max-width: 40rem) { table { font-size: .75rem; }
                            th, td { padding-right: .4rem; }
                            .name { white-space: normal; min-width: 5.5rem; } }
code { overflow-wrap: anywhere; }
</style></head><body><h1>Results</h1>
"""


class Sweep(NamedTuple):
    """The runs of one folder, and what they found; sorted as they are shown."""

    number: int  # of the chapter
    date: str
    folder: Path
    runs: list[Run]
    found: Result

    @property
    def experiment(self) -> experiments.Experiment:
        return experiments.measured_by(self.runs)


def write_page(out: Path) -> Path:
    """Write the page of all sweeps ``<out>/<chapter>/<recipe>/``; return its path."""
    lines, sections, headers = [], [], []
    for sweep in sweeps(out):
        anchor = quote(f"{sweep.folder.parent.name}-{sweep.folder.name}")
        title = escape(f"{sweep.experiment.title} ({sweep.folder.name})")
        answer = escape(sweep.found.short or sweep.found.sentences[0])
        lines.append(f'<li><a href="#{anchor}">{title}</a>: {answer}</li>\n')
        sections.append(f'<section id="{anchor}">\n{_section(sweep, out)}</section>\n')
        headers += [run.header for run in sweep.runs]
    about = f"<p>{escape(where_from(headers))}</p>\n" if headers else ""
    path = out / "index.html"
    with atomic.replacing(path) as tmp:
        text = f"{HEAD}{about}<ul>\n{''.join(lines)}</ul>\n{''.join(sections)}"
        tmp.write_text(f"{text}</body></html>\n", encoding="utf-8")
    return path


def in_short(out: Path, chapters: Sequence[str] = ()) -> str:
    """Return lines: where it was measured, and what the newest sweep of each found.

    Raises RecordError where no chapter has finished a run.
    """
    newest: dict[str, Sweep] = {}
    for sweep in sweeps(out):  # the newest of a chapter first
        if not chapters or sweep.experiment.name in chapters:
            newest.setdefault(sweep.experiment.name, sweep)
    if not newest:
        raise RecordError(f"{out}: holds no such run; first: d2lpar run multiple_gpus")
    headers = [run.header for sweep in newest.values() for run in sweep.runs]
    lines = [filled(f"It ran on {labels.counts(headers)}. {where_from(headers)}")]
    for name, sweep in newest.items():
        found = sweep.found.short or sweep.found.sentences[0]
        lines.append(filled(found, f"  {name:{max(map(len, newest))}}  "))
    return "\n".join(lines)


def where_from(headers: Sequence[Header]) -> str:
    """Return the machine, the days and the data of runs as text."""
    days = sorted(header.date[:10] for header in headers)
    data = listed(dict.fromkeys(map(labels.data_name, headers)))
    period = " to ".join(dict.fromkeys((days[0], days[-1])))
    return f"{labels.hardware(headers)}; {period}; {data}."


def sweeps(out: Path) -> list[Sweep]:
    """Return all sweeps of a folder but dry runs, by chapter, the newest first.

    Those that cannot be shown are logged: a stranger's record must not end a run.
    """
    shown = []
    for folder in sorted(path for path in out.glob("*/*") if path.is_dir()):
        runs = _runs_in(folder)
        if not runs or runs[0].header.preset == "dry-run":
            continue
        try:
            found = experiments.result(runs)
            number = experiments.measured_by(runs).number
        except Exception as error:
            names = ", ".join(str(run.path) for run in runs)
            why = f"{type(error).__name__}: {first_line(error)}"
            log.warning("index.html leaves out %s (%s)", names, why)
            continue
        shown.append(Sweep(number, runs[-1].header.date, folder, runs, found))
    shown.sort(key=lambda sweep: sweep.date, reverse=True)
    return sorted(shown, key=lambda sweep: sweep.number)


def _runs_in(folder: Path) -> list[Run]:
    """Read the finished records of a sweep's folder; log those that cannot be read."""
    runs = []
    for path in files.finished_in(folder):
        try:
            run = files.read(path)
            if isinstance(run.header, Header) and run.lines:
                experiments.measured_by([run])
                runs.append(run)
        except (D2lparError, OSError) as error:
            log.warning("index.html leaves a record out: %s", error)
        except Exception as error:  # a stranger's record must not end a measurement
            why = f"{type(error).__name__}: {first_line(error)}"
            log.warning("index.html leaves out %s (%s)", path, why)
    return runs


def _section(sweep: Sweep, out: Path) -> str:
    """Return a sweep as HTML: where it is from, answer, pictures, table, the rest."""
    headers, found, folder = [x.header for x in sweep.runs], sweep.found, sweep.folder
    written = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    images = {
        path.stem: _image(path, out)
        for path in written
        if path.suffix in (".png", ".gif")
    }
    first = [images.pop(name) for name in found.answers if name in images]
    others = ""
    if images:
        others = f"<details><summary>More pictures</summary>{_grid(images.values())}"
        others += "</details>\n"
    more = [path for path in written if path.suffix in (".jsonl", ".txt")]
    links = ", ".join(
        f'<a href="{_link(path, out)}">{escape(path.name)}</a>' for path in more
    )
    chapter, command = sweep.experiment, headers[0].command
    return (
        f"<h2>{escape(chapter.title)}</h2>\n<p>{escape(where_from(headers))}</p>\n"
        f"<p>{escape(' '.join(found.sentences))}</p>\n{_grid(first)}"
        f"{_table(found.table)}"
        f"<p>{escape(found.note)}. Chapter {chapter.number} explains it: "
        f"<code>notebooks/{chapter.name}.ipynb</code>.</p>\n{_interrupted(folder)}"
        f"{others}<details><summary>Records</summary>"
        f"<p>Recipe {escape(folder.name)}. {escape(labels.stamp(headers))} {links}. "
        f"Again: <code>{escape(command)}</code></p></details>\n"
    )


def _grid(images: Iterable[str]) -> str:
    """Return images side by side where there is room, below one another elsewhere."""
    return f'<div class="pictures">{"".join(images)}</div>\n'


def _table(table: Table) -> str:
    """Return a table as HTML, in a box that scrolls where it is wider than the page."""
    if not table.rows:
        return ""

    def row(cells: Sequence[str], tag: str) -> str:
        html = ""
        for k, cell in enumerate(cells):
            kind = ' class="name"' if k < table.names else ""
            html += f"<{tag}{kind}>{escape(cell)}</{tag}>"
        return f"<tr>{html}</tr>\n"

    rows = "".join(row(cells, "td") for cells in table.rows)
    return (
        f'<div class="table" tabindex="0"><table>\n{row(table.columns, "th")}{rows}'
        "</table></div>\n"
    )


def _interrupted(folder: Path) -> str:
    """Return a line about records that are not complete, which no table counts."""
    names = sorted(path.name for path in folder.glob("[!.]*.partial.jsonl"))
    words = f"Interrupted, or still being measured: {', '.join(names)}."
    return f"<p>{escape(words)}</p>\n" if names else ""


def _image(path: Path, out: Path) -> str:
    """Return an image that links to its full size; its title becomes the alt text."""
    with Image.open(path) as picture:
        title = str(picture.info.get("Title", "Film of faces through the training"))
    link = _link(path, out)
    return f'<a href="{link}"><img src="{link}" alt="{escape(title)}"></a>\n'


def _link(path: Path, out: Path) -> str:
    """Return a relative address, with special characters escaped."""
    return "./" + quote(path.relative_to(out).as_posix())

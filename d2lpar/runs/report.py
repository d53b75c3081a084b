"""What all runs of a folder found: the page ``index.html``, and a few lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from d2lpar import experiments
from d2lpar.errors import D2lparError, first_line
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
code { overflow-wrap: anywhere; }
</style></head><body><h1>Results</h1>
"""


class Sweep(NamedTuple):
    """The runs of one folder, and what they found."""

    folder: Path
    runs: Sequence[Run]
    found: Result

    @property
    def experiment(self) -> experiments.Experiment:
        return experiments.measured_by(self.runs)

    @property
    def headers(self) -> list[Header]:
        return [run.header for run in self.runs]


def write_page(out: Path, found: Sequence[Sweep]) -> Path:
    """Write the page of the sweeps in a folder; return its path."""
    lines, sections, headers = [], [], []
    for sweep in found:
        anchor = quote(f"{sweep.folder.parent.name}-{sweep.folder.name}")
        title = escape(f"{sweep.experiment.title} ({sweep.folder.name})")
        answer = escape(sweep.found.in_short)
        lines.append(f'<li><a href="#{anchor}">{title}</a>: {answer}</li>\n')
        sections.append(f'<section id="{anchor}">\n{_section(sweep, out)}</section>\n')
        headers += sweep.headers
    about = f"<p>{escape(where_from(headers))}</p>\n" if headers else ""
    path = out / "index.html"
    with atomic.replacing(path) as tmp:
        text = f"{HEAD}{about}<ul>\n{''.join(lines)}</ul>\n{''.join(sections)}"
        tmp.write_text(f"{text}</body></html>\n", encoding="utf-8")
    return path


def in_short(found: Sequence[Sweep]) -> str:
    """Return lines: where it was measured, and what the newest sweep of each found."""
    newest: dict[str, Sweep] = {}
    for sweep in found:  # the newest of a chapter first
        newest.setdefault(sweep.experiment.name, sweep)
    headers = [header for sweep in newest.values() for header in sweep.headers]
    lines = [filled(f"It ran on {labels.counts(headers)}. {where_from(headers)}")]
    for name, sweep in newest.items():
        start = f"  {name:{max(map(len, newest))}}  "
        lines.append(filled(sweep.found.in_short, start))
    return "\n".join(lines)


def where_from(headers: Sequence[Header]) -> str:
    """Return the machine, the days and the data of runs as text."""
    data = listed(dict.fromkeys(map(labels.data_name, headers)))
    return f"{labels.hardware(headers)}; {labels.period(headers)}; {data}."


def sweeps(out: Path) -> list[Sweep]:
    """Return all sweeps ``<out>/<chapter>/<recipe>/`` but dry runs, the newest first.

    They are in the order of their chapters. Those that cannot be shown are logged.
    """
    shown = []
    for folder in sorted(path for path in out.glob("*/*") if path.is_dir()):
        runs = records_in(folder)
        if runs and runs[0].header.preset != "dry-run":
            with _left_out(folder):
                shown.append(Sweep(folder, runs, experiments.result(runs)))
    shown.sort(key=lambda sweep: sweep.runs[-1].header.date, reverse=True)
    return sorted(shown, key=lambda sweep: sweep.experiment.number)


def records_in(folder: Path) -> list[Run]:
    """Read the finished records of a sweep's folder, the newest last.

    Those that cannot be shown with it are logged: broken ones, and those whose settings
    differ, as those of another version.
    """
    runs: list[Run] = []
    for path in files.found(folder):
        with _left_out(path):
            run = files.read(path)
            if isinstance(run.header, Header) and run.lines:
                experiments.measured_by([run])
                runs.append(run)
    runs.sort(key=lambda run: run.header.date)
    for run in runs[:-1]:
        if different := experiments.differing_settings([runs[-1], run]):
            log.warning("left out %s (differs in %s)", run.path, ", ".join(different))
            runs.remove(run)
    return runs


@contextmanager
def _left_out(path: Path) -> Iterator[None]:
    """Log the error of a record, and go on."""
    try:
        yield
    except (D2lparError, OSError) as error:
        log.warning("left out %s (%s)", path, first_line(error))


def _section(sweep: Sweep, out: Path) -> str:
    """Return the HTML of one sweep: its answer, two pictures, its table, its files."""
    found, folder, chapter = sweep.found, sweep.folder, sweep.experiment
    answer = " ".join(found.sentences)
    written = sorted(p for p in folder.iterdir() if p.name[0] != "." and p.is_file())
    images = {p.stem: p for p in written if p.suffix in (".png", ".gif")}
    if "film" in images:
        images.pop("strip", None)  # the same faces
    first = [images[name] for name in found.answers if name in images]
    shown = [*first, *(p for p in images.values() if p not in first)][:2]
    links = ", ".join(
        f'<a href="{_link(path, out)}">{escape(path.name)}</a>'
        for path in written
        if path.suffix in (".jsonl", ".txt", ".png", ".gif") and path not in shown
    )
    pictures = ""
    for path in shown:  # each links to its full size
        link = _link(path, out)
        alt = " ".join(found.answers.get(path.stem, [path.stem]))
        pictures += f'<a href="{link}"><img src="{link}" alt="{escape(alt)}"></a>\n'
    return (
        f"<h2>{escape(chapter.title)}</h2>\n<p>{escape(answer)}</p>\n"
        f'<div class="pictures">{pictures}</div>\n'
        f"{_table(found.table)}<p>{escape(found.note)}.</p>\n"
        f"<details><summary>Records and details</summary>"
        f"<p>{escape(labels.stamp(sweep.headers))} "
        f"Chapter {chapter.number} explains it. {links}. "
        f"Again: <code>{escape(sweep.headers[0].command)}</code></p></details>\n"
    )


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


def _link(path: Path, out: Path) -> str:
    """Return a relative address, with special characters escaped."""
    return "./" + quote(path.relative_to(out).as_posix())

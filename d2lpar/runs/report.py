"""What all runs of a folder found: the page ``index.html``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from d2lpar import experiments
from d2lpar.errors import D2lparError, first_line
from d2lpar.records import atomic, files, labels
from d2lpar.records.kinds import Header, Run
from d2lpar.records.result import Result

log = logging.getLogger("d2lpar")

HEAD = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>d2lpar: results</title><style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
pre { overflow-x: auto; }
img { max-width: 100%; background: white; display: block; margin: 1rem 0; }
code { overflow-wrap: anywhere; }
</style></head><body><h1>Results</h1>
"""


def write_page(
    out: Path, measured: Sequence[Run] = (), found: Result | None = None
) -> Path:
    """Write the page of all sweeps ``<out>/<chapter>/<recipe>/``; return its path."""
    sections = []
    for folder in sorted(path for path in out.glob("*/*") if path.is_dir()):
        runs = _runs_in(folder)
        if not runs:
            continue
        paths = {run.path for run in runs}
        try:
            is_new = found and paths == {run.path for run in measured}
            result = found if found and is_new else experiments.result(runs)
            anchor = quote(f"{folder.parent.name}-{folder.name}")
            section = f'<section id="{anchor}">\n'
            section += _section(runs, result, out, folder) + "</section>\n"
            answer = escape(next(iter(result.sentences), ""))
            title = f"{experiments.measured_by(runs).title} ({folder.name})"
            line = f'<li><a href="#{anchor}">{escape(title)}</a>: {answer}</li>\n'
        except Exception as error:  # a stranger's record must not end a measurement
            names = ", ".join(sorted(map(str, paths)))
            why = f"{type(error).__name__}: {first_line(error)}"
            log.warning("index.html leaves out %s (%s)", names, why)
            continue
        number, date = experiments.measured_by(runs).number, runs[-1].header.date
        sections.append((number, date, line, section))
    sections.sort(key=lambda item: item[1], reverse=True)  # the newest first
    sections.sort(key=lambda item: item[0])
    path = out / "index.html"
    with atomic.replacing(path) as tmp:
        lines = "".join(line for _, _, line, _ in sections)
        text = "".join(section for *_, section in sections)
        tmp.write_text(
            f"{HEAD}<ul>\n{lines}</ul>\n{text}</body></html>\n", encoding="utf-8"
        )
    return path


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


def _section(runs: Sequence[Run], found: Result, out: Path, folder: Path) -> str:
    """Return a sweep as HTML: answer, picture, table, the rest, where it is from."""
    header = runs[0].header
    written = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    images = {
        path.stem: _image(path, out)
        for path in written
        if path.suffix in (".png", ".gif")
    }
    first = next((images.pop(name) for name in found.answers if name in images), "")
    others = "".join(images.values())
    if others:
        others = f"<details><summary>More pictures</summary>{others}</details>\n"
    more = [path for path in written if path.suffix in (".jsonl", ".txt")]
    links = ", ".join(
        f'<a href="{_link(path, out)}">{escape(path.name)}</a>' for path in more
    )
    chapter = experiments.measured_by(runs)
    return (
        f"<h2>{escape(chapter.title)}</h2>\n"
        f"<p>{escape(' '.join(found.sentences))}</p>\n{first}"
        f'<pre tabindex="0">{escape(found.table.in_lines())}</pre>\n'
        f"<p>{escape(found.note)}. Chapter {chapter.number} explains it: "
        f"<code>notebooks/{chapter.name}.ipynb</code>.</p>\n{_interrupted(folder)}"
        f"{others}<details><summary>Records</summary>"
        f"<p>Recipe {escape(folder.name)}. "
        f"{escape(labels.stamp([run.header for run in runs]))} {links}. "
        f"Again: <code>{escape(header.command)}</code></p></details>\n"
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

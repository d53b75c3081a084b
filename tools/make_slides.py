"""Slides of six chapters, each one file that opens without a network: build/slides/.

    python tools/make_slides.py [FOLDER]            (default: build/slides)

slides.json names sections of each chapter, and the exhibit of each: a "picture" or
"table" of its text, what is "drawn" or "printed" by its cells, the name of a function,
or "" for text alone. Each prediction of these sections is a slide with its answer
folded. All of it is read from the executed notebooks and the figures.
"""

from __future__ import annotations

import base64
import html
import json
import mimetypes
import re
import sys
from itertools import accumulate
from pathlib import Path
from string import Template

import nbformat
from docutils.utils.math.latex2mathml import tex2mathml
from make_notebooks import NOTEBOOKS, ROOT
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

TOOLS = ROOT / "tools"
LESSONS = json.loads((TOOLS / "slides.json").read_text(encoding="utf-8"))
WORDS, LINES = 90, 18  # of text on a slide, about; of code or output, at most
QUESTION = "*Predict before you run*: "
PICTURE = re.compile(r"!\[([^\]]*)\]\(\.\./([^)]*)\)")
FOLLOWS = re.compile(r" {4}|\$\$|1\. ")  # a formula or list, announced by a colon
SENTENCE = re.compile(r"(?<=[.:?]) (?=[A-Z*`])")
IMAGE = '<img src="data:{};base64,{}" alt="{}">'
# Links and references to sources lead nowhere from here.
LINK = re.compile(r"(?<!!)\[([^\]]*)\](?:\((?!http)[^)]*\)|\[[^\]]*\])| \[\d+\]")


def coloured(code: str, language: str = "text", _: str = "") -> str:
    """Return a block of code as HTML."""
    shown = html.escape(code)
    if language == "python":
        shown = highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))
    return f'<pre class="highlight">{shown}</pre>'


MARKDOWN = MarkdownIt("commonmark", {"highlight": coloured}).enable("table")
MARKDOWN.use(dollarmath_plugin, renderer=lambda tex, _: tex2mathml(tex))


def sections(notebook: nbformat.NotebookNode) -> dict[str, list]:
    """Return the blocks of text and the cells of code below each heading.

    A paragraph becomes one line, in which no word can look like the start of a list.
    """
    found: dict[str, list] = {}
    heading = ""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found[heading].append(cell)
            continue
        text = re.sub("<details>.*?</details>", "", cell.source, flags=re.DOTALL)
        for block in filter(str.strip, re.split(r"\n\n+", text.strip("\n"))):
            if block.startswith("#"):
                heading = block.lstrip("# ")
                found[heading] = []
            else:
                is_laid_out = block.startswith(("|", "- ", "1. ", "    ", "> ", "$$"))
                found[heading].append(block if is_laid_out else " ".join(block.split()))
    return found


def lead(blocks: list[str], words: int = WORDS) -> str:
    """Return a section's first sentences, with a formula or list that they announce."""
    kept: list[str] = []
    for block in blocks:
        if FOLLOWS.match(block):
            kept += [block] if kept and kept[-1].endswith(":") else []
        elif block.startswith("- ") and not kept:
            items = (" ".join(item.split()) for item in block.split("\n- "))
            return "\n- ".join(SENTENCE.split(item)[0] for item in items)
        elif block[0] not in "!|[<>-" and words > 0:
            sentences = SENTENCE.split(block)
            counts = accumulate(len(sentence.split()) for sentence in sentences)
            fitting = [s for s, n in zip(sentences, counts) if n <= max(words, 45)]
            kept += [" ".join(fitting or sentences[: not kept])]
            words -= len(block.split())
    return "\n\n".join(kept)


def exhibit(which: str, texts: list[str], cells: list) -> str:
    """Return what a slide shows beside its text, as HTML. Raises ValueError if none."""
    code = "\n\n\n".join(cell.source for cell in cells)
    outputs = [output for cell in cells for output in cell.outputs]
    images = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    if which == "picture":
        found = []
        for alt, path in PICTURE.findall("\n".join(texts)):
            kind, _ = mimetypes.guess_type(path)
            content = base64.b64encode((ROOT / path).read_bytes()).decode()
            found.append(IMAGE.format(kind, content, html.escape(alt)))
    elif which == "drawn":
        found = [IMAGE.format("image/png", x.strip(), "The output") for x in images]
    elif which == "table":
        tables = (text for text in texts if text.startswith("|"))
        found = [MARKDOWN.render(LINK.sub(r"\1", table)) for table in tables]
    elif which == "printed":
        printed = "".join(output.get("text", "") for output in outputs)
        found = [coloured(printed.strip("\n"))]
    else:
        function = rf"^def {which}\(.*?(?=\n\n\n|\Z)"
        functions = re.findall(function, code, re.MULTILINE | re.DOTALL)
        found = [coloured(text, "python") for text in functions]
    if not found or ("<pre" in found[0] and found[0].count("\n") > LINES):
        raise ValueError(f"{which}: none, or one of more than {LINES} lines")
    return found[0]


def slide(kind: str, heading: str, text: str = "", below: str = "") -> str:
    level = "h1" if kind == "title" else "h2"
    kind += " beside" if "image/svg" in below else ""
    shown = f"<{level}>{MARKDOWN.renderInline(heading)}</{level}>\n"
    if text:
        text = LINK.sub(r"\1", text)
        shown += f"<div>{MARKDOWN.render(text)}</div>"
    return f'<section class="{kind}">{shown}{below}</section>'


def predictions(asked: list[str], cell: nbformat.NotebookNode) -> list[str]:
    """Return a slide for each question before a cell; a single one may ask for more."""
    names = re.findall(r'^chapter\.predict\("(.*?)", None\)', cell.source, re.MULTILINE)
    facts = [o.data for o in cell.outputs if "application/json" in o.get("data", {})]
    said = {data["application/json"]["what"]: data["text/plain"] for data in facts}
    answers = [f"- {said[name]}\n" for name in names]
    if len(asked) == 1:
        answers = ["".join(answers)]
    folded = "<details><summary>Answer, in our notebook</summary>{}</details>"
    return [
        slide("predict", "Predict", question, folded.format(MARKDOWN.render(answer)))
        for question, answer in zip(asked, answers)
    ]


def of_section(heading: str, blocks: list, which: str) -> list[str]:
    """Return a section's slides; what a cell shows comes after its predictions."""
    before, after, cells, asked, predicted = [], [], [], [], []
    for block in blocks:
        if not isinstance(block, str):
            cells.append(block)
            predicted += predictions(asked, block)
            asked = []
        elif block.startswith(QUESTION):
            question = block.removeprefix(QUESTION)
            asked.append(question[0].upper() + question[1:])
        else:
            (after if cells else before).append(block)
    shown = exhibit(which, before + after, cells) if which else ""
    if predicted and which in ("drawn", "printed"):
        last = slide("text", heading, lead(after, 1), shown)
        return [slide("text", heading, lead(before)), *predicted, last]
    text = lead(before, 1 if shown else WORDS)
    return [slide("text", heading, text, shown), *predicted]


def slides(name: str) -> list[str]:
    """Return a chapter's slides. Raises ValueError for what it does not have."""
    found = sections(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
    title, *_, summary = (h for h in found if h not in ("Exercises", "Sources"))
    texts = [block for block in found[title] if isinstance(block, str)]
    (bold,) = (text for text in texts if text.startswith("**In one sentence.**"))
    (takeaway,) = (b for b in found[summary] if isinstance(b, str) and b[0] == ">")
    answer = bold.removeprefix("**In one sentence.** ")
    made = [slide("title", title, lead(texts, 1))]
    made += [slide("text", "In one sentence", answer, exhibit("picture", texts, []))]
    for heading, which in LESSONS[name].items():
        try:
            made += of_section(heading, found[heading], which)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{name}.ipynb, section {heading!r}: {error}") from None
    takeaway = takeaway.replace("**Takeaway.** ", "")
    return [*made, slide("takeaway", "Takeaway", takeaway)]


def write(folder: Path) -> None:
    """Write the slides of each chapter to a folder."""
    light = HtmlFormatter().get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    colours = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"
    page = Template((TOOLS / "slides.html").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in LESSONS:
        made = "\n".join(slides(name))
        text = page.substitute(title=f"{name}, slides", colours=colours, slides=made)
        (folder / f"{name}.html").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(*sys.argv[1:] or [ROOT / "build" / "slides"]))

"""README.md, docs/ and other pages: snippets run, links and flags hold."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path

import numpy
import pytest
from support.command import python

from d2lpar.cli.main import d2lpar
from d2lpar.experiments import EXPERIMENTS, LESSONS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
API = [ROOT / "docs" / "api.md", *sorted((ROOT / "docs" / "api").glob("*.md"))]
FOLDERS = "docs", "docs/api", "figures", "benchmarks"
PAGES = [README, ROOT / "CONTRIBUTING.md"]
PAGES += sorted(page for name in FOLDERS for page in (ROOT / name).glob("*.md"))
CHAPTERS = sorted((ROOT / "chapters").glob("*.py"))
EVERY = pytest.mark.parametrize(
    "page", [*PAGES, *CHAPTERS], ids=lambda p: str(p.relative_to(ROOT))
)


def text_of(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str | Path, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    fence = rf"^```{language}\n(.*?)^```$"
    return re.findall(fence, text_of(page), re.MULTILINE | re.DOTALL)


# Links


def prose_of(page: Path) -> str:
    """The text of a page without code blocks, or that of a chapter's text cells."""
    text = text_of(page)
    if page.suffix == ".py":
        text = "\n".join(re.findall(r"^# ?(.*)$", text, re.MULTILINE))
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = prose_of(page)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def links(page: Path) -> set[str]:
    text = prose_of(page)
    found = re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text)
    found += re.findall(r"<img src=\"([^\"]+)\"", text)
    found += re.findall(r"^\[[^]]+\]: (\S+)", text, re.MULTILINE)
    return {link for link in found if not link.startswith(("http:", "https:"))}


@EVERY
def test_every_link_leads_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_readme_lists_the_chapters_in_their_order():
    rows = re.findall(r"^\| (\d+) \| \[(\w+)\]\((\S+)\)", text_of(README), re.MULTILINE)
    numbers = {name: int(k) for k, name, _ in rows}
    assert list(numbers.values()) == list(range(1, len(CHAPTERS) + 1))
    assert numbers.keys() == {path.stem for path in CHAPTERS}
    known = {e.number: e.name for e in EXPERIMENTS.values()} | LESSONS
    assert numbers == {name: k for k, name in known.items()}
    assert all(path == f"chapters/{name}.py" for _, name, path in rows)


# Commands


def command_lines() -> list[str]:
    """Calls of d2lpar in the pages, one command line each."""
    lines = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            lines += block.replace("\\\n", " ").splitlines()
    found = [
        re.match(r"(?:\.venv/bin/)?(d2lpar .*?)(?:\s#.*)?$", line) for line in lines
    ]
    return sorted({match[1].strip() for match in found if match})


@pytest.mark.parametrize("line", command_lines())
def test_a_command_is_understood(line):
    _, *words = shlex.split(line)
    while words:
        end = words.index("--") if "--" in words else len(words)  # launch .. -- run ..
        (name, *given), words = words[:end], words[end + 1 :]
        if name == "verify":
            assert set(re.findall(r"(?:^| )(--[\w-]+)", " ".join(given))) <= flags()
        else:
            params = d2lpar.commands[name].make_context(name, given).params
            assert name != "run" or params["chapter"] in EXPERIMENTS


# Flags of other programs: git, pip, build, uv, torchrun, pytest, verify, puzzles.
FOREIGN = {
    "--branch", "--recursive", "--no-deps", "--wheel", "--python", "--nnodes",
    "--nproc-per-node", "--around", "--scale-rate", "--tb", "--ntasks",
    "--hint", "--draw",
}  # fmt: skip


@cache
def flags() -> set[str]:
    """The flags of d2lpar's commands, and of the scripts of a checkout."""
    options = [p for c in d2lpar.commands.values() for p in c.params]
    known = {flag for p in options for flag in [*p.opts, *p.secondary_opts]}
    for folder in ("benchmarks", "tools", "d2lpar/verify"):
        for script in (ROOT / folder).rglob("*.py"):
            known |= set(re.findall(r'"(--[a-z][\w-]*)"', text_of(script)))
    return known | {"--help", "--version"}


@EVERY
def test_every_flag_that_a_page_names_exists(page):
    # Tables name the commands of their records, which may be older.
    text = re.sub("<!-- begin .*?<!-- end -->", "", text_of(page), flags=re.DOTALL)
    named = set(re.findall(r"(?<![\w<!-])--[a-z][\w-]*", text))
    assert named - flags() <= FOREIGN


# Snippets


def test_the_readmes_program_learns_and_is_the_notebooks():
    (code,) = blocks("README.md", "python")
    accuracies = [float(line.split()[1]) for line in python(code).splitlines()]
    assert len(accuracies) == 3 and 0.5 < accuracies[0] < accuracies[2]
    notebook = json.loads(text_of("notebooks/lesson.ipynb"))
    assert "".join(notebook["cells"][1]["source"]) == code.rstrip()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in API if blocks(page, "python")])
def test_the_snippets_of_the_api_run(page):
    code = "\n".join(blocks(page, "python"))  # each continues those above it
    assert python(code.replace('load("auto"', 'load("sample"'))


OPTIMIZERS = next(b for b in blocks("docs/api.md", "python") if "def adam(" in b)


def momentum(p, v, _, g, t):
    v = 0.9 * v + g
    return p - 0.1 * v, v, 0


def adam(p, m, s, g, t):
    m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
    step = m / (1 - 0.9**t) / (numpy.sqrt(s / (1 - 0.999**t)) + 1e-8)
    return p - 0.1 * step, m, s


@pytest.mark.parametrize("expected", [momentum, adam])
@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_the_optimizers_of_the_api_are_those_of_one_device(expected, num_devices):
    code = OPTIMIZERS.replace("cpu:2", f"cpu:{num_devices}")
    code = code.replace("in (momentum, adam)", f"in ({expected.__name__},)")
    page: dict = {}
    exec(code, page)
    X, y, p, m, s = page["X"], page["y"], page["w"], 0, 0
    for t in range(1, 6):
        p, m, s = expected(p, m, s, 2 * X.T @ (X @ p - y) / len(X), t)
    assert len(page["replicas"]) == num_devices
    for replica in page["replicas"]:
        numpy.testing.assert_allclose(replica[0].asnumpy(), p, rtol=1e-9)

"""The book: built from the repository's pages, and read in a real Chromium."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from urllib.parse import urldefrag, urlparse

import pytest

from d2lpar.records import files
from d2lpar.scaling.model import studies

for module in ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "sphinx_design"):
    pytest.importorskip(module, reason=f"no {module}: extra docs")
sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: docs")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
if not (ROOT / "docs" / "conf.py").is_file():
    pytest.skip("not a checkout", allow_module_level=True)
PHONE = {"width": 390, "height": 844}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# What a page shows, read in the page itself.
READ = """() => ({
    sideways: Math.max(...[...document.querySelectorAll('html, body, .content')]
        .map(e => e.scrollWidth - e.clientWidth)),
    broken: [...document.images].filter(i => !i.naturalWidth).map(i => i.src),
    images: document.images.length,
    links: [...document.links].map(a => a.href),
})"""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The folder of the site, built without a warning; it fits on any stick."""
    folder = tmp_path_factory.mktemp("book")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-c", "docs", "-d", str(folder / "doctrees"), ".", str(folder / "site")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert sum(p.stat().st_size for p in (folder / "site").rglob("*.*")) < 20e6
    return folder / "site"


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        paths = [playwright.chromium.executable_path, *map(shutil.which, BROWSERS)]
        path = next((path for path in paths if path and os.path.exists(path)), None)
        if path is None:
            pytest.skip("no Chromium: install it, or run `playwright install chromium`")
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


class Reader:
    """A window of the browser that keeps what goes wrong, and what it requests."""

    def __init__(self, chromium, **settings) -> None:
        self.page = chromium.new_context(**settings).new_page()
        self.wrong, self.requests = [], []
        note = self.wrong.append
        on = self.page.on
        on("console", lambda m: m.type in ("error", "warning") and note(m.text))
        on("pageerror", lambda error: note(str(error)))
        on("requestfailed", lambda r: note(f"{r.url}: {r.failure}"))
        on("request", lambda request: self.requests.append(request.url))


@pytest.fixture
def reader(chromium):
    return Reader(chromium, viewport={"width": 1280, "height": 900})


@pytest.fixture(scope="module")
def visited(book, chromium):
    """What every page shows on a phone; what failed; all requests."""
    reader, pages = Reader(chromium, viewport=PHONE), {}
    for path in sorted({*book.rglob("*.html")} - {book / "index.html"}):
        reader.page.goto(path.as_uri())
        pages[path] = reader.page.evaluate(READ)
    return pages, reader.wrong, reader.requests


def test_every_page_loads_from_files_alone_and_without_an_error(book, visited):
    pages, wrong, requests = visited
    names = ("docs/index", "docs/api/gan", "chapters/gan", "search")
    assert set(pages) >= {book / f"{name}.html" for name in names}
    assert wrong == []
    assert {urlparse(url).scheme for url in requests} <= {"file", "data"}
    assert [src for page in pages.values() for src in page["broken"]] == []
    figures = [page["images"] for path, page in pages.items()
               if path.parent.name == "figures"]  # fmt: skip
    pictures, films = (len(list((ROOT / "figures").rglob(f"*.{kind}")))
                       for kind in ("png", "gif"))  # fmt: skip
    assert sum(figures) == pictures + films
    assert {p.name: page["sideways"] for p, page in pages.items()
            if page["sideways"] > 0} == {}  # fmt: skip


def test_every_page_is_linked_and_chapters_can_be_downloaded(book, visited):
    pages, _, _ = visited
    links = {urldefrag(link)[0] for page in pages.values() for link in page["links"]}
    assert not [path.name for path in pages if path.as_uri() not in links]
    for script in (ROOT / "chapters").glob("*.py"):
        page = pages[book / "chapters" / f"{script.stem}.html"]
        names = {link.rpartition("/")[2] for link in page["links"]}
        assert {script.name, f"{script.stem}.ipynb"} <= names
        copies = [p.read_bytes() for p in (book / "_downloads").rglob(script.name)]
        assert script.read_bytes() in copies


def test_an_output_stays_folded_until_all_guesses_are_locked_in(book, reader):
    """By keyboard alone; and shown to those who do not want to guess."""
    page = reader.page
    page.goto((book / "chapters" / "timing.html").as_uri())
    outputs = page.locator(".tag_hide-output details.hide > :not(summary)")
    forms = page.locator("form.prediction")
    assert forms.count() == page.locator(".tag_hide-output").count() == 2
    form, output = forms.first, outputs.first
    sync_api.expect(output).to_be_hidden()
    forms.nth(1).get_by_text("Show without").click()
    sync_api.expect(outputs.nth(1)).to_be_visible()
    form.locator("input").focus()
    page.keyboard.type("60")
    page.keyboard.press("Enter")
    sync_api.expect(output).to_be_visible()
    said = form.get_by_role("status")
    sync_api.expect(said).to_be_focused()
    page.reload()  # a guess is kept
    sync_api.expect(said).to_contain_text("You said 60")
    assert reader.wrong == []


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ("19%", '"19%" is not a number: write one such as 12 or 0.5, without a unit.'),
        ("80", "You said 80, here it was 80.1: close."),
        ("60", "You said 60, here it was 80.1: good, off by a factor of 1.3."),
        ("8,000", "You said 8,000, here it was 80.1: off by a factor of 100."),
    ],
)
def test_a_guess_is_a_number_and_is_judged_in_words(book, reader, guess, said):
    page = reader.page
    page.goto((book / "chapters" / "memory.html").as_uri())
    form = page.locator("form.prediction").first
    form.locator("input").fill(guess)
    page.keyboard.press("Enter")
    status = form.get_by_role("status")
    sync_api.expect(status).to_contain_text(said)
    refused = "not a number" in said
    output = page.locator(".tag_hide-output details.hide").first
    assert output.evaluate("details => details.open") is not refused
    sync_api.expect(form.locator("input") if refused else status).to_be_focused()
    assert reader.wrong == []


def test_keys_and_a_button_close_an_enlarged_picture_and_a_drag_does_not(book, reader):
    page, mouse = reader.page, reader.page.mouse
    page.goto((book / "chapters" / "multiple_gpus.html").as_uri())
    picture = page.locator(".content img").first
    picture.focus()
    enlarged = page.get_by_role("dialog", name="Enlarged picture")
    for key in ("Escape", "Enter", "Space"):
        page.keyboard.press("Enter")
        sync_api.expect(enlarged).to_be_visible()
        page.keyboard.press(key)
        sync_api.expect(enlarged).to_be_hidden()
        sync_api.expect(picture).to_be_focused()
    page.keyboard.press("Enter")
    mouse.move(300, 300)
    mouse.down()
    mouse.move(420, 330)
    mouse.up()
    sync_api.expect(enlarged).to_be_visible()
    enlarged.get_by_role("button", name="Close").click()
    sync_api.expect(enlarged).to_be_hidden()


def test_no_alternative_text_has_a_glued_word(book):
    """Each stands in a page's source, by its words, and each of these in the book."""
    pages = [path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")]
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        pages += ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    found = re.findall(r"!\[([^\]]+)\]\(", "\n".join(pages))
    written = {" ".join(alt.split()) for alt in found}
    shown = set()
    for folder in ("chapters", "docs"):
        for path in (book / folder).glob("*.html"):
            for alt in re.findall(r'<img alt="([^"]*)"', path.read_text("utf-8")):
                shown.add(html.unescape(alt))
    assert len(written) >= 20
    assert written <= shown
    assert not [alt for alt in shown if alt.startswith("../")]  # that of an output


def test_folds_are_open_on_paper(book, reader):
    """Outputs, solutions, other frameworks."""
    page = reader.page
    page.goto((book / "chapters" / "multiple_gpus.html").as_uri())
    closed = page.locator(".content details:not([open])")
    before = closed.count()
    assert before >= 7
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert closed.count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert closed.count() == before


@pytest.mark.parametrize(
    ("name", "path"), [("2 cores", "scaling"), ("2 GPUs", "gpus/scaling")]
)
def test_the_sliders_of_the_bracket_start_from_a_record(book, reader, name, path):
    """And its own steps are drawn beside the band, until a slider moves."""
    (record,) = (ROOT / "figures" / path).glob("book-1thread-concise-[cg]pu2.jsonl")
    (study,) = studies([files.read(record)])
    page = reader.page
    page.goto((book / "chapters" / "scaling.html").as_uri())
    calculator = page.locator(".bracket-calculator")
    button = calculator.get_by_role("button", name=name)
    button.click()
    shown = calculator.locator("output").all_inner_texts()
    one = [of.values() for (n, _), of in study.records.items() if n == 1]
    issue = median(s for of in one for line in of for s in line.issue_seconds)
    assert shown[0] == f"{1e3 * issue:.3g} ms"
    assert shown[2] == f"{1e3 * study.exchange:.3g} ms"
    assert shown[3] == "256 images"
    low, high = (1e3 * float(bound) for bound in study.bracket(2)[256])
    said = calculator.locator("p[role=status]").inner_text()
    bounds = re.search(r"2 take (\S+) to (\S+) ms", said)
    assert float(bounds[1]) == pytest.approx(low, rel=0.25)
    assert float(bounds[2]) == pytest.approx(high, rel=0.25)
    assert calculator.locator("circle").count() == len(study.batches)
    calculator.locator("[name=python]").fill("1")
    assert calculator.locator("circle").count() == 0
    assert button.get_attribute("aria-pressed") == "false"
    assert reader.wrong == []


@pytest.mark.parametrize(("kind", "n"), [("book", 2), ("tree", 3), ("ring", 3)])
def test_the_player_ends_with_the_sum_on_every_device(book, reader, kind, n):
    """In as many rounds, and bytes over the busiest link, as the page's table says."""
    page = reader.page
    page.goto((book / "chapters" / "communication.html").as_uri())
    player = page.locator(".all-reduce-player")
    player.locator("[name=kind]").select_option(kind)
    player.locator("[name=n]").select_option(str(n))
    rounds = 2 * (n - 1).bit_length() if kind == "tree" else 2 * (n - 1)
    status = player.get_by_role("status")
    player.get_by_text("Step").click()
    for key, at in (("ArrowRight", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        sync_api.expect(status).to_contain_text(f"Round {at} of {rounds}")
    for _ in range(rounds - 1):
        page.keyboard.press("ArrowRight")
    assert player.get_by_text("Step").is_disabled()
    sums = [cell.rstrip(" ←→") for cell in player.locator("td").all_inner_texts()]
    assert sums == [str(n * (n + 1) // 2)] * n * n
    said = status.inner_text()
    busiest = {"book": n - 1, "tree": rounds / 2, "ring": 2 * (n - 1) / n}[kind]
    assert said == (
        f"Round {rounds} of {rounds}; through the busiest link: {busiest:.3g} "
        + ("array." if busiest == 1 else "arrays.")
    )
    player.get_by_text("Back").click()
    assert player.get_by_text("Step").is_enabled()
    assert reader.wrong == []

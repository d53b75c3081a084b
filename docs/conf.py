"""Sphinx: `make book` builds one static site from the repository's own pages.

The source folder is the root of the repository, so that links between its pages are
those that GitHub follows, too. A chapter's page is its script, with the outputs of its
executed notebook where `make notebooks` has written one.
"""

import html
import json
import logging
import re
import sys
from pathlib import Path
from statistics import median

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from make_notebooks import converted

from d2lpar import __version__ as release
from d2lpar.records import files
from d2lpar.scaling.model import studies

logging.basicConfig()  # or a Pygments plugin sets a level at which MXNet chats
ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "figures"
# The bracket's sliders start from these, in Gluon.
SCALING = {
    "2 cores": RECORDS / "scaling" / "book-1thread-concise-cpu2.jsonl",
    "2 GPUs": RECORDS / "gpus" / "scaling" / "book-1thread-concise-gpu2.jsonl",
}
missing = [
    script.stem
    for script in sorted(ROOT.glob("chapters/*.py"))
    if not (ROOT / "notebooks" / f"{script.stem}.ipynb").is_file()
]
if missing:
    print(f"Without output, until `make notebooks`: {', '.join(missing)}")

project, author = "d2lpar", "The d2lpar authors"
root_doc = "docs/index"
include_patterns = [
    "docs/*.md", "docs/api/*.md", "chapters/*.py", "figures/*.md", "benchmarks/*.md",
    "tests/verify/evidence.md", "CONTRIBUTING.md", "CHANGELOG.md",
]  # fmt: skip
extensions = [
    "myst_nb", "sphinx_copybutton", "sphinx_design",
    "sphinx.ext.autodoc",
]  # fmt: skip
nb_execution_mode = "off"  # `make notebooks` has executed them
nb_merge_streams = True
nb_custom_formats = {".py": ["nbformat.reads", {"as_version": 4}]}
myst_enable_extensions = ["colon_fence", "dollarmath", "html_image"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # MXNet's are not for Sphinx
autodoc_preserve_defaults = True
default_role = "literal"  # `name` in a docstring
add_module_names = False
maximum_signature_line_length = 88
html_copy_source = html_use_index = html_domain_indices = False
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. ", True
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"d2lpar {release}"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = [
    "predict.js", "allreduce.js", "bracket.js", "enlarge.js", "folds.js",
]  # fmt: skip
html_extra_path = ["site"]  # index.html at the top, which leads to docs/index.html
html_show_copyright = False
html_show_search_summary = False  # it is fetched, which a browser refuses for files
html_math_renderer = "mathml"  # MathJax would come from the network


def offer_programs(text, pages=r"\.\./chapters/"):
    """Make links to programs downloads, but for those that begin like `pages`."""
    return re.sub(rf"\]\((?!https?:|{pages})(\S+\.py)\)", r"](path:\1)", text)


def read(app, docname, source):
    """Put a chapter's notebook in the place of its script; offer others as files."""
    if docname.startswith("chapters/"):
        notebook = ROOT / "notebooks" / f"{Path(docname).name}.ipynb"
        app.env.note_dependency(notebook)
        if notebook.is_file():
            cells = nbformat.read(notebook, as_version=4)
        else:
            cells = converted(ROOT / f"{docname}.py")
        fold_what_is_predicted(cells)
        for cell in cells.cells:
            if cell.cell_type == "markdown":
                cell.source = offer_programs(one_line_alts(cell.source), r"\w+\.py")
                if "\n## The decision\n" in cell.source:
                    cell.source += bracket_calculator(app.env)
        name = Path(docname).name
        offer = f"Download: {{download}}`script </chapters/{name}.py>`"
        if notebook.is_file():
            offer += f", {{download}}`notebook </notebooks/{name}.ipynb>`"
        cells.cells.insert(1, nbformat.v4.new_markdown_cell(offer))
        source[0] = nbformat.writes(cells)
    else:
        source[0] = offer_programs(one_line_alts(source[0]))


def one_line_alts(text):
    """Join the lines of a picture's alternative text: MyST would glue their words."""
    alt = re.compile(r"!\[[^\]]*\n[^\]]*\]\(")
    return alt.sub(lambda m: " ".join(m[0].split()), text)


def bracket_calculator(env):
    """Sliders that draw the bracket of N devices, with a button for each record."""
    buttons, links, off = [], [], []
    for name, path in SCALING.items():
        env.note_dependency(path)
        (study,) = studies([files.read(path)])
        steps = study.steps
        on_one = [of.values() for (n, _), of in study.records.items() if n == 1]
        python = median(s for of in on_one for line in of for s in line.issue_seconds)
        one = {batch: seconds for (n, batch), seconds in steps.items() if n == 1}
        of_image = (one[max(one)] - python) / max(one)
        off += [abs((python + b * of_image) / one[b] - 1) for b in one]
        both = [batch for batch in study.batches if (2, batch) in steps]
        buttons.append({
            "name": name, "python": 1e3 * python, "image": 1e6 * of_image,
            "reduce": 1e3 * study.exchange,
            "measured": [[b, steps[1, b] / steps[2, b]] for b in both],
        })  # fmt: skip
        links.append(f"[{name}](../{path.relative_to(ROOT)})")
    return f"""

The sliders below start from our records of Gluon, of {" and ".join(links)}. They take
`one(b) = python + b * image`, which is at most {100 * max(off):.0f} % off the measured
steps.

<div class="bracket-calculator" data-records='{json.dumps(buttons)}'><noscript>With
JavaScript sliders stand here, which draw the bracket of N devices.</noscript></div>
"""


def fold_what_is_predicted(notebook):
    """Fold the outputs that follow a prediction; predict.js asks for a guess first.

    It reads the answer from an element of the class "answer".
    """
    asked = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            asked = "*Predict before you run*" in cell.source
        elif asked and cell.outputs:
            cell.metadata["tags"] = ["hide-output"]
            for output in cell.outputs:
                data = output.get("data", {})
                if fact := data.pop("application/json", None):
                    said = {k: html.escape(str(v)) for k, v in fact.items()}
                    exact = str(fact.get("exact", False)).lower()
                    data["text/html"] = (
                        '<pre class="answer" data-what="{what}" data-answer="{answer}" '
                        'data-exact="{is_exact}">{text}</pre>'
                    ).format(
                        text=html.escape(data["text/plain"]), is_exact=exact, **said
                    )


def name_outputs(app, doctree, docname):
    """Let the title in its file be a picture's text, where a cell has drawn it."""
    for image in doctree.findall(nodes.image):
        if "alt" not in image:
            with Image.open(Path(app.srcdir, image["uri"])) as picture:
                title = picture.info.get("Title", "Drawn by the cell above")
            image["alt"] = title


def mathml(translator, node):
    block = isinstance(node, nodes.math_block)
    math = tex2mathml(node.astext(), as_block=block)
    translator.body.append(f'<div class="math">{math}</div>' if block else math)
    raise nodes.SkipNode


def setup(app):
    app.connect("source-read", read)
    app.connect("doctree-resolved", name_outputs)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))

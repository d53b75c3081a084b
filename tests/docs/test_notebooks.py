"""Executed notebooks: in step with the chapters, whole, small, and without paths."""

import re
import runpy
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="no nbformat: extra docs")
pytest.importorskip("nbclient", reason="no nbclient: extra docs")

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "make_notebooks.py"
if not TOOL.is_file():
    pytest.skip("not a checkout", allow_module_level=True)
TOOLS = runpy.run_path(str(TOOL))
# Of no chapter: README's program, and those that say where their chapter went.
NAMES = ("two_t4", "lesson", "arrays", "least_squares_large")
OTHERS = [ROOT / "notebooks" / f"{name}.ipynb" for name in NAMES]
COMMITTED = sorted(set((ROOT / "notebooks").glob("*.ipynb")) - set(OTHERS))


def sources(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_every_chapter_has_its_notebook():
    assert {path.stem for path in COMMITTED} == TOOLS["FILES"].keys()


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_notebook_is_in_step_and_whole(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    chapter = TOOLS["converted"](TOOLS["FILES"][path.stem])
    assert sources(notebook) == sources(chapter), "make notebooks"
    assert TOOLS["wrong_with"](notebook) == []


@pytest.mark.parametrize("path", [*COMMITTED, *OTHERS], ids=lambda path: path.stem)
def test_every_relative_link_of_a_notebook_resolves(path):
    notebook = nbformat.read(path, as_version=4)
    text = "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    found = re.findall(r"""\]\(([^)\s]+)|(?:src|href)=["']([^"']+)""", text)
    links = ["".join(groups).partition("#")[0] for groups in found]
    relative = {link for link in links if link and not re.match(r"\w+:", link)}
    assert not [link for link in relative if not (path.parent / link).exists()]


@pytest.mark.slow
def test_the_notebook_of_two_t4s_runs_on_two_contexts(tmp_path, monkeypatch):
    ipython = pytest.importorskip("IPython", reason="no IPython: extra docs")
    notebook = nbformat.read(OTHERS[0], as_version=4)
    _, *cells = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    program = "\n\n".join(cells).replace("gpu:2", "cpu:2")
    program = program.replace("--preset=book", "--dry-run")
    program = program.replace('"d2lpar-env/bin/python"', repr(sys.executable))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shown = []
    monkeypatch.setattr(ipython.display, "display", shown.append)
    exec(program, {})
    assert shown and list(tmp_path.rglob("*.jsonl"))


def test_a_fold_shows_the_source_of_functions(tmp_path):
    program = ROOT / "teaching" / "frameworks" / "pytorch_step.py"
    line = f"<!-- fold: teaching/frameworks/{program.name} get_params train_batch -->"
    script = tmp_path / "lesson.py"
    script.write_text(f"# %% [markdown]\n# Before.\n#\n# {line}\n#\n# After.")
    text = TOOLS["converted"](script).cells[-1].source
    before, _, rest = text.partition("\n\n```python\n")
    code, _, after = rest.partition("\n```\n\n")
    assert before.endswith("<summary>The same in PyTorch</summary>")
    first, second = code.split("\n\n\n")
    assert first in program.read_text() and second in program.read_text()
    assert "def get_params(" in first and second.startswith("def train_batch(")
    assert f"](../teaching/frameworks/{program.name})" in after


def executed(printed):
    """A notebook of one cell, as it is after the cell has printed this."""
    cell = nbformat.v4.new_code_cell("...", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", text=printed)]
    return nbformat.v4.new_notebook(cells=[cell])


def test_what_may_not_be_committed_is_named():
    assert TOOLS["wrong_with"](executed("2 devices")) == []
    (path,) = TOOLS["wrong_with"](executed("/home/" + "someone/figures"))
    assert path == "a path of a machine: /home/someone"
    noisy = executed("d" * 89)
    noisy.cells[0].outputs[0].name = "stderr"
    noise, wide = TOOLS["wrong_with"](noisy)
    assert noise.startswith("on stderr: d") and wide.startswith("a line of 89 columns")
    long, size = TOOLS["wrong_with"](executed(("x" * 80 + "\n") * 16_000))
    assert long.startswith("an output of 16000 lines, at most 45")
    assert "at most 1,250,000" in size
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    assert TOOLS["wrong_with"](empty) == ["a cell that was not executed"]


def test_the_gan_sees_no_artwork(tmp_path):
    variables = TOOLS["environment_of"]("gan", str(tmp_path))
    assert variables["D2LPAR_DATA"] is None
    assert variables["MXNET_HOME"] == variables["XDG_CACHE_HOME"] == str(tmp_path)
    assert TOOLS["environment_of"]("memory", str(tmp_path)) == {}

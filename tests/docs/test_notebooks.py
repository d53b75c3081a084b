"""Executed notebooks: in step with the chapters, whole, small, and without paths."""

import runpy
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="no nbformat: extra docs")
pytest.importorskip("nbclient", reason="no nbclient: extra docs")

from d2lpar.experiments import EXPERIMENTS  # noqa: E402

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "make_notebooks.py"
if not TOOL.is_file():
    pytest.skip("not a checkout", allow_module_level=True)
TOOLS = runpy.run_path(str(TOOL))
COMMITTED = sorted((ROOT / "notebooks").glob("*.ipynb"))


def sources(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_every_chapter_has_its_notebook():
    assert {path.stem for path in COMMITTED} == set(EXPERIMENTS)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_notebook_is_in_step_and_whole(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    chapter = TOOLS["converted"](TOOLS["FILES"][path.stem])
    assert sources(notebook) == sources(chapter), "make notebooks"
    assert TOOLS["wrong_with"](notebook) == []


def executed(printed):
    """A notebook of one cell, as it is after the cell has printed this."""
    cell = nbformat.v4.new_code_cell("...", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", text=printed)]
    return nbformat.v4.new_notebook(cells=[cell])


def test_what_may_not_be_committed_is_named():
    assert TOOLS["wrong_with"](executed("2 devices")) == []
    (path,) = TOOLS["wrong_with"](executed("/home/" + "someone/figures"))
    assert path == "a path of a machine: /home/someone"
    (size,) = TOOLS["wrong_with"](executed("x" * 1_000_001))
    assert "at most 1,000,000" in size
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    assert TOOLS["wrong_with"](empty) == ["a cell that was not executed"]


def test_the_gan_sees_no_artwork(tmp_path):
    variables = TOOLS["environment_of"]("gan", str(tmp_path))
    assert variables["D2LPAR_DATA"] is None
    assert variables["MXNET_HOME"] == variables["XDG_CACHE_HOME"] == str(tmp_path)
    assert TOOLS["environment_of"]("memory", str(tmp_path)) == {}

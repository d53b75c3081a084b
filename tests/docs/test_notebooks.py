"""Executed notebooks: in step with the chapters, whole, small, and without paths."""

import runpy
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="no nbformat: extra docs")
pytest.importorskip("nbclient", reason="no nbclient: extra docs")

from d2lpar.cli.main import chapter_files  # noqa: E402

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "make_notebooks.py"
if not TOOL.is_file():
    pytest.skip("not a checkout", allow_module_level=True)
TOOLS = runpy.run_path(str(TOOL))
COMMITTED = sorted((ROOT / "notebooks").glob("*.ipynb"))


# Two batches on generated data in place of what `make notebooks` measures in minutes.
BRIEFLY = """
import functools
from d2lpar import chapter
chapter.measure = functools.partial(chapter.measure, dry_run=True)
chapter.show = functools.partial(chapter.show, dry_run=True)
"""


def sources(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_every_chapter_has_its_notebook_or_none_has():
    """None: before the first `make notebooks`."""
    names = {path.stem for path in COMMITTED}
    assert names in (set(), set(chapter_files()))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_notebook_is_in_step_and_whole(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    chapter = TOOLS["converted"](chapter_files()[path.stem])
    assert sources(notebook) == sources(chapter), "make notebooks"
    assert TOOLS["wrong_with"](notebook) == []


def made(code):
    """An executed notebook of one cell, in a fresh kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    TOOLS["execute"](notebook, {"D2LPAR_TEST": "told"})
    return notebook


def test_what_may_not_be_committed_is_named():
    pytest.importorskip("ipykernel", reason="no notebook kernel: extra docs")
    assert (
        TOOLS["wrong_with"](made("import os; print(os.environ['D2LPAR_TEST'])")) == []
    )
    (path,) = TOOLS["wrong_with"](made("print('/home/' + 'someone/figures')"))
    assert path == "a path of a machine: /home/someone"
    (size,) = TOOLS["wrong_with"](made("print('x' * 1_000_001)"))
    assert "at most 1,000,000" in size
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    assert TOOLS["wrong_with"](empty) == ["a cell that was not executed"]


def test_the_gan_sees_no_artwork(tmp_path):
    variables = TOOLS["environment_of"]("gan", str(tmp_path))
    assert variables["D2LPAR_DATA"] is None
    assert variables["MXNET_HOME"] == variables["XDG_CACHE_HOME"] == str(tmp_path)
    assert TOOLS["environment_of"]("memory", str(tmp_path)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", chapter_files())
def test_a_chapter_runs_in_a_fresh_kernel(name, tmp_path):
    pytest.importorskip("ipykernel", reason="no notebook kernel: extra docs")
    notebook = TOOLS["converted"](chapter_files()[name])
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BRIEFLY))
    TOOLS["execute"](notebook, TOOLS["environment_of"](name, str(tmp_path)))
    assert TOOLS["wrong_with"](notebook) == []

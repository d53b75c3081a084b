"""Who imports MXNet, and what chapters use; `make lint` checks the other imports."""

import ast
import re
from pathlib import Path

import pytest

import d2lpar

PACKAGE = Path(d2lpar.__file__).parent
CHAPTERS = sorted(
    (PACKAGE.parent / "chapters").glob("[!_]*.py"), key=lambda path: path.stem
)


def imported_names(path):
    """Dotted names that a source text imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_module_alone_imports_mxnet():
    assert [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(name.split(".")[0] == "mxnet" for name in imported_names(path))
    ] == ["_mxnet.py"]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_uses_public_names(path):
    """MXNet's come from d2lpar too: it sets what MXNet reads when it is imported."""
    tree = ast.parse(path.read_text("utf-8"))
    names = set(imported_names(path))
    assert [n for n in names if n.split(".")[0] == "mxnet"] == []
    assert [n for n in names if any(p.startswith("_") for p in n.split("."))] == []
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in used if re.match(r"_(?!_)", name)}
    assert private <= {"_replace"}  # a named tuple's

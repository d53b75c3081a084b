"""Who imports MXNet, and what chapters use; `make lint` checks the other imports."""

import ast
import re
from pathlib import Path

import pytest

import d2lpar

PACKAGE = Path(d2lpar.__file__).parent
ROOT = PACKAGE.parent
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
CHAPTERS = sorted((ROOT / "chapters").glob("[!_]*.py"), key=lambda path: path.stem)


def imported_names(tree):
    """Dotted names that a source text imports anywhere, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_module_alone_imports_mxnet():
    assert [
        name
        for name, tree in TREES.items()
        if any(imported.split(".")[0] == "mxnet" for imported in imported_names(tree))
    ] == ["d2lpar/_mxnet.py"]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_uses_public_names(path):
    """MXNet's come from d2lpar too: it sets what MXNet reads when it is imported."""
    tree = ast.parse(path.read_text("utf-8"))
    names = set(imported_names(tree))
    assert [n for n in names if n.split(".")[0] == "mxnet"] == []
    assert [n for n in names if any(p.startswith("_") for p in n.split("."))] == []
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in used if re.match(r"_(?!_)", name)}
    assert private <= {"_replace"}  # a named tuple's

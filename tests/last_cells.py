"""Chapters without their lessons: the last cell, and what it takes of the others."""

import ast
from pathlib import Path


def last_cell(script: Path) -> str:
    """The part of a chapter's script that `chapter.measure` or `chapter.show` needs.

    That is the imports, functions and constants that its last statement names, and
    those that these name in turn.
    """
    *nodes, last = ast.parse(script.read_text(encoding="utf-8")).body
    needed, kept = _names(last), [last]
    for node in reversed(nodes):
        if _defined(node) & needed:
            needed |= _names(node)
            kept.insert(0, node)
    return "\n".join(map(ast.unparse, kept)) + "\n"


def _names(node: ast.AST) -> set[str]:
    """The names that a node uses, but for those that are a function's own."""
    names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    if not isinstance(node, ast.FunctionDef):
        return {name.id for name in names}
    own = {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
    own |= _stored(node)
    return {name.id for name in names} - own


def _stored(node: ast.AST) -> set[str]:
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Assign):  # also of an item, as PRESETS["dry-run"]
        return set().union(*map(_names, node.targets))
    return _stored(node)

"""Which code a record was measured by, and whether it has changed since.

Sources are compared without comments and docstrings: a chapter's prose may quote what
it measured. What is done with a measurement afterwards does not count, either.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_MEASURING = ("d2lpar/figures", "d2lpar/cli", "d2lpar/records", "d2lpar/_version.py")


def code_of(record: Path) -> set[Path]:
    """The sources, from the root, that a record of figures/ depends on.

    Those of a chapter are what it imports, and what runs it in its own processes; those
    of benchmarks and peers, which also run commands, are the whole package but for
    studies that they do not import.
    """
    if record.parent.name in ("benchmarks", "peers"):
        studies = set(ROOT.glob("d2lpar/studies/*.py"))
        begin = [
            path
            for path in set(ROOT.glob("d2lpar/**/*.py")) - studies
            if is_measuring(path.relative_to(ROOT))
        ]
        begin += [*ROOT.glob("peers/*.py"), *ROOT.glob(f"benchmarks/{record.stem}.py")]
    else:
        begin = [ROOT / "chapters" / f"{record.parent.name}.py"]
        begin += ROOT.glob("d2lpar/runs/*.py")
    found = (path.relative_to(ROOT) for path in imported(begin))
    return {path for path in found if is_measuring(path)}


def is_measuring(path: Path) -> bool:
    """Whether a source, from the root, is at work while something is measured."""
    return not path.as_posix().startswith(NOT_MEASURING)


def imported(begin: Iterable[Path]) -> set[Path]:
    """These sources, and the project's that they import, at any depth."""
    found: set[Path] = set()
    todo = list(begin)
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            for name in imported_names(path):
                todo += sources(name)
    return found


def imported_names(path: Path) -> Iterator[str]:
    """The dotted names that a source imports; of ``from a import b``, ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources(name: str) -> Iterator[Path]:
    """The project's files that importing a dotted name reads."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        place = ROOT.joinpath(*parts[:end])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                yield path


def changed_since(commit: str, paths: Iterable[Path]) -> str:
    """The first of these sources that is another program now; "" if none is.

    "the history" if the commit is not in it.
    """
    listed = git("diff", "--name-only", commit, "--", *sorted(map(str, paths)))
    if listed.returncode:
        return "the history"
    for name in listed.stdout.splitlines():
        before = git("show", f"{commit}:{name}")
        if before.returncode or program(before.stdout) != program(
            (ROOT / name).read_text(encoding="utf-8")
        ):
            return name
    return ""


def program(source: str) -> str:
    """A source without its comments, layout, and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
    return ast.dump(tree)


def git(*words: str) -> subprocess.CompletedProcess:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True)

"""How the package is built, checked on its source: who imports whom, and names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import d2lpar

PACKAGE = Path(d2lpar.__file__).parent
ROOT = PACKAGE.parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# A module may import its own room and those on the lines below its line, nothing else.
ROOMS = [
    ["__main__"],
    ["chapter"],
    ["cli"],
    ["runs"],
    ["experiments"],
    ["memory"],
    ["arrays", "scaling", "least_squares", "gan", "low_precision"],
    ["lenet_workers", "local_sgd"],
    ["lenet_concise"],
    ["lenet"],
    ["workers"],
    ["lenet_result"],
    ["kernels"],
    ["training"],
    ["buckets"],
    ["parallel"],
    ["networks"],
    ["datasets", "timing"],
    ["devices"],
    ["_mxnet"],
    ["_numpy_names"],
    ["machine"],
    ["process"],
    ["figures"],
    ["records"],
    ["text", "errors"],
    ["_version"],
]
LEVEL = {room: number for number, line in enumerate(ROOMS) for room in line}
MAY_IMPORT_CLI = {"cli", "chapter", "__main__"}

FORBIDDEN_NAMES = {"utils", "common", "core", "base", "helpers", "misc"}


def module_name(path: Path) -> str:
    """d2lpar/gan/adam.py is d2lpar.gan.adam, d2lpar/gan/__init__.py is d2lpar.gan."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}
CHAPTERS = {path.stem: path for path in sorted((ROOT / "chapters").glob("[!_]*.py"))}


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a source text imports anywhere, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str | None:
    """The package's module that an imported dotted name is or belongs to."""
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name or None


IMPORTS = {
    name: {module_of(imported) for imported in imported_names(tree)} - {None, name}
    for name, tree in TREES.items()
}


def room(module: str) -> str:
    """The file or folder directly under d2lpar/ that a module is or lies in."""
    return module.split(".")[1] if "." in module else ""


def imports_between_rooms() -> Iterator[tuple[str, str]]:
    for name, targets in IMPORTS.items():
        for target in sorted(targets):
            if room(name) and room(name) != room(target):
                yield name, target


def test_every_room_has_its_line():
    rooms = {room(name) for name in FILES} - {""}
    assert rooms <= set(LEVEL), f"add to ROOMS: {rooms - set(LEVEL)}"


def test_imports_go_down():
    """Lazy imports included."""
    assert [
        f"{name} imports {target}"
        for name, target in imports_between_rooms()
        if not room(target) or LEVEL[room(target)] <= LEVEL[room(name)]
    ] == []


def test_imports_make_no_circle():
    unfinished, circles = {name: set(targets) for name, targets in IMPORTS.items()}, []
    while unfinished:
        done = [name for name, targets in unfinished.items() if not targets]
        if not done:
            circles = {n: sorted(t) for n, t in unfinished.items()}
            break
        for name in done:
            del unfinished[name]
        for targets in unfinished.values():
            targets.difference_update(done)
    assert not circles, "in a circle, or importing one"


def test_the_command_line_is_imported_by_its_entries_only():
    assert [
        name
        for name, target in imports_between_rooms()
        if room(target) == "cli" and room(name) not in MAY_IMPORT_CLI
    ] == []


def reached(module: str) -> set[str]:
    """The modules that importing a module loads, through all that these import."""
    todo, seen = [module], set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += at_the_top(name)
            package = name.rpartition(".")[0]
            todo += [package] if package else []
    return seen


def at_the_top(module: str) -> list[str]:
    """What a module imports when it is loaded: not inside functions."""
    tree = ast.Module([], [])
    tree.body = [
        node
        for node in TREES[module].body
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    return [name for name in map(module_of, imported_names(tree)) if name]


FIGURES = [
    name
    for name in FILES
    if name.startswith("d2lpar.figures.") or name.endswith((".figure", "result"))
]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_without_mxnet(name):
    assert "d2lpar._mxnet" not in reached(name)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_uses_public_names(name):
    """MXNet's come from d2lpar too: it sets what MXNet reads when it is imported."""
    tree = ast.parse(CHAPTERS[name].read_text("utf-8"))
    names = set(imported_names(tree))
    assert [n for n in names if n.split(".")[0] == "mxnet"] == []
    assert [n for n in names if any(p.startswith("_") for p in n.split("."))] == []
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in used if re.match(r"_(?!_)", name)}
    assert private <= {"_replace"}  # a named tuple's


def test_modules_say_what_is_in_them():
    names = {part for name in FILES for part in name.split(".")}
    assert names & FORBIDDEN_NAMES == set()
    docstrings = {name: ast.get_docstring(tree) for name, tree in TREES.items()}
    assert [
        name for name, text in docstrings.items() if not text or text.startswith("TODO")
    ] == []


def test_public_functions_and_classes_have_a_docstring():
    assert [
        f"{name}.{node.name}"
        for name, tree in TREES.items()
        for node in tree.body
        if isinstance(node, (*FUNCTIONS, ast.ClassDef))
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ] == []

"""How the package is built, checked on its source: who imports whom, sizes, words."""

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
    ["__main__", "chapter"],
    ["cli"],
    ["figures"],
    ["runs"],
    ["studies"],
    ["gan", "least_squares", "lenet_workers"],
    ["lenet_concise"],
    ["lenet"],
    ["memory", "workers"],
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
    ["records"],
    ["errors", "shards"],
    ["_version"],
]
LEVEL = {room: number for number, line in enumerate(ROOMS) for room in line}
FIGURES_MAY_IMPORT = {"figures", "records", "datasets", "errors"}
MAY_IMPORT_FIGURES = {"figures", "cli", "chapter"}
MAY_IMPORT_CLI = {"cli", "chapter", "__main__"}

FORBIDDEN_NAMES = {"utils", "common", "core", "base", "helpers", "misc"}
MOST_LINES = 45
MOST_POSITIONAL = 5
# Functions that may have more parameters or lines, with the reason.
EXCEPTIONS = {
    "d2lpar.parallel.train_batch": "the book's parameters, in the book's order",
}

# A seed is where random numbers start, never a document that the reader does not have.
THE_SEED = re.compile(
    r"\b([Tt]he|[Aa]nother|[Tt]wo|[Ff]our) seeds?\b(?! of )"
    r"|\bseeds?['’]|\bseed \(?00\d|\bSeed: |as-the-seed|\b(gan|squares)_seed\b"
)


def module_name(path: Path) -> str:
    """d2lpar/gan/adam.py is d2lpar.gan.adam, d2lpar/gan/__init__.py is d2lpar.gan."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}
CHAPTERS = {path.stem: path for path in sorted((ROOT / "chapters").glob("[!_]*.py"))}
OTHERS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "figures/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.py")),
    *sorted((ROOT / "peers").glob("*.[mp]*")),
]


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


def test_figures_know_records_only():
    assert [
        f"{name} imports {target}"
        for name, target in imports_between_rooms()
        if (room(name) == "figures" and room(target) not in FIGURES_MAY_IMPORT)
        or (room(target) == "figures" and room(name) not in MAY_IMPORT_FIGURES)
    ] == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_uses_public_names(name):
    """MXNet's come from d2lpar too: it sets what MXNet reads when it is imported."""
    tree = ast.parse(CHAPTERS[name].read_text("utf-8"))
    names = set(imported_names(tree))
    assert [n for n in names if n.split(".")[0] == "mxnet"] == []
    assert [n for n in names if any(p.startswith("_") for p in n.split("."))] == []
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert [name for name in used if re.match(r"_(?!_)", name)] == []


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


def functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function of a module by its dotted name, nested ones and methods too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            name = f"{prefix}.{node.name}"
            if isinstance(node, FUNCTIONS):
                yield name, node
            yield from functions(node, name)
        else:
            yield from functions(node, prefix)


def test_functions_are_short_and_take_few_positional_arguments():
    offenders = {}
    for module, tree in TREES.items():
        for name, node in functions(tree, module):
            taken = [a.arg for a in node.args.posonlyargs + node.args.args]
            count = len(taken) - (taken[:1] in (["self"], ["cls"]))
            lines = node.end_lineno - node.lineno + 1
            if lines > MOST_LINES or count > MOST_POSITIONAL:
                offenders[name] = f"{lines} lines, {count} positional parameters"
    assert {n: why for n, why in offenders.items() if n not in EXCEPTIONS} == {}


def occurrences(path: Path) -> list[str]:
    """Where a text calls a document "the seed", with its words over line ends."""
    text = re.sub(r"\n[ \t]*(# )?", " ", path.read_text("utf-8"))
    return [
        f"{path.relative_to(ROOT)}: {text[max(0, m.start() - 30) : m.end() + 20]}"
        for m in THE_SEED.finditer(text)
    ]


def test_a_seed_is_where_random_numbers_start():
    paths = [*FILES.values(), *CHAPTERS.values(), *OTHERS]
    assert [where for path in paths for where in occurrences(path)] == []

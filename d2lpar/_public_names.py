"""The public names of a package, which are imported when they are first used."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path


def from_stub(package: str, file: str) -> tuple[Callable, Callable, list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package: its stub's imports.

    Type checkers read the same stub, ``__init__.pyi`` beside `file`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    origins = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in imports
        for alias in node.names
    }

    def load(public: str) -> object:
        if public not in origins:
            raise AttributeError(f"module {package!r} has no attribute {public!r}")
        module, name = origins[public]
        if module is None:  # from . import name
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(f"{package}.{module}"), name)

    return load, lambda: list(origins), list(origins)

"""What a type checker tells a user: the signature of each public name, never `Any`."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import d2lpar

pytest.importorskip("mypy", reason="mypy needs Python 3.10")

ROOT = Path(d2lpar.__file__).parents[1]
MODULES = ["d2lpar", "d2lpar.chapter", "d2lpar.errors"]
MODULES += [
    value.__name__
    for value in (getattr(d2lpar, name) for name in d2lpar.__all__)
    if inspect.ismodule(value) and value.__name__.startswith("d2lpar.")
]
MXNETS_OWN = {"autograd", "gluon", "mx", "np", "npx"}  # MXNet has no types


def public_names(module: str) -> list[str]:
    """`__all__`, or the functions and classes that a module defines."""
    loaded = importlib.import_module(module)
    return getattr(loaded, "__all__", None) or [
        name
        for name, value in vars(loaded).items()
        if (inspect.isclass(value) or inspect.isroutine(value))
        and value.__module__ == module
        and not name.startswith("_")
    ]


def test_every_public_name_has_a_type(tmp_path):
    names = [f"{module}.{name}" for module in MODULES for name in public_names(module)]
    source = [f"import {module}" for module in MODULES]
    source += [f"reveal_type({name})" for name in names]
    (tmp_path / "names.py").write_text("\n".join(source))
    done = subprocess.run(  # its cache is that of `make lint`
        [sys.executable, "-m", "mypy", "--no-error-summary", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    types = [
        line.partition("Revealed type is ")[2].strip('"')
        for line in done.stdout.splitlines()
    ]
    assert len(types) == len(names) > 100 and all(types)
    without = {name for name, type_ in zip(names, types) if type_ == "Any"}
    assert without == {f"d2lpar.{name}" for name in MXNETS_OWN}

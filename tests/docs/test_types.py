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

CLIENT = """
from d2lpar import gan, lenet, split_batch, train_batch, try_all_gpus
X_shards, y_shards = split_batch(None, None, try_all_gpus())
epochs = lenet.train(2, devices="cpu:2", num_epochs="three")  # wrong
gan.start(seed=0).params_H  # wrong
train_batch(X_shards, y_shards)  # wrong
"""


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


def test_every_public_name_has_a_type_and_wrong_calls_are_found(tmp_path):
    names = [f"{module}.{name}" for module in MODULES for name in public_names(module)]
    source = [f"import {module}" for module in MODULES]
    source += [f"reveal_type({name})" for name in names]
    (tmp_path / "names.py").write_text("\n".join(source))
    (tmp_path / "client.py").write_text(CLIENT)
    done = subprocess.run(  # its cache is that of `make lint`
        [sys.executable, "-m", "mypy", "--no-error-summary", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr == ""
    said = done.stdout.splitlines()
    types = [
        line.partition("Revealed type is ")[2].strip('"')
        for line in said
        if "names.py" in line
    ]
    assert len(types) == len(names) > 100 and all(types)
    without = {name for name, type_ in zip(names, types) if type_ == "Any"}
    assert without == {f"d2lpar.{name}" for name in MXNETS_OWN}
    errors = [line for line in said if "client.py" in line and "error:" in line]
    assert [line.split(":")[1] for line in errors] == ["4", "5", "6"]

"""Cross-references in docstrings: each names something that exists."""

import inspect
import pydoc
import re
from pathlib import Path

import pytest

import d2lpar

PACKAGE = Path(d2lpar.__file__).parent
REFERENCE = re.compile(
    r":(?:class|meth|func|mod|data|attr|exc):`(?:[^`<]*<)?~?([^`>]+)"
)
TEXTS = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
}


@pytest.mark.parametrize("name", [n for n in TEXTS if REFERENCE.search(TEXTS[n])])
def test_references_of_docstrings_resolve(name):
    """In full, or by their name in the module, its classes, its room or in errors."""
    module = pydoc.locate(name.removesuffix(".__init__"))
    classes = [f"{name}.{k}" for k, v in vars(module).items() if inspect.isclass(v)]
    places = [module.__name__, module.__package__, "d2lpar.errors", *classes]
    assert [
        reference
        for reference in dict.fromkeys(REFERENCE.findall(TEXTS[name]))
        if pydoc.locate(reference) is None
        and not any(pydoc.locate(f"{p}.{reference.lstrip('.')}") for p in places)
    ] == []

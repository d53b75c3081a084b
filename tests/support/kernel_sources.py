"""Every kernel of the package, its chapters and benchmarks: source, name, signature.

Read from the source texts, so that a new kernel is found without being listed here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from d2lpar.kernels import ElementwiseKernel

ROOT = Path(__file__).parents[2]
_DEFINITION = re.compile(r"__global__\s+void\s+(\w+)\s*\(([^)]*)\)")


class KernelSource(NamedTuple):
    where: str
    source: str
    name: str
    signature: str


def kernel_sources() -> list[KernelSource]:
    sources = []
    for folder in ("d2lpar", "chapters", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for text in [*_texts(tree), *_elementwise(tree)]:
                for name, signature in _DEFINITION.findall(text):
                    where = path.relative_to(ROOT).as_posix()
                    signature = " ".join(signature.split())
                    sources.append(KernelSource(where, text, name, signature))
    return sources


def _texts(tree: ast.AST) -> Iterator[str]:
    """Texts that hold kernels, but for the template of all elementwise ones."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and "{name}" not in text:
            yield text


def _elementwise(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == (
            "ElementwiseKernel"
        ):
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if len(words) == len(node.args):
                yield ElementwiseKernel(*words).source

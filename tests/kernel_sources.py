"""Every kernel of the package, its chapters and benchmarks: source, name, signature.

Read from the source texts, so that a new kernel is found without being listed here.
Imports no MXNet.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from d2lpar.kernels.source import (
    SGD_ARGUMENTS,
    SGD_OPERATION,
    elementwise_source,
    parse_signature,
)

ROOT = Path(__file__).parents[1]
_DEFINITION = re.compile(r"__global__\s+void\s+(\w+)\s*\(([^)]*)\)")


class KernelSource(NamedTuple):
    where: str
    source: str
    name: str
    signature: str


def kernel_sources() -> list[KernelSource]:
    found = []
    for folder in ("d2lpar", "chapters", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += _written_out(where, tree)
            found += _elementwise(where, tree)
    for ctype in ("float", "double"):
        arguments = SGD_ARGUMENTS.format(ctype)
        found.append(_of_an_operation("fused_sgd", arguments, SGD_OPERATION, "sgd"))
    return found


def _written_out(where: str, tree: ast.AST) -> Iterator[KernelSource]:
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and "{name}" not in text:
            for name, signature in _DEFINITION.findall(text):
                signature = " ".join(signature.split())
                yield KernelSource(where, text, name, signature)


def _elementwise(where: str, tree: ast.AST) -> Iterator[KernelSource]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == (
            "ElementwiseKernel"
        ):
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if len(words) == len(node.args):
                yield _of_an_operation(where, *words)


def _of_an_operation(where: str, arguments: str, operation: str, name: str):
    source = elementwise_source(parse_signature(arguments), operation, name)
    return KernelSource(where, source, name, f"{arguments}, long long n")

"""Convert chapters to notebooks and execute them: notebooks/CHAPTER.ipynb.

    python tools/make_notebooks.py [CHAPTER ...]        (default: all of them)

Every chapter runs with its quick preset in a fresh kernel and an empty folder, on the
data that D2LPAR_DATA names or, without it, generated data. A notebook is written only
if no cell failed, it has at most 1.25 MB, its outputs name no folder of this machine,
have at most 45 lines of at most 88 columns and nothing on standard error, and the
measured numbers in its prose are those of the records it links (quoted_numbers.py).

A line of prose such as

    <!-- fold: teaching/frameworks/pytorch_step.py allreduce train_batch -->

becomes a fold that opens on the source of these functions or classes. A link to another
chapter's script becomes one to its notebook.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from quoted_numbers import wrong_in

from d2lpar.records.atomic import replacing

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
FILES = {path.stem: path for path in sorted((ROOT / "chapters").glob("[!_]*.py"))}
MAX_BYTES = 1_250_000
MAX_COLUMNS = 88
MAX_LINES = 45  # of one output: a screen
TIMEOUT = 600  # seconds for each cell
# An exercise's answer: in a script in brackets, in a notebook folded.
ANSWER = re.compile(r"\s*\*\((.*?)\)\*", re.DOTALL)
FOLDED = "\n\n   <details><summary>Solution</summary>\n\n   {}\n\n   </details>"
# The same in another framework, from a program that tests compare with the chapter's.
FOLD = re.compile(r"^<!-- *fold\b:?(.*?)-->", re.MULTILINE)
IN_FRAMEWORK = """<details><summary>The same in {framework}</summary>

```python
{source}
```

From [{path}](../{path}).

</details>"""
SCRIPT = re.compile(r"\]\((\w+)\.py(?=[)#])")  # another chapter, in a link
FRAMEWORKS = {"pytorch": "PyTorch", "jax": "JAX", "mxnet": "MXNet"}
# A folder of some machine: of its user, its temporary files or its Python.
PATH = re.compile(r"/(?:home|root|Users|tmp|work|mnt|usr|var|opt)/[\w.+-]+")


def definitions(path: Path) -> dict[str, str]:
    """The source of each function and class at the top of a script."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    return {
        node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }


def fold(asked: re.Match) -> str:
    """What stands for a fold's line. Raises ValueError for a wrong file or name."""
    path, *names = asked[1].split() or [""]
    if not (ROOT / path).is_file():
        raise ValueError(f"{asked[0]}: there is no file {path!r}")
    found = definitions(ROOT / path)
    for name in names:
        if name not in found:
            there = ", ".join(found)
            raise ValueError(f"{asked[0]}: no {name} in {path}, which has {there}")
    framework = Path(path).name.partition("_")[0]
    return IN_FRAMEWORK.format(
        framework=FRAMEWORKS.get(framework, framework),
        source="\n\n\n".join(found[name] for name in names),
        path=path,
    )


def converted(script: Path) -> nbformat.NotebookNode:
    """Return the chapter's cells as a notebook without outputs, the same each time.

    Answers of exercises, and what lines `fold` name, are folded in HTML. Raises
    ValueError for a wrong line `fold`.
    """
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{script.stem}-{number}"[-64:]
        if cell.cell_type == "markdown":
            cell.source = FOLD.sub(fold, SCRIPT.sub(r"](\1.ipynb", cell.source))
        text, heading, exercises = cell.source.partition("## Exercises\n")
        if heading:
            folded = ANSWER.sub(lambda answer: FOLDED.format(answer[1]), exercises)
            cell.source = text + heading + folded
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


def execute(
    notebook: nbformat.NotebookNode,
    environment: dict[str, str | None],
    folder: str | Path,
) -> None:
    """Run all cells in a fresh kernel, in this folder. Raises CellExecutionError.

    `environment` changes this process's for the kernel; None unsets a variable.
    """
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    merged = {**os.environ, **environment}
    client.execute(env={k: v for k, v in merged.items() if v is not None})


def environment_of(chapter: str, empty: str | Path) -> dict[str, str | None]:
    """Return variables for a chapter's kernel; `empty` is an empty folder.

    The artwork of the CryptoPunks may not be shown: the GAN learns from drawn faces.
    """
    if chapter != "gan":
        return {}
    nowhere = "http://127.0.0.1:9"
    return {
        "D2LPAR_DATA": None,
        **dict.fromkeys(("MXNET_HOME", "XDG_CACHE_HOME"), str(empty)),
        **dict.fromkeys(("http_proxy", "https_proxy"), nowhere),
    }


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells have printed or shown, as text."""
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    shown = [o.get("text", "") for o in outputs]
    for output in outputs:
        data = output.get("data", {})
        shown += [v for kind, v in data.items() if kind.startswith("text/")]
    return shown


def wrong_with(notebook: nbformat.NotebookNode) -> list[str]:
    """Why an executed notebook may not be committed; empty if it may."""
    wrong = [
        f"an error output: {output.ename}"
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
    if any(not c.outputs and c.execution_count is None and c.source
           for c in notebook.cells if c.cell_type == "code"):  # fmt: skip
        wrong.append("a cell that was not executed")
    wrong += [
        f"a path of a machine: {p}" for t in texts(notebook) for p in PATH.findall(t)
    ]
    outputs = [o for c in notebook.cells for o in c.get("outputs", [])]
    wrong += [f"on stderr: {o.text[:80]}" for o in outputs if o.get("name") == "stderr"]
    wrong += [
        f"a line of {len(line)} columns, at most {MAX_COLUMNS}: {line}"
        for text in texts(notebook)
        for line in text.splitlines()
        if len(line) > MAX_COLUMNS
    ]
    wrong += [
        f"an output of {len(text.splitlines())} lines, at most {MAX_LINES}: {text[:40]}"
        for text in texts(notebook)
        if len(text.splitlines()) > MAX_LINES
    ]
    size = len(nbformat.writes(notebook).encode())
    if size > MAX_BYTES:
        wrong.append(f"{size:,} bytes: at most {MAX_BYTES:,}")
    return wrong


def main(chapters: list[str]) -> int:
    for name in chapters:
        if name not in FILES:
            print(f"chapter {name!r}: write one of {', '.join(FILES)}", file=sys.stderr)
            return 2
    for name in chapters or FILES:
        try:
            notebook = converted(FILES[name])
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        with tempfile.TemporaryDirectory() as folder:
            try:
                execute(notebook, environment_of(name, folder), folder)
            except CellExecutionError as error:
                print(f"{name}: {error.ename}: {error.evalue}", file=sys.stderr)
                return 3
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        if wrong := [*wrong_with(notebook), *wrong_in(FILES[name])]:
            print(f"{name}: {'; '.join(wrong)}", file=sys.stderr)
            return 3
        with replacing(NOTEBOOKS / f"{name}.ipynb") as tmp:
            nbformat.write(notebook, tmp)
        print(NOTEBOOKS / f"{name}.ipynb", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

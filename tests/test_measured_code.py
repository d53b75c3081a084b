"""Which code a record was measured by: what it imports, without prose."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import measured_code  # noqa: E402


def names(record: str) -> set[str]:
    code = measured_code.code_of(ROOT / "figures" / record)
    return {path.as_posix() for path in code}


def test_a_chapter_depends_on_what_it_imports():
    code = names("gan/quick-cpu2.jsonl")
    assert {"chapters/gan.py", "d2lpar/gan/adam.py", "d2lpar/parallel.py"} <= code
    assert "d2lpar/runs/child.py" in code  # its own process, imported by nothing
    assert "d2lpar/least_squares/direct.py" not in code
    assert not any("/figures/" in name or "/cli/" in name for name in code)
    assert "d2lpar/lenet_workers.py" in names("multiple_machines/book-cpu2.jsonl")


def test_a_benchmark_depends_on_the_package_and_its_own_studies():
    code = names("benchmarks/workers.jsonl")
    assert {"benchmarks/workers.py", "peers/ddp.py", "d2lpar/lenet_workers.py"} <= code
    assert {"d2lpar/__main__.py", "d2lpar/workers/plan.py"} <= code
    assert "benchmarks/gan.py" not in code
    study = "d2lpar/studies/kernel_times.py"
    assert study not in code and study in names("benchmarks/kernels.jsonl")


def test_prose_is_no_program():
    was = (
        '"""A."""\n# %% [markdown]\n# old\ndef f(x):\n    """B."""\n    return x + 1\n'
    )
    now = '"""C."""\n# new\ndef f(x):\n    "D."\n    return x + 1  # why\n'
    assert measured_code.program(was) == measured_code.program(now)
    other = was.replace("+ 1", "+ 2")
    assert measured_code.program(was) != measured_code.program(other)


def test_changed_since(monkeypatch, tmp_path):
    """A comment is no change; a number, a new file, and a lost commit are."""
    monkeypatch.setattr(measured_code, "ROOT", tmp_path)
    for words in (["init", "-q"], ["config", "user.email", "a@b.example"],
                  ["config", "user.name", "A"]):  # fmt: skip
        assert measured_code.git(*words).returncode == 0
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    measured_code.git("add", "-A")
    measured_code.git("commit", "-qm", "a")
    commit = measured_code.git("rev-parse", "HEAD").stdout.strip()
    paths = [Path("a.py")]
    path.write_text("x = 1  # one\n")
    assert measured_code.changed_since(commit, paths) == ""
    path.write_text("x = 2\n")
    assert measured_code.changed_since(commit, paths) == "a.py"
    path.write_text("x = 1\n")
    (tmp_path / "b.py").write_text("y = 1\n")
    measured_code.git("add", "-A")
    assert measured_code.changed_since(commit, [*paths, Path("b.py")]) == "b.py"
    assert measured_code.changed_since("0" * 40, paths) == "the history"

"""docs/verify.md and its evidence: files, outputs and tables are what is printed."""

import re

import programs
import pytest

from d2lpar.verify import verify

MAIN = programs.PAGE.with_name("verify.md")
if not MAIN.is_file():
    pytest.skip("not a checkout", allow_module_level=True)
TEXT, EVIDENCE = MAIN.read_text("utf-8"), programs.PAGE.read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)
OUTPUT = re.findall(r"```text\n(.*?)```", TEXT, re.S)
ROWS = dict(re.findall(r"^\| (\w+ \w+): .*? \| (.*) \|$", EVIDENCE, re.M))


def without_digits(text):
    """Rounding errors depend on the machine."""
    return re.sub(r"\d+e[+-]\d+|\d+%", "#", text)


def test_the_file_of_the_page_has_at_most_15_lines():
    assert len([line for line in PYTHON[0].splitlines() if line]) <= 15


def test_the_tables_have_every_program():
    titles = [f"{program.framework} {program.name}" for program in programs.PROGRAMS]
    assert list(ROWS) == titles
    for program in programs.RIGHT:
        assert " wrong" not in ROWS[f"{program.framework} {program.name}"]


@pytest.mark.slow
@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.name)
def test_a_program_gets_its_row_and_its_mistake(program):
    programs.needs(program.framework)
    checks = programs.judge(program)
    row = programs.row(program, checks)
    assert without_digits(row) in map(without_digits, EVIDENCE.splitlines())
    if program.mistake:
        assert program.mistake in {check.mistake for check in checks}
    verdicts = {check.verdict for check in checks}
    allowed = {
        "wrong": {"right", "skipped", "wrong", "unjudged"},
        "right": {"right", "skipped"},
        "not judged": {"right", "skipped", "unjudged"},
    }
    assert verdicts <= allowed[program.verdict]


@pytest.mark.slow
@pytest.mark.parametrize("more, k", [("", 1), ("EVEN = True\n", 2)])
def test_the_file_of_the_page_wrong_and_right(more, k, tmp_path):
    programs.needs("torch")
    output = OUTPUT[k]
    path = tmp_path / "ddp.py"
    path.write_text(PYTHON[0] + more)
    lines = [f"{c.verdict:9}{c.what}: {c.line}\n" for c in verify(path, timeout=120)]
    shown = lines[-output.count("\n") :]
    assert without_digits("".join(shown)) == without_digits(output)

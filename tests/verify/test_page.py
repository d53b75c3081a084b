"""docs/verify.md: its file, its outputs and its tables are what the command makes."""

import re

import programs
import pytest

from d2lpar.verify import verify
from d2lpar.verify.mistakes import SENTENCES

if not programs.PAGE.is_file():
    pytest.skip("not a checkout", allow_module_level=True)
TEXT = programs.PAGE.read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)
OUTPUT = re.findall(r"```text\n(.*?)```", TEXT, re.S)
ROWS = dict(re.findall(r"^\| \[(\w+)\]\(.*?\| (.*) \|$", TEXT, re.M))
EVERY = [*programs.WRONG, *programs.RIGHT, *programs.NOT_JUDGED]


def without_digits(text):
    """Rounding errors depend on the machine."""
    return re.sub(r"\d+e[+-]\d+|\d+%", "#", text)


def test_the_file_of_the_page_has_25_lines():
    assert len([line for line in PYTHON[0].splitlines() if line]) <= 25


def test_the_tables_have_every_program_and_what_it_is_for():
    assert list(ROWS) == EVERY
    for name, (mistake, _) in {**programs.WRONG, **programs.NOT_JUDGED}.items():
        parts = re.split(r"\{.*?\}", SENTENCES[mistake or "unequal"])
        assert re.search(".*".join(map(re.escape, parts)), ROWS[name]), name
    assert all(ROWS[name].startswith("right in ") for name in programs.RIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_program_gets_its_row(name):
    programs.needs(name)
    row = programs.row(name, programs.judged(name))
    assert without_digits(row) in map(without_digits, TEXT.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 1])
def test_the_file_of_the_page_wrong_and_right(k, tmp_path):
    programs.needs("torch_ddp")
    text = PYTHON[0]
    if k == 1:
        (line,) = re.findall(r".*cross_entropy.*\n", text)
        text = text.replace(line, PYTHON[1])
    path = tmp_path / "ddp.py"
    path.write_text(text)
    lines = [f"{c.verdict:9}{c.what}: {c.line}\n" for c in verify(path, timeout=120)]
    assert without_digits("".join(lines)) == without_digits(OUTPUT[k])

"""What errors of others say in one line."""

import pytest

from d2lpar.errors import first_line

TRACE = 'Traceback (most recent call last):\n  File "../src/a.cc", line 81\n'
FAILED = "Check failed: a == b (1 vs. 2) : shapes differ"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(f"{TRACE}MXNetError: {FAILED}\n[bt] (1) libmx"), FAILED),
        (f"\nwarning: slow\n{TRACE}ValueError: no\n", "ValueError: no"),
        (MemoryError("Unable to allocate 8 PiB"), "Unable to allocate 8 PiB"),
        (RuntimeError(""), "RuntimeError"),
        ("", ""),
    ],
)
def test_first_line_leaves_out_the_trace(error, line):
    assert first_line(error) == line

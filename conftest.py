"""What a run of the tests collects, and what it says at its end."""

from collections import Counter
from pathlib import Path

import pytest

MARKERS = {  # of folders whose tests `make test` leaves to `make check-...`
    "benchmarks": "peers",
    "chapters": "docs",
    "docs": "docs",
    "puzzles": "teaching",
    "teaching": "teaching",
}
TESTS = Path(__file__).with_name("tests")
seconds: Counter = Counter()  # of all tests, with their fixtures
too_long: list[str] = []
LONG = 5


def marker_of(path):
    """Return the marker of all tests below a folder of tests/, or None."""
    inside = path.relative_to(TESTS).parts if TESTS in path.parents else ("",)
    return MARKERS.get(inside[0])


def pytest_ignore_collect(collection_path, config):
    """Import neither tests that -m excludes nor modules without a doctest."""
    marker = marker_of(collection_path)
    if marker and f"not {marker}" in config.option.markexpr:
        return True
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    return ">>>" not in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items):
    for item in items:
        if marker := marker_of(item.path):
            item.add_marker(marker)


def pytest_runtest_logreport(report):
    seconds["all"] += report.duration * ("slow" not in report.keywords)
    if (
        report.when == "call"
        and report.duration > LONG
        and "slow" not in report.keywords
    ):
        too_long.append(report.nodeid)  # by itself: fixtures are shared


def pytest_terminal_summary(terminalreporter):
    """Print what the tests took together, and those that ought to be marked slow."""
    terminalreporter.write_line(f"all tests together: {seconds['all']:.0f} s")
    for name in too_long:
        terminalreporter.write_line(f"above {LONG} s, not marked slow: {name}")

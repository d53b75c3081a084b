"""Doctests are collected where they are: no other module is imported for them."""


def pytest_ignore_collect(collection_path):
    """Leave out a module that is no test and has no doctest."""
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    return ">>>" not in collection_path.read_text(encoding="utf-8") or None

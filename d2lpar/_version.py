"""The version of the package, read by setup.cfg without importing d2lpar."""

__version__ = "0.3.0"

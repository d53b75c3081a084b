"""What several test files need. Imports no MXNet: some tests run without it."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data():
    """The folder with the real Fashion-MNIST, named by D2LPAR_DATA."""
    from d2lpar.datasets import FASHION_MNIST_FILES

    value = os.environ.get("D2LPAR_DATA")
    if not value:
        pytest.skip("D2LPAR_DATA is not set: name a folder with Fashion-MNIST in it")
    root = Path(value).expanduser()
    for folder in (root / "fashion-mnist", root):
        if all(
            (folder / f"{name}.gz").is_file() or (folder / name).is_file()
            for name in FASHION_MNIST_FILES
        ):
            return folder
    pytest.skip(f"D2LPAR_DATA={value} holds no Fashion-MNIST")

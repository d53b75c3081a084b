"""Overdetermined linear systems A x = b, for least squares: in memory or in a file."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from d2lpar.datasets.images import sha256_of
from d2lpar.errors import DataError, SettingError
from d2lpar.records.atomic import naming

BLOCK_NUMBERS = 2**23  # of A, drawn and written at a time


@dataclass(frozen=True)
class LinearProblem:
    """A x = b with more rows than columns: A float64 (rows, columns), b (rows,)."""

    A: np.ndarray
    b: np.ndarray
    name: str
    sha256: str
    synthetic: bool = False  # generated, but in place of nothing
    folder: tempfile.TemporaryDirectory | None = None  # of A's file, while it is used

    @property
    def sizes(self) -> dict[str, int]:
        """The amount of data, as a record states it."""
        return dict(zip(("rows", "columns"), self.A.shape))


def _check_size(*sizes: int) -> None:
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SettingError(f"rows, columns {sizes}: write whole numbers above 0")


def uniform_problem(rows: int, columns: int, seed: int = 0) -> LinearProblem:
    """The least-squares notes' problem: A, b uniform in [0, 1), drawn from `seed`.

    Raises :class:`SettingError` for no rows or columns.
    """
    _check_size(rows, columns)
    rng = np.random.default_rng(seed)
    A, b = rng.random((rows, columns)), rng.random(rows)
    return LinearProblem(A, b, f"uniform-{rows}x{columns}", sha256_of((A, b)))


def uniform_file(rows: int, columns: int, seed: int = 0) -> LinearProblem:
    """The same problem with A in a file, written in blocks: it may exceed the memory.

    The file is in the system's folder for temporary files (TMPDIR), takes 8 bytes per
    number, and is deleted with the problem; see also :func:`delete_files_of`. Raises
    :class:`DataError` if there is not enough space for it.
    """
    _check_size(rows, columns)
    where = tempfile.gettempdir()
    size, free = 8 * rows * columns, shutil.disk_usage(where).free
    if size > 0.95 * free:
        raise DataError(
            f"{where}: {size / 2**30:.1f} GiB are needed for {rows} x {columns}, "
            f"{free / 2**30:.1f} are free: set TMPDIR to another folder"
        )
    folder = tempfile.TemporaryDirectory(prefix=_prefix(os.getpid()))
    rng, digest = np.random.default_rng(seed), hashlib.sha256()
    path = Path(folder.name) / "A.npy"
    with naming(where), open(path, "wb") as f:
        header = {"descr": "<f8", "fortran_order": False, "shape": (rows, columns)}
        np.lib.format.write_array_header_1_0(f, header)
        step = max(1, BLOCK_NUMBERS // columns)
        for start in range(0, rows, step):
            block = rng.random((min(step, rows - start), columns))
            digest.update(block.data)
            f.write(block.data)
    b = rng.random(rows)
    digest.update(b.data)
    A, name = np.load(path, mmap_mode="r"), f"uniform-{rows}x{columns}"
    return LinearProblem(A, b, name, digest.hexdigest(), folder=folder)


def delete_files_of(pid: int) -> None:
    """Delete the files of :func:`uniform_file` that a killed process has left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(pid)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(pid: int) -> str:
    return f"d2lpar-{pid}-"

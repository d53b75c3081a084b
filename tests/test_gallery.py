"""Every committed picture is redrawn from the record beside it by `d2lpar plot`."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2lpar.cli.main import plot
from d2lpar.records import files
from d2lpar.records.kinds import group

GALLERY = Path(__file__).parents[1] / "figures"
DRAWN = {".png", ".svg", ".gif", ".txt"}
# Records whose numbers are in figures/README.md, and whose pictures are not committed.
WITHOUT_PICTURES = {"gan/quick", "gan/quick-seed1", "gan/quick-seed2"}


def sweeps() -> dict[str, list[Path]]:
    """The committed records that are drawn together, by "folder/stem"."""
    runs = [files.read(path) for path in sorted(GALLERY.rglob("*.jsonl"))]
    return {
        f"{folder.relative_to(GALLERY)}/{stem}": [run.path for run in sweep]
        for (folder, _, stem), sweep in group(runs, files.sweep_of).items()
    }


SWEEPS = sweeps()


def committed(sweep: str) -> set[str]:
    """The names of the pictures and tables that belong to a sweep.

    Of two sweeps whose stems fit ("book", "book-1thread") it is the longer one.
    """
    folder, _, stem = sweep.rpartition("/")
    stems = [Path(other).name for other in SWEEPS if str(Path(other).parent) == folder]
    return {
        path.name
        for path in (GALLERY / folder).iterdir()
        if path.suffix in DRAWN
        and stem
        == max((s for s in stems if path.stem.startswith(s)), key=len, default="")
    }


@pytest.fixture
def no_real_faces(tmp_path, monkeypatch):
    """Real CryptoPunks are not committed, nor are pictures that show them."""
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    for variable in ("MXNET_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "empty"))


def test_every_committed_picture_has_a_record():
    pictures = {
        path.relative_to(GALLERY) for path in GALLERY.rglob("*") if path.suffix in DRAWN
    }
    with_record = {
        Path(sweep).parent / name for sweep in SWEEPS for name in committed(sweep)
    }
    assert pictures == with_record
    assert {sweep for sweep in SWEEPS if not committed(sweep)} == WITHOUT_PICTURES


@pytest.mark.parametrize("sweep", sorted(SWEEPS.keys() - WITHOUT_PICTURES))
def test_plot_redraws_exactly_what_is_committed(sweep, tmp_path, no_real_faces):
    plot.callback(tuple(map(str, SWEEPS[sweep])), str(tmp_path / "out"), None, False)
    drawn = {path.name for path in (tmp_path / "out").iterdir()}
    assert drawn == committed(sweep)

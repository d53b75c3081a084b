"""How the package is installed: what it asks for, which Python, and the containers."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import d2lpar

ROOT = Path(d2lpar.__file__).parents[1]
VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]

pytestmark = pytest.mark.skipif(
    not (ROOT / "setup.cfg").exists(), reason="not a checkout"
)


@pytest.fixture(scope="module")
def config():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def asked_for(text, python):
    """{name: specifier} of the requirements that hold on a version of Python."""
    wanted = [Requirement(line) for line in text.strip().splitlines() if line]
    return {
        r.name: str(r.specifier)
        for r in wanted
        if r.marker is None or r.marker.evaluate({"python_version": python})
    }


@pytest.mark.parametrize("python", VERSIONS)
def test_mxnet_is_asked_for_where_numpy_1_has_a_build(config, python):
    numpy_1 = VERSIONS.index(python) < VERSIONS.index("3.13")
    base = asked_for(config["options"]["install_requires"], python)
    assert ("<2" in base["numpy"]) == numpy_1
    assert "pooch" in base  # and so requests, which MXNet imports
    assert ("setuptools" in base) == (VERSIONS.index(python) >= 3)  # its distutils
    for extra, name in (("cpu", "mxnet"), ("cu112", "mxnet-cu112")):
        text = config["options.extras_require"][extra]
        assert (asked_for(text, python).get(name) == "==1.9.1") == numpy_1


def fake_python(folder, version):
    """A `python3.x` that says it is that version, and makes a folder as its venv."""
    folder.mkdir(exist_ok=True)
    path = folder / f"python{version}"
    suits = int(version in VERSIONS)
    path.write_text(
        f"""#!/bin/sh
case "$1" in
    --version) echo "Python {version}.0" ;;
    -c) exit $((1 - {suits})) ;;
    -m) mkdir -p "$3" && echo {version} > "$3/version" ;;
esac
"""
    )
    path.chmod(0o755)


def make_venv(tmp_path, *versions):
    """Run make_venv.sh where these Pythons are all that there is."""
    for version in versions:
        fake_python(tmp_path / "bin", version)
    (tmp_path / "bin").mkdir(exist_ok=True)
    for tool in ("sh", "mkdir"):
        where = next(p for p in ("/bin", "/usr/bin") if os.path.exists(f"{p}/{tool}"))
        (tmp_path / "bin" / tool).symlink_to(f"{where}/{tool}")
    env = {"PATH": str(tmp_path / "bin"), "PYENV_ROOT": str(tmp_path / "none")}
    command = ["sh", str(ROOT / "tools" / "make_venv.sh"), str(tmp_path / "venv")]
    return subprocess.run(
        command, env={**env, "HOME": str(tmp_path)}, capture_output=True, text=True
    )


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_any_one_python_will_do(tmp_path, version):
    done = make_venv(tmp_path, version)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "venv" / "version").read_text().strip() == version


def test_the_book_needs_3_11_so_that_comes_first(tmp_path):
    make_venv(tmp_path, *VERSIONS)
    assert (tmp_path / "venv" / "version").read_text().strip() == "3.11"


def test_without_any_python_the_remedy_is_named(tmp_path):
    done = make_venv(tmp_path, "3.8")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no Python 3.9-3.13" in done.stderr and "pip install uv" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_make_and_the_error_install_the_same_build():
    from d2lpar.machine.builds import MXNET_OF

    for extra, requirement in MXNET_OF.items():
        done = subprocess.run(
            ["make", "-n", f"EXTRA={extra}", f"VENV={sys.prefix}", "-B", "run"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert f"--no-deps {requirement}\n" in done.stdout


def test_another_python_gets_an_environment_of_its_own():
    """An existing .venv must not stand in for the one that is asked for."""
    words = ["make", "-n", "test", "PYTHON=/opt/python3.13"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    made = 'make_venv.sh ".venv-python3.13" "/opt/python3.13"'
    assert made in done.stdout or (ROOT / ".venv-python3.13").exists()
    assert ".venv-python3.13/bin/python -m pytest" in done.stdout


def test_one_version_everywhere():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert d2lpar.__version__ == cited[1] == newest[1]


def test_folders_at_the_root():
    listed = ["git", "ls-files", "--", "*/*", ":!.*"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone of git")
    folders = {path.partition("/")[0] for path in done.stdout.splitlines()}
    ours = "benchmarks chapters d2lpar docs figures notebooks teaching tests tools"
    assert folders == set(ours.split())

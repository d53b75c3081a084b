"""How the package is installed: what it asks for, which Python, and the containers."""

import configparser
import re
import shutil
import subprocess
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


@pytest.mark.parametrize(
    ("versions", "expected"), [(["3.9"], "3.9"), (VERSIONS, "3.11"), (["3.8"], "")]
)
def test_any_python_will_do_and_3_11_has_the_book(versions, expected, tmp_path):
    """make_venv.sh where these Pythons, which only say so, are all that there is."""
    for version in versions:
        path = tmp_path / f"python{version}"
        suits = int(version in VERSIONS)
        path.write_text(f"""#!/bin/sh
case "$1" in
    --version) echo "Python {version}.0" ;;
    -c) exit $((1 - {suits})) ;;
    -m) mkdir -p "$3" && echo {version} > "$3/version" ;;
esac
""")
        path.chmod(0o755)
    for tool in ("sh", "mkdir"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    venv = tmp_path / "venv"
    done = subprocess.run(
        ["sh", str(ROOT / "tools" / "make_venv.sh"), str(venv)],
        env={"PATH": str(tmp_path), "PYENV_ROOT": "/none", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    if expected:
        assert done.returncode == 0, done.stderr
        assert (venv / "version").read_text().strip() == expected
    else:
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2 and not venv.exists()
        assert "no Python 3.9-3.13" in line and "pip install uv" in line


def test_one_version_everywhere():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert d2lpar.__version__ == cited[1] == newest[1]

"""Importing: what it costs, what it sets, and what it says where MXNet is missing.

MXNet reads its environment once, so each test imports in a process of its own; most of
them import a stand-in that prints the environment in which it was imported.
"""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import d2lpar
from d2lpar.machine.builds import install_command

BUILTINS = ("bool", "int", "float", "object", "str", "complex")
PACKAGE = Path(d2lpar.__file__).parent
SET_BY_D2LPAR = (
    "MXNET_CPU_TEMP_COPY",
    "MXNET_STORAGE_FALLBACK_LOG_VERBOSE",
    "OMP_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
)

STAND_IN = f"""
import os, types
import numpy
for name in {BUILTINS}:
    assert name in vars(numpy), name  # MXNet fails without them
for name in {SET_BY_D2LPAR}:
    print(name, os.environ.get(name), sep="=")
npx = types.SimpleNamespace(set_np=lambda: print("set_np"))
np = autograd = gluon = None
cpu = print
"""


@pytest.fixture
def python(tmp_path):
    """Run code in a new process, where `modules` (name: text) go before installed ones.

    `env` overrides the environment, from which the variables of d2lpar are taken first.
    """

    def run(code, modules=None, **env):
        for name, text in (modules or {}).items():
            (tmp_path / f"{name}.py").write_text(text)
        environ = {k: v for k, v in os.environ.items() if k not in SET_BY_D2LPAR}
        environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
        environ["PYTHONWARNINGS"] = "always::UserWarning"
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env={**environ, **env}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_commands_load_no_mxnet(python):
    """Nor do pictures, by a contract, nor `inspect`, which asks modules for names."""
    code = """
import inspect, sys, d2lpar.cli.main, d2lpar.experiments, d2lpar.runs.measure
from d2lpar import datasets, devices, gan, least_squares, timing
inspect.getmodule(inspect.currentframe())
print('mxnet' in sys.modules)
"""
    assert python(code).stdout == "False\n"


def test_one_version_everywhere():
    root = PACKAGE.parent
    if not (root / "CITATION.cff").is_file():
        pytest.skip("not a checkout")
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.M)
    newest = re.search(r"^## (\S+)$", (root / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert d2lpar.__version__ == cited[1] == newest[1]


def test_without_mxnet_the_error_names_both_remedies(python):
    code = """
import importlib.metadata, numpy, sys
importlib.metadata.distributions = lambda **kwargs: []
before = set(vars(numpy))
import d2lpar
from d2lpar.errors import D2lparError, MXNetMissingError
for name in 2 * ["d2lpar", "d2lpar.lenet_concise"]:  # no half-done import
    try:
        exec(f"from {name} import train_batch")
    except MXNetMissingError as error:
        assert isinstance(error, D2lparError) and isinstance(error, ImportError)
        print(error)
assert d2lpar.fashion_sample and "mxnet" not in sys.modules
print(set(vars(numpy)) - before - {"random", "lib"})
"""
    first, *others, names_put_back = python(code).stdout.splitlines()
    assert install_command("cpu") in first and install_command("cu112") in first
    assert others == [first] * 3 and names_put_back == "set()"


def test_short_names_are_those_of_the_rooms():
    assert d2lpar.lenet_workers.train is d2lpar.lenet.workers.train
    assert d2lpar.lenet_concise.train is d2lpar.lenet.concise.train


def test_a_library_that_a_gpu_build_lacks_is_named_before_mxnet_is_imported(python):
    code = """
from d2lpar.machine import builds
from d2lpar.errors import MXNetMissingError
builds.installed_builds = lambda: {"mxnet-cu112": "1.9.1"}
builds.GPU_LIBRARIES = ("libabsent.so.9",)
try:
    from d2lpar import get_params
except MXNetMissingError as error:
    print(error)
"""
    (line,) = python(code).stdout.splitlines()
    assert "mxnet-cu112" in line and install_command("cpu") in line
    assert f"without libabsent.so.9: {install_command('cu112')} (" in line


@pytest.mark.parametrize(
    "users",
    [
        {},
        {"OMP_NUM_THREADS": "3", "MXNET_CPU_TEMP_COPY": "64",
         "NVIDIA_TF32_OVERRIDE": "1"},
    ],
)  # fmt: skip
def test_variables_are_set_before_mxnet_unless_the_user_has_set_them(python, users):
    code = """
from d2lpar.machine import builds
builds.installed_builds = lambda: {"mxnet": "1.9.1"}  # no GPU build's libraries
from d2lpar import np  # a chapter may take it first of all
from d2lpar.machine import host
print("user_threads", host.user_threads(), sep="=")
"""
    done = python(code, {"mxnet": STAND_IN}, **users)
    lines = done.stdout.splitlines()
    assert lines.count("set_np") == 1
    assert dict(line.split("=") for line in lines if "=" in line) == {
        "MXNET_CPU_TEMP_COPY": "256",
        "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
        "OMP_NUM_THREADS": "1",
        "NVIDIA_TF32_OVERRIDE": "0",  # exact float32
        "user_threads": users.get("OMP_NUM_THREADS", "None"),
        **users,
    }
    assert done.stderr == ""


def test_mxnet_first_without_the_variable_warns_once_and_works(python):
    code = """
from d2lpar._numpy_names import restore_numpy_names
restore_numpy_names()
import mxnet
import d2lpar
from d2lpar import allreduce
import d2lpar.parallel, d2lpar.lenet
from d2lpar._mxnet import mx, np
assert mx is mxnet and mxnet.util.is_np_array()
data = [np.ones(2, ctx=mx.cpu(k)) for k in range(2)]
allreduce(data)
print(data[1].asnumpy().tolist())
"""
    done = python(code)
    assert done.stdout == "[2.0, 2.0]\n"
    assert done.stderr.count("UserWarning") == 1
    assert "MXNET_CPU_TEMP_COPY=256" in done.stderr


def test_the_names_that_numpy_removed_are_put_back_and_its_own_are_kept(python):
    code = f"""
import numpy
names = "Inf PINF NINF NZERO NaN msort in1d compat".split()
for name in [*{BUILTINS}, *names]:
    vars(numpy).pop(name, None)
own = dict(vars(numpy))
from d2lpar._numpy_names import restore_numpy_names
restore_numpy_names()
assert {{name: vars(numpy)[name] for name in own}} == own
assert numpy.Inf == numpy.PINF == -numpy.NINF
assert numpy.isnan(numpy.NaN) and isinstance("edge", numpy.compat.basestring)
assert numpy.bool is bool and numpy.product([2, 3]) == 6 and str(numpy.NZERO) == "-0.0"
assert numpy.trapz([1, 3]) == 2 and not numpy.alltrue([0, 1])
print(numpy.msort([[2, 1], [0, 5]]).tolist(), numpy.in1d([[1, 2], [3, 4]], [4, 1]))
"""
    printed = "[[0, 1], [2, 5]] [ True False False  True]\n"
    assert python(code).stdout == printed


def test_operators_take_shapes_and_indices_of_numpys_numbers():
    from d2lpar import gluon, mx, np

    two, three = numpy.int64(2), numpy.int32(3)
    assert np.zeros((two, three)).shape == (2, 3)
    x = np.arange(6.0).reshape((two, three))
    assert [p.shape for p in np.split(x, [numpy.int64(1)], axis=1)] == [(2, 1), (2, 2)]
    parts = gluon.utils.split_and_load(x, [mx.cpu(k) for k in range(2)])
    assert [p.asnumpy().tolist() for p in parts] == [[[0, 1, 2]], [[3, 4, 5]]]
    y = mx.sym.var("x").as_np_ndarray().reshape((three, two))
    assert y.eval(x=x)[0].shape == (3, 2)


@pytest.mark.slow
def test_importing_mxnet_warns_of_nothing_even_where_warnings_are_errors(python):
    code = "from d2lpar import np; print(np.pad(np.ones((1, 1)), ((1, 1),) * 2).sum())"
    done = python(code, PYTHONWARNINGS="error")
    assert (done.stdout, done.stderr) == ("1.0\n", "")


def test_a_wheel_has_every_committed_record():
    """Chapters read them where there is no clone; a link leads to figures/."""
    figures = PACKAGE.parent / "figures"
    if not figures.is_dir():
        pytest.skip("not a checkout")
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    records = PACKAGE / "records"
    patterns = setup["options.package_data"]["d2lpar.records"].split(",")
    packed = {path for p in patterns for path in records.glob(p.strip())}
    packed = {path.relative_to(records / "committed") for path in packed}
    assert packed == {path.relative_to(figures) for path in figures.rglob("*.jsonl")}
    assert len(packed) > 100

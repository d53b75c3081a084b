"""Variables that MXNet, Python or Matplotlib would not survive, in one line each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from d2lpar.cli import doctor
from d2lpar.errors import SettingError
from d2lpar.machine import cores, environment

ROOT = Path(environment.__file__).parents[2]
THREADS = "write a whole number, 1 to 1,024, or unset it"
COPIES = "write a whole number, 1 to 65,536, or unset it"
NODE = "unset it, or start workers by d2lpar launch"
ENGINES = "write ThreadedEnginePerDevice, ThreadedEngine or NaiveEngine, or unset it"
ROLES = "write worker, server or scheduler, or unset it"


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("OMP_NUM_THREADS", "abc", THREADS),
        ("OMP_NUM_THREADS", "1.5", THREADS),
        ("OMP_NUM_THREADS", "2,1", "MXNet takes no list: write 2"),
        ("OMP_NUM_THREADS", "12,4,1", "MXNet takes no list: write 12"),
        ("OMP_NUM_THREADS", "2,x", THREADS),
        ("OMP_NUM_THREADS", "1" + 20 * "0", THREADS),
        ("OMP_NUM_THREADS", "0", THREADS),
        ("OMP_NUM_THREADS", "-1", THREADS),
        ("OMP_NUM_THREADS", "+1", THREADS),
        ("OMP_NUM_THREADS", "100000", THREADS),
        ("OMP_NUM_THREADS", "²", THREADS),
        ("OMP_NUM_THREADS", "0x2", THREADS),
        ("OMP_NUM_THREADS", "2 2", THREADS),
        ("MXNET_CPU_WORKER_NTHREADS", "0", THREADS),
        ("MXNET_CPU_WORKER_NTHREADS", "x", THREADS),
        ("MXNET_OMP_MAX_THREADS", "many", THREADS),
        ("MXNET_GPU_WORKER_NTHREADS", "0", THREADS),
        ("MXNET_CPU_TEMP_COPY", "nonsense", COPIES),
        ("MXNET_CPU_TEMP_COPY", "0", COPIES),
        ("MXNET_CPU_TEMP_COPY", "1e3", COPIES),
        ("MXNET_ENGINE_TYPE", "foo", ENGINES),
        ("MXNET_ENGINE_TYPE", "naiveengine", ENGINES),
        ("DMLC_ROLE", "boss", ROLES),
        ("DMLC_ROLE", "Worker", ROLES),
    ],
)
def test_a_variable_is_named_with_its_value(name, value, remedy, monkeypatch):
    assert environment.find_fault({name: value}, 0) == (f"{name} {value!r}", remedy)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=f"^{name} .*: (write|MXNet takes no list)"):
        environment.check_environment()
    assert isinstance(cores.omp_threads(), (int, type(None)))


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMP_NUM_THREADS": ""},
        {"OMP_NUM_THREADS": " 2 "},
        {"OMP_NUM_THREADS": "1024", "MXNET_CPU_TEMP_COPY": "4"},
        {"MXNET_ENGINE_TYPE": "NaiveEngine"},
        {"DMLC_ROLE": "worker"},
        {"DMLC_ROLE": "server", **dict.fromkeys(environment.OF_A_NODE, "1")},
    ],
)
def test_what_mxnet_can_read_is_left_alone(environ):
    assert environment.find_fault(environ, 1) is None


def test_a_node_without_a_scheduler():
    for role in ("server", "scheduler"):
        what = f"DMLC_ROLE {role!r} without DMLC_PS_ROOT_URI"
        assert environment.find_fault({"DMLC_ROLE": role}, 0) == (what, NODE)


def test_docstrings_are_needed():
    what, remedy = environment.find_fault({}, 2)
    assert what.startswith("PYTHONOPTIMIZE 2") and remedy == "unset it, or write 1"


def test_a_long_value_is_shortened():
    what, _ = environment.find_fault({"OMP_NUM_THREADS": "9" * 10_000}, 0)
    assert len(what) < 70


def test_the_doctors_advice_fits(monkeypatch):
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "foo")
    checks = {check.name: check for check in doctor.examine()}
    fault = checks["environment"]
    assert (fault.status, fault.message) == ("fail", "MXNET_ENGINE_TYPE 'foo'")
    assert fault.remedy == ENGINES and "training" not in checks


def python(*words, closed=(), **variables):
    """Run Python with `closed` file descriptors; the completed process."""

    def close():
        for number in closed:
            os.close(number)

    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        preexec_fn=close, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"OMP_NUM_THREADS": "2,1"}, "d2lpar: OMP_NUM_THREADS '2,1': MXNet takes no"),
        ({"PYTHONOPTIMIZE": "2"}, "d2lpar: PYTHONOPTIMIZE 2 (python -OO) drops"),
        ({"MPLBACKEND": "nonsense"}, "d2lpar: MPLBACKEND 'nonsense': Matplotlib has"),
    ],
)
def test_a_run_is_refused_in_one_line(variables, says, tmp_path):
    words = ("-m", "d2lpar", "run", "multiple_gpus", f"--out={tmp_path / 'figures'}")
    done = python(*words, **variables)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(says)
    assert "Traceback" not in done.stderr and not (tmp_path / "runs").exists()


def test_warnings_as_errors_do_not_stop_mxnets_import():
    code = "import d2lpar; print(float(d2lpar.np.ones(3).sum()))"
    done = python("-c", code, PYTHONWARNINGS="error")
    assert done.stdout == "3.0\n", done.stderr


@pytest.mark.parametrize("closed", [(2,), (0, 2), (0, 1, 2)])
def test_closed_streams_are_no_ones(closed, tmp_path):
    """What a command opens does not become its standard error."""
    code = f"""
import os, sys
from d2lpar.cli.error_lines import guard
from d2lpar.errors import SettingError
def command():
    with open({str(tmp_path / "record")!r}, "w") as file:
        print("to the terminal", file=sys.stderr)
        os.write(2, b"from C++")
        file.write("kept")
        file.flush()
    raise SettingError("refused")
guard(command)
"""
    assert python("-c", code, closed=closed).returncode == 2
    assert (tmp_path / "record").read_text() == "kept"

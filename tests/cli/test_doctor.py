"""The doctor on this machine, and where one thing at a time is missing or broken."""

import dataclasses
import json
import sys

import pytest

from d2lpar import datasets, devices
from d2lpar.cli import doctor
from d2lpar.cli.doctor import Check
from d2lpar.machine import builds as machine_builds
from d2lpar.machine import cards, host
from d2lpar.machine.builds import FROM_SOURCE, install_command
from d2lpar.machine.cards import GpuCard, Machine


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What the doctor says of the machine that runs the tests."""
    return doctor.examine(out=tmp_path_factory.mktemp("figures"))


@pytest.fixture
def builds(monkeypatch):
    """What is installed: change it as a dictionary."""
    installed = {"mxnet": "1.9.1"}
    monkeypatch.setattr(doctor, "installed_builds", lambda: installed)
    return installed


def test_training_can_run_on_the_machine_that_tests(here):
    assert doctor.can_train(here), [check for check in here if check.status == "fail"]
    named = {check.name: check for check in here}
    assert {check.status for check in here} <= {"ok", "warn"}
    assert {"Python", "MXNet", "training", "cores", "data", "figures"} <= set(named)
    assert "(0)" in named["training"].message
    rows = [dataclasses.asdict(check) for check in here]
    assert json.loads(json.dumps(rows)) == rows


CHECKS = [
    Check("A", "ok", "fine"),
    Check("environment", "fail", "two\n lines", "do this"),
]


def test_each_check_is_one_line_for_grep(capsys):
    doctor.print_report(CHECKS)
    assert capsys.readouterr().out.splitlines() == [
        "ok    A            fine",
        "fail  environment  two lines; do this",
        "training cannot run here (0 warn, 1 fail)",
    ]


NO_MXNET = "import importlib.metadata as m; m.distributions = lambda **how: []"


@pytest.mark.parametrize(
    ("file", "code", "message", "remedy"),
    [
        ("sitecustomize", NO_MXNET, install_command("cpu"), None),
        (
            "mxnet",
            "raise OSError('libgomp.so.1: cannot open shared object file')",
            "libgomp.so.1",
            "apt-get install libgomp1",
        ),
        ("mxnet", "import os; os.abort()", "status -6", "--force-reinstall"),
        (
            "mxnet",
            "raise ImportError(\"No module named 'distutils'\")",
            "distutils",
            "pip install setuptools",
        ),
        ("mxnet", "import time; time.sleep(60)", "within 1 seconds", None),
    ],
)
def test_an_mxnet_that_is_missing_or_broken(
    file, code, message, remedy, monkeypatch, tmp_path, builds
):
    """Its process finds this file before the installed one."""
    (tmp_path / f"{file}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if "sleep" in code:
        monkeypatch.setattr(doctor, "SECONDS", 1)
    (check,) = doctor.check_mxnet()
    assert (check.name, check.status) == ("MXNet", "fail")
    assert message in check.message and "\n" not in check.message
    assert check.remedy is None if remedy is None else remedy in check.remedy


def test_a_variable_that_would_crash_mxnet(monkeypatch):
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "foo")
    (check,) = doctor.check_mxnet()
    assert check.status == "fail" and "MXNET_ENGINE_TYPE 'foo': write" in check.message


def test_the_installed_build_is_named_with_its_features(builds, monkeypatch):
    answer = {"trained": ["cpu(0)"], "features": ["CPU_SSE", "OPENMP"]}
    monkeypatch.setattr(doctor.process, "answer", lambda *words, **how: answer)
    installed, training = doctor.check_mxnet()
    assert (installed.status, installed.message) == ("ok", "1.9.1, mxnet OPENMP")
    assert (training.status, "cpu(0)" in training.message) == ("ok", True)
    builds["mxnet"] = "1.8.0"
    installed, _ = doctor.check_mxnet()
    assert installed.status == "warn" and "1.8.0" in installed.message


def test_threads_beyond_the_cores_are_named(monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: 4)
    monkeypatch.delenv("MXNET_CPU_TEMP_COPY", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    (check,) = doctor.check_cores()
    assert check.status == "warn" and "OMP_NUM_THREADS=8" in check.message
    assert check.remedy.startswith("unset ")


T4, H200 = ("Tesla T4", (7, 5)), ("NVIDIA H200", (9, 0))


@pytest.mark.parametrize(
    ("gpu", "number", "build", "probe", "status", "words"),
    [
        (T4, 0, "mxnet-cu112", None, "ok", "gpu(0) Tesla T4"),
        (T4, 0, "mxnet", None, "warn", install_command("cu112")),
        (T4, None, "mxnet-cu112", None, "warn", "unset CUDA_VISIBLE_DEVICES"),
        (H200, 0, "mxnet-cu112", None, "warn", "5.0-8.9"),
        (H200, 0, FROM_SOURCE, "", "ok", "gpu(0) NVIDIA H200"),
        (H200, 0, FROM_SOURCE, "no kernel image", "warn", "(no kernel image)"),
    ],
)
def test_a_gpu(gpu, number, build, probe, status, words, builds, monkeypatch):
    builds.clear()
    builds[build] = "1.9.1"
    if build == FROM_SOURCE:
        monkeypatch.setenv("MXNET_LIBRARY_PATH", "/opt/libmxnet.so")
        monkeypatch.setattr(devices, "_probe", lambda numbers: {0: probe})
    else:
        monkeypatch.delenv("MXNET_LIBRARY_PATH", raising=False)
    name, capability = gpu
    here = Machine(cards.cpu_card(), (GpuCard(0, number, name, capability),))
    visible = [] if number is None else [machine_builds.CudaDevice(name, capability)]
    monkeypatch.setattr(cards, "machine", lambda: here)
    monkeypatch.setattr(machine_builds, "cuda_devices", lambda: visible)
    (check,) = doctor.check_gpus()
    assert (check.name, check.status) == ("GPU 0", status)
    assert words in f"{check.message}; {check.remedy}"


def test_data_absent_or_corrupt(monkeypatch, tmp_path):
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (absent,) = doctor.check_data()
    assert absent.status == "warn" and "downloads" in absent.remedy

    asked_for = tmp_path / "mine"
    asked_for.mkdir()
    for name in datasets.FASHION_MNIST_FILES:
        (asked_for / name).write_bytes(b"not gzip")
    monkeypatch.setenv("D2LPAR_DATA", str(asked_for))
    for arguments in ((), (asked_for,)):
        (check,) = doctor.check_data(*arguments)
        assert check.status == "fail" and f"{asked_for}/" in check.message
    (nowhere,) = doctor.check_data(tmp_path / "nowhere")
    assert nowhere.status == "fail" and "nowhere" in nowhere.message


def test_figure_folder(tmp_path):
    for out in (tmp_path, tmp_path / "new" / "figures"):
        assert [check.status for check in doctor.check_figures(out)] == ["ok"]
    assert list(tmp_path.iterdir()) == []  # no trace
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone" / "gone")
    for out in ("file/figures", "file", "dangling", "x" * 300):
        (check,) = doctor.check_figures(tmp_path / out)
        assert check.status == "fail" and out in check.message
        assert "--out" in check.remedy


def test_a_check_that_raises_is_a_finding(monkeypatch, tmp_path):
    def broken():
        raise RuntimeError("broken\n  and a trace")

    for name in ("check_mxnet", "check_cores"):
        monkeypatch.setattr(doctor, name, broken)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    checks = {check.name: check for check in doctor.examine(tmp_path)}
    assert checks["cores"].message == "cannot be examined: RuntimeError: broken"
    statuses = [checks[name].status for name in ("MXNet", "cores", "GPU")]
    assert statuses == ["fail", "warn", "warn"]  # training needs no NVML

"""The doctor on this machine, and where one thing at a time is missing or broken."""

import sys

import pytest

from d2lpar._mxnet import npx
from d2lpar.cli import doctor, main
from d2lpar.cli.doctor import Check
from d2lpar.errors import RunError
from d2lpar.machine import builds
from d2lpar.machine.gpus import CudaDevice


def test_training_can_run_on_the_machine_that_tests(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["d2lpar", "doctor"])
    main.main()  # exits unless the code is 0
    *_, training, last = capsys.readouterr().out.splitlines()
    assert training.startswith("ok") and "(0)" in training
    assert last == "training can run here; next: d2lpar run multiple_gpus"


def test_each_check_is_one_line_and_a_failure_is_exit_code_1(capsys, monkeypatch):
    checks = [Check("ok", "A", "fine"), Check("fail", "training", "no: do this")]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    monkeypatch.setattr(sys, "argv", ["d2lpar", "doctor"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    cards, first, second, last = capsys.readouterr().out.rsplit("\n", 4)[:4]
    assert "contexts on" in cards  # the devices come first
    assert (first, second) == ("ok    A         fine", "fail  training  no: do this")
    assert "cannot run" in last


def test_an_mxnet_that_is_broken(monkeypatch, tmp_path):
    """Its process finds this file before the installed one."""
    code = "raise OSError('libgomp.so.1: cannot open')"
    (tmp_path / "mxnet.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)  # a process gets its parent's path
    check = doctor.check_training()
    assert check.status == "fail" and "\n" not in check.message
    assert "apt-get install libgomp1" in check.message


def test_a_wrong_gradient_is_named(monkeypatch):
    monkeypatch.setattr(npx, "convolution", lambda X, w, **_: 2 * (X * w).sum())
    with pytest.raises(RunError, match="a gradient of nine ones came out as"):
        doctor.train_a_little()


def test_gpus(monkeypatch):
    gpus = CudaDevice("Tesla T4", (7, 5)), CudaDevice("NVIDIA H200", (9, 0))
    monkeypatch.setattr(builds, "installed_builds", lambda: {"mxnet-cu112": "1.9.1"})
    monkeypatch.setattr(doctor, "cuda_devices", lambda: gpus)
    usable, other = doctor.check_gpus()
    assert usable == Check("ok", "GPU", "gpu(0) Tesla T4")
    assert other.status == "warn" and "CUDA 13" in other.message

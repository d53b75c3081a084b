"""The doctor on machines that are healthy, bare or broken: this one, and faked ones."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import struct
import sys

import numpy as np
import pytest
from rich.console import Console

from d2lpar import datasets, devices
from d2lpar.cli import doctor
from d2lpar.datasets import fashion
from d2lpar.errors import DataError, first_line
from d2lpar.machine import cards, cuda, mxnet_builds
from d2lpar.machine.cards import Machine
from d2lpar.machine.gpu_cards import GpuCard
from d2lpar.machine.host_card import cpu_card

TRAINED = {"trained": ["cpu(0)"], "features": ["CPU_SSE", "OPENMP"]}
STATUSES = {"ok", "warn", "fail"}


def machine_with(*gpus, no_gpu=None):
    """A machine with these GPUs: (name, GiB, capability)."""
    cards = [
        GpuCard(
            i, name=name, memory_total=int(gib * 2**30), capability=capability,
            driver="570.86.15",
        )
        for i, (name, gib, capability) in enumerate(gpus)
    ]  # fmt: skip
    return Machine(cpu_card(), tuple(cards), no_gpu)


T4 = ("Tesla T4", 15.0, (7, 5))
L4 = ("NVIDIA L4", 22.5, (8, 9))
H200 = ("NVIDIA H200", 139.8, (9, 0))
K80 = ("Tesla K80", 11.2, (3, 7))


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What the doctor says of the machine that runs the tests."""
    return doctor.examine(out=tmp_path_factory.mktemp("figures"))


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """Nothing of Fashion-MNIST on this machine; the cache is an empty folder."""
    cache = tmp_path / "cache" / "d2lpar" / "fashion-mnist"
    cache.mkdir(parents=True)
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "mxnet"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache


def spoil(folder):
    """Four files with the right names and the wrong content."""
    folder.mkdir(exist_ok=True)
    for name in datasets.FASHION_MNIST_FILES:
        (folder / f"{name}.gz").write_bytes(b"not gzip")
    return folder


def test_training_can_run_on_the_machine_that_tests(here):
    assert [check for check in here if check.status == "fail"] == []
    assert doctor.can_train(here)
    assert {check.status for check in here} <= STATUSES
    training = next(check for check in here if check.name == "training")
    assert "cpu(0)" in training.message or "gpu(0)" in training.message


def report(checks, width=200):
    """The report as lines of text."""
    console = Console(file=io.StringIO(), width=width)
    doctor.print_report(checks, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_report_is_one_line_per_check_of_reasonable_width(here):
    lines = report(here)
    assert len(lines) == len(here) + 1
    assert lines[-1].startswith("training can run here")
    assert max(map(len, lines)) <= 200
    columns = {line.index(c.message[:5]) for c, line in zip(here, lines)}
    assert len(columns) == 1


def test_report_joins_lines_and_says_when_training_cannot_run():
    checks = [
        doctor.Check("A", "ok", "fine"),
        doctor.Check("long name", "fail", "two\n lines", "do this"),
    ]
    assert report(checks) == [
        "ok    A          fine",
        "fail  long name  two lines; do this",
        "training cannot run here (0 warn, 1 fail)",
    ]
    assert not doctor.can_train(checks)
    assert report([])
    narrow = report(checks, width=30)
    assert narrow[1:3] == ["fail  long name  two lines; do", "                 this"]


def test_checks_are_json(here):
    rows = [dataclasses.asdict(check) for check in here]
    assert json.loads(json.dumps(rows)) == rows
    assert set(rows[0]) == {"name", "status", "message", "remedy"}


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 8, 20), "fail"), ((3, 9, 0), "ok"), ((3, 14, 9), "ok"), ((3, 15, 0), "warn")],
)
def test_python(version, status):
    check = doctor.check_python(version)
    assert check.status == status
    assert (check.remedy is None) == (status == "ok")


@pytest.mark.parametrize(
    ("system", "machine", "status"),
    [
        ("Linux", "x86_64", "ok"),
        ("Linux", "aarch64", "warn"),
        ("Darwin", "x86_64", "warn"),
        ("Darwin", "arm64", "fail"),
        ("Windows", "AMD64", "fail"),
    ],
)
def test_platform(system, machine, status):
    check = doctor.check_platform(system, machine)
    assert check.status == status
    assert status == "ok" or "WSL2" in check.remedy


def test_numpy_1_and_2_will_do():
    assert doctor.check_numpy("1.26.4").status == "ok"
    assert doctor.check_numpy("2.5.5").status == "ok"
    check = doctor.check_numpy("3.0.0")
    assert check.status == "warn" and "numpy<3" in check.remedy
    assert "3.0.0" in check.message


def test_no_mxnet():
    (check,) = doctor.check_mxnet({}, ask=pytest.fail)
    assert check.status == "fail"
    for extra in ("cpu", "cu112"):
        assert mxnet_builds.install_command(extra) in check.remedy


@pytest.mark.parametrize(
    ("python", "cpu", "cu112"),
    [
        ((3, 12, 9), "pip install 'd2lpar[cpu]'", "pip install 'd2lpar[cu112]'"),
        (
            (3, 13, 0),
            "pip install --no-deps mxnet==1.9.1",
            "pip install 'd2lpar[cu112]' && pip install --no-deps mxnet-cu112==1.9.1",
        ),
    ],
)
def test_mxnet_is_installed_past_its_own_metadata_where_numpy_1_has_no_build(
    python, cpu, cu112
):
    assert mxnet_builds.install_command("cpu", python) == cpu
    assert mxnet_builds.install_command("cu112", python) == cu112


def test_two_builds_at_once(monkeypatch, tmp_path):
    for name in ("mxnet", "mxnet-cu112"):
        info = tmp_path / f"{name.replace('-', '_')}-1.9.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.9.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    builds = mxnet_builds.installed_builds()
    assert builds == {"mxnet": "1.9.1", "mxnet-cu112": "1.9.1"}
    (check,) = doctor.check_mxnet(builds, ask=pytest.fail)
    assert check.status == "fail"
    assert "mxnet and mxnet-cu112" in check.message
    assert "pip uninstall mxnet mxnet-cu112" in check.remedy


def test_another_version_of_mxnet_is_a_warning():
    installed, training = doctor.check_mxnet({"mxnet": "1.8.0"}, lambda: TRAINED)
    assert (installed.status, training.status) == ("warn", "ok")
    assert "1.8.0" in installed.message and "mxnet==1.9.1" in installed.remedy


def test_features_are_named_and_those_of_every_processor_left_out():
    installed, training = doctor.check_mxnet({"mxnet": "1.9.1"}, lambda: TRAINED)
    assert installed.message == "1.9.1, mxnet OPENMP"
    assert "cpu(0)" in training.message


def test_each_missing_library_has_its_line_and_its_wheel(monkeypatch):
    table = {"libnowhere.so.11": "nvidia-nowhere-cu11", "libcuda.so.1": None}
    monkeypatch.setattr(mxnet_builds, "GPU_LIBRARIES", table)
    monkeypatch.setattr(mxnet_builds.ctypes, "CDLL", lambda *a, **k: open("/nowhere"))
    missing = mxnet_builds.load_gpu_libraries()
    _, nowhere, driver = doctor.check_mxnet(
        {"mxnet-cu112": "1.9.1"}, lambda: {"missing": missing}
    )
    assert nowhere.status == driver.status == "fail"
    assert nowhere.message == "libnowhere.so.11 is missing"
    assert nowhere.remedy == "pip install nvidia-nowhere-cu11"
    assert "NVIDIA driver" in driver.remedy and doctor.CPU in driver.remedy


@pytest.mark.parametrize(
    ("error", "name", "words"),
    [
        (
            "OSError: libgomp.so.1: cannot open shared object file",
            "library",
            "libgomp1",
        ),
        (
            "OSError: libodd.so.3: cannot open shared object file",
            "library",
            "reinstall",
        ),
        ("ModuleNotFoundError: No module named 'distutils'", "training", "setuptools"),
        ("MXNetError: something else", "training", "reinstall"),
    ],
)
def test_mxnet_that_cannot_train(error, name, words):
    _, check = doctor.check_mxnet({"mxnet": "1.9.1"}, lambda: {"error": error})
    assert (check.status, check.name) == ("fail", name)
    assert words in check.remedy
    assert error in check.message or check.message.endswith("is missing")


def test_mxnet_that_fails_on_import_is_one_line(monkeypatch, tmp_path):
    message = "libmxnet.so: undefined symbol: cblas_sgemm\n  and a trace\n  of it"
    (tmp_path / "mxnet.py").write_text(f"raise OSError({message!r})\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    answer = doctor.ask_child()
    assert "(libmxnet.so: undefined symbol: cblas_sgemm)" in answer["error"]
    assert "trace" not in answer["error"]


def test_the_cause_of_an_error_names_its_kind_and_leaves_out_the_trace():
    class MXNetError(RuntimeError):
        """Like MXNet's, its words begin with its name."""

    trace = 'Traceback (most recent call last):\n  File "../src/a.cc", line 81\n'
    said, frames = "no kernel image is available", "[bt] (1) libmxnet.so"
    line = f"MXNetError: {said}"
    assert doctor._cause(MXNetError(f"{trace}{line}")) == line
    assert doctor._cause(MXNetError(f"\n{trace}{line}\n{frames}\n")) == line
    assert doctor._cause(RuntimeError(f"{trace}{said}\n{frames}")) == (
        f"RuntimeError: {said}"
    )
    assert first_line(f"\n{trace}{line}\n{frames}\n") == said
    assert doctor._cause(RuntimeError("")) == "RuntimeError"
    assert doctor._cause(DataError("a.gz is corrupt")) == "a.gz is corrupt"


def test_a_process_that_aborts_or_hangs_takes_nothing_down():
    code = "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    aborted = doctor.ask_child(code + "os.write(2, b'bad symbol\\n'); os.abort()")
    assert "status -6" in aborted["error"] and "bad symbol" in aborted["error"]
    hung = doctor.ask_child("import time; time.sleep(60)", seconds=0.3)
    assert "0.3 seconds" in hung["error"]
    noisy = doctor.ask_child('print("[12:00:00] chatter"); print("{\\"a\\": 1}")')
    assert noisy == {"a": 1}


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        ({}, "ok", "4 usable, shared out"),
        ({"OMP_NUM_THREADS": "2"}, "ok", "OMP_NUM_THREADS=2"),
        ({"OMP_NUM_THREADS": "4,2", "MXNET_CPU_TEMP_COPY": "64"}, "ok", "4 usable"),
        ({"OMP_NUM_THREADS": "8"}, "warn", "OMP_NUM_THREADS=8"),
        ({"OMP_NUM_THREADS": "many"}, "warn", "many"),
        ({"MXNET_CPU_TEMP_COPY": "4"}, "warn", "MXNET_CPU_TEMP_COPY=4"),
    ],
)
def test_cores(environ, status, words):
    check = doctor.check_cores(4, environ)
    assert check.status == status
    assert words in check.message
    assert status == "ok" or check.remedy.startswith("unset ")


def test_a_build_from_source_names_its_library_and_its_own_remedies(monkeypatch):
    monkeypatch.setenv("MXNET_LIBRARY_PATH", "/opt/libmxnet.so")
    builds = {mxnet_builds.FROM_SOURCE: "1.9.1"}
    installed, training = doctor.check_mxnet(builds, lambda: TRAINED)
    assert installed.message == "1.9.1, built from source OPENMP (/opt/libmxnet.so)"
    assert (installed.status, training.status) == ("ok", "ok")
    lacking = {"error": "OSError: libcudnn.so.9: cannot open shared object file"}
    for answer in (lacking, {"error": "MXNetError: something else"}):
        _, check = doctor.check_mxnet(builds, lambda a=answer: a)
        assert check.status == "fail" and "docs/newer-gpus.md" in check.remedy
        assert "pip install" not in check.remedy
    installed, _ = doctor.check_mxnet({mxnet_builds.FROM_SOURCE: "2.0"}, lambda: {})
    assert installed.status == "warn" and "pip" not in installed.remedy


@pytest.mark.parametrize(
    ("number", "errors", "status", "words"),
    [
        (0, {}, "ok", "MXNet built from source computes on it"),
        (0, {0: "no kernel image is available"}, "warn", "(no kernel image is avail"),
        (None, {}, "warn", "hidden from CUDA"),
    ],
)
def test_a_build_from_source_is_tried_on_the_gpu(
    monkeypatch, number, errors, status, words
):
    monkeypatch.setenv("MXNET_LIBRARY_PATH", "/opt/libmxnet.so")
    monkeypatch.setattr(devices, "_errors_when_tried", lambda numbers: errors)
    monkeypatch.setattr(cuda, "cuda_devices", lambda: [cuda.CudaDevice(*H200[::2])])
    here = machine_with(H200)
    card = dataclasses.replace(here.gpus[0], number=number)
    here = dataclasses.replace(here, gpus=(card,))
    (check,) = doctor.check_gpus(here, [mxnet_builds.FROM_SOURCE])
    assert check.status == status and words in check.message
    assert "5.0-8.9" not in check.message
    assert (check.remedy is None) == (status == "ok")


def test_gpu_line():
    (check,) = doctor.check_gpus(machine_with(H200), ["mxnet"])
    assert check.name == "GPU 0"
    known = "NVIDIA H200, 139.8 GiB, capability 9.0, driver 570.86.15"
    assert check.message.startswith(known)


@pytest.mark.parametrize(
    ("gpu", "builds", "status", "words"),
    [
        (T4, ["mxnet-cu112"], "ok", None),
        (L4, ["mxnet-cu112"], "ok", None),
        (T4, ["mxnet"], "warn", f"pip uninstall mxnet && {doctor.GPU}"),
        (T4, [], "warn", doctor.GPU),
        (H200, ["mxnet-cu112"], "warn", "PyTorch"),
        (H200, ["mxnet"], "warn", "CPU contexts"),
        (K80, ["mxnet-cu112"], "warn", "CPU contexts"),
    ],
)
def test_gpu_and_build(gpu, builds, status, words):
    (check,) = doctor.check_gpus(machine_with(gpu), builds)
    assert check.status == status
    assert check.remedy is None if words is None else words in check.remedy
    if gpu in (H200, K80):
        assert "5.0-8.9" in check.message


def test_several_gpus_and_none():
    checks = doctor.check_gpus(machine_with(T4, H200), ["mxnet-cu112"])
    assert [check.name for check in checks] == ["GPU 0", "GPU 1"]
    (none,) = doctor.check_gpus(machine_with(no_gpu="no driver"), ["mxnet"])
    assert none.status == "ok"
    assert none.message == "training uses CPU contexts: no driver"


def test_what_a_gpu_does_not_tell_is_a_question_mark():
    silent = Machine(cpu_card(), (GpuCard(0),))
    (check,) = doctor.check_gpus(silent, ["mxnet-cu112"])
    assert check.message.startswith("?, ? GiB, capability ?, driver ?")
    assert check.status == "warn"


def test_data_absent_or_corrupt(no_data, monkeypatch, tmp_path):
    absent = doctor.check_data()
    assert absent.status == "warn" and "downloads" in absent.remedy

    spoil(no_data)
    cached = doctor.check_data()
    assert cached.status == "warn"
    assert f"{no_data}/train-images-idx3-ubyte.gz" in cached.message

    asked_for = spoil(tmp_path / "mine")
    monkeypatch.setenv("D2LPAR_DATA", str(asked_for))
    for check in (doctor.check_data(), doctor.check_data(asked_for)):
        assert check.status == "fail"
        assert f"{asked_for}/train-images-idx3-ubyte.gz" in check.message
        assert "delete it" in check.remedy

    nowhere = doctor.check_data(tmp_path / "nowhere")
    assert nowhere.status == "fail" and "nowhere" in nowhere.message


def test_data_intact(no_data, monkeypatch):
    content = struct.pack(">BBBBI", 0, 0, 8, 1, 3) + bytes(np.arange(3, dtype=np.uint8))
    entry = (hashlib.sha256(content).hexdigest(), (3,))
    files = {name: entry for name in datasets.FASHION_MNIST_FILES}
    monkeypatch.setattr(fashion, "FASHION_MNIST_FILES", files)
    for name in files:
        (no_data / f"{name}.gz").write_bytes(gzip.compress(content))
    check = doctor.check_data()
    assert check.status == "ok" and str(no_data) in check.message


def test_figure_folder(tmp_path):
    assert doctor.check_figures(tmp_path).status == "ok"
    assert doctor.check_figures(tmp_path / "new" / "figures").status == "ok"
    assert list(tmp_path.iterdir()) == []  # no trace

    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone" / "gone")
    for out in ("file/figures", "file", "dangling", "x" * 300):
        check = doctor.check_figures(tmp_path / out)
        assert check.status == "fail", out
        assert out in check.message and "--out" in check.remedy


def test_examine_never_raises(monkeypatch, tmp_path, no_data):
    def broken(*args):
        raise RuntimeError("broken\n  and a trace")

    (tmp_path / "file").touch()
    monkeypatch.setattr(cards, "machine", lambda: machine_with(H200))
    monkeypatch.setattr(doctor, "ask_child", broken)
    monkeypatch.setattr(doctor, "check_cores", broken)
    monkeypatch.setattr(doctor, "check_numpy", lambda v: doctor.Check("NumPy", "ok", v))
    checks = {c.name: c for c in doctor.examine(tmp_path / "file" / "figures")}
    assert checks["MXNet"].status == "fail"  # nothing has shown that it can train
    assert checks["cores"].status == "warn"
    assert checks["cores"].message == "cannot be examined: RuntimeError: broken"
    assert "NVIDIA H200" in checks["GPU 0"].message
    assert checks["figures"].status == "fail"
    assert not doctor.can_train(checks.values())


def test_examine_without_what_d2lpar_requires(monkeypatch, no_data):
    monkeypatch.setattr(doctor, "ask_child", lambda: TRAINED)
    for module in ("pynvml", "d2lpar.datasets.fashion", "d2lpar.machine.cores"):
        monkeypatch.setitem(sys.modules, module, None)  # import raises
    monkeypatch.delattr("d2lpar.datasets.fashion", raising=False)
    statuses = {c.name: c.status for c in doctor.examine()}
    assert statuses["GPU"] == "warn"  # training needs no NVML
    assert statuses["cores"] == statuses["data"] == "fail"

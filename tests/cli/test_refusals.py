"""Wrong commands, as tables: a line on standard error that names the value.

Where an argument or flag is wrong, the command's usage is below it.

All run in this process, as `d2lpar` does them: exit code 2, and nothing is written.
"""

import os

import pytest
from support.factories import epoch, header

from d2lpar import devices, process
from d2lpar.cli import main
from d2lpar.machine import builds
from d2lpar.machine.gpus import CudaDevice
from d2lpar.records import files

LENET = ["run", "multiple_gpus", "--data=sample", "--devices=cpu:1", "--dry-run"]
LAUNCH = ["launch", "--"]

REFUSED = [
    # Values out of range
    ([*LENET, "--threads=100000"], "100000 is not in the range 1<=x<=1024"),
    # Flags that do not apply, or contradict each other
    ([*LENET, "--frames-every=2"], "No such option '--frames-every'"),
    (["run", "timing", "--resume=x"], "x: does not apply to timing with preset quick"),
    (["run", "timing", "--preset=sharp"], "--preset sharp: timing takes quick, book"),
    (["run", "gan", "--data=sample"], "--data sample: gan takes auto, cryptopunks"),
    ([*LENET, "--resume=x", "--repeats=2"], "--resume with --repeats"),
    ([*LENET, "--seeds=1,2", "--repeats=2"], "--seeds with --repeats"),
    ([*LENET, "--seeds=-1"], "--seeds '-1': write whole numbers"),
    ([*LENET, "--seeds=2147483648"], "--seeds '2147483648': write whole numbers"),
    ([*LENET, "--seeds=0,0"], "--seeds '0,0': write whole numbers"),
    (["run", ""], "'': there is none"),
    (["run", "timing", "--seeds=1,2"], "--seeds 1,2: write one"),
    ([*LAUNCH, "run", "gan"], "gan is not shared"),
    ([*LAUNCH, "plot", "x"], "after -- write: run multiple_machines"),
    ([*LAUNCH, "run", "multiple_machines", "--devices=gpu:1"], "train on CPU contexts"),
    (["plot", "\x1b[31mx.jsonl"], r"\x1b[31mx.jsonl"),  # a terminal would obey
    # Chapters and devices that are not there
    (["run", "multiple_gpu"], "there is none; did you mean multiple_gpus?"),
    (["run", "chapter7"], "python chapters/memory.py"),
    (["run", "15"], "'15': there is none; see d2lpar list"),
    ([*LENET, "--devices=cpu:2,gpu:1"], "cpu:2,gpu:1"),
    ([*LENET, "--num-devices=4"], "4"),
    # Files and folders
    ([*LENET, "--out=record"], "name a folder that you may write to by --out"),
    (["plot", "absent"], "absent"),
    (["plot", "binary"], "binary"),
    (["plot", "header"], "header: holds no results"),
    # Commands without a file
    (["verify"], "d2lpar verify ddp.py (docs/verify.md has this file)"),
    (["compare"], "Usage: d2lpar compare [OPTIONS] A B"),
    (["report"], "first: d2lpar run multiple_gpus"),
    (["report", "--format=csv"], "runs: No such file"),
    (["report", "--format=csv", "header"], "header: holds no times"),
]
CONTENT = {
    "binary": b"\x89PNG\xff\xfe\x00",
    "header": f"{files.to_line(header())}\n".encode(),
    "record": f"{files.to_line(header())}\n{files.to_line(epoch(1))}\n".encode(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def answer(folder, monkeypatch, capfd):
    """A function: the one line that refuses `d2lpar WORDS`, which writes nothing."""

    def answer(words):
        monkeypatch.chdir(folder)
        monkeypatch.delenv("D2LPAR_DATA", raising=False)
        monkeypatch.setattr("sys.argv", ["d2lpar", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        error = capfd.readouterr().err
        assert ended.value.code == 2, error
        first, *usage = error.splitlines()
        assert first.startswith("d2lpar: "), error
        assert not usage or usage[0].startswith("Usage: d2lpar") and len(usage) == 1
        assert set(os.listdir(folder)) == set(CONTENT)
        return error

    return answer


@pytest.mark.parametrize(("words", "value"), REFUSED)
def test_one_line_names_the_value_and_nothing_is_written(answer, words, value):
    assert value in answer(words)


def test_without_mxnet_a_run_is_refused_before_it_begins(answer, monkeypatch):
    monkeypatch.setattr(builds, "installed_builds", dict)
    error = answer(["run", "multiple_gpus"])
    assert error.startswith("d2lpar: MXNet is not installed: pip install")


def test_a_gpu_without_code_is_refused_before_a_child_starts(answer, monkeypatch):
    h200 = CudaDevice("NVIDIA H200", (9, 0))
    monkeypatch.setattr(devices, "cuda_devices", lambda: [h200])
    monkeypatch.setattr(builds, "installed_builds", lambda: {"mxnet-cu112": "1.9.1"})
    monkeypatch.setattr(process, "results", pytest.fail)
    error = answer(["run", "multiple_gpus", "--data=sample", "--devices=gpu:1"])
    assert "gpu(0) NVIDIA H200 (compute capability 9.0)" in error

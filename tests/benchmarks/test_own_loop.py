"""The benchmark of a reader's own loop runs, and compares the same trainings."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from d2lpar._mxnet import mx, np
from d2lpar.errors import RunError
from d2lpar.records import arms, files
from d2lpar.runs import ours

ROOT = Path(__file__).parents[2]
SIZES = {"data": "sample", "global_batch_size": 16, "steps": 2, "passes": 2}


@pytest.fixture(scope="module")
def own_loop():
    spec = importlib.util.spec_from_file_location(
        "own_loop", ROOT / "benchmarks" / "own_loop.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """A file of our first steps."""
    path = tmp_path_factory.mktemp("check") / "first_steps.npz"
    ours.write_first_steps(str(path), {"name": "sample"}, seed=0, global_batch_size=16)
    return path


@pytest.mark.parametrize("waiting", [True, False])
def test_the_reader_repeats_our_first_steps(own_loop, check, waiting):
    lines = list(own_loop.reader_loop("cpu:2", check=check, waiting=waiting, **SIZES))
    assert [set(line) for line in lines] == [{"seconds"}] * 2
    assert all(line["seconds"] > 0 for line in lines)


def test_a_reader_who_trains_otherwise_is_not_timed(own_loop, check, tmp_path):
    with numpy.load(check) as file:
        changed = dict(file)
    changed["losses"] = changed["losses"] * 1.001
    numpy.savez(tmp_path / "changed.npz", **changed)
    loop = own_loop.reader_loop(
        "cpu:1", check=tmp_path / "changed.npz", waiting=True, **SIZES
    )
    with pytest.raises(RunError, match="the reader's loss is"):
        next(loop)


def test_the_peer_is_what_d2l_has():
    # Its functions are copied from d2l, so that it runs where d2l does not install.
    d2l = pytest.importorskip("d2l.mxnet", reason="d2l is not installed (extra book)")
    sys.path.insert(0, str(ROOT / "peers"))
    try:
        import d2l_loop
    finally:
        sys.path.remove(str(ROOT / "peers"))
        sys.modules.pop("job", None)
    devices = [mx.cpu(0), mx.cpu(1)]
    X, y = numpy.arange(24.0).reshape(4, 6), numpy.arange(4)
    for mine, theirs in zip(
        d2l_loop.split_batch(X, y, devices), d2l.split_batch(X, y, devices)
    ):
        for a, b in zip(mine, theirs):
            assert a.ctx == b.ctx and (a.asnumpy() == b.asnumpy()).all()
    params = [np.ones((2, 3)), np.ones(3)]
    for p, sgd in zip(params, (d2l_loop.sgd, d2l.sgd)):
        p.attach_grad()
        p.grad[:] = 0.3
        sgd([p], 0.1, 7)
    assert params[0].asnumpy()[0].tolist() == params[1].asnumpy().tolist()


@pytest.mark.slow
def test_a_tiny_run_writes_a_record(own_loop, tmp_path):
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SIZES.items()]
    command = [sys.executable, str(ROOT / "benchmarks" / "own_loop.py"), *flags]
    command += ["--devices=cpu:2", "--rounds=1", f"--out={tmp_path}"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    timed = arms.arm_times(files.read(tmp_path / "own_loop.jsonl"))
    names = [own_loop.READER, own_loop.NEVER, own_loop.D2L]
    assert [arm.name for arm in timed] == names * 2
    assert all(len(arm.seconds) == SIZES["passes"] - 1 for arm in timed)
    assert done.stdout.count("of d2l's time") == 4
    assert {p.suffix for p in tmp_path.iterdir()} == {".jsonl", ".png"}

"""Grades homework_pytorch.py by values: two gloo processes run it, this one compares.

python -m pytest test_homework_pytorch.py
"""

import subprocess
import sys
from pathlib import Path

import numpy
import pytest

pytest.importorskip("torch", reason="no PyTorch: pip install torch")

# Run by each process on a copy of the file: path, rank, a file for the group, results.
PROCESS = """
import runpy, sys
import numpy, torch
from torch import distributed

path, rank, group, results = sys.argv[1:]
sys.modules["solution"] = None
distributed.init_process_group(
    "gloo", init_method=f"file://{group}", rank=int(rank), world_size=2
)
own = runpy.run_path(path)
found, rows = {}, []

def noted(name, function):
    try:
        found.update({f"{name}{i}": a for i, a in enumerate(function())})
    except Exception as error:
        found[name + "error"] = f"{type(error).__name__}: {error}"

def copies():
    source = [numpy.ones((2, 3), "float32"), numpy.arange(2.0)]
    replica = own["get_params"](source)
    source[0][:] = 7
    yield from (p.detach().numpy() for p in replica)
    yield [p.requires_grad and p.is_leaf for p in replica]

def summed():
    tensor = torch.arange(6.0).reshape(2, 3) * (int(rank) + 1)
    own["allreduce"](tensor)
    yield tensor.numpy()

def shards():
    X, y = own["split_batch"](torch.arange(14.0).reshape(7, 2), torch.arange(7))
    yield from (X.numpy(), y.numpy())

def three_steps():
    def loss(X, y, params):
        rows.append(len(X))
        return ((X @ params[0] + params[1] - y) ** 2).sum() / 2

    rng = numpy.random.default_rng(5)
    params = own["get_params"]([rng.normal(size=4), rng.normal(size=1)])
    for n in (7, 4, 5):
        X, y = torch.tensor(rng.normal(size=(n, 4))), torch.tensor(rng.normal(size=n))
        own["train_batch"](X, y, params, 0.1, loss)
    yield from (p.detach().numpy() for p in params)
    yield rows

noted("get_params", copies)
noted("allreduce", summed)
noted("split_batch", shards)
noted("train_batch", three_steps)
numpy.savez(results, **found)
"""


def grade(source, folder):
    """What two processes find with the functions of a source, by process."""
    (folder / "mine.py").write_text(source, encoding="utf-8")
    names = [str(folder / f"{rank}.npz") for rank in (0, 1)]
    command = [sys.executable, "-c", PROCESS, "mine.py"]
    both = [
        subprocess.Popen(
            [*command, str(rank), folder / "group", name],
            cwd=folder,
            stderr=subprocess.PIPE,
        )
        for rank, name in enumerate(names)
    ]
    try:
        for process in both:
            _, error = process.communicate(timeout=100)
            assert process.returncode == 0, error.decode()[-500:]
    finally:
        for process in both:
            process.kill()
    return [dict(numpy.load(name)) for name in names]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    source = Path(__file__).with_name("homework_pytorch.py").read_text(encoding="utf-8")
    return grade(source, tmp_path_factory.mktemp("group"))


def no_error(found, name):
    assert name + "error" not in found, str(found[name + "error"])


def test_get_params(found):
    """10 points."""
    for mine in found:
        no_error(mine, "get_params")
        numpy.testing.assert_array_equal(mine["get_params0"], numpy.ones((2, 3)))
        numpy.testing.assert_array_equal(mine["get_params1"], [0, 1])
        assert mine["get_params2"].all(), "a copy requires no gradient"


def test_allreduce(found):
    """10 points."""
    for mine in found:
        no_error(mine, "allreduce")
        right = 3 * numpy.arange(6).reshape(2, 3)
        numpy.testing.assert_array_equal(mine["allreduce0"], right)


def test_split_batch(found):
    """10 points."""
    for mine, part in zip(found, (slice(0, 4), slice(4, 7))):
        no_error(mine, "split_batch")
        right = numpy.arange(14).reshape(7, 2)[part]
        numpy.testing.assert_array_equal(mine["split_batch0"], right)
        numpy.testing.assert_array_equal(mine["split_batch1"], numpy.arange(7)[part])


def test_train_batch(found):
    """10 points: three steps, by all four functions."""
    rng = numpy.random.default_rng(5)
    w, b = rng.normal(size=4), rng.normal(size=1)
    for n in (7, 4, 5):
        X, y = rng.normal(size=(n, 4)), rng.normal(size=n)
        error = X @ w + b - y
        w, b = w - 0.1 / n * X.T @ error, b - 0.1 / n * error.sum()
    for mine, rows in zip(found, ([4, 2, 3], [3, 2, 2])):
        no_error(mine, "train_batch")
        assert mine["train_batch2"].tolist() == rows, "rows of another process"
        numpy.testing.assert_allclose(mine["train_batch0"], w, rtol=1e-9)
        numpy.testing.assert_allclose(mine["train_batch1"], b, rtol=1e-9)

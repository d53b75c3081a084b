"""The peers compute what ours computes, and are refused where they do not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL

import arms
import first_steps
import numpy
import pytest

from d2lpar import datasets

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "peers"
DATA = ("--data=sample", "--n-train=250", "--n-test=100")
NEEDS = {
    "d2l_notebook.py": ("d2l",),
    "d2l_pytorch.py": ("torch", "torchvision"),
    "pytorch_loop.py": ("torch",),
    "ddp.py": ("torch",),
    "jax_loop.py": ("jax",),
}


def python_of(script):
    return arms.PYTHON_WITH_JAX if script == "jax_loop.py" else sys.executable


def need(script):
    for library in NEEDS[script]:
        found = f"import importlib.util as u; assert u.find_spec({library!r})"
        if subprocess.run([python_of(script), "-c", found], stderr=DEVNULL).returncode:
            pytest.skip(f"{library} is not installed: extras peers, book; for JAX a "
                        "Python in D2LPAR_JAX_PYTHON")  # fmt: skip


def run_peer(script, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), environment.get("PYTHONPATH", "")]
    )
    command = [python_of(script), str(PEERS / script), *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=180
    )


@pytest.fixture(scope="module")
def data():
    return datasets.load("sample", n_train=250, n_test=100)


@pytest.fixture(scope="module")
def ours(data):
    """Our first steps, on batches of 100."""
    return first_steps.first_steps(data, seed=0, global_batch_size=100)


def write(folder, arrays, **changes):
    path = folder / "first_steps.npz"
    numpy.savez(path, **{**arrays, **changes})
    return path


def refusal(done):
    """Why a peer refused: it prints that and nothing else."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stdout.splitlines()
    values = json.loads(line)
    assert list(values) == ["error"]
    return values["error"]


@pytest.mark.parametrize("script", [name for name in NEEDS if name != "ddp.py"])
def test_four_losses_are_ours_and_a_fifth_that_is_not_is_refused(
    script, ours, tmp_path
):
    changed = ours["losses"] * (1, 1, 1, 1, 1.001)
    check = write(tmp_path, ours, losses=changed)
    need(script)
    why = refusal(run_peer(script, *DATA, "--num-epochs=1", f"--check={check}"))
    assert why.startswith(f"step 5: the loss is {str(ours['losses'][4])[:5]}")
    assert why.endswith(f"ours {changed[4]:.6f}")


@pytest.mark.slow
def test_ddp_goes_on_from_our_parameters_as_ours_does(data, ours, tmp_path):
    from d2lpar import lenet

    need("ddp.py")
    # 250 = 83 + 83 + 83 + 1: an empty part, too
    flags = ["--num-devices=2", "--num-epochs=2", "--global-batch-size=83", "--lr=0.02"]
    flags += [f"--check={write(tmp_path, ours)}", f"--save={tmp_path / 'saved.npz'}"]
    done = run_peer("ddp.py", *DATA, *flags)
    assert done.returncode == 0, done.stderr
    lines = list(map(json.loads, done.stdout.splitlines()))
    state = lenet.start(seed=0)
    recipe = {"global_batch_size": 83, "lr": 0.02, "num_epochs": 2}
    records = list(lenet.train(devices="cpu:1", data=data, state=state, **recipe))
    assert lines[-1]["test_acc"] == pytest.approx(records[-1].test_acc, abs=0.011)
    for line in lines:
        assert line["backend"] == "gloo" and line["steps"] == 4
        assert line["samples_per_sec"] == pytest.approx(250 / line["seconds"])
    moved = max(abs(p - ours[f"params.{k}"]).max() for k, p in enumerate(state.params))
    assert moved > 0.0005
    with numpy.load(tmp_path / "saved.npz") as saved:
        for k, mine in enumerate(state.params):
            numpy.testing.assert_allclose(
                saved[f"params.{k}"], mine, rtol=1e-3, atol=1e-5
            )


# The least-squares notes; the GAN is held to the notebook in tests/gan.


def test_the_notes_least_squares_is_held_to_our_optimum(tmp_path):
    from d2lpar.least_squares import solve

    problem = datasets.uniform_problem(2_000, 20)
    optimum = solve(problem.A, problem.b, devices="cpu:1", method="tsqr").residual_norm
    found = {"A": problem.A, "b": problem.b, "optimum": optimum}
    flags = ("least_squares_notes.py", "--epochs=1", "--check")
    done = run_peer(*flags, write(tmp_path, found))
    assert json.loads(done.stdout)["optimum"] == pytest.approx(optimum, rel=1e-9)
    done = run_peer(*flags, write(tmp_path, found, optimum=1.001 * optimum))
    assert "the optimum's error is" in refusal(done)

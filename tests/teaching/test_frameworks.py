"""One data-parallel step in MXNet, PyTorch and JAX: the same losses from one start."""

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

FOLDER = Path(__file__).parents[2] / "teaching" / "frameworks"
if not FOLDER.is_dir():
    pytest.skip("not a checkout", allow_module_level=True)
# JAX and MXNet want different NumPys: a Python of its own may have JAX.
PYTHON_WITH_JAX = os.environ.get("D2LPAR_JAX_PYTHON", sys.executable)


def losses(*command):
    """What a program prints, run in a process of its own."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return numpy.array([float(line) for line in done.stdout.split()])


@pytest.fixture(scope="module")
def in_mxnet():
    found = losses(sys.executable, FOLDER / "mxnet_step.py")
    assert len(found) == 5 and len(set(found)) == 5
    return found


@pytest.mark.parametrize("program, num_devices", [("step", 2), ("ddp", 3)])
def test_pytorch_has_the_losses_of_mxnet(program, num_devices, in_mxnet):
    pytest.importorskip("torch", reason="no PyTorch: extra peers")
    run = [sys.executable, "-m", "torch.distributed.run"]
    run += ["--nproc-per-node", str(num_devices)]
    found = losses(*run, FOLDER / f"pytorch_{program}.py")
    numpy.testing.assert_allclose(found, in_mxnet, rtol=2e-6)


def test_a_hook_halves_the_bytes_and_nearly_keeps_the_losses(in_mxnet):
    pytest.importorskip("torch", reason="no PyTorch: extra peers")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*run, FOLDER / "pytorch_hook.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    *found, said = done.stdout.splitlines()
    assert said == f"{len(found) * 129_068 * 2} bytes"
    difference = abs(numpy.array(found, float) - in_mxnet)
    assert 0 < difference.max() < 1e-4


def test_jax_has_the_losses_of_mxnet(in_mxnet):
    asked = [PYTHON_WITH_JAX, "-c", "import jax; jax.shard_map"]
    if subprocess.run(asked, capture_output=True).returncode:
        pytest.skip(
            "no jax.shard_map here; D2LPAR_JAX_PYTHON may name a Python with it"
        )
    found = losses(PYTHON_WITH_JAX, FOLDER / "jax_step.py")
    numpy.testing.assert_allclose(found, in_mxnet, rtol=2e-6)

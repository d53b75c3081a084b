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


# One launch for all programs: each process forms its group once.
PYTORCH = """
import runpy, sys
from torch import distributed
folder, *programs = sys.argv[1:]
sys.path.insert(0, folder)
distributed.init_process_group("gloo")
distributed.init_process_group = distributed.destroy_process_group = lambda *_: None
for program in programs:
    runpy.run_path(f"{folder}/pytorch_{program}.py", run_name="__main__")
"""


def test_pytorch_has_the_losses_of_mxnet_and_a_hook_nearly(in_mxnet, tmp_path):
    """On three processes, whose shards are not equal; the hook halves the bytes."""
    pytest.importorskip("torch", reason="no PyTorch: extra peers")
    (tmp_path / "all.py").write_text(PYTORCH)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    command = [*run, tmp_path / "all.py", FOLDER, "step", "ddp", "hook"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    *found, said = done.stdout.splitlines()
    step, ddp, hook = numpy.array(found, float).reshape(3, 5)
    numpy.testing.assert_allclose(step, in_mxnet, rtol=2e-6)
    numpy.testing.assert_allclose(ddp, in_mxnet, rtol=2e-6)
    assert 0 < abs(hook - in_mxnet).max() < 5e-4
    assert said == f"{5 * 129_068 * 2} bytes"


def test_jax_has_the_losses_of_mxnet(in_mxnet):
    asked = [PYTHON_WITH_JAX, "-c", "import jax; jax.shard_map"]
    if subprocess.run(asked, capture_output=True).returncode:
        pytest.skip(
            "no jax.shard_map here; D2LPAR_JAX_PYTHON may name a Python with it"
        )
    found = losses(PYTHON_WITH_JAX, FOLDER / "jax_step.py")
    numpy.testing.assert_allclose(found, in_mxnet, rtol=2e-6)

"""The peers compute what ours computes, and are refused where they do not."""

import ast
import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from d2lpar import datasets
from d2lpar.runs import in_turn
from d2lpar.runs import ours as our_side

PEERS = Path(__file__).parents[2] / "peers"
DATA = ("--data=sample", "--n-train=250", "--n-test=100")
NEEDS = {
    "d2l_notebook.py": ("d2l",),
    "d2l_pytorch.py": ("torch", "torchvision"),
    "pytorch_loop.py": ("torch",),
    "ddp.py": ("torch",),
}


def need(script):
    for library in NEEDS[script]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed (extras peers, book)")


def run_peer(script, *arguments, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= variables
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(PEERS.parent), environment.get("PYTHONPATH", "")]
    )
    command = [sys.executable, str(PEERS / script), *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=180
    )


@pytest.fixture(scope="module")
def data():
    return datasets.load("sample", n_train=250, n_test=100)


@pytest.fixture(scope="module")
def ours(data):
    """Our first steps, on batches of 100."""
    return our_side.first_steps(data, seed=0, global_batch_size=100)


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


def test_the_first_losses_tell_networks_apart(ours):
    assert ours["index"].shape == (5, 100) and len(ours["losses"]) == 5
    assert numpy.ptp(ours["losses"]) > 0.05
    assert (abs(ours["losses"] - numpy.log(10)) > 1e-3).any()


@pytest.mark.parametrize("script", NEEDS)
def test_four_losses_are_ours_and_a_fifth_that_is_not_is_refused(
    script, ours, tmp_path
):
    need(script)
    losses = ours["losses"] * (1, 1, 1, 1, 1.001)
    more = ("--num-devices=2",) if script == "ddp.py" else ()
    check = write(tmp_path, ours, losses=losses)
    done = run_peer(script, *DATA, "--num-epochs=1", f"--check={check}", *more)
    why = refusal(done)
    assert why.startswith(f"step 5: the loss is {str(ours['losses'][4])[:5]}")
    assert why.endswith(f"ours {losses[4]:.6f}")


@pytest.mark.parametrize("script", NEEDS)
def test_a_training_that_diverges_is_refused(script):
    need(script)
    # Several steps: the first leaves large parameters, the second makes them overflow.
    more = ("--num-epochs=1", "--lr=1e38", "--global-batch-size=50")
    done = run_peer(script, *DATA, *more)
    assert done.returncode == 2, done.stderr
    (line,) = done.stdout.splitlines()
    why = "diverged in epoch 1: use a smaller learning rate than 1e+38"
    assert json.loads(line) == {"error": why}


def test_another_learning_rate_is_refused(ours, tmp_path):
    need("pytorch_loop.py")
    check = write(tmp_path, ours, lr=1.1 * ours["lr"])
    done = run_peer("pytorch_loop.py", *DATA, f"--check={check}")
    assert "step 2: the loss is" in refusal(done) and done.stderr == ""


@pytest.fixture(scope="module")
def ddp(ours, tmp_path_factory):
    """Parameters after three epochs, and the lines, of one process and of two."""
    need("ddp.py")
    folder = tmp_path_factory.mktemp("ddp")
    check = write(folder, ours)
    flags = (
        *DATA,
        "--num-epochs=3",
        "--global-batch-size=83",
        "--lr=0.02",
        f"--check={check}",
    )

    def run(processes):
        saved = folder / f"{processes}.npz"
        done = run_peer(
            "ddp.py", *flags, f"--num-devices={processes}", f"--save={saved}"
        )
        assert done.returncode == 0, done.stderr
        with numpy.load(saved) as file:
            params = [file[f"params.{k}"] for k in range(8)]
        return params, [json.loads(line) for line in done.stdout.splitlines()]

    return {processes: run(processes) for processes in (1, 2)}


def test_ddp_of_two_processes_is_ddp_of_one(ddp):
    (one, _), (two, _) = ddp[1], ddp[2]  # 250 = 83 + 83 + 83 + 1: an empty part, too
    for a, b in zip(one, two):
        numpy.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_ddp_goes_on_from_our_parameters_as_ours_does(ddp, data, ours):
    from d2lpar import lenet

    state = lenet.start(seed=0)
    records = list(
        lenet.train(
            devices="cpu:1",
            global_batch_size=83,
            lr=0.02,
            num_epochs=3,
            data=data,
            state=state,
        )
    )
    params, lines = ddp[2]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["test_acc"] == pytest.approx(records[-1].test_acc, abs=0.011)
    moved = max(abs(p - ours[f"params.{k}"]).max() for k, p in enumerate(state.params))
    assert moved > 0.0005
    for theirs, mine in zip(params, state.params):
        numpy.testing.assert_allclose(theirs, mine, rtol=1e-3, atol=1e-5)


def test_ddps_lines_say_what_was_timed(ddp):
    for processes in (1, 2):
        for line in ddp[processes][1]:
            assert line["backend"] == "gloo" and line["steps"] == 4
            assert line["devices"] == ["cpu 1 threads"] * processes
            assert line["samples_per_sec"] == pytest.approx(250 / line["seconds"])


def test_ddp_times_so_many_steps_of_a_process_that_torchrun_started():
    need("ddp.py")
    torchrun = {name: "0" for name in ("RANK", "LOCAL_RANK", "MASTER_PORT")}
    torchrun |= {"WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    flags = ("--num-epochs=1", "--steps=2", "--global-batch-size=50")
    done = run_peer("ddp.py", *DATA, *flags, **torchrun)
    line = json.loads(done.stdout)
    assert line["steps"] == 2
    assert line["samples_per_sec"] == pytest.approx(2 * 50 / line["seconds"])


@pytest.mark.parametrize(
    ("script", "flags", "words"),
    [
        ("ddp.py", ("--device=cuda",), "on GPUs: PyTorch sees 0 here"),
        ("ddp.py", ("--num-devices=0",), "0 processes"),
        ("d2l_pytorch.py", ("--num-devices=2",), "PyTorch sees 0 GPUs here"),
        ("pytorch_loop.py", ("--device=cuda",), "PyTorch sees no GPU here"),
    ],
)
def test_what_is_not_there_is_one_line(script, flags, words):
    need(script)
    done = run_peer(script, *DATA, *flags)
    assert words in refusal(done) and done.stderr == ""


def bodies(path, names):
    """Functions of a file as syntax, without their docstrings."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            body = node.body[bool(ast.get_docstring(node)) :]
            found[node.name] = [ast.dump(node.args), *map(ast.dump, body)]
    return found


def test_the_pytorch_tabs_functions_are_those_of_d2l():
    spec = importlib.util.find_spec("d2l")
    if spec is None:
        pytest.skip("d2l is not installed (extra book)")
    names = (
        "get_dataloader_workers",
        "load_data_fashion_mnist",
        "sgd",
        "split_batch",
    )
    theirs = bodies(Path(spec.submodule_search_locations[0]) / "torch.py", names)
    assert set(theirs) == set(names)
    assert bodies(PEERS / "d2l_pytorch.py", names) == theirs


# The CryptoPunks notebook's GAN and the least-squares notes


def test_the_notebooks_gan_is_held_to_our_losses(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed: extra peers")
    from d2lpar import devices, gan
    from d2lpar._mxnet import np
    from d2lpar.parallel import split_batch

    state, one = gan.start(0), devices.parse("cpu:1")
    found = {
        f"{letter}.{k}": p.copy()
        for letter, params in (("D", state.params_D), ("G", state.params_G))
        for k, p in enumerate(params)
    }
    rng = numpy.random.default_rng(0)
    found["X"] = rng.random((2, 11, 3, 24, 24), dtype=numpy.float32)
    found["z"] = rng.standard_normal((2, 11, *gan.Z_SHAPE), dtype=numpy.float32)
    nets, losses = gan.Nets(state, one, 1e-4), []
    for X, z in zip(found["X"], found["z"]):
        shards = split_batch(np.array(X), np.array(z), one)
        d, g, _ = gan.step(*shards, nets)
        losses.append((float(d[0]) / 22, float(g[0]) / 11))
    found["d_losses"], found["g_losses"] = zip(*losses)

    monkeypatch.syspath_prepend(PEERS)
    check = runpy.run_path(str(PEERS / "gan_pytorch.py"))["check"]
    check(write(tmp_path, found))
    g_losses = numpy.array(found["g_losses"]) * (1, 1.001)
    with pytest.raises(SystemExit) as ended:
        check(write(tmp_path, found, g_losses=g_losses))
    assert ended.value.code == 2
    assert "step 2: g_loss is" in json.loads(capsys.readouterr().out)["error"]


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


def test_peers_are_found_beside_the_package():
    assert in_turn.peers_folder() == PEERS
    assert {path.name for path in PEERS.glob("*.py")} >= set(NEEDS)

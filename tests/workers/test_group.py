"""Several workers: parts of a batch, and W workers x D devices equal one device.

Where workers really train, each is a process of a `d2lpar launch` on loopback.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lpar import datasets, devices, lenet_concise
from d2lpar.cli import main
from d2lpar.cli.launch import checked
from d2lpar.errors import SettingError
from d2lpar.least_squares.rows import RowShards
from d2lpar.records import checkpoints, files
from d2lpar.shards import shares
from d2lpar.workers import place, plan, supervise

ROOT = Path(main.__file__).parents[2]
# 4 batches, the last of 2 samples: the third of three workers has none.
SETTINGS = {"num_epochs": 2, "global_batch_size": 50, "lr": 0.2}
DATA = {"n_train": 152, "n_test": 50}
TOY = f"""
from d2lpar import chapter, lenet_workers
if __name__ == "__main__":
    preset = dict({SETTINGS}, data={DATA})
    chapter.measure("toy", lenet_workers.WORKLOAD, dict(quick=preset))
"""


@pytest.fixture
def launch_toy(tmp_path):
    """Launch workers of a chapter that is the toy; its record and last checkpoint."""
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "python").write_text(
        f"""#!/bin/sh
        [ $DMLC_ROLE = worker ] || exec {sys.executable} "$@"
        shift 5; exec {sys.executable} toy.py "$@"
        """  # instead of: -m d2lpar.workers.node --attached run multiple_gpus_concise
    )
    (tmp_path / "python").chmod(0o755)

    def launch_toy(*flags, run=()):
        done = subprocess.run(
            [sys.executable, "-m", "d2lpar", "launch", "--python=./python", *flags,
             "--", "run", "multiple_gpus_concise", "--data=synthetic", *run],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done

    return launch_toy


@given(n=st.integers(0, 100), count=st.integers(1, 9))
def test_the_parts_are_the_whole(n, count):
    parts = [range(n)[part] for part in shares(n, count)]
    assert [i for part in parts for i in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_process_that_was_not_launched_has_no_place(monkeypatch):
    assert place.place() is None
    monkeypatch.setenv("DMLC_ROLE", "server")
    monkeypatch.setenv("D2LPAR_WORKER", "1")
    assert place.place() is None


def test_its_place_is_the_environments(monkeypatch):
    for name, value in {
        "DMLC_ROLE": "worker",
        "D2LPAR_WORKER": "2",
        "DMLC_NUM_WORKER": "3",
        "DMLC_NUM_SERVER": "2",
        "D2LPAR_KVSTORE": "dist_async",
        "D2LPAR_THRESHOLD": "0.25",
    }.items():
        monkeypatch.setenv(name, value)
    found = place.place()
    assert found == place.Place(2, 3, 2, "dist_async", 0.25)
    assert found.variant == "async-2bit"
    assert found.launched_by == (
        "d2lpar launch --workers 3 --servers 2 --kvstore dist_async --compress 0.25 -- "
    )
    assert place.Place(0, 1, 1).variant == ""


@pytest.fixture(scope="module")
def one_device():
    """The state and the records after training on one device in this process."""
    data = datasets.load("synthetic", **DATA)
    state = lenet_concise.start(0)
    epochs = list(
        lenet_concise.train(1, devices="cpu:1", data=data, state=state, **SETTINGS)
    )
    return state, epochs


SLOW = [
    pytest.param(*sizes, marks=pytest.mark.slow) for sizes in [(1, 1), (1, 2), (3, 1)]
]


@pytest.mark.parametrize(("count", "devices"), [(2, 1), (2, 2), *SLOW])
def test_workers_times_devices_equal_one_device(
    launch_toy, tmp_path, one_device, count, devices
):
    state, epochs = one_device
    done = launch_toy(f"--workers={count}", f"--devices=cpu:{devices}")
    assert done.returncode == 0, done.stdout + done.stderr
    name = "-".join(
        ["quick-synthetic"]
        + [f"{count}workers"] * (count > 1)
        + [f"cpu{count * devices}"]
    )
    folder = tmp_path / "runs" / "toy"
    found = checkpoints.load(folder / f"{name}.epoch000002.safetensors", like=state)
    for key, array in state.tensors().items():
        np.testing.assert_allclose(found.tensors[key], array, rtol=1e-4, atol=1e-6)
    assert found.facts == state.facts()
    run = files.read(folder / f"{name}.jsonl")
    assert (run.header.workers, run.header.servers) == (count, 1)
    launched = f"d2lpar launch --workers {count} --servers 1 -- "
    assert run.header.command.startswith(launched)
    assert len(run.header.devices) == run.header.num_devices == count * devices
    for ours, expected in zip(run.epochs, epochs):
        assert ours.train_loss == pytest.approx(expected.train_loss, rel=1e-5)
        assert ours.test_acc == pytest.approx(expected.test_acc)
    assert len(run.epochs) == len(epochs)


@pytest.mark.slow
def test_workers_go_on_from_where_a_device_stopped(launch_toy, tmp_path, one_device):
    state, _ = one_device
    alone = [sys.executable, "toy.py", "--data=synthetic", "--devices=cpu:1"]
    done = subprocess.run(
        [*alone, "--num-epochs=1", "--checkpoint-every=1"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = launch_toy("--workers=2", "--devices=cpu:1", run=["--resume=last"])
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "toy"
    name = "quick-synthetic-2workers-cpu2"
    found = checkpoints.load(folder / f"{name}.epoch000002.safetensors", like=state)
    for key, array in state.tensors().items():
        np.testing.assert_allclose(found.tensors[key], array, rtol=1e-4, atol=1e-6)
    epochs = files.read(folder / f"{name}.jsonl").epochs
    assert [epoch.resumed for epoch in epochs] == ["elsewhere", "here"]


@pytest.mark.parametrize(
    ("flags", "run", "words"),
    [
        (["--workers=0"], [], "'--workers': 0 is not in the range 1<=x<=256"),
        (["--compress=-1"], [], "--compress -1: write a number greater than 0"),
        (["--interface=nope0"], [], "--interface nope0: no such interface"),
        (["--workers=2"], ["--repeats=2"], "workers measure one thing at a time"),
        pytest.param(
            ["--workers=3"], ["--global-batch-size=2"],
            "global-batch-size 2: fewer samples than the 3 workers",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(launch_toy, tmp_path, flags, run, words):
    done = launch_toy(*flags, run=run)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("d2lpar: ")
    assert not list(tmp_path.glob("runs/*/*"))


def test_hosts_need_an_interface(launch_toy, tmp_path):
    (tmp_path / "hosts").write_text("ana\n")
    done = launch_toy("--hosts=hosts")
    assert done.returncode == 2 and "--hosts needs --interface" in done.stderr


def test_after_launch_comes_a_run():
    chapters = main.chapter_files()
    with pytest.raises(SettingError, match="after -- write what"):
        checked((), chapters)
    with pytest.raises(SettingError, match="chapter 'nope': write one of"):
        checked(("run", "nope"), chapters)
    asked = ["run", "gan", "--checkpoint-every=3"]
    assert checked(tuple(asked), chapters) == asked


@pytest.mark.slow
def test_workers_with_other_data_are_refused(launch_toy, tmp_path):
    """Worker 1's seed is another: so is its generated data."""
    script = (tmp_path / "python").read_text()
    other = '[ $D2LPAR_WORKER = 1 ] && set -- "$@" --seed=1; exec'
    (tmp_path / "python").write_text(
        script.replace("shift 5; exec", f"shift 5; {other}")
    )
    done = launch_toy("--workers=2")
    assert done.returncode == 2
    assert re.search(r"worker 1 has another data \(\w{12}\) than worker 0 \(\w{12}\)",
                     done.stderr.splitlines()[-1])  # fmt: skip


# Least squares

SOLVE = """
import json, os, sys
import numpy
from d2lpar.least_squares import rows, solve
from d2lpar.workers.group import Workers
from d2lpar.workers.place import place

read = []
rows_of = rows.rows_of
rows.rows_of = lambda A, start, stop, dtype: (
    read.append((int(start), int(stop))) or rows_of(A, start, stop, dtype)
)
group = Workers(place())
for method in ("normal", "cgls"):
    found = solve("A.npy", "b.npy", devices="cpu:2", method=method, workers=group,
                  block_bytes=2**11, resident_bytes=0)
    numpy.save(f"{method}-{group.number}.npy", found.x)
    # All agree on a scale, which the second worker's rows alone would not need.
    A, b = numpy.load("A.npy"), numpy.load("b.npy") * 1e-99
    A[:151] *= 1e40
    far = solve(A, b, devices="cpu:2", method=method, workers=group)
    numpy.save(f"far-{method}-{group.number}.npy", far.x)
    assert len(found.history[-1].device_residual_norms) == 4
open(f"read-{group.number}.json", "w").write(json.dumps(read))
"""


@pytest.fixture
def launch_script(tmp_path):
    """Two workers on loopback that each run a script; what it raises is raised."""

    def launch_script(text, devices):
        (tmp_path / "script.py").write_text(text)
        (tmp_path / "python").write_text(
            f"""#!/bin/sh
            [ $DMLC_ROLE = worker ] || exec {sys.executable} "$@"
            exec {sys.executable} script.py
            """
        )
        (tmp_path / "python").chmod(0o755)
        supervise.launch(
            lambda port: plan.plan(2, 1, ["run"], port=port, devices=devices),
            supervise.Launch(
                str(tmp_path), lambda *_: None, "./python", logs=tmp_path / "logs"
            ),
            address="127.0.0.1",
            port=None,
            max_restarts=0,
        )

    return launch_script


def test_least_squares_over_workers_that_read_their_own_rows(launch_script, tmp_path):
    rng = np.random.default_rng(0)
    A, b = rng.random((301, 7)), rng.random(301)
    np.save(tmp_path / "A.npy", A)
    np.save(tmp_path / "b.npy", b)
    launch_script(SOLVE, devices=["cpu:2"])
    expected = np.linalg.lstsq(A, b, rcond=None)[0]
    of_first = np.linalg.lstsq(A[:151], b[:151], rcond=None)[0]
    for number, (start, stop) in enumerate([(0, 151), (151, 301)]):
        for method in ("normal", "cgls"):
            x = np.load(tmp_path / f"{method}-{number}.npy")
            np.testing.assert_allclose(x, expected, rtol=1e-8)
            far = np.load(tmp_path / f"far-{method}-{number}.npy")
            np.testing.assert_allclose(far * 1e139, of_first, rtol=1e-6)
        read = json.loads((tmp_path / f"read-{number}.json").read_text())
        assert min(a for a, _ in read) == start and max(z for _, z in read) == stop


def test_a_long_pass_over_the_rows_tells_that_it_gets_on():
    """A step a round of blocks: else a large A would pass for a hang."""

    class Alone:
        number, count, steps = 0, 1, 0

        def report_progress(self):
            self.steps += 1

    alone, A = Alone(), np.ones((100, 4))
    shards = RowShards(
        A, np.ones(100), devices.parse("cpu:2"), block_bytes=4 * 8 * 20,
        resident_bytes=0, workers=alone,
    )  # fmt: skip
    rows = sum(block.shape[0] for blocks in shards.rounds() for _, block, _ in blocks)
    assert rows == 100
    assert alone.steps == 3  # of 20, 20 and 10 rows a device


# MXNet's own race at the start

BROADCAST = """
import numpy
from d2lpar._mxnet import np, npx
from d2lpar.workers.group import Workers
from d2lpar.workers.place import place

group = Workers(place())
parameters = [np.zeros(1000) for _ in range(100)]
for key, parameter in enumerate(parameters):
    group.kvstore.broadcast(key, np.full(1000, key + 1.0), parameter)
    gradient = np.full(1000, -1.0)
    group.kvstore.pushpull(key, gradient, out=gradient)
    assert (gradient.asnumpy() == -2).all()
found = numpy.array([parameter.asnumpy() for parameter in parameters])
numpy.save(f"parameters-{group.number}.npy", found)
content = [b"", b"a"][group.number]
assert group.gather(content) == [b"", b"a"]
total = group.total(numpy.array([1e300, 0.1]) * (1 + group.number))
assert total.tolist() == [1e300 + 2e300, 0.1 + 0.2]
tiny = numpy.array([[5e-324, 1e-300, -0.1, 1 / 3, numpy.pi]])
assert (group.total(tiny) == tiny + tiny).all()
# What MXNet's server would unpickle: touch unpickled
group.kvstore._send_command_to_servers(0, "cos\\nsystem\\n(S'touch unpickled'\\ntR.")
group.leave()
"""


def test_no_worker_takes_a_sum_for_the_parameter(launch_script, tmp_path):
    """A push may overtake the first pull: 4 to 46 of 100 were wrong on one worker.

    What is gathered and what is summed is right to the bit, too; and a server runs
    nothing that is sent to it.
    """
    launch_script(BROADCAST, devices=["cpu:1"])
    assert not (tmp_path / "unpickled").exists()
    for number in range(2):
        found = np.load(tmp_path / f"parameters-{number}.npy")
        np.testing.assert_array_equal(found.T, [np.arange(1, 101)] * 1000)

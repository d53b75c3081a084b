"""Killing what trains, at random moments: it resumes, and ends with the same bits.

A few moments with `make slow`; many with `make faults` (D2LPAR_FAULTS=20).
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from d2lpar.cli import main
from d2lpar.records import checkpoints, files

pytestmark = pytest.mark.slow

MANY = int(os.environ.get("D2LPAR_FAULTS", "0"))
SEED = int(os.environ.get("D2LPAR_FAULTS_SEED", time.time_ns() % 10_000))
EPOCHS = 20
CHAPTERS = {
    "multiple_gpus_concise": ["--data=sample", "--global-batch-size=64"],
    "gan": ["--data=synthetic", "--global-batch-size=100", "--frames-every=10"],
}


def command(chapter, *flags):
    return [
        "run", chapter, "--dry-run", "--devices=cpu:1", f"--num-epochs={EPOCHS}",
        "--checkpoint-every=1", *CHAPTERS[chapter], *flags,
    ]  # fmt: skip


def start(folder, *words, **more):
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "d2lpar", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )


def finish(process):
    text, _ = process.communicate(timeout=150)
    return text


def last_state(folder, chapter):
    """Arrays and facts of the last checkpoint; every file there is must be whole."""
    found = sorted((folder / "runs" / chapter).glob("*/[!.]*.safetensors"))
    states = [checkpoints.load(path) for path in found]
    return max(states, key=lambda state: state.epoch) if states else None


def assert_same(state, expected):
    assert state.facts == expected.facts and state.epoch == EPOCHS
    assert state.tensors.keys() == expected.tensors.keys()
    for name, array in expected.tensors.items():
        np.testing.assert_array_equal(state.tensors[name], array)


@pytest.fixture(scope="module", params=CHAPTERS)
def undisturbed(request, tmp_path_factory):
    """A chapter, its last state, and the seconds it takes."""
    folder, begin = tmp_path_factory.mktemp("undisturbed"), time.monotonic()
    process = start(folder, *command(request.param))
    assert process.wait(120) == 0, finish(process)
    state = last_state(folder, request.param)
    return request.param, state, time.monotonic() - begin


def test_killed_at_any_moment_it_is_taken_up_to_the_same_bits(undisturbed, tmp_path):
    chapter, expected, seconds = undisturbed
    rng = random.Random(f"{chapter} {SEED}")
    reached = []
    for number in range(MANY or 1):
        folder, moment = tmp_path / str(number), rng.uniform(0.5, 1.0) * seconds
        process = start(folder, *command(chapter))
        time.sleep(moment)
        with contextlib.suppress(psutil.NoSuchProcess):  # it may just have finished
            victim = psutil.Process(process.pid)
            if rng.random() < 0.5:
                victim = next(iter(victim.children()), victim)  # the one that measures
            victim.kill()
        finish(process)
        left = last_state(folder, chapter)  # no torn file, or this raises
        for path in (folder / "runs" / chapter).glob("*/*.jsonl"):
            files.read(path)
        again = start(folder, *command(chapter, *(["--resume=last"] if left else [])))
        text = finish(again)
        assert again.returncode == 0, f"seed {SEED}, after {moment:.3f} s: {text}"
        assert_same(last_state(folder, chapter), expected)
        reached.append(left.epoch if left else 0)
    if MANY >= 10:  # not all before the first epoch or after the last one
        assert any(0 < epoch < EPOCHS for epoch in reached)


# Several workers


def launch_command(*flags):
    run = [f for f in command("multiple_gpus_concise") if f != "--checkpoint-every=1"]
    return ["launch", "--workers=2", "--servers=1", *flags, "--", *run]


def role(launcher, name, within=60):
    """The process of a role, when it is there: "worker 1", "server", "scheduler"."""
    limit = time.monotonic() + within
    while time.monotonic() < limit and launcher.poll() is None:
        for process in psutil.Process(launcher.pid).children():
            with contextlib.suppress(psutil.Error):
                env = process.environ()
                its_role = f"{env.get('DMLC_ROLE')} {env.get('D2LPAR_WORKER', '')}"
                if its_role.strip() == name:
                    return process
        time.sleep(0.05)
    raise AssertionError(f"there was no {name}: {finish(launcher)}")


@pytest.fixture(scope="module")
def undisturbed_launch(tmp_path_factory):
    folder, begin = tmp_path_factory.mktemp("launch"), time.monotonic()
    launcher = start(folder, *launch_command())
    text = finish(launcher)
    assert launcher.returncode == 0, text
    return last_state(folder, "multiple_gpus_concise"), time.monotonic() - begin


EVERY_ROLE = ("worker 0", "worker 1", "server", "scheduler")


@pytest.mark.parametrize("name", EVERY_ROLE if MANY else ["worker 1"])
def test_a_role_is_killed_and_the_training_completes(
    undisturbed_launch, tmp_path, name
):
    expected, seconds = undisturbed_launch
    rng = random.Random(f"{name} {SEED}")
    for number in range(max(1, MANY // 5)):
        folder = tmp_path / str(number)
        launcher = start(folder, *launch_command())
        moment = rng.uniform(0.3, 0.8) * seconds
        begin = time.monotonic()
        process = role(launcher, name)
        time.sleep(max(0.0, moment - (time.monotonic() - begin)))
        was_running = process.is_running() and launcher.poll() is None
        if was_running:
            process.kill()
        text = finish(launcher)
        where = f"seed {SEED}, number {number}, after {moment:.3f} s: {text}"
        assert launcher.returncode == 0, where
        if was_running:
            assert "was killed (signal 9)" in text, where
            assert "restart 1 of 3" in text, where
        assert_same(last_state(folder, "multiple_gpus_concise"), expected)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_role_outlives_the_launcher(tmp_path, ending):
    launcher = start(tmp_path, *launch_command())
    role(launcher, "worker 0")
    time.sleep(1)
    tree = psutil.Process(launcher.pid).children(recursive=True)
    launcher.send_signal(ending)
    text = finish(launcher)
    if ending == signal.SIGINT:
        assert launcher.returncode == 130 and "interrupted" in text
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive

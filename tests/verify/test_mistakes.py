"""Each mistake is named, and right programs raise no alarm.

With D2LPAR_SEEDS=50 the slow test takes the seeds of docs/verify.md: four minutes.
"""

import os
import subprocess

import numpy
import numpy_step
import programs
import pytest

from d2lpar.verify import judge_file
from d2lpar.verify.mistakes import SENTENCES

# These are named in all that does not fit a formula, or in one device's step.
WITHOUT_FORMULA = {"", "frozen", "untied", "hangs", "unsteady", "unequal", "not finite"}
OF_ONE_DEVICE = {
    "own length",
    "the batch twice",
    "twice the learning rate",
    "two steps",
    "clipping",
}
KEYS = sorted({*SENTENCES} - WITHOUT_FORMULA - OF_ONE_DEVICE)
SEEDS = range(50)


def last_check(num_devices=2, seed=0):
    """Judge the step of NumPy; returns the last check."""
    *_, check = judge_file(numpy_step, num_devices, 16 * num_devices, seed)
    return check


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mistake", KEYS)
def test_a_mistake_is_named(mistake, dtype, monkeypatch):
    monkeypatch.setattr(numpy_step, "MISTAKE", mistake)
    monkeypatch.setattr(numpy_step, "DTYPE", dtype)
    if mistake == "stale replica":  # it shows in the replicas already
        monkeypatch.delattr(numpy_step, "replicas")
    # With two devices, that one is missing means that the other is alone.
    num_devices = 3 if mistake == "missing device" else 2
    for seed in range(2):
        numpy_step.left.clear()
        found = last_check(num_devices, seed)
        assert found.mistake == mistake, (seed, found)


@pytest.mark.parametrize("dtype, num_devices", [("float32", 2), ("float64", 3)])
def test_a_right_step_raises_no_alarm(dtype, num_devices, monkeypatch):
    monkeypatch.setattr(numpy_step, "DTYPE", dtype)
    for seed in SEEDS:
        found = last_check(num_devices, seed)
        assert found.verdict == "right", (seed, found)


def test_two_mistakes_at_once_have_no_name_but_a_smallest_batch(monkeypatch):
    right = numpy_step.several

    def several(*arguments):
        grads = right(*arguments)
        grads[2] *= 1.1
        return grads

    monkeypatch.setattr(numpy_step, "several", several)
    found = last_check()
    assert (found.verdict, found.mistake) == ("wrong", "")
    expected = "parameter 2: no known mistake explains it; a batch of 1 shows it"
    assert found.line == expected


def test_gradients_that_cancel_are_not_judged_by_their_sum(monkeypatch):
    zeros, draw = [0 * p for p in numpy_step.init(0)], numpy_step.batch

    def batch(n, seed):
        return draw(n, seed)[0], numpy.arange(n) % 3

    monkeypatch.setattr(numpy_step, "init", lambda seed: zeros)
    monkeypatch.setattr(numpy_step, "batch", batch)
    for seed in SEEDS:
        assert last_check(seed=seed).verdict == "right"


def test_a_step_like_adams_may_clip(monkeypatch):
    right = numpy_step.train

    def train(params, *rest):
        news = right(params, *rest)
        moves = [[new - p for new, p in zip(ps, params)] for ps in news]
        return [[p + 0.1 * numpy.sign(d) for p, d in zip(params, ds)] for ds in moves]

    monkeypatch.setattr(numpy_step, "train", train)
    for seed in range(5):
        assert last_check(seed=seed).verdict == "right"


def test_a_frozen_parameter_may_not_move(monkeypatch):
    right = numpy_step.train

    def train(params, X, y, num_devices, *rest):
        replicas = right(params, X, y, num_devices, *rest)
        drift = 0 if num_devices == 1 else 1e-12
        return [[*new[:3], params[3] + drift] for new in replicas]

    monkeypatch.setattr(numpy_step, "train", train)
    monkeypatch.delattr(numpy_step, "replicas")
    found = last_check()
    assert (found.what, found.mistake) == ("2 devices against one", "frozen")
    assert found.line.startswith("parameter 3: ")


def test_a_mistake_of_some_parameters_names_them(monkeypatch):
    right = numpy_step.several

    def several(params, X, y, clip_norm, accumulate, shards):
        grads = right(params, X, y, clip_norm, accumulate, shards)
        return [grads[0], 2 * grads[1], *grads[2:]]

    monkeypatch.setattr(numpy_step, "several", several)
    found = last_check()
    assert found.mistake == "N times" and found.line.startswith("parameter 1: ")


def test_random_numbers_are_not_judged(monkeypatch):
    right, rng = numpy_step.gradient, numpy.random.default_rng(0)

    def noisy(params, X, y):
        return right(params, X * (rng.random(X.shape) > 0.5), y)

    monkeypatch.setattr(numpy_step, "gradient", noisy)
    found = last_check()
    assert (found.what, found.verdict) == ("two equal calls", "unjudged")
    assert "dropout" in found.line


def test_each_mistake_of_the_table_is_planted():
    planted = {mistake for mistake, _ in programs.WRONG.values()}
    assert len(planted) >= 24 and len(programs.RIGHT) >= 12
    assert planted <= SENTENCES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.RIGHT)
def test_right_programs_raise_no_alarm(name):
    programs.needs(name)
    code = (
        "import sys; from d2lpar.verify import judge_file\n"
        "for seed in range(int(sys.argv[2])):\n"
        "    *_, check = judged(sys.argv[1], 2, 32, seed)\n"
        "    assert check.verdict in ('right', 'skipped'), (seed, check)"
    )
    seeds = os.environ.get("D2LPAR_SEEDS", "2")
    command = [programs.python_of(name), "-c", code, name, seeds]
    subprocess.run(command, cwd=programs.SUBJECTS, check=True)

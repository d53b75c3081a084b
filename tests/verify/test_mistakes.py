"""Each mistake is named, and right programs raise no alarm.

With D2LPAR_SEEDS=50 the slow test takes 50 seeds of each right program.
"""

import os
import subprocess

import numpy
import numpy_step
import programs
import pytest

from d2lpar.verify import verify
from d2lpar.verify.bench import SENTENCES

# What numpy_step.py can plant, one by one.
PLANTED = [
    "not divided", "divided twice", "stale gradient", "not clipped", "clipped sum",
    "sum of pieces", "mean of pieces", "one piece", "piece not summed",
    "another algorithm", "dropped rows", "repeated rows", "padding", "padded size",
    "sum of means", "N times", "divided by N", "mean of sums", "no step",
    "mean of means", "one device", "lost sum", "missing device", "device twice",
    "idle device", "old gradient", "stale replica", "norm twice", "clipped first",
    "own norm", "apart", "half precision",
]  # fmt: skip
SEEDS = range(50)


def judged(num_devices=2, seed=0):
    """Judge the step of NumPy; returns all checks."""
    return verify(numpy_step, num_devices, 16 * num_devices, seed=seed)


def first_wrong(checks):
    return next(check for check in checks if check.verdict in ("wrong", "unjudged"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_is_named(mistake, dtype, monkeypatch):
    monkeypatch.setattr(numpy_step, "MISTAKE", mistake)
    monkeypatch.setattr(numpy_step, "DTYPE", dtype)
    if mistake == "stale replica":  # it shows in the replicas already
        monkeypatch.delattr(numpy_step, "replicas")
    # With two devices, that one is missing means that the other is alone.
    num_devices = 3 if mistake == "missing device" else 2
    for seed in range(2):
        numpy_step.left.clear()
        *checks, summary = judged(num_devices, seed)
        assert summary.mistake == mistake, (seed, summary)
        assert first_wrong(checks).mistake == mistake, (seed, checks)


@pytest.mark.parametrize("dtype, num_devices", [("float32", 2), ("float64", 3)])
def test_a_right_step_raises_no_alarm(dtype, num_devices, monkeypatch):
    monkeypatch.setattr(numpy_step, "DTYPE", dtype)
    for seed in SEEDS:
        checks = judged(num_devices, seed)
        assert {check.verdict for check in checks} == {"right"}, (seed, checks)


def test_every_check_gets_its_verdict(monkeypatch):
    monkeypatch.setattr(numpy_step, "MISTAKE", "N times")
    *checks, summary = judged()
    assert [check.verdict for check in checks].count("wrong") > 5
    again = 'as in "2 devices against one"'
    assert [check.line for check in checks].count(again) > 5
    assert {check.what for check in checks if check.verdict == "right"} >= {"replicas"}
    assert summary.line.startswith("12 of 16 checks wrong; 4 of 16 checks right")


def test_two_mistakes_at_once_have_no_name_but_a_smallest_batch(monkeypatch):
    right = numpy_step.several

    def several(*arguments):
        grads = right(*arguments)
        grads[2] = grads[2] * numpy.linspace(1, 2, 3)
        return grads

    monkeypatch.setattr(numpy_step, "several", several)
    found = first_wrong(judged())
    assert (found.verdict, found.mistake) == ("wrong", "")
    assert found.line.startswith("parameter 2: off by ")
    assert "no known mistake explains it; a batch of 1 shows it" in found.line


def test_gradients_that_cancel_are_not_judged_by_their_sum(monkeypatch):
    zeros, draw = [0 * p for p in numpy_step.init(0)], numpy_step.batch

    def batch(n, seed):
        return draw(n, seed)[0], numpy.arange(n) % 3

    monkeypatch.setattr(numpy_step, "init", lambda seed: zeros)
    monkeypatch.setattr(numpy_step, "batch", batch)
    for seed in SEEDS:
        assert judged(seed=seed)[-1].verdict == "right"


def test_a_step_like_adams_may_clip(monkeypatch):
    right = numpy_step.train

    def train(params, *rest):
        news = right(params, *rest)
        moves = [[new - p for new, p in zip(ps, params)] for ps in news]
        return [[p + 0.1 * numpy.sign(d) for p, d in zip(params, ds)] for ds in moves]

    monkeypatch.setattr(numpy_step, "train", train)
    for seed in range(5):
        assert judged(seed=seed)[-1].verdict == "right"


def test_a_frozen_parameter_may_not_move(monkeypatch):
    right = numpy_step.train

    def train(params, X, y, num_devices, *rest):
        replicas = right(params, X, y, num_devices, *rest)
        drift = 0 if num_devices == 1 else 1e-12
        return [[*new[:3], params[3] + drift] for new in replicas]

    monkeypatch.setattr(numpy_step, "train", train)
    monkeypatch.delattr(numpy_step, "replicas")
    # The second start differs, too, and the fourth parameter does not.
    found = first_wrong(judged())
    assert (found.what, found.mistake) == ("2 devices against one", "frozen")
    assert found.line.startswith("parameter 3: ")


def test_a_mistake_of_some_parameters_names_them(monkeypatch):
    right = numpy_step.several

    def several(params, X, y, clip_norm, accumulate, shards):
        grads = right(params, X, y, clip_norm, accumulate, shards)
        return [grads[0], 2 * grads[1], *grads[2:]]

    monkeypatch.setattr(numpy_step, "several", several)
    found = first_wrong(judged())
    assert found.mistake == "N times" and found.line.startswith("parameter 1: ")


@pytest.mark.parametrize("word", ["steps", "clip_norm", "accumulate"])
def test_a_device_that_differs_in_an_option_only_is_found(word, monkeypatch):
    """A scheduler or clipping on device 0 alone leaves its own parameters right."""
    right = numpy_step.train
    usual = {"steps": 1, "clip_norm": None, "accumulate": 1}

    def train(*arguments):
        first, *others = right(*arguments)
        if dict(zip(usual, arguments[5:]))[word] != usual[word]:
            others = [[1.01 * p for p in params] for params in others]
        return [first, *others]

    monkeypatch.setattr(numpy_step, "train", train)
    *_, summary = judged()
    assert (summary.verdict, summary.mistake) == ("wrong", "apart")


def test_an_option_that_one_device_does_not_obey_is_not_judged(monkeypatch):
    right = numpy_step.train

    def train(params, *arguments):  # as LARS: a length of its own, so nothing to clip
        (new, *_) = right(params, *arguments[:5], None, *arguments[6:])
        moves = [new_p - p for new_p, p in zip(new, params)]
        new = [p + 0.1 * d / numpy.linalg.norm(d) for p, d in zip(params, moves)]
        return [new] * arguments[2]

    monkeypatch.setattr(numpy_step, "train", train)
    *checks, summary = judged()
    (clipping,) = [check for check in checks if check.what == "clipping"]
    assert clipping.verdict == "skipped" and "one does not clip" in clipping.line
    assert "clipping" in summary.line.partition("not judged: ")[2]


def test_random_numbers_are_not_judged(monkeypatch):
    right, rng = numpy_step.gradient, numpy.random.default_rng(0)

    def noisy(params, X, y):
        return right(params, X * (rng.random(X.shape) > 0.5), y)

    monkeypatch.setattr(numpy_step, "gradient", noisy)
    found, summary = judged()
    assert (found.what, found.verdict) == ("two equal calls", "unjudged")
    assert "dropout" in found.line and summary.verdict == "unjudged"


def test_a_planted_program_has_a_mistake_of_its_own():
    planted = [p for p in programs.PROGRAMS if p.verdict == "wrong"]
    assert len(planted) >= 46 and len({p.mistake for p in planted}) >= 33
    assert {p.mistake for p in planted} <= {*SENTENCES} - {""}
    assert len(programs.RIGHT) >= 19


@pytest.mark.slow
@pytest.mark.parametrize("program", programs.RIGHT, ids=lambda p: p.name)
def test_right_programs_raise_no_alarm(program):
    programs.needs(program.framework)
    code = (
        "import importlib, sys; from d2lpar.verify import verify\n"
        "module = importlib.import_module(sys.argv[1])\n"
        "for seed in range(int(sys.argv[2])):\n"
        "    *_, summary = verify(module, 2, 32, seed=seed)\n"
        "    assert summary.verdict == 'right', (seed, _)"
    )
    python = programs.python_of(program.framework)
    seeds = os.environ.get("D2LPAR_SEEDS", "2")
    command = [python, "-c", code, f"steps_{program.framework}", seeds]
    environment = programs.environment(program)
    subprocess.run(command, cwd=programs.SUBJECTS, env=environment, check=True)

"""Each mistake of the table is planted once, and right steps raise no alarm."""

import re

import numpy
import pytest
from steps_numpy import subject

from d2lpar.verify import verify
from d2lpar.verify.mistakes import SENTENCES

TWO, STEPS, CLIP = "2 devices against one", "two steps", "clipping"
ODD, FEW, PIECES = "an uneven batch", "fewer samples than devices", "accumulation"
# What is planted, the first check that finds it, and the name that it gets.
PLANTED = [
    ("N times", TWO, "N times"),
    ("divided by N", TWO, "divided by N"),
    ("not divided", TWO, "not divided"),
    ("divided twice", TWO, "divided twice"),
    ("mean of sums", TWO, "mean of sums"),
    ("one device", TWO, "one device"),
    ("dropped rows", ODD, "dropped rows"),
    ("repeated rows", ODD, "repeated rows"),
    ("padding", ODD, "padding"),
    ("mean of means", ODD, "mean of means"),
    ("own tokens", TWO, "own tokens"),
    ("clipped by value", TWO, "clipped first"),
    ("old gradient", TWO, "old gradient"),
    ("late gradient", STEPS, "old gradient"),
    ("sum of pieces", PIECES, "sum of pieces"),
    ("sum of pieces, in turn", PIECES, "sum of pieces"),
    ("mean of pieces", f"{ODD} and {PIECES}", "mean of pieces"),
    ("one piece", PIECES, "one piece"),
    ("piece not summed", PIECES, "piece not summed"),
    ("piece not summed, in turn", PIECES, "piece not summed"),
    ("step of each piece", PIECES, "step of each piece"),
    ("not clipped", CLIP, "not clipped"),
    ("clipped sum", CLIP, "clipped sum"),
    ("clipped first", CLIP, "clipped first"),
    ("clipped pieces", f"{PIECES} and {CLIP}", "clipped pieces"),
    ("apart", TWO, "apart"),
    ("apart in step 2", STEPS, "apart"),
    ("apart if clipped", CLIP, "apart"),
    ("half precision", TWO, "half precision"),
    ("constant part", TWO, "constant part"),
    ("not finite", FEW, "not finite"),
    ("raises", STEPS, "raises"),
    ("factor", TWO, "factor"),
    ("one parameter", TWO, "factor"),
    ("factors", TWO, "factor"),
    ("norm twice", CLIP, "factor"),
    ("random", TWO, "unsteady"),
    ("an old batch", TWO, "unsteady"),
    ("missing device", TWO, ""),
    ("no name", TWO, ""),
]
LINES = {
    "factor": "1.4142 times as far as one device",
    "one parameter": "parameter 1: 1.5000 times as far as one device",
    "factors": "0.5333 to 0.5813 times as far as one device, depending on the batch",
    "no name": "off by 1e+00 of the step, which no known mistake explains",
}


def first_wrong(checks):
    return next(check for check in checks if check.verdict in ("wrong", "unjudged"))


@pytest.mark.parametrize("planted, what, mistake", PLANTED, ids=lambda x: x)
def test_a_mistake_is_named(planted, what, mistake):
    num_devices = 3 if planted == "missing device" else 2
    *checks, summary = verify(subject(planted), num_devices)
    found = first_wrong(checks)
    assert (found.what, found.mistake) == (what.replace("2", str(num_devices)), mistake)
    assert summary.verdict == "wrong" and summary.mistake == mistake
    assert found.line.startswith(LINES.get(planted, ""))
    assert not re.search(r"\bnan\b (times|of)|\b1 samples", found.line)


def test_every_name_of_the_table_is_planted():
    names = {mistake for _, _, mistake in PLANTED}
    elsewhere = {"another algorithm", "local steps", "own precision", "hangs"}
    about_one = ["factors", *list(SENTENCES)[list(SENTENCES).index("own length") :]]
    assert names | elsewhere == {*SENTENCES} - {*about_one} | {"own precision"}


@pytest.mark.parametrize(
    "kind", ["", "right, tokens", "right, constant", "right, bfloat16"]
)
def test_a_right_step_raises_no_alarm(kind):
    for seed in range(3):
        *checks, summary = verify(subject(kind), 2 + seed % 2, seed=seed)
        assert summary.verdict == "right", (seed, checks)


def test_the_other_checks_of_a_mistake_refer_to_the_first():
    *checks, summary = verify(subject("N times"))
    assert [check.line for check in checks].count(f'as in "{TWO}"') > 5
    assert summary.line == "12 of 16 checks wrong; 4 of 16 checks right"


def changed(change, **more):
    """A right step, and `change` of its parameters before, after, and the devices."""
    own = subject(**more)

    def step(params, X, y, num_devices, lr, **words):
        return change(params, own.step(params, X, y, num_devices, lr, **words))

    def options(params, X, y, num_devices, lr, steps=1, clip_norm=None, accumulate=1):
        words = {"steps": steps, "clip_norm": clip_norm, "accumulate": accumulate}
        return step(params, X, y, num_devices, lr, **words)

    return subject(step=options, replicas=None, **more)


def test_a_step_like_adams_is_right_and_its_clipping_is_not_judged():
    def signs(before, after):
        return [p + 0.1 * numpy.sign(new - p) for p, new in zip(before, after)]

    for seed in range(2):
        step = changed(signs)
        *checks, summary = verify(step, seed=seed)
        assert summary.verdict == "right", checks
    verdicts = {check.what: check.verdict for check in checks}
    assert verdicts["the gradient's length"] == verdicts[CLIP] == "skipped"
    assert CLIP in summary.line.partition("not judged: ")[2]


@pytest.mark.parametrize("what, mistake", [
    ("steps of devices", "another algorithm"), ("local steps", "local steps")
])  # fmt: skip
def test_another_algorithm_is_not_judged(what, mistake):
    own = subject("local steps")

    def normed(params, X, y, num_devices, lr):  # LARS on each device
        news = []
        for X_k, y_k in zip(*(numpy.array_split(a, num_devices) for a in (X, y))):
            new = own.step(params, X_k, y_k, 1, lr)
            moves = [b - a for a, b in zip(params, new)]
            news.append([p + d / numpy.linalg.norm(d) for p, d in zip(params, moves)])
        return [sum(ps) / num_devices for ps in zip(*news)]

    more = {} if mistake == "local steps" else {"step": normed, "replicas": None}
    *checks, summary = verify(subject("local steps", **more), even=True)
    assert (summary.verdict, summary.mistake) == ("unjudged", mistake), checks


def test_a_sum_is_judged_as_a_sum():
    def sums(params, X, y, num_devices, lr):
        return subject().step(params, X, y, num_devices, lr * len(X) / 100)

    first, *_, summary = verify(subject(step=sums, replicas=None))
    assert (first.what, first.verdict) == ("a mean", "skipped")
    assert summary.verdict == "right"


def test_16_bits_are_judged_within_their_precision():
    first, *_ = verify(subject("right, bfloat16"))
    assert (first.what, first.verdict) == ("precision", "skipped")
    assert "as in 16 bits" in first.line


def test_uneven_batches_can_be_turned_off():
    def step(params, X, y, num_devices, lr):
        assert len(X) % num_devices == 0, "uneven"
        return subject().step(params, X, y, num_devices, lr)

    own = {"step": step, "replicas": None}
    assert verify(subject(**own))[-1].mistake == "raises"
    assert verify(subject(**own), even=True)[-1].verdict == "right"
    *checks, summary = verify(subject(EVEN=True, **own))
    assert summary.verdict == "right" and "an uneven batch" in summary.line


def test_an_option_that_fails_on_one_device_is_not_judged():
    def step(params, X, y, num_devices, lr, clip_norm=None):
        assert clip_norm is None, "no clipping here"
        return subject().step(params, X, y, num_devices, lr)

    *checks, summary = verify(subject(step=step, replicas=None))
    (check,) = [check for check in checks if check.what == CLIP]
    assert (check.verdict, summary.verdict) == ("unjudged", "unjudged")
    assert "no clipping here" in check.line


@pytest.mark.parametrize("kind, said", [("random", "dropout"), ("kept", "with other")])
def test_random_numbers_and_unused_rows_are_not_judged(kind, said):
    rng, kept = numpy.random.default_rng(0), []

    def step(params, X, y, num_devices, lr):
        kept.append((X, y))
        X, y = kept[0] if kind == "kept" else (X * (rng.random(X.shape) > 0.5), y)
        return subject().step(params, X, y, 1, lr)

    check, summary = verify(subject(step=step, replicas=None))
    assert summary.verdict == "unjudged" and said in check.line

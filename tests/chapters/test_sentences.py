"""Sentences of the lessons that rest on committed records, which cells do not check."""

import re
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from d2lpar import chapter
from d2lpar.records.comparison import ratio_interval
from d2lpar.records.kinds import ArmSample, group
from d2lpar.scaling.model import studies
from d2lpar.scaling.result import pays_from, speedups

CHAPTERS = Path(__file__).parents[2] / "chapters"
if not (CHAPTERS.parent / "figures").is_dir():
    pytest.skip("not a checkout", allow_module_level=True)


def gpus_of(name):
    """The folder of the records of GPUs that a lesson names once."""
    text = (CHAPTERS / f"{name}.py").read_text(encoding="utf-8")
    return re.search(r'^GPUS = "(\w+)"', text, re.MULTILINE)[1]


@pytest.fixture(scope="module")
def studied():
    """The four studies of chapter 6, by where and how they ran."""
    paths = {
        ("cores", "concise"): "scaling/book-1thread-concise-cpu2.jsonl",
        ("cores", "scratch"): "scaling/book-1thread-scratch-cpu2.jsonl",
    }
    for how in ("concise", "scratch"):
        path = f"{gpus_of('scaling')}/scaling/book-1thread-{how}-gpu2.jsonl"
        paths["GPUs", how] = path
    return {key: studies([chapter.record(path)])[0] for key, path in paths.items()}


def places(study):
    found = Counter()
    for batch, (low, high) in study.bracket(2).items():
        if batch in study.batches:
            took = study.steps[2, batch]
            place = "below" if took < low else "above" if took > high else "inside"
            found[place] += 1
    return found


def test_from_which_batch_a_second_device_pays(studied):
    """Chapter 6: cores from 32 images on in Gluon, GPUs from 2,048."""
    assert pays_from(speedups(studied["cores", "concise"], 2)) == 32
    assert pays_from(speedups(studied["GPUs", "concise"], 2)) == 2_048
    from_scratch = speedups(studied["GPUs", "scratch"], 2)
    assert from_scratch[256] < 1  # the second GPU costs time


def test_the_bracket_is_safe_on_gpus_and_no_bound_on_cores(studied):
    for how in ("concise", "scratch"):
        assert not places(studied["GPUs", how])["above"]
        on_cores = places(studied["cores", how])
        assert on_cores["above"] > on_cores.total() / 2


def test_python_needs_twice_the_time_for_two_gpus(studied):
    python = {1: [], 2: []}
    for (n, _), steps in studied["GPUs", "concise"].records.items():
        python[n] += [seconds for step in steps for seconds in step.issue_seconds]
    assert 1.7 < median(python[2]) / median(python[1]) < 2.3


def test_more_gpus_do_not_reduce_what_is_no_arithmetic():
    """Chapter 6's DDP: its time grows with the batch below 1,024 images by no fifth."""
    names = [f"gpu_scaling/book-ddp-gpu{n}.jsonl" for n in (1, 2, 4)]
    (ddp,) = studies([chapter.record(name) for name in names])
    small = [s for (n, batch), s in ddp.steps.items() if n == 1 and batch <= 1_024]
    assert max(small) < 1.2 * min(small)


def test_the_network_makes_the_second_gpu_pay():
    """Chapter 5: ResNet-18 with 256 images is faster, LeNet is not; then the batch."""
    folder = gpus_of("multiple_gpus_concise")
    names = [f"{folder}/peers/custom-gpu2.jsonl", f"{folder}/benchmarks/resnet18.jsonl"]
    found = chapter.table(*names)
    small, larger = found["batch 256, lr 0.1"], found["batch 512, lr 0.2"]
    assert small[2].is_below(small[1])
    lenet = found["d2lpar concise"]
    assert not lenet[2].is_below(lenet[1])
    by_network = small[1].median / small[2].median
    assert 1 < small[2].median / larger[2].median < by_network


def test_rare_averages_lose_accuracy_with_momentum_on_both_sides():
    """Chapter 7: without momentum less than 5 %, with it the interval is below 1."""
    lines = chapter.record("benchmarks/local_sgd.jsonl").lines_of(ArmSample)
    ways = group([line for line in lines if line.epoch == 3], lambda line: line.arm)
    accs = {way: [line.test_acc for line in ends] for way, ends in ways.items()}
    sent = {way: ends[0].wire_bytes for way, ends in ways.items()}
    assert max(sent.values()) == 200 * min(sent.values())
    for way in ("every 4 steps", "every 16 steps", "every 64 steps", "every epoch"):
        _, low, high = ratio_interval(accs[way], accs["every step"])
        assert 0.95 < low < 1 < high
    always = accs["every step, outer momentum"]
    assert ratio_interval(accs["every epoch, outer momentum"], always)[2] < 1
    assert ratio_interval(always, accs["every step"])[1] > 1  # it helps there, too

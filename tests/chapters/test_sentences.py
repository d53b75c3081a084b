"""Sentences of the lessons that rest on committed records, which cells do not check."""

import re
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from d2lpar import chapter
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

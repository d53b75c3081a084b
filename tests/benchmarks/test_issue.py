"""benchmarks/issue.py: every form computes the step of train_batch."""

import issue
import numpy


def test_every_form_has_the_bits_of_train_batch(tmp_path):
    expected = tmp_path / "expected.npy"
    work = ("cpu:2", "sample", 8, 1, 1, str(expected))
    for form in issue.FORMS.values():
        lines = list(issue.passes(*work, **form))
        assert [line["work"] for line in lines] == ["Python issues", "a step"]
        assert [line["error"] for line in lines] == [0, 0]
    numpy.save(expected, numpy.load(expected) + 1)  # the comparison can fail
    assert list(issue.passes(*work))[0]["error"] > 0.9

"""Every solution is right and within its target; what a learner gets wrong is said."""

import pytest
import solutions

import puzzles
from puzzles.checking import PUZZLES, TARGETS


@pytest.mark.parametrize("name", PUZZLES)
def test_a_solution_is_right_and_within_its_target(name, capsys):
    assert puzzles.check(getattr(solutions, name))
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: right")
    assert ("rounds" in out) == (name in TARGETS)

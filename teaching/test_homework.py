"""Tests of homework.py or homework.ipynb, whichever you have saved last.

python -m pytest --tb=line test_homework.py
"""

from pathlib import Path

import exercises
import pytest
from puzzles.devices import Program, Wrong

FOLDER = Path(__file__).parent
FILES = [*FOLDER.glob("homework.py"), *FOLDER.glob("homework.ipynb")]
HOMEWORK = max(FILES, key=lambda file: file.stat().st_mtime)


@pytest.mark.parametrize("exercise", exercises.EXERCISES)
def test_homework(exercise):
    if exercises.solution is None and exercise.startswith("step"):
        pytest.skip("graded after you hand in")
    with Program(HOMEWORK) as program:
        try:
            exercises.grade(program, exercise)
        except Wrong as error:
            pytest.fail(str(error), pytrace=False)

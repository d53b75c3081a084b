"""docs/record.schema.json says what committed records hold."""

import json
from pathlib import Path

import make_schema
import pytest

jsonschema = pytest.importorskip("jsonschema")
FIGURES = Path(__file__).parents[2] / "figures"


def test_the_schema_is_that_of_the_classes_and_every_record_follows_it():
    text = make_schema.PATH.read_text("utf-8")
    assert text == make_schema.schema()
    validator = jsonschema.validators.validator_for(json.loads(text))(json.loads(text))
    paths = sorted(FIGURES.rglob("*.jsonl"))
    assert len(paths) > 100
    for path in paths:
        lines = path.read_text("utf-8").splitlines()
        for line in (lines[0], lines[1], lines[-1]):
            validator.validate(json.loads(line))

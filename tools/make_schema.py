"""Write docs/record.schema.json: the JSON Schema of a line of a record."""

import json
from pathlib import Path

import msgspec

from d2lpar.records.kinds import AnyLine

PATH = Path(__file__).parents[1] / "docs" / "record.schema.json"


def schema() -> str:
    """The schema as text, made by msgspec from the classes that read records."""
    return json.dumps(msgspec.json.schema(AnyLine), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(schema(), encoding="utf-8")

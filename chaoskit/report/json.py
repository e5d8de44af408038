"""The report as JSON: the summary as it is, by the schema beside it (`report.schema.json`).

`python -m chaoskit.report.json` prints the schema; a test keeps the file equal to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from chaoskit.report.model import Summary

SCHEMA_PATH = Path(__file__).parent / "templates" / "report.schema.json"


def render(summary: Summary) -> str:
    """The JSON text, indented. Its fields are those of `Summary`, and its `format` says which version of them."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a report of this version."""
    found = msgspec.json.schema(Summary)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "chaoskit report", **found}


if __name__ == "__main__":
    print(msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode())

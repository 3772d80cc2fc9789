"""The names of what is ours in the schema drover, read from schema/schema.sql; all else on our tables is the site's."""

import re
from functools import cache
from typing import Any, Final

from scheduler.package_data import schema_dir

TABLE: Final = re.compile(r"^CREATE TABLE drover\.(\w+)", re.MULTILINE)
PART: Final = re.compile(r"\b(?:CONSTRAINT|INDEX|TRIGGER) (\w+)")
COLUMN: Final = re.compile(r"^    (\w+) ", re.MULTILINE)
FUNCTION: Final = re.compile(r"^CREATE FUNCTION drover\.(\w+)", re.MULTILINE)
SWITCHED: Final = re.compile(r"DISABLE TRIGGER (\w+)")


@cache
def schema_names() -> dict[str, Any]:
    """Return the names of our tables and of what belongs to them, and the number of the last migration."""
    text = (schema_dir() / "schema.sql").read_text()
    return {
        "tables": TABLE.findall(text),
        "ours": sorted({*PART.findall(text), *COLUMN.findall(text)}),
        "functions": FUNCTION.findall(text),  # a name for each of its forms
        "switched": SWITCHED.findall(text),  # triggers that are on only where something needs them
        "newest": max(int(path.name[:4]) for path in (schema_dir() / "migrations").glob("*.sql")),
    }

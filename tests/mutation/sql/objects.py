"""Find the objects of the schema, the grants and the statements, as texts that can be changed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from scheduler.package_data import schema_dir

STATEMENT: Final = re.compile(
    r"^(CREATE|ALTER TABLE ONLY)\b(?:\$(\w*)\$.*?\$\2\$|'(?:[^']|'')*'|[^;'$])*;", re.MULTILINE | re.DOTALL
)
FUNCTION: Final = re.compile(r"CREATE FUNCTION (drover\.\w+)")
BODY: Final = re.compile(r"\n    (?:AS \$(\w*)\$(?P<quoted>.*)\$\1\$|RETURN (?P<returned>.*));$", re.DOTALL)
VIEW: Final = re.compile(r"CREATE VIEW (drover\.\w+)(?P<options> WITH \([^)]*\))? AS(?P<body>.*);$", re.DOTALL)
TRIGGER: Final = re.compile(
    r"CREATE (?:CONSTRAINT )?TRIGGER (\w+) .*? ON (drover\.\w+) .*?"
    r"FOR EACH \w+(?P<when> WHEN (?P<condition>\(.*\)))? EXECUTE",
    re.DOTALL,
)
TABLE: Final = re.compile(r"CREATE (?:UNLOGGED )?TABLE (drover\.\w+) \(\n(.*?)\n\)", re.DOTALL)
CHECK: Final = re.compile(r"^    CONSTRAINT (\w+) (CHECK .*?)(?=,\n    CONSTRAINT |\Z)", re.DOTALL | re.MULTILINE)
ADDED: Final = re.compile(r"ALTER TABLE ONLY (drover\.\w+)\s+ADD CONSTRAINT (\w+) (?!PRIMARY)", re.DOTALL)
UNIQUE: Final = re.compile(r"CREATE UNIQUE INDEX (\w+) ON (drover\.\w+)")
BLOCK: Final = re.compile(r"^-- (name|fragment): (\w+)\n(.*?)(?=^-- (?:name|fragment): |\Z)", re.MULTILINE | re.DOTALL)
GRANT: Final = re.compile(
    r"^(grant|revoke)\s+(.*?)\s+on\s+(.*?)\s+(?:to|from)\s+([\w, \n]+);", re.MULTILINE | re.DOTALL
)
ROLES: Final = ("drover_readonly", "drover_tenant", "drover_frontend", "drover_operator", "public")
QUERIES: Final = "queries.sql"
ROLES_FILE: Final = "roles.sql"


@dataclass(frozen=True, slots=True)
class Object:
    """A text with a part that may be changed; `sql` makes the object anew with {} for the text."""

    name: str
    kind: str
    text: str
    start: int
    end: int
    sql: str = "{}"
    table: str = ""
    options: str = ""  # a part that may be left out


def of_schema() -> list[Object]:
    """Return the functions, views, triggers and constraints of schema.sql."""
    text = (schema_dir() / "schema.sql").read_text()
    return [each for match in STATEMENT.finditer(text) for each in _of_statement(match[0])]


def _of_statement(text: str) -> Iterator[Object]:
    if (name := FUNCTION.match(text)) and (body := BODY.search(text)):
        group = "quoted" if body["quoted"] is not None else "returned"
        yield Object(name[1], "function", "create or replace" + text[6:], *_moved(body.span(group), 11))
    elif view := VIEW.match(text):
        made = "create or replace" + text[6:]
        yield Object(view[1], "view", made, *_moved(view.span("body"), 11), options=view["options"] or "")
    elif trigger := TRIGGER.match(text):
        table = trigger[2]
        sql = f"drop trigger {trigger[1]} on {table}; {{}}"
        span = trigger.span("condition") if trigger["when"] else (0, 0)
        yield Object(f"{table}.{trigger[1]}", "trigger", text, *span, sql, table, trigger["when"] or "")
    elif table_found := TABLE.match(text):
        table = table_found[1]
        for check in CHECK.finditer(table_found[2]):
            sql = f"alter table {table} drop constraint {check[1]}; alter table {table} add {{}}"
            made = f"constraint {check[1]} {check[2]}"
            yield Object(f"{table}.{check[1]}", "constraint", made, len(made) - len(check[2]), len(made), sql, table)
    elif added := ADDED.match(text):
        drop = f"alter table {added[1]} drop constraint {added[2]}; {{}}"
        yield Object(f"{added[1]}.{added[2]}", "constraint", text, 0, 0, drop, added[1])
    elif unique := UNIQUE.match(text):
        yield Object(f"{unique[2]}.{unique[1]}", "index", text, 0, 0, f"drop index drover.{unique[1]}; {{}}", unique[2])


def _moved(span: tuple[int, int], by: int) -> tuple[int, int]:
    return span[0] + by, span[1] + by


def of_queries() -> list[Object]:
    """Return the statements and fragments of queries.sql."""
    text = (schema_dir() / QUERIES).read_text()
    blocks = BLOCK.finditer(text)
    return [Object(block[2], "query", block[0], block.start(3) - block.start(), len(block[0])) for block in blocks]


@dataclass(frozen=True, slots=True)
class Grant:
    """A right that one role has, or is to have: `sql` changes it."""

    object: str
    label: str
    sql: str


def grants() -> Iterator[Grant]:
    """Yield for each grant of roles.sql: one object for one more role, and nothing for each role."""
    text = re.sub(r"--[^\n]*", "", (schema_dir() / ROLES_FILE).read_text())
    for verb, rights, on, to in (match.groups() for match in GRANT.finditer(text)):
        rights, on = " ".join(rights.split()), " ".join(on.split())
        roles = [role.strip() for role in to.split(",")]
        for role in roles:
            undo = f"revoke {rights} on {on} from {role}" if verb == "grant" else f"grant {rights} on {on} to {role}"
            yield Grant(ROLES_FILE, undo, undo)
        if verb == "grant":
            yield from _one_more(rights, on, roles)


def _one_more(rights: str, on: str, roles: list[str]) -> Iterator[Grant]:
    kind = next((word for word in ("function ", "sequence ", "schema ") if on.startswith(word)), "")
    other = next(role for role in ROLES if role not in roles)
    if not on.startswith("all "):
        for each in re.findall(r"[\w.]+(?:\([^)]*\))?", on[len(kind) :]):
            more = f"grant {rights} on {kind}{each} to {other}"
            yield Grant(each.partition("(")[0], more, more)

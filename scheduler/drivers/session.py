"""The settings that our sessions depend on, set whatever a role, a database, the server or the environment says.

OURS is for the queue and watch connections, STANDARD for the command line and migrations. SQL of jobs and of agents is
the site's, and runs as the site has set its roles; THEIRS is what our handling of its rows needs.
A setting that this server does not know is left out. What only a superuser may set cannot be set here: with
session_replication_role = replica no trigger runs, and nothing works.
"""

from collections.abc import Mapping
from typing import Final, LiteralString

STANDARD: Final[dict[LiteralString, LiteralString]] = {
    "array_nulls": "on",  # '{NULL}' holds a null, and not a text, which no number can be read from
    "backslash_quote": "safe_encoding",
    "bytea_output": "hex",
    "DateStyle": "ISO",  # how times are written; the order of day and month stays as it is
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",  # others change rows that we wait for, which is no failure
    "exit_on_error": "off",
    "extra_float_digits": "1",  # a number that is written and read again is the same
    "IntervalStyle": "postgres",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "xmloption": "content",
}  # fmt: skip
# The daemon has a time limit of its own for every statement, and plans that need these ways.
UNBOUND: Final[dict[LiteralString, LiteralString]] = {
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "enable_indexscan": "on",
    "enable_nestloop": "on",
}
OURS: Final = STANDARD | UNBOUND
THEIRS: Final[dict[LiteralString, LiteralString]] = {"exit_on_error": "off", "extra_float_digits": "1"}


SETTING: Final = "select pg_catalog.set_config("


def setting(wanted: Mapping[LiteralString, LiteralString]) -> LiteralString:
    """Return one statement that sets those of `wanted` that are set otherwise."""
    rows: LiteralString = ", ".join(f"('{name}', '{value}')" for name, value in wanted.items())
    return (
        f"{SETTING}s.name, w.value, false)"
        f" from (values {rows}) w(name, value) join pg_catalog.pg_settings s on s.name = w.name"
        " where s.setting <> w.value"
    )

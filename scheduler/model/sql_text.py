"""SQL texts: placeholders of registered statements, and the query for what an SQL job has left to do.

`:name` becomes `$1`, as Postgres prepares it. Of SQL is known only where a colon is no placeholder: in quotes,
comments, dollar quotes, casts and array slices.
"""

import re
from collections.abc import Sequence
from typing import Final

from scheduler.errors import ConfigError

# The look-behinds keep the second colon of `::text`, and `a[1:n]` and `a[i:n]`, out of the placeholders, and
# `price$q$`, which is a name in Postgres, out of the dollar quotes. Each stands behind the character that it is about:
# where all alternatives begin with a character, the search for one takes a quarter of the time.
TOKEN = re.compile(
    r"""
    --[^\n]*
  | (?P<comment>/\*)
  | '(?<=(?<![\w$])[eE]')(?:[^'\\]|\\.|'')*(?P<escaped_end>'?)
  | '(?<!(?<![\w$])[eE]')(?:[^']|'')*(?P<text_end>'?)
  | "(?:[^"]|"")*(?P<name_end>"?)
  | (?P<tag>\$(?<![\w$]\$)(?:[^\W\d]\w*)?\$)
  | (?P<number>\$(?<![\w$]\$)\d+)
  | :(?<![\w:]:)(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_EDGE = re.compile(r"/\*|\*/")
ENDS = ("escaped_end", "text_end", "name_end")
WRAPPING: Final = "select * from ("  # before the text of an SQL job
WRAPPED: Final = "\n) q"  # behind it
SYNTAX: Final = "42601"  # SQLSTATE
COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
TWICE: Final = "comes twice: keys must be unique"


def bind(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return SQL with `$n` for each `:name`, and the names in order of their numbers; a name has one number.

    Errors: ConfigError if a quote or comment is never closed, or if the text uses `$n` itself.
    """
    names: dict[str, int] = {}
    parts: list[str] = []
    at = 0
    while token := TOKEN.search(sql, at):
        end = _end(sql, token)
        name = token["name"]
        bound = f"${names.setdefault(name, len(names) + 1)}" if name else sql[token.start() : end]
        parts += sql[at : token.start()], bound
        at = end
    return "".join([*parts, sql[at:]]), tuple(names)


def _end(sql: str, token: re.Match[str]) -> int:
    if token["number"]:
        raise ConfigError(f"write :name instead of {token['number']}")
    if token["comment"]:
        depth = 1  # Postgres nests them
        for edge in COMMENT_EDGE.finditer(sql, token.end()):
            depth += 1 if edge[0] == "/*" else -1
            if depth == 0:
                return edge.end()
    elif token["tag"]:
        close = sql.find(token["tag"], token.end())
        if close >= 0:
            return close + len(token["tag"])
    elif all(token[end] != "" for end in ENDS):
        return token.end()
    raise ConfigError(f"{token['comment'] or token['tag'] or token[0][0]} is never closed")


# ---- the query of an SQL job


def quote_literal(value: str) -> str:
    """Return an SQL literal of unknown type, safe whatever standard_conforming_strings says."""
    if "\0" in value:
        raise ConfigError("a key holds NUL")
    return " E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def cursor_query(
    sql: str, key: str | None, watermark: str | None, beyond: Sequence[tuple[str, str]], again: Sequence[str] = ()
) -> str:
    """Return the select whose rows are the work left: the job's SQL, less what its checkpoint has.

    **shape**: with a key, rows above the watermark and outside the `beyond` ranges (first, last), in key order, and
    those with a key of `again`. It fails where two keys are equal to the database, however they are written.
    The newline before the bracket ends a comment in the job's SQL.
    """
    inner = sql.strip().removesuffix(";")
    query = f"{WRAPPING}{inner}{WRAPPED}"
    if key is None:
        return query
    column = 'q."' + key.replace('"', '""') + '"'
    wheres = [] if watermark is None else [f"{column} >{quote_literal(watermark)}"]
    wheres += [f"{column} not between{quote_literal(first)} and{quote_literal(last)}" for first, last in beyond]
    # A NULL key must be seen to fail the job, so no condition may hide it.
    where = f" where {column} is null or (" + " and ".join(wheres) + ")" if wheres else ""
    if wheres and again:
        where += f" or {column} in (" + ",".join(map(quote_literal, again)) + ")"
    told = f"concat('key ''', left({column}::text, 100), ''' {TWICE}')"
    unique = f"case when {column} = lag({column}) over (order by {column}) then {told}::integer end"
    return f"{query}{where} order by {column}, {unique}"  # what is told is no number: the cast fails, and quotes it


def doubled_key(message: str) -> str | None:
    """Return what the query of `cursor_query` reports of a key that comes twice, out of a message of the database."""
    found = re.search(f"key '.*' {TWICE}", message, re.DOTALL)
    return found and found[0]


def in_terms_of_job(message: str, sqlstate: str, position: int, query: str) -> str:
    """Return what the database says of a query of `cursor_query`, without the characters that are not the job's.

    `position` is the character of the query, from 1; 0 for none.
    """
    start, end = len(WRAPPING), query.rfind(WRAPPED)
    if sqlstate == SYNTAX and position > end >= start:
        if not COMMENT.sub("", query[start:end]).strip():
            return f"the SQL is empty (SQLSTATE {sqlstate})"
        problem = "it is not complete, or has a bracket too many"
        return f"syntax error at the end of the SQL: {problem} (SQLSTATE {sqlstate}, at character {end - start + 1})"
    if sqlstate == SYNTAX and message.startswith("unterminated"):
        message = message.partition(" at or near ")[0]  # what follows is all the rest, ours too
    place = f", at character {position - start}" if position > start else ""
    return f"{message} (SQLSTATE {sqlstate}{place})"

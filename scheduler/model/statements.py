"""Placeholders of registered statements: `:name` becomes `$1`, as Postgres prepares it.

Knows of SQL only where a colon is not a placeholder: quotes, comments, dollar quotes, casts and array slices.
"""

import re

from scheduler.errors import ConfigError

# The look-behinds keep the second colon of `::text`, and `a[1:n]` and `a[i:n]`, out of the placeholders, and
# `price$q$`, which is a name in Postgres, out of the dollar quotes.
TOKEN = re.compile(
    r"""
    --[^\n]*
  | (?P<comment>/\*)
  | (?<![\w$])[eE]'(?:[^'\\]|\\.|'')*(?P<escaped_end>'?)
  | '(?:[^']|'')*(?P<text_end>'?)
  | "(?:[^"]|"")*(?P<name_end>"?)
  | (?<![\w$])(?P<tag>\$(?:[^\W\d]\w*)?\$)
  | (?<![\w$])(?P<number>\$\d+)
  | (?<![\w:]):(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_EDGE = re.compile(r"/\*|\*/")
ENDS = ("escaped_end", "text_end", "name_end")


def bind(sql: str) -> tuple[str, tuple[str, ...]]:
    """SQL with `$n` for each `:name`, and the names in order of their numbers; a name has one number.

    Errors: ConfigError if a quote or comment is never closed, or if the text uses `$n` itself.
    """
    names: dict[str, int] = {}
    parts: list[str] = []
    at = 0
    while found := TOKEN.search(sql, at):
        end = _end(sql, found)
        parts += sql[at : found.start()], _replaced(found, names) or sql[found.start() : end]
        at = end
    return "".join([*parts, sql[at:]]), tuple(names)


def _replaced(found: re.Match[str], names: dict[str, int]) -> str:
    if not (name := found["name"]):
        return ""
    return f"${names.setdefault(name, len(names) + 1)}"


def _end(sql: str, found: re.Match[str]) -> int:
    if found["number"]:
        raise ConfigError(f"write :name instead of {found['number']}")
    if found["comment"]:
        return _comment_end(sql, found.end())
    if found["tag"]:
        close = sql.find(found["tag"], found.end())
        return close + len(found["tag"]) if close >= 0 else _unclosed(found["tag"])
    if any(found[end] == "" for end in ENDS):
        return _unclosed(found[0][0])
    return found.end()


def _comment_end(sql: str, start: int) -> int:
    """Postgres nests its comments."""
    depth = 1
    for edge in COMMENT_EDGE.finditer(sql, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return _unclosed("/*")


def _unclosed(opener: str) -> int:
    raise ConfigError(f"{opener} is never closed")

"""Placeholders of registered statements: `:name` becomes `$1`, as Postgres prepares it.

Knows of SQL only where a colon is no placeholder: quotes, comments, dollar quotes, casts and array slices.
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

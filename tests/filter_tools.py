"""For the tests of filters: filters by the grammar, and words that make other texts."""

from hypothesis import strategies as st

from scheduler.model.queue_filters import COLUMNS

TEXTS = [name for name, kind in COLUMNS.items() if kind == "text"]
NUMBERS = [name for name, kind in COLUMNS.items() if kind == "number"]
SIGNS = ["=", "<>", "!=", "<", "<=", ">", ">="]
WORDS = [
    *COLUMNS, *SIGNS, "and", "or", "not", "in", "like", "between", "is", "null", "(", ")", ",", "'a'", "'%'", "1", "-1",
    "0.5", "true", "false", "data.x", 'data."y z"', "now()", "pg_sleep(9)", "select", "from", "drover.jobqueue", "::",
    "text", "+", "/", "||", "case", "when", "end", ";", "drop", "table", "$1", "$$", "--", "/*", "*", "any", "array",
    "[1]", "E'\\n'", "collate", '"C"', "exists", "cast", "as", "interval", "at", "time zone", "row", "~", "@>", "?",
    "union", "over", "\\",
]  # fmt: skip


def words_of_filters() -> st.SearchStrategy[str]:
    """Return a strategy for words, allowed and not."""
    return st.sampled_from(WORDS)


def filters() -> st.SearchStrategy[str]:
    """Return a strategy for filters that are right."""
    characters = st.characters(blacklist_categories=("Cs", "Cc"))
    text = st.text(characters, max_size=8).map(lambda value: "'" + value.replace("'", "''") + "'")
    pattern = st.text(characters, max_size=8).map(
        lambda value: "'" + value.replace("'", "''").replace("\\", "\\\\") + "'"
    )
    digits = st.decimals(min_value=-(10**12), max_value=10**12, places=3, allow_nan=False).map(lambda n: f"{n:f}")
    key = st.from_regex("[a-z][a-z0-9_]{0,5}", fullmatch=True).map(lambda name: f'data."{name}"')
    textual, number = st.sampled_from(TEXTS) | key, st.sampled_from(NUMBERS) | key
    sign = st.sampled_from(SIGNS)
    simple = st.one_of(
        st.tuples(textual, sign, text | st.sampled_from(TEXTS)).map(" ".join),
        st.tuples(number, sign, digits | st.sampled_from(NUMBERS)).map(" ".join),
        st.tuples(textual, st.sampled_from(["like", "not like"]), pattern).map(" ".join),
        st.tuples(textual, st.sampled_from(["in", "not in"]), st.lists(text, min_size=1, max_size=4)).map(
            lambda parts: f"{parts[0]} {parts[1]} ({', '.join(parts[2])})"
        ),
        st.tuples(number, digits, digits).map(lambda parts: "{} between {} and {}".format(*parts)),
        st.tuples(st.sampled_from([*COLUMNS]) | key, st.sampled_from(["is null", "is not null"])).map(" ".join),
        st.sampled_from(["urgent", "not sql", "urgent = false", "sql <> urgent"]),
    )
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
            inner.map(lambda each: f"not ({each})"),
        ),
        max_leaves=6,
    )

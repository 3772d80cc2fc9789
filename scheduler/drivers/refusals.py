"""Statements of ours that the server refuses through no fault of a row: no space, no memory, no right, a bad form.

They are tried again until they are taken, and hold up others meanwhile. That is logged at once, when the reason
changes and when it is over, however often it is tried; `text` is for those who ask how the daemon is.
"""

from collections.abc import Callable

from scheduler.drivers.postgres_answers import Failure


class Refusals:
    """What is being refused, by the name of the statement; `changed` is called with `text` when that changes."""

    __slots__ = ("_changed", "_say", "_texts")

    def __init__(self, say: Callable[[str, str], None], changed: Callable[[str | None], None]) -> None:
        self._say, self._changed = say, changed
        self._texts: dict[str, str] = {}

    @property
    def text(self) -> str | None:
        """Return every statement with the server's words, or None if none is refused."""
        return "; ".join(f"{name}: {text}" for name, text in self._texts.items()) or None

    def refused(self, name: str, failure: Failure) -> None:
        """Note that a statement was refused."""
        text = failure.sentence
        if self._texts.get(name) != text:
            self._texts[name] = text
            self._say("warning", f"the database refuses {name}: {text}; it is tried again until it is taken")
            self._changed(self.text)

    def taken(self, name: str) -> None:
        """Note that a statement was carried out."""
        if self._texts and self._texts.pop(name, None) is not None:
            self._say("info", f"the database takes {name} again")
            self._changed(self.text)

    def forget(self) -> None:
        """Forget all when a connection is lost: what is still refused on the next one is logged again."""
        if self._texts:
            self._texts.clear()
            self._changed(None)

"""Statements of ours that the server refuses through no fault of a row: no space, no memory, no right, a bad form.

They are tried again until they are taken, and hold up others meanwhile. That is logged at once, when the reason
changes and when it is over, however often it is tried; `text` is for those who ask how the daemon is.

One kind needs no mending of ours: while the NOTIFY queue of the server is full, every commit with a notification fails.
Then our statements send none (see drover.notify in the schema), and jobs are saved without their events.
"""

from collections.abc import Callable
from typing import Final

from scheduler.drivers.postgres import Connection
from scheduler.drivers.sql import Failure

NOTIFY: Final = "NOTIFY"  # its name, whatever statement met it
NO_RIGHT: Final = "; drover check tells whether the login of the daemon is right"


class RefusedStatements:
    """What is being refused, by the name of the statement; `changed` is called with `text` when that changes."""

    __slots__ = ("_changed", "_links", "_say", "_texts", "notify_is_full")

    def __init__(self, say: Callable[[str, str], None], changed: Callable[[str | None], None]) -> None:
        self._say, self._changed = say, changed
        self._texts: dict[str, str] = {}
        self._links: tuple[Connection, ...] = ()
        self.notify_is_full: Callable[[], object] = lambda: None

    def attach(self, *links: Connection) -> None:
        """Take the connections whose statements send no notifications while there is no room for them."""
        self._links = links

    @property
    def text(self) -> str | None:
        """Return every statement with the server's words, or None if none is refused."""
        return "; ".join(f"{name}: {text}" for name, text in self._texts.items()) or None

    def refused(self, name: str, failure: Failure) -> None:
        """Note that a statement was refused."""
        if failure.is_of_notify:
            name = NOTIFY
            self._notify("off")
        text = failure.sentence
        if self._texts.get(name) != text:
            self._texts[name] = text
            next_step = NO_RIGHT if failure.sqlstate == "42501" else ""
            self._say("warning", f"the database refuses {name}: {text}; it is tried again until it is taken{next_step}")
            self._changed(self.text)
            if name == NOTIFY:
                self.notify_is_full()

    def taken(self, name: str) -> None:
        """Note that a statement was carried out."""
        if self._texts and self._texts.pop(name, None) is not None:
            if name == NOTIFY:
                self._notify("on")
            self._say("info", f"the database takes {name} again")
            self._changed(self.text)

    def forget(self) -> None:
        """Forget all when a connection is lost: what is still refused on the next one is logged again."""
        if self._texts:
            self._texts.clear()
            self._changed(None)

    def _notify(self, word: str) -> None:
        """Send notifications, or none; behind a pooler nothing can be set, and statements wait until there is room."""
        for link in self._links:
            if link.is_up and not link.is_pooled:
                link.run(f"set drover.notify = '{word}'", lambda _: None)

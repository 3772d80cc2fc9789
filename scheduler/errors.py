"""The four classes of error, by whose fault it is: catch one of them, never a list of types.

Library errors are translated at the driver's edge, keeping their cause. The message of each says what, which,
and what next.
"""

UNTOLD = {EOFError: "the other side has closed it", TimeoutError: "no answer in time"}  # what has no text says


class DroverError(Exception):
    """Anything that Drover itself raises."""


class ConfigError(DroverError):
    """A mistake of the operator in a file, an option or the environment. Print all of them, exit 2."""


class AgentError(DroverError):
    """An agent broke the protocol or could not be started. Kill it and count it."""


class WorldError(DroverError):
    """The database, the network or the disk failed. Retry with back-off; exit 3 if there is no way to start."""


class DatabaseAbsentError(WorldError):
    """The database does not answer yet; a daemon waits for it."""


class NoDatabaseYetError(WorldError):
    """The embedded database was not made yet: `run` and `init` make it, no other command does."""


class SchemaOutdatedError(WorldError):
    """The database has the schema of an earlier version, until `init` is run; a daemon waits for that."""


class BugError(DroverError):
    """A mistake in Drover: quarantine what it touched, and log an error that asks for a report."""


def reason(error: BaseException) -> str:
    """Return what an error says, and never nothing: many have no text."""
    text = (getattr(error, "strerror", None) or str(error)).strip()
    return text or next((words for kind, words in UNTOLD.items() if isinstance(error, kind)), type(error).__name__)

"""Four branches of error, by whose fault it is; catch a branch, never a bag of types.

Library errors are translated at the driver's edge, keeping their cause. The message of each says what, which,
and what next.
"""


class DroverError(Exception):
    """Anything that Drover itself raises."""


class ConfigError(DroverError):
    """The operator's: a mistake in a file, an option or the environment. Print all of them, exit 2."""


class AgentError(DroverError):
    """An agent's: it broke the protocol or could not be started. Kill it and count it."""


class WorldError(DroverError):
    """The world's: database, network or disk. Retry with back-off; exit 3 if there is no way to start."""


class AbsentError(WorldError):
    """Of the world's: the database does not answer yet; a daemon waits for it."""


class BugError(DroverError):
    """Ours: quarantine what it touched and say so loudly."""

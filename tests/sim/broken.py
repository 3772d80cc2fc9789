"""The one exception of the simulator: an invariant does not hold."""


class Broken(AssertionError):  # noqa: N818  (it is the invariant that is broken)
    """An invariant of tests/sim/invariants.py is broken; `name` is its function there."""

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        super().__init__(f"{name}: {what}")

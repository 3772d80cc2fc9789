"""The one exception of the simulator: an invariant does not hold."""


class Broken(AssertionError):  # noqa: N818  (it is the invariant that is broken)
    """An invariant (invariants.py, start_invariants.py, end_invariants.py) is broken; `name` is its function."""

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        super().__init__(f"{name}: {what}")


def broken(name: str, what: str) -> None:
    """Raise Broken: which claim does not hold."""
    raise Broken(name, what)

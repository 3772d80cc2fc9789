"""The rate of items of an agent type: a token bucket, from which each item takes one when an agent gets it.

The bucket holds a tenth of a second's worth, and one token at least: so any second has no more items than the rate and
that. Tries count, second tries too, since each may be a call of the service that the rate protects.
"""

from typing import Final

from scheduler.model.states import NEVER
from scheduler.policy.handover_values import Snapshot

BURST_S: Final = 0.1
_ALMOST: Final = 1e-9  # what rounding may take from a token


class TokenBucket:
    """Tokens that come at a rate. One that is new is full."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._tokens, self._at = 0.0, -NEVER

    def snapshot(self) -> dict[str, float]:
        return {"tokens": self._tokens, "at": self._at}

    def restore(self, snapshot: Snapshot) -> None:
        """Continue with the tokens of a snapshot."""
        self._tokens, self._at = float(snapshot["tokens"]), float(snapshot["at"])

    def set_rate(self, rate: float) -> None:
        """Let tokens come at another rate from now on."""
        self.rate = rate

    def take(self, now: float) -> None:
        """Take a token, of which there is one."""
        self._fill(now)
        self._tokens -= 1.0

    def has_token(self, now: float) -> bool:
        self._fill(now)
        return self._tokens >= 1.0 - _ALMOST

    def next_at(self) -> float:
        """Return when there is a token, as of the last look."""
        return self._at + max(0.0, 1.0 - self._tokens) / self.rate

    def _fill(self, now: float) -> None:
        most = max(1.0, BURST_S * self.rate)
        self._tokens = most if self._at == -NEVER else min(most, self._tokens + (now - self._at) * self.rate)
        self._at = now

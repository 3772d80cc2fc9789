"""Where a row goes: the value of its jq_runonpfile column becomes a host, or any.

Looked up in this order: the exact name of a host, an exact value of drover.placement, a range of it. Rules for the
agent type come before rules for every type. Values are compared as bytes. Unmapped means any host.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Places:
    """The placement table, ready to be asked."""

    __slots__ = ("_exact", "_hosts", "_ranges")

    def __init__(self, hosts: Iterable[str], rules: Sequence[Mapping[str, Any]]) -> None:
        self._hosts = {name.encode(): name for name in hosts}
        self._exact: dict[tuple[str | None, bytes], str] = {}
        self._ranges: list[tuple[str | None, bytes, bytes, str]] = []
        for rule in rules:
            first = rule["from"].encode()
            if rule["to"] is None:
                self._exact.setdefault((rule["type"], first), rule["host"])
            else:
                self._ranges.append((rule["type"], first, rule["to"].encode(), rule["host"]))

    def host_of(self, kind: str, value: bytes | None) -> str | None:
        """Give the host for a value of an agent type, or None for any host."""
        if value is None:
            return None
        if (host := self._hosts.get(value)) is not None:
            return host
        for wanted in (kind, None):
            if (host := self._exact.get((wanted, value))) is not None:
                return host
            for rule_type, first, last, target in self._ranges:
                if rule_type == wanted and first <= value <= last:
                    return target
        return None

"""Configurations for tests: the least one, the shipped file, every key, and what is wrong with a text."""

import re
from typing import Any

import attrs
import pytest

from scheduler.model.config import (
    AgentType,
    Condition,
    Config,
    ConfigMistakes,
    Database,
    Host,
    Limits,
    Queue,
    Schedule,
    ScheduledJob,
    Scheduler,
)
from scheduler.model.config_reader import parse
from scheduler.package_data import etc_dir

SHIPPED = (etc_dir() / "drover.toml").read_text()
UNCOMMENTED = re.sub(r"(?m)^#(?! )", "", SHIPPED)
LEAST = '[hosts.alpha]\n[agents.a]\ncommand = ["a"]\n'
TABLES: dict[str, type[Any]] = {
    "database": Database,
    "scheduler": Scheduler,
    "hosts.NAME": Host,
    "agents.NAME": AgentType,
    "agents.NAME.limits": Limits,
    "queues.NAME": Queue,
    "conditions.NAME": Condition,
    "schedules.NAME": Schedule,
    "schedules.NAME.jobs.NAME": ScheduledJob,
}
FIELDS = [(table, f.name, f) for table, kind in TABLES.items() for f in attrs.fields(kind)]


def mistakes(*texts: str) -> tuple[str, ...]:
    """Return the mistakes of texts named 1.toml, 2.toml, and so on."""
    with pytest.raises(ConfigMistakes) as caught:
        parse([(f"{number}.toml", text) for number, text in enumerate(texts, 1)])
    return caught.value.mistakes


def good(*texts: str) -> Config:
    return parse([(f"{number}.toml", text) for number, text in enumerate(texts, 1)])


def agent(keys: str, head: str = 'command = ["a"]') -> str:
    """Return a configuration whose agent has these keys, the first on line 4."""
    return f"[hosts.alpha]\n[agents.a]\n{head}\n{keys}\n"

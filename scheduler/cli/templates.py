"""Templates of the bundled shell agent, checked when the configuration is read.

What is safe in a template is known to the agent alone (agents/shell/quoting.py), which is no part of this package: its
module is loaded from where the agents are. An agent that was taken away has no templates to check.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

from scheduler.model.config import Config, Contradiction
from scheduler.package_data import agents_dir

SHELL_AGENT: Final = "drover-agent-shell"
WHOLE_LINE: Final = "%{*}"
WITH_VALUE: Final = "--heartbeat"  # its one option; the value may be the next word


def template_mistakes(config: Config) -> Iterator[Contradiction]:
    """Every type whose template could run, split or expand what is in an item: the path to blame, and a message."""
    for name, agent in config.agents.items():
        if Path(agent.command[0]).name == SHELL_AGENT and (mistake := _mistake(template_of(agent.command[1:]))):
            yield ("agents", name, "command"), mistake


def template_of(words: Sequence[str]) -> str:
    """Return the template among the words behind the name of the agent; the default if there is none."""
    is_value = is_end = False
    for word in words:
        if is_value:
            is_value = False
        elif is_end or not word.startswith("-"):
            return word
        else:
            is_value, is_end = word == WITH_VALUE, word == "--"
    return WHOLE_LINE


def _mistake(template: str) -> str:
    quoting = _quoting()
    if quoting is None or template.strip() == WHOLE_LINE:
        return ""
    try:
        quoting.check(template)
    except ValueError as error:
        return f"is no safe template: {error}"
    return ""


@cache
def _quoting() -> ModuleType | None:
    """Load the grammar of the agent; None if it is not there."""
    path = agents_dir() / "shell" / "quoting.py"
    spec = importlib.util.spec_from_file_location("drover_shell_quoting", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

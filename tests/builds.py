"""Which build of the scheduler is tested. Stacks of a compiled one leave out what is compiled."""

from typing import Final

from scheduler.policy.core import __file__ as path

IS_COMPILED: Final = not str(path).endswith(".py")

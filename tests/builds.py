"""Which build of the scheduler is tested. Stacks of a compiled one leave out what is compiled."""

from typing import Final

from scheduler.policy import core

IS_COMPILED: Final = not str(core.__file__).endswith(".py")

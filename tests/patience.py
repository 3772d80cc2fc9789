"""How long tests wait for what has to happen, in one place; DROVER_TEST_PATIENCE multiplies it on a slow machine.

It bounds how long a failing test takes, and says nothing of how long anything may take.
"""

import os

PATIENCE_S = 20.0 * float(os.environ.get("DROVER_TEST_PATIENCE", "1"))
LONG_PATIENCE_S = 3 * PATIENCE_S  # for servers to start, and for many things one after the other

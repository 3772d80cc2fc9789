"""How much of the suite is run: `DROVER_FAULTS=full` is all of it, else what CI has time for."""

import os

FULL = os.environ.get("DROVER_FAULTS") == "full"

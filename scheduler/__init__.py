"""The scheduler. This file must be readable to any Python, for it tells an old one what is missing."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  (pip refuses it; a copied directory or another interpreter does not)
    sys.stderr.write("drover: Python 3.11 or newer is needed, and this is %d.%d\n" % sys.version_info[:2])  # noqa: UP031
    raise SystemExit(2)

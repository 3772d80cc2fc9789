"""Write schema/schema.sql, which people read: what the migrations build, as `make schema` does."""

import re
import subprocess

from scheduler.database import migrate
from scheduler.database.embedded import find_binaries, temporary
from scheduler.package_data import schema_dir

HEADER = "-- What the migrations build. Written by `make schema`, not by hand.\n"
# Lines of pg_dump that depend on its version, on chance, or on the connection that replays them.
NOISE = re.compile(r"--|\\|SET (?!check_function_bodies)|SELECT pg_catalog\.set_config")


def dump(conninfo: str) -> str:
    """Return the schema drover of a database as SQL: no comments, settings and meta-commands, blank lines folded."""
    arguments = ["--schema-only", "--no-owner", "--schema=drover", f"--dbname={conninfo}"]
    text = subprocess.run([find_binaries() / "pg_dump", *arguments], capture_output=True, text=True, check=True).stdout
    lines = "\n".join(line for line in text.splitlines() if not NOISE.match(line))
    return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"


if __name__ == "__main__":
    with temporary() as conninfo:
        migrate.apply(conninfo)
        (schema_dir() / "schema.sql").write_text(HEADER + dump(conninfo))

"""A program that makes any user that runs it user 2, as sudo(8) may: whoever is not root cannot signal that then."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.needs import lack, need


@contextmanager
def setuid_program() -> Iterator[list[str]]:
    """Yield the words before a script in sh that runs as user 2."""
    need("root")
    need("setpriv")
    with TemporaryDirectory(prefix="setuid-") as folder:
        os.chmod(folder, 0o755)
        program = Path(folder) / "become"
        shutil.copy(shutil.which("setpriv") or "", program)
        program.chmod(0o4755)
        if os.statvfs(program).f_flag & os.ST_NOSUID:
            lack("a temporary directory without nosuid", folder)
        yield [str(program), "--reuid=2", "--regid=2", "--clear-groups", "--", "sh", "-c"]

"""An account whose login shell is any program: the words before an sshd, which make it so for that sshd alone.

They give it a mount namespace with a passwd and a list of shells of our own; and another sh, if that is to be tried.
"""

import os
import shlex
import shutil
from pathlib import Path

from tests.needs import need

SHELLS = ("sh", "bash", "zsh", "mksh", "ash", "csh", "tcsh", "fish")  # with which programs are tried
PASSWD, LISTED, SH = "/etc/passwd", "/etc/shells", "/bin/sh"


def program_of(shell: str, folder: Path) -> str:
    """Return the path of a shell; busybox is one under a name of it."""
    if shell != "ash":
        need(shell)
        return shutil.which(shell) or ""
    need("busybox")
    link = folder / "ash"
    link.symlink_to(shutil.which("busybox") or "")
    return str(link)


def for_user_1(folder: Path) -> dict[str, object]:
    """Return what an sshd is to be that lets user 1 in, as daemon; our files are root's."""
    cat = os.path.realpath(shutil.which("cat") or "")
    keys = {"AuthorizedKeysCommand": f"{cat} {folder / 'server' / 'authorized_keys'}", "AuthorizedKeysFile": "none"}
    inside = with_login_shell(folder, SH, account="daemon:x:1:1:daemon:/")
    return {"inside": inside, "AuthorizedKeysCommandUser": "root", "SetEnv": "HOME=/", **keys}


def with_login_shell(folder: Path, program: str, sh: str = "", account: str = "root:x:0:0:root:/root") -> list[str]:
    """Return the words before an sshd for which this program is the login shell of root, and another one /bin/sh."""
    need("mount")
    passwd, shells = folder / "passwd", folder / "shells"
    others = [line for line in Path(PASSWD).read_text().splitlines() if line.split(":")[0] != account.split(":")[0]]
    passwd.write_text("\n".join([f"{account}:{program}", *others, ""]))
    shells.write_text(f"{program}\n")
    mounts = [(passwd, PASSWD), (shells, LISTED), *([(sh, os.path.realpath(SH))] if sh else [])]
    script = "".join(f"mount --bind {shlex.quote(str(source))} {place} && " for source, place in mounts)
    return ["unshare", "--mount", os.path.realpath(SH), "-c", script + 'exec "$@"', "sh"]

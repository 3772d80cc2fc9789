"""A real Slurm of our own: munged, slurmctld and one slurmd for each node, on loopback; the machine's is never touched.

Nodes are fictions of one machine: each has 4 processors and 4,000 MB, of which Slurm keeps the books. Whoever serves
here is a descendant of one launcher, which adopts what loses its parent: slurmstepd does, on purpose.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.patience import LONG_PATIENCE_S
from tests.ssh.sshd import below, free_ports, name_of

CPUS = 4  # of each node
INACTIVE_S = 5
UNSEEN_S = INACTIVE_S + 75.0  # for Slurm to miss an srun and to have its tasks killed: it looks every 30 s

LAUNCHER = """
import subprocess, sys
from scheduler.daemon.guardian import adopt_orphans, end_family
adopt_orphans()
for line in sys.stdin:
    with open(sys.argv[1], "ab") as log:
        subprocess.Popen(line.split(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
end_family()
"""

CONFIG = """
ClusterName=drover
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
InactiveLimit={inactive}
KillWait=2
"""
NODE = "NodeName={name} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=4000\n"
PARTITION = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"


class Slurm:
    """One cluster, and all that it runs."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.folder, self.config, self._log = folder, folder / "slurm.conf", folder / "log"
        folder.chmod(0o711)  # munged wants everybody to reach its socket
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        machine = socket.gethostname().partition(".")[0]
        own, *ports = free_ports(1 + len(nodes))
        head = CONFIG.format(machine=machine, port=own, folder=folder, inactive=INACTIVE_S)
        rows = [
            NODE.format(name=name, machine=machine, port=port, cpus=CPUS)
            for name, port in zip(nodes, ports, strict=True)
        ]
        self.config.write_text(head + "".join(rows) + PARTITION)
        self._launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(self._log)], stdin=subprocess.PIPE, env=self._environment(), text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self._begin(nodes)

    def srun(self, *options: str) -> list[str]:
        """Return the words of a host: srun of this cluster, which a site has in /etc/slurm."""
        return ["env", f"SLURM_CONF={self.config}", "srun", "--quiet", *options, "--"]

    def jobs(self) -> Counter[str]:
        """Return how many jobs each node has, until it is all free again; those that wait for a node are of node ""."""
        return Counter(self._ask("squeue", "--noheader", "--format=%N").split("\n")[:-1])

    def steps(self) -> list[int]:
        """Return the pids of the slurmstepd that hold tasks."""
        return [pid for pid in below(self._launcher.pid) if name_of(pid) == "slurmstepd"]

    def tasks(self) -> list[int]:
        """Return the pids of what runs below slurmstepd."""
        return [pid for step in self.steps() for pid in below(step)]

    def close(self) -> None:
        """Kill all of it."""
        assert self._launcher.stdin is not None
        with suppress(BrokenPipeError):
            self._launcher.stdin.close()
        self._launcher.wait(LONG_PATIENCE_S)

    def _begin(self, nodes: Sequence[str]) -> None:
        folder = self.folder
        munged = f"--socket={folder}/munge.socket --key-file={folder}/munge.key"
        self._serve(f"munged --foreground {munged} --pid-file={folder}/munged.pid --seed-file={folder}/munged.seed")
        self._await(lambda: (folder / "munge.socket").exists())
        self._serve("slurmctld -D -c")
        for name in nodes:
            self._serve(f"slurmd -D -N {name}")
        self._await(lambda: self._ask("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * len(nodes))

    def _serve(self, command: str) -> None:
        assert self._launcher.stdin is not None
        self._launcher.stdin.write(command + "\n")
        self._launcher.stdin.flush()

    def _await(self, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_PATIENCE_S
        while not look():
            assert time.monotonic() < deadline, self._log.read_text()[-4000:]
            time.sleep(0.05)

    def _ask(self, *argv: str) -> str:
        return subprocess.run(argv, env=self._environment(), capture_output=True, text=True, check=False).stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.config), "PATH": f"{os.environ['PATH']}:/usr/sbin"}


@contextmanager
def cluster(*nodes: str) -> Iterator[Slurm]:
    """Yield a cluster of these nodes for as long as this lasts."""
    with TemporaryDirectory(prefix="drover-slurm-") as folder:
        slurm = Slurm(Path(folder), nodes)
        try:
            yield slurm
        finally:
            slurm.close()

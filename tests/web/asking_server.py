"""A Postgres of a test's own that asks for passwords and certificates, and the files that libpq would read."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from tests.faults.server import Server
from tests.patience import LONG_PATIENCE_S

ROLE, PASSWORD = "visitor_of_test", "right password"
RULES = f"""
local all postgres trust
local trusting all trust
local drover all peer
local all {ROLE} scram-sha-256
hostssl certified {ROLE} 127.0.0.1/32 scram-sha-256 clientcert=verify-ca
host postgres {ROLE} 127.0.0.1/32 scram-sha-256
"""
CERTIFICATE = ("openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "rsa:2048", "-subj", "/CN=localhost")


class AskingServer:
    """The server, and beside it a file of passwords, a file of services, a key and its certificate."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder / "cluster")
        self.passwords, self.services = folder / "pgpass", folder / "services"
        self.key, self.certificate = folder / "key", folder / "certificate"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.by_socket = make_conninfo(host=str(folder / "cluster"), port=self.port, dbname="postgres", user="postgres")
        self.by_network = make_conninfo(host="127.0.0.1", port=self.port, dbname="certified", user="postgres")

    def start(self) -> None:
        self._write_files()
        data = self.server.data
        self.server.start(
            f"-c listen_addresses=127.0.0.1 -p {self.port} -c ssl=on -c ssl_cert_file={data}/server.crt "
            f"-c ssl_key_file={data}/server.key -c ssl_ca_file={data}/server.crt"
        )
        with psycopg.connect(self.by_socket, autocommit=True) as admin:
            admin.execute(f"create role {ROLE} login password '{PASSWORD}'".encode())
            for name in ("certified", "trusting", "drover"):
                admin.execute(f"create database {name}".encode())

    def _write_files(self) -> None:
        (self.server.data / "pg_hba.conf").write_text(RULES)
        command = [*CERTIFICATE, "-keyout", str(self.key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=LONG_PATIENCE_S)
        for path, name in ((self.key, "server.key"), (self.certificate, "server.crt")):
            shutil.copy(path, self.server.data / name)
            if self.server.data.owner() == "postgres":
                shutil.chown(self.server.data / name, "postgres")
            (self.server.data / name).chmod(0o600)
        self.passwords.write_text(f"*:*:*:{ROLE}:{PASSWORD}\n")
        self.passwords.chmod(0o600)
        where = self.by_socket.replace(" ", "\n")
        given = f"passfile={self.passwords}\npassword={PASSWORD}\noptions=-c work_mem=77kB\nsslcert={self.certificate}"
        self.services.write_text(f"[here]\n{where}\n{given}\n")


@contextmanager
def asking_server() -> Iterator[AskingServer]:
    """Run the server; the user postgres has to reach its folder, so that is not below pytest's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "cluster").mkdir()
        made = AskingServer(folder)
        try:
            made.start()
            yield made
        finally:
            if made.server.is_running():
                made.server.stop()

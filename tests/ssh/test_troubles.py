"""Each trouble with a host has its sentence and says what to do next: provoked by a real sshd, or a real socket."""

import re
import select
import socket
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import paramiko
import pytest

from scheduler.drivers.ssh_protocol import LinkDown, SshSettings
from scheduler.ssh.connection_troubles import TROUBLES
from tests.needs import need
from tests.package_tools import ROOT
from tests.ssh.conftest import Join, Serve
from tests.ssh.sshd import Keys, Server, free_port, run

OTHER_PASSWD = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"')
MANUAL = ROOT / "man/drover.8"


class KeyServer(paramiko.ServerInterface):  # type: ignore[misc]
    """A server that takes keys, and none of them."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"


class TalkingServer(paramiko.ServerInterface):  # type: ignore[misc]
    """A server that wants methods with impossible names."""

    def get_allowed_auths(self, username: str) -> str:
        return "password\0\x1b[31m\n" * 10_000


class FileServer(paramiko.ServerInterface):  # type: ignore[misc]
    """A server that lets everybody in, and runs no command: as of accounts for file transfers."""

    def check_auth_none(self, username: str) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED


class HangingServer(FileServer):
    """A server that lets everybody in, and answers nothing after that."""

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        closed = select.poll()
        closed.register(channel.get_transport().sock, select.POLLRDHUP)
        return not closed.poll()


@dataclass(frozen=True)
class Place:
    """Where a trouble is made: its servers, files and sockets are gone with the test."""

    serve: Serve
    folder: Path
    stack: ExitStack

    @property
    def server(self) -> Server:
        return self.serve()

    def forced(self, command: str, **settings: object) -> SshSettings:
        return self.serve(ForceCommand=command).settings(**settings)

    def with_key(self, path: object, **options: object) -> SshSettings:
        return self.serve(**options).settings(identity=str(path))

    def key(self, kind: str = "ed25519", phrase: str = "", mode: int = 0o600) -> Path:
        path = self.folder / f"key of {kind}"
        run("ssh-keygen", "-q", "-t", kind, "-N", phrase, "-f", str(path))
        path.chmod(mode)
        return path

    def file(self, text: str) -> Path:
        path = self.folder / "file"
        path.write_text(text)
        return path

    def with_shell(self, shell: str) -> SshSettings:
        """Return how a host is reached on which this is the shell of root."""
        need("mount")
        passwd = self.file(re.sub("(?m)^(root:.*:).*$", rf"\1{shell}", Path("/etc/passwd").read_text()))
        command, *words = OTHER_PASSWD
        return self.serve(inside=[command, *words, str(passwd)]).settings()

    def in_open_chroot(self) -> SshSettings:
        """Return how an account is reached whose ChrootDirectory sshd refuses, as others may write to it."""
        server = self.server
        server.close()
        server.options |= {
            "ChrootDirectory": "/tmp",
            "AuthorizedKeysCommand": f"/bin/cat {server.folder}/authorized_keys",
            "AuthorizedKeysCommandUser": "root",
        }
        server.begin()
        return server.settings(user="nobody")

    def saying(self, text: bytes, **settings: object) -> SshSettings:
        """Return how a socket is reached that says this to each client, and then closes the connection."""

        def answer(client: socket.socket) -> None:
            with client, suppress(OSError):  # it has closed the connection
                client.sendall(text)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1000):
                    pass

        return self._listener(answer, **settings)

    def serving(
        self, kind: type[paramiko.ServerInterface], disabled: Sequence[str] = (), **settings: object
    ) -> SshSettings:
        """Return how a server of paramiko is reached, for what sshd does not do."""
        host_key = Keys(self.folder / "host_key", "ecdsa")
        (self.folder / "known").write_text(f"* {host_key.public}\n")

        def answer(client: socket.socket) -> None:
            transport = paramiko.Transport(client, disabled_algorithms={"pubkeys": disabled})
            transport.add_server_key(paramiko.ECDSAKey(filename=str(host_key.path)))
            with suppress(paramiko.SSHException, EOFError, OSError):  # it has closed the connection
                transport.start_server(server=kind())
            transport.join()

        return self._listener(answer, known_hosts=str(self.folder / "known"), identity=str(self.key("rsa")), **settings)

    def full(self) -> SshSettings:
        """Return how a socket is reached that takes no connection any more."""
        listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            client = self.stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        return somewhere(f"127.0.0.1:{listener.getsockname()[1]}", connect_s=0.5)

    def deaf(self) -> SshSettings:
        listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        return somewhere(f"127.0.0.1:{listener.getsockname()[1]}", connect_s=0.5)

    def busy(self) -> SshSettings:
        """Return how a server is reached at which somebody has begun to log in, as many as may at once."""
        server = self.serve(MaxStartups="1:100:1")
        begun = self.stack.enter_context(socket.create_connection((server.address, server.port)))
        assert begun.recv(4) == b"SSH-"
        return server.settings()

    def behind(self, port: int, **options: object) -> SshSettings:
        """Return how a port is reached through a jump with these options."""
        jump = self.serve(**options)
        config = self.file(
            f"Host jump\n HostName {jump.address}\n Port {jump.port}\n User root\n IdentityFile {jump.user_key.path}\n"
            f" UserKnownHostsFile {jump.known_hosts}\nHost behind\n HostName 127.0.0.1\n Port {port}\n ProxyJump jump\n"
        )
        return jump.settings(address="behind", ssh_config=str(config), known_hosts="", identity="")

    def with_three_keys(self, **options: object) -> SshSettings:
        config = self.file("".join(f'IdentityFile "{self.key(kind)}"\n' for kind in ("ed25519", "ecdsa", "rsa")))
        return self.serve(**options).settings(identity="", ssh_config=str(config))

    def _listener(self, answer: Callable[[socket.socket], None], **settings: object) -> SshSettings:
        listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:  # the test is over
                    return
                Thread(target=answer, args=(client,), daemon=True).start()

        Thread(target=serve, daemon=True).start()
        self.stack.callback(listener.shutdown, socket.SHUT_RDWR)
        return somewhere(f"127.0.0.1:{listener.getsockname()[1]}", **settings)


def somewhere(address: str, **settings: object) -> SshSettings:
    """Return the settings of a host that is no sshd of ours."""
    usual: dict[str, object] = {"user": "root", "identity": "agent", "ssh_config": "/dev/null"}
    return SshSettings("alpha", address, **{**usual, **settings})  # type: ignore[arg-type]


PASSWORDS = {"PasswordAuthentication": "yes", "PermitRootLogin": "yes"}
BY_TROUBLE: dict[str, Callable[[Place], SshSettings]] = {
    "name": lambda place: somewhere("no-such-host.invalid:22"),
    "refused": lambda place: somewhere(f"127.0.0.1:{free_port()}"),
    "no route": lambda place: somewhere("255.255.255.255:22"),
    "no answer": lambda place: place.full(),
    "not ssh": lambda place: place.saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "silent": lambda place: place.deaf(),
    "closed": lambda place: place.busy(),
    "algorithms": lambda place: place.serve(Ciphers="chacha20-poly1305@openssh.com").settings(),
    "late": lambda place: place.serving(HangingServer, connect_s=0.5),
    "other": lambda place: place.saying(b"SSH-1.5-old\r\n"),
    "not forwarded": lambda place: place.behind(place.server.port, AllowTcpForwarding="no"),
    "not reached from there": lambda place: place.behind(free_port()),
    "no key": lambda place: place.with_key("agent"),
    "key missing": lambda place: place.with_key("/no/such"),
    "key locked": lambda place: place.with_key(place.key(phrase="secret")),
    "key unreadable": lambda place: place.with_key(place.folder),
    "key open": lambda place: place.with_key(place.key(mode=0o644)),
    "no private key": lambda place: place.with_key(place.file("hello\n")),
    "no signature": lambda place: place.serving(KeyServer, disabled=["rsa-sha2-512", "rsa-sha2-256"]),
    "permission denied": lambda place: place.with_key(place.key()),
    "too many keys": lambda place: place.with_three_keys(MaxAuthTries=2),
    "takes no keys": lambda place: place.serve(PubkeyAuthentication="no", **PASSWORDS).settings(),
    "wants more": lambda place: place.serve(AuthenticationMethods="publickey,password", **PASSWORDS).settings(),
    "unsuitable": lambda place: place.serve(SetEnv="PATH=/no/such").settings(),
    "no session": lambda place: place.serve(MaxSessions=0).settings(),
    "no commands": lambda place: place.serving(FileServer),
    "no shell": lambda place: place.with_shell("/usr/sbin/nologin"),
    "ended": lambda place: place.with_shell("/bin/false"),
    "cut off": lambda place: place.in_open_chroot(),
    "waits": lambda place: place.forced("exec sleep 600", connect_s=1.0),
    "printed and waits": lambda place: place.forced("echo hello; exec sleep 600", connect_s=1.0),
    "prints without end": lambda place: place.forced("yes hello"),
}


@pytest.fixture
def place(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with ExitStack() as stack:
        yield Place(serve, tmp_path, stack)


def why_down(settings: SshSettings, join: Join) -> str:
    down: LinkDown = join(settings).await_report(LinkDown)
    return down.why


def pattern(template: str) -> str:
    """Return what matches a sentence of the table in which no field is empty, but what the server may have said."""
    parts = [(re.escape(text), name) for text, name, *_ in string.Formatter().parse(template)]
    return "".join(text + {None: "", "said": ".*"}.get(name, ".+") for text, name in parts)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", BY_TROUBLE)
def test_each_trouble_is_told_with_its_sentence_and_what_to_do(place: Place, join: Join, trouble: str) -> None:
    why = why_down(BY_TROUBLE[trouble](place), join)
    print(f"{trouble}\t{why}")
    assert re.search(": ".join(map(pattern, TROUBLES[trouble])), why), why


def test_what_a_server_says_is_short_and_printable_in_a_reason(place: Place, join: Join) -> None:
    why = why_down(place.serving(TalkingServer), join)
    assert r"it takes no keys, but password\x00\x1b[31m\npassword\x00" in why
    assert why.isprintable()
    assert len(why) < 3000


def test_every_trouble_of_the_table_is_provoked() -> None:
    assert TROUBLES.keys() == BY_TROUBLE.keys()

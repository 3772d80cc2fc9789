"""The log: one event, one line, to standard error, a file, the journal or syslog, or to several; as text or as JSON.

It never stops the daemon nor makes it wait: what cannot be written is dropped and counted, which is said as soon as
something can be. Text of agents must neither steer the operator's terminal nor forge a second record, so control
characters are escaped. Fields, for JSON and the journal, are the words `name=value` that we put at the end of a line,
or `job=N:` at its beginning; what an agent wrote in the middle is never one.
"""

import faulthandler
import json
import logging
import os
import re
import select
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

from scheduler.errors import ConfigError
from scheduler.model.config import STANDARD_ERROR, Scheduler

LOG: Final = logging.getLogger("drover")
TRACE: Final = 5
LEVELS: Final = {
    "trace": TRACE, "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
}  # fmt: skip
JOURNAL: Final = "/run/systemd/journal/socket"
SYSLOG: Final = "/dev/log"
DAEMON: Final = 3 << 3  # the facility of syslog(3)
LONGEST: Final = 8000  # bytes of a line for syslog, whose servers cut or refuse longer ones
PRIORITIES: Final = {logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}  # syslog(3); all below is 7
STDERR: Final = 2
ECHOED: Final = logging.INFO + 1  # lines that agents and signals asked for: no time and no level, whatever is set

_LAST_FIELDS: Final = re.compile(r"(?: (?:slot|agent|host|pid|job)=\S+)+$")
_FIRST_FIELD: Final = re.compile(r"job=\d+(?=:)")

Format = Callable[[logging.LogRecord], bytes]


def set_up(settings: Scheduler, verbose: int, environment: Mapping[str, str]) -> None:
    """Log as the configuration says; each -v goes one level further. Crashes leave their traceback there too.

    Errors: ConfigError, a file that cannot be written.
    """
    close()
    logging.addLevelName(TRACE, "TRACE")
    set_level(further(settings.log_level, verbose))
    places = {settings.log_file or STANDARD_ERROR: "log_file"} | dict.fromkeys(settings.log_also, "log_also")
    for each in [_sink_of(place, key, settings.log_format, environment) for place, key in places.items()]:
        logging.getLogger().addHandler(each)
    faulthandler.enable(crash_fd())


def close() -> None:
    for each in _sinks():
        logging.getLogger().removeHandler(each)
        each.close()


def set_level(level: str) -> None:
    """Log from this level on. Errors: ConfigError, there is none of that name."""
    if level not in LEVELS:
        raise ConfigError(f"no such level of the log: {level}; there are {', '.join(LEVELS)}")
    LOG.setLevel(LEVELS[level])


def further(level: str, steps: int) -> str:
    """Return the level that logs so many levels more."""
    names = list(LEVELS)
    return names[max(0, names.index(level) - steps)]


def reopen() -> str:
    """Write to the file of that name from now on: the old one was renamed; return what is written to.

    Errors: ConfigError; the old file stays.
    """
    return "; ".join(each.reopen() for each in _sinks())


def log_line(level: str, text: str) -> None:
    LOG.log(LEVELS[level], "%s", text)


def echo(text: str) -> None:
    """Show one line as it is, whatever the level."""
    for each in _sinks():
        each.handle(_record(ECHOED, text))


def crash_fd() -> int:
    """Return the descriptor for tracebacks that C code writes: it stays the same when the log is opened anew."""
    return next((each.fd for each in _sinks()), STDERR)


def escaped(text: str) -> str:
    """Return text without control characters: an agent must not steer the terminal, nor forge a second record."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


# ---- outputs


class Sink(logging.Handler):
    """Formats records and writes them without waiting. The descriptor keeps its number when its file is opened anew."""

    def __init__(self, fd: int, path: str, format: Format) -> None:
        super().__init__()
        self.fd, self._path, self._format = fd, path, format
        self._lost = 0  # lines
        self._trouble = ""  # why
        mode = os.fstat(fd).st_mode
        self._most = select.PIPE_BUF if stat.S_ISFIFO(mode) else 65_536  # so much goes once anything does
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._rest = b""  # of a line that was begun

    def emit(self, record: logging.LogRecord) -> None:
        """Write or drop one record, after the number of those that were lost."""
        line = self._format(record)
        if self._lost:
            text = f"lines of the log that could not be written: {self._lost}: {self._trouble}"
            line = self._format(_record(logging.WARNING, text)) + line
        self._rest = self._push(self._rest)
        left = line if self._rest else self._push(line)
        if len(left) < len(line):
            self._rest, self._lost = left, 0
        else:
            self._lost += 1

    def reopen(self) -> str:
        """Write to the file that has our name now, and return which. Errors: ConfigError."""
        if not self._path:
            return "the log is standard error"
        new = _opened(self._path)
        os.dup2(new, self.fd, inheritable=False)
        os.close(new)
        return f"the log is {self._path}"

    def close(self) -> None:
        os.close(self.fd)
        super().close()

    def _push(self, data: bytes) -> bytes:
        """Write what can be written at once; return the rest."""
        try:
            while data and self._poll.poll(0):
                data = data[os.write(self.fd, data[: self._most]) :]
            self._trouble = "no process reads them"
        except OSError as error:
            self._trouble = error.strerror or "it failed"
        return data


class Journal(Sink):
    """Sends records with their fields to the journal; those that it refuses go to standard error."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "", prefixed)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            self._socket.sendto(journal_entry(record), JOURNAL)
        except OSError:  # it is full, or this is too long for one datagram
            super().emit(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


class Syslog(Sink):
    """Sends records to a server of syslog(3); how many it refused is said as soon as it takes one."""

    def __init__(self, place: str) -> None:
        super().__init__(os.open(os.devnull, os.O_WRONLY), "", prefixed)
        self._place = place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, each of its lines as a datagram."""
        try:
            if self._lost:
                text = f"lines of the log that could not be written: {self._lost}: {self._trouble}"
                self._send(_record(logging.WARNING, text))
            self._lost = 0
            self._send(record)
        except OSError as error:
            self._lost += 1
            self._trouble = error.strerror or "it failed"

    def reopen(self) -> str:
        """Return where it goes: each line is sent to the server that listens there then."""
        return f"the log is syslog at {self._place}"

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _send(self, record: logging.LogRecord) -> None:
        for line in _message(record).encode("utf-8", "backslashreplace").split(b"\n"):
            head = b"<%d>drover[%d]: " % (DAEMON | _priority(record), os.getpid())
            self._socket.sendto(head + line[:LONGEST], self._place)


def _sink_of(place: str, key: str, form: str, environment: Mapping[str, str]) -> Sink:
    """Return what writes records to a destination of the configuration. Errors: ConfigError, it cannot be opened."""
    if place.startswith("/"):
        return sink(_opened(place, key), place, form, environment)
    if place == STANDARD_ERROR:
        return sink(_stderr(), "", form, environment)
    return Syslog(place.partition(":")[2] or SYSLOG)


def sink(fd: int, path: str, form: str, environment: Mapping[str, str]) -> Sink:
    """Return what writes records in this form, to the journal if the descriptor is what systemd connected to it."""
    if form == "json":
        return Sink(fd, path, as_json)
    status = os.fstat(fd)
    if environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}":  # systemd.exec(5)
        return Journal(fd)
    return Sink(fd, path, plain)


def _sinks() -> list[Sink]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, Sink)]


def _stderr() -> int:
    """Return a descriptor of standard error of our own; a terminal is shared, and must not become non-blocking."""
    if sys.stderr is None:  # it was closed, and its number may be another file's by now
        return os.open(os.devnull, os.O_WRONLY)
    fd = sys.stderr.fileno()
    if stat.S_ISCHR(os.fstat(fd).st_mode):
        with suppress(OSError):  # another user's terminal
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(fd)


def _opened(path: str, key: str = "log_file") -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o640)
    except OSError as error:
        raise ConfigError(f"scheduler.{key}: {path} cannot be written: {error.strerror}") from error


def _record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("drover", level, "", 0, text, None, None)


# ---- formats


def plain(record: logging.LogRecord) -> bytes:
    """Return a line of text: time, level, sentence; a traceback goes on in the next lines."""
    if record.levelno == ECHOED:
        return _coded(_message(record))
    moment = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S")
    return _coded(f"{moment},{int(record.msecs):03d} {record.levelname} {_message(record)}")


def as_json(record: logging.LogRecord) -> bytes:
    """Return an object on one line; a line of an agent has no level."""
    text = _message(record)
    head = {"time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")}
    level = {} if record.levelno == ECHOED else {"level": record.levelname}
    return _coded(json.dumps(head | level | {"message": text} | fields(text)))


def prefixed(record: logging.LogRecord) -> bytes:
    """Return lines as the journal reads them from standard error: priority in front (sd-daemon(3)), the time is its."""
    return b"".join(b"<%d>%s" % (_priority(record), _coded(line)) for line in _message(record).split("\n"))


def journal_entry(record: logging.LogRecord) -> bytes:
    """Return a datagram of the journal's own protocol: a field a line; one with newlines has its length before it."""
    text = _message(record)
    entry = {"PRIORITY": str(_priority(record)), "SYSLOG_IDENTIFIER": "drover"}
    entry |= {f"DROVER_{name.upper()}": value for name, value in fields(text).items()}
    message = text.encode("utf-8", "backslashreplace")
    head = "".join(f"{name}={value}\n" for name, value in entry.items()).encode("utf-8", "backslashreplace")
    return head + b"MESSAGE\n" + len(message).to_bytes(8, "little") + message + b"\n"


def fields(text: str) -> dict[str, str]:
    found = _FIRST_FIELD.match(text) or _LAST_FIELDS.search(text)
    return dict(word.split("=", 1) for word in found[0].split()) if found else {}


def _message(record: logging.LogRecord) -> str:
    text = escaped(record.getMessage())
    if record.exc_info is None:
        return text
    trace = logging.Formatter().formatException(record.exc_info)
    return "\n".join([text, *map(escaped, trace.split("\n"))])


def _coded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _priority(record: logging.LogRecord) -> int:
    return next((number for level, number in PRIORITIES.items() if record.levelno >= level), 7)

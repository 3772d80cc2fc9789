"""Claims about an exchange of keys on a connection: no sender waits for it, and nothing else is sent amid it."""

from collections.abc import Iterator

import paramiko
import pytest
from paramiko import common

from scheduler.ssh.transport import LAST_OF_TRANSPORT, MAX_QUEUED
from tests.patience import PATIENCE_S
from tests.ssh.exchanges import Pair

OUTPUT = bytes(range(256)) * 1024  # more than makes the receiver of a channel send a window


@pytest.fixture
def pair() -> Iterator[Pair]:
    one = Pair()
    yield one
    one.close()


def received(channel: paramiko.Channel) -> bytes:
    """Return all that comes before the end."""
    channel.settimeout(PATIENCE_S)
    return b"".join(iter(lambda: channel.recv(65_536), b""))


def global_request() -> paramiko.Message:
    """Return a request that is to be answered, as sshd sends it with ClientAliveInterval."""
    message = paramiko.Message()
    message.add_byte(common.cMSG_GLOBAL_REQUEST)
    message.add_string("keepalive@openssh.com")
    message.add_boolean(True)
    return message


def test_packets_sent_during_an_exchange_follow_it_in_order(pair: Pair) -> None:
    pair.begin()
    for number in range(100):
        pair.ours.send(b"%d " % number)
    pair.ours.close()
    assert pair.end()
    assert received(pair.theirs) == b"".join(b"%d " % number for number in range(100))
    assert max(pair.received_amid()) <= LAST_OF_TRANSPORT


def test_channel_that_the_server_closes_amid_an_exchange_is_closed(pair: Pair) -> None:
    assert pair.exchange(pair.theirs.close)
    assert pair.ours.closed
    assert pair.client.open_session(timeout=PATIENCE_S).active


def test_output_read_during_an_exchange_opens_the_window_after_it(pair: Pair) -> None:
    pair.theirs.sendall(OUTPUT)
    pair.begin()
    pair.ours.settimeout(PATIENCE_S)
    unread = len(OUTPUT)
    while unread:
        unread -= len(pair.ours.recv(unread))
    assert pair.end()
    assert pair.client.open_session(timeout=PATIENCE_S).active
    assert common.MSG_CHANNEL_WINDOW_ADJUST in pair.server.packetizer.kinds
    assert common.MSG_CHANNEL_WINDOW_ADJUST not in pair.received_amid()


def test_request_of_the_server_amid_an_exchange_is_answered_after_it(pair: Pair) -> None:
    assert pair.exchange(lambda: pair.server._send_message(global_request()))
    assert pair.client.open_session(timeout=PATIENCE_S).active  # answered after what we were asked before
    assert common.MSG_REQUEST_FAILURE in pair.server.packetizer.kinds
    assert common.MSG_REQUEST_FAILURE not in pair.received_amid()


def test_exchange_does_not_wait_for_a_corked_socket(pair: Pair) -> None:
    pair.sock.cork()
    assert pair.exchange()


def test_connection_that_never_ends_an_exchange_keeps_a_bounded_number_of_packets(pair: Pair) -> None:
    pair.begin()
    for _ in range(MAX_QUEUED):
        pair.client.send_ignore(1)
    with pytest.raises(paramiko.SSHException, match="exchange of keys"):
        pair.client.send_ignore(1)
    pair.client.join(PATIENCE_S)
    assert not pair.client.is_active()

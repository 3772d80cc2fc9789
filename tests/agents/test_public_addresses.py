"""The agents that connect to addresses refuse those that are not public, and use no proxy."""

import json
import socket
from contextlib import closing

import pytest

from tests.agent_tools import Agent, bundled


def http(*options: str, **environment: str) -> Agent:
    return bundled("http", "--timeout", "60", *options, **environment)


def delivered(agent: Agent, target: str) -> list[bytes]:
    return agent.work(json.dumps({"to": target, "body": "{}", "headers": {}}).encode())


@pytest.mark.parametrize("address", ["168.63.129.16", "192.0.0.192", "[fec0::1]", "[3fff::1]", "[::ffff:a9fe:a9fe]"])
def test_both_agents_refuse_an_address_that_is_not_public(address: str) -> None:
    with http() as fetching, bundled("notify") as notifying:
        (fetched,), (sent,) = fetching.work(f"http://{address}/".encode()), delivered(notifying, f"http://{address}/")
    assert fetched == sent
    assert sent.startswith(b"FAIL refused: ")


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_proxy_of_the_environment_is_not_used(name: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as proxy:
        around = {name: f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        with http(**around) as fetching, bundled("notify", **around) as notifying:
            (fetched,), (sent,) = fetching.work(b"http://10.0.0.1/"), delivered(notifying, "http://10.0.0.1/")
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert fetched == sent == b"FAIL refused: 10.0.0.1 is no public address, and not in a network of --allow"

"""Claims about the addresses that drover-agent-http and drover-agent-notify connect to, however they are written."""

import ipaddress

import pytest

from tests.agent_tools import module

addresses = module("lib/drover_addresses.py")

# Each block of IANA's registries that is not globally reachable, and what they lack; whether the neighbours are public.
BLOCKS = """
0.0.0.0/8           -      public
0.0.0.0/32          -      no
10.0.0.0/8          public public
100.64.0.0/10       public public
127.0.0.0/8         public public
168.63.129.16/32    public public
169.254.0.0/16      public public
172.16.0.0/12       public public
192.0.0.0/24        public public
192.0.0.0/29        public no
192.0.0.8/32        no     no
192.0.0.9/32        no     no
192.0.0.10/32       no     no
192.0.0.170/32      no     no
192.0.0.171/32      no     no
192.0.2.0/24        public public
192.88.99.0/24      public public
192.88.99.2/32      no     no
192.168.0.0/16      public public
198.18.0.0/15       public public
198.51.100.0/24     public public
203.0.113.0/24      public public
224.0.0.0/4         public no
240.0.0.0/4         no     -
255.255.255.255/32  no     -
::/128              -      no
::1/128             no     no
::/96               -      no
64:ff9b:1::/48      no     no
100::/64            no     no
100:0:0:1::/64      no     no
::/3                -      public
2001::/23           public public
2001::/32           public no
2001:1::1/128       no     no
2001:1::2/128       no     no
2001:1::3/128       no     no
2001:2::/48         no     no
2001:3::/32         no     no
2001:4:112::/48     no     no
2001:10::/28        no     no
2001:20::/28        no     no
2001:30::/28        no     no
2001:db8::/32       public public
2002::/16           public public
3fff::/20           public public
4000::/2            public no
5f00::/16           no     no
8000::/1            no     -
fc00::/7            no     no
fe80::/10           no     no
fec0::/10           no     no
ff00::/8            no     -
"""
ROWS = [tuple(line.split()) for line in BLOCKS.split("\n") if line]


def is_permitted(address: str, *networks: str) -> bool:
    try:
        addresses.check(ipaddress.ip_address(address), [ipaddress.ip_network(each) for each in networks])
    except addresses.RefusedError:
        return False
    return True


def neighbour(block: str, way: str) -> str:
    network = ipaddress.ip_network(block)
    return str(network[0] - 1 if way == "before" else network[-1] + 1)


@pytest.mark.parametrize("block", [row[0] for row in ROWS])
def test_no_address_of_a_special_block_is_public(block: str) -> None:
    network = ipaddress.ip_network(block)
    inside = {network[0], network[network.num_addresses // 2], network[-1]}
    assert [str(each) for each in inside if is_permitted(str(each))] == []


@pytest.mark.parametrize("block", [row[0] for row in ROWS])
def test_special_block_is_permitted_by_name(block: str) -> None:
    assert is_permitted(str(ipaddress.ip_network(block)[-1]), block)


@pytest.mark.parametrize(
    ("address", "is_public"),
    [(neighbour(block, "before"), word == "public") for block, word, _ in ROWS if word != "-"]
    + [(neighbour(block, "after"), word == "public") for block, _, word in ROWS if word != "-"],
)
def test_address_beside_a_special_block_is_what_it_is_itself(address: str, is_public: bool) -> None:
    assert is_permitted(address) is is_public


# What the registries call globally reachable, but for the parts of 192.0.0.0/24 and 2001::/23, is public.
@pytest.mark.parametrize("block", ["192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "2620:4f:8000::/48"])
def test_special_block_that_is_globally_reachable_is_public(block: str) -> None:
    network = ipaddress.ip_network(block)
    assert is_permitted(str(network[0]))
    assert is_permitted(str(network[-1]))


@pytest.mark.parametrize("prefix", ["::ffff:", "64:ff9b::"])
@pytest.mark.parametrize("block", [row[0] for row in ROWS if "." in row[0]])
def test_ipv6_address_that_holds_an_ipv4_address_is_judged_by_that(prefix: str, block: str) -> None:
    network = ipaddress.ip_network(block)
    assert not is_permitted(f"{prefix}{network[0]}")
    assert not is_permitted(f"{prefix}{network[-1]}")
    assert is_permitted(f"{prefix}8.8.8.8")
    assert is_permitted(f"{prefix}{network[-1]}", block)


@pytest.mark.parametrize("address", ["2002:808:808::1", "::8.8.8.8", "2001:0:808:808::", "64:ff9b:1::808:808"])
def test_ipv6_address_of_an_old_tunnel_is_refused_whatever_it_holds(address: str) -> None:
    assert not is_permitted(address)


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0x7f.1",
        "localhost",
        "127.0.0.1.",
        "\uff11\uff12\uff17.0.0.1",
    ],
)
def test_other_spelling_of_an_address_is_judged_as_the_address(host: str) -> None:
    with pytest.raises((addresses.RefusedError, OSError)):  # the last one is no address to some systems
        addresses.addresses(host, 80, [])


def test_address_with_a_zone_is_judged_without_it() -> None:
    with pytest.raises(addresses.RefusedError, match=r"^::1 is no public address"):
        addresses.addresses("::1%1", 80, [])

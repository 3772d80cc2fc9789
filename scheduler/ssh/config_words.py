"""What is done about each word of ssh_config(5): it is followed, makes no difference here, or is refused.

A word that changes which machine is reached, as whom, or who is trusted there is followed or refused. What is not in a
table is refused too, if the configuration has set it: a later ssh(1) may have other words.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

Options = Mapping[str, tuple[str, ...]]  # a word in small letters -> its values, each as `ssh -G` prints it


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FOLLOWED: Final = _words(
    """
    addressfamily bindaddress certificatefile ciphers globalknownhostsfile hostkeyalgorithms hostkeyalias hostname
    identitiesonly identityagent identityfile kexalgorithms macs port proxyjump pubkeyacceptedalgorithms
    requiredrsasize user userknownhostsfile
    """
)
ALGORITHMS: Final = _words("ciphers hostkeyalgorithms kexalgorithms macs pubkeyacceptedalgorithms")
OLD_NAMES: Final = {"pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms"}

# Words for a person at a terminal, for forwarded ports, for other ways to log in or for times: ours are in drover(8).
HARMLESS: Final = _words(
    """
    addkeystoagent batchmode canonicaldomains canonicalizefallbacklocal canonicalizehostname canonicalizemaxdots
    canonicalizepermittedcnames casignaturealgorithms challengeresponseauthentication channeltimeout checkhostip
    clearallforwardings compression connectionattempts connecttimeout controlmaster controlpath controlpersist
    dynamicforward enableescapecommandline enablesshkeysign escapechar exitonforwardfailure fingerprinthash
    forkafterauthentication forwardagent forwardx11 forwardx11timeout forwardx11trusted gatewayports
    gssapiauthentication gssapiclientidentity gssapidelegatecredentials gssapikexalgorithms gssapikeyexchange
    gssapirenewalforcesrekey
    gssapiserveridentity gssapitrustdns hashknownhosts host hostbasedacceptedalgorithms hostbasedauthentication
    hostbasedkeytypes ignoreunknown ipqos kbdinteractiveauthentication kbdinteractivedevices knownhostscommand
    localcommand localforward loglevel logverbose nohostauthenticationforlocalhost numberofpasswordprompts
    obscurekeystroketiming passwordauthentication permitlocalcommand permitremoteopen pkcs11provider proxyusefdpass
    rekeylimit remoteforward requesttty securitykeyprovider sendenv serveralivecountmax serveraliveinterval setenv
    stdinnull streamlocalbindmask streamlocalbindunlink stricthostkeychecking syslogfacility tag tcpkeepalive tunnel
    tunneldevice updatehostkeys usekeychain verifyhostkeydns versionaddendum visualhostkey warnweakcrypto xauthlocation
    """
)

REFUSED: Final = {
    "BindInterface": "name its address, with BindAddress",
    "PreferredAuthentications": "it leaves out publickey, and only keys can be used here",
    "ProxyCommand": "no program is run to reach a host; use ProxyJump",
    "PubkeyAuthentication": "only keys can be used here; leave it on",
    "RefuseConnection": "the host is not to be reached",
    "RemoteCommand": "ssh(1) runs no other command then; give the host an entry without it",
    "RevokedHostKeys": "mark the keys by @revoked in known_hosts",
    "SessionType": "ssh(1) runs no command then; give the host an entry without it",
}
OF_COMMANDS: Final = frozenset({"remotecommand", "sessiontype"})  # which a host on the way runs none of

# what may make ssh(1) trust a host whose key is in no file
TRUSTING: Final = {
    "StrictHostKeyChecking": ("no", "off", "false", "accept-new"),
    "VerifyHostKeyDNS": ("yes", "true"),
    "NoHostAuthenticationForLocalhost": ("yes", "true"),
    "KnownHostsCommand": (),  # any but none
}
OTHER_METHODS: Final = {  # of logging in: the word, and its name in the protocol
    "GSSAPIAuthentication": "gssapi-with-mic",
    "HostbasedAuthentication": "hostbased",
}


class Refusal(NamedTuple):
    """A word that cannot be followed, and what to do about it."""

    word: str
    advice: str


class Configuration(Protocol):
    """A reader of ssh_config(5)."""

    usual: Options  # what is so if no file says anything

    def options(self, name: str, user: str, port: str, jumps: str, target: str) -> Options:
        """Return the options for a host; `target` is what is reached through it, if it is a jump host.

        Errors: WorldError.
        """

    def places(self, word: str) -> list[str]:
        """Return where the files have a word, each as FILE:LINE."""


def value(options: Options, word: str, default: str = "") -> str:
    """Return the value of a word that has one; "" for none."""
    text = options.get(word, (default,))[0]
    return "" if text.lower() == "none" else text


def is_on(options: Options, word: str) -> bool:
    return value(options, word) in ("yes", "true")


def refusals(options: Options, usual: Options, *, is_jump: bool) -> Iterator[Refusal]:
    """Yield the words that cannot be followed, of those that differ from what is usual."""
    advices = {word.lower(): Refusal(word, advice) for word, advice in REFUSED.items()}
    for word, texts in options.items():
        is_set = texts != usual.get(word) and (value(options, word) != "" or word == "sessiontype")
        is_known = word in FOLLOWED | HARMLESS or (is_jump and word in OF_COMMANDS)
        if is_set and not is_known and not _is_fitting(word, texts[0]):
            yield advices.get(word, Refusal(word, "it is no word that Drover knows; leave it out for this host"))


def _is_fitting(word: str, text: str) -> bool:
    """Return whether a word permits what we do, though it was set."""
    if word == "preferredauthentications":
        return "publickey" in text.split(",")
    return word == "pubkeyauthentication" and text not in ("no", "false")


def trusting(options: Options) -> list[str]:
    """Return the words by which ssh(1) may trust a key that is in no file."""
    return [
        word
        for word, texts in TRUSTING.items()
        if value(options, word.lower()) and (not texts or value(options, word.lower()) in texts)
    ]


def other_methods(options: Options) -> dict[str, str]:
    """Return the ways to log in that ssh(1) would try too: name in the protocol -> word."""
    return {method: word for word, method in OTHER_METHODS.items() if is_on(options, word.lower())}

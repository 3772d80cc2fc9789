"""Answers to the command line of the original scheduler: what each of its options has become.

It was called `fossology-scheduler [options] [Scheduler.conf]`, without a command. Reads words, and whether a file is
there; decides nothing about words that mean something here.
"""

from collections.abc import Container, Sequence
from os.path import basename, isfile
from shlex import quote
from typing import Final

ANSWERS: Final = {  # by the letter of the option, in the order in which they are printed
    "d": "-d (as a daemon): drover run, in the foreground; systemd or nohup puts it into the background",
    "i": "-i (initialise the database): drover init --roles",
    "k": "-k (end running schedulers): drover command shutdown, which finishes work in hand, or shutdown now",
    "l": "-l (open the log anew): drover command reopen-log",
    "L": "-L FILE (log into a file): log_file in the table [scheduler] of the configuration",
    "q": '-q (tell no states): log_level = "warning" in the table [scheduler] of the configuration',
    "I": "-I (jobs on standard input): drover run -I",
    "H": "-H (ignore hosts): drover run -H",
    "R": "-R (reset the queue): drover run -R; rows of dead schedulers always go back to the queue",
    "t": "-t (test agents, then end): drover run -t",
    "T": "-T (test agents first): drover run -T",
    "v": "-v (say more): drover run -v, and -vv",
}
CONFIGURATION: Final = """\
{0} (the configuration): drover import-scheduler-conf {0} -o drover.toml, then drover -c drover.toml run"""


def hint(path: str | None) -> str:
    """Return what to do with a file given as our configuration that has the name of theirs; empty for any other."""
    return CONFIGURATION.format(quote(path)) if path and basename(path) == "Scheduler.conf" else ""


def answer(words: Sequence[str], commands: Container[str]) -> str:
    """Return what to do instead of such a command line, a line for each option; empty if it is none."""
    letters, path = _read(words, commands)
    lines = [text for letter, text in ANSWERS.items() if letter in letters]
    if isfile(path) or hint(path):
        lines.append(CONFIGURATION.format(quote(path)))
    if not lines:
        return ""
    title = "this is how the original scheduler was called; MOVING FROM THE ORIGINAL SCHEDULER in drover(8) says more"
    return "\n  ".join((title, *lines))


def _read(words: Sequence[str], commands: Container[str]) -> tuple[set[str], str]:
    """Return the letters of old options, and the word that stands where a command should be; neither if one does."""
    letters: set[str] = set()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in commands or word.startswith("--"):
            return set(), ""
        if not word.startswith("-"):
            return letters, word
        if word == "-c" or (word == "-d" and _is_database(rest, commands)):
            rest[:1] = []
            continue
        cluster, has_log, log = word[1:].partition("L")
        if not set(cluster) <= ANSWERS.keys():
            return set(), ""
        letters.update(cluster, has_log)
        if has_log and not log:
            rest[:1] = []
    return letters, ""


def _is_database(rest: Sequence[str], commands: Container[str]) -> bool:
    """Return whether the word behind a -d is our URL; the name of a file is, if a command follows."""
    if not rest or rest[0].startswith("-"):
        return False
    return not isfile(rest[0]) or any(word in commands for word in rest)

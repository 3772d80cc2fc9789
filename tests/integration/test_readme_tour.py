"""The tour of README, typed into a shell by somebody with an empty HOME: every command of it succeeds."""

from pathlib import Path

import pytest

from tests.needs import need
from tests.walk_pages import Shell, newcomer, typed

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "README.md").read_text().partition("## A first agent")[2].partition("\n## ")[0]
COMMANDS = [command for block in TOUR.split("```sh\n")[1:] for command in typed(block.partition("```")[0])]
# What must be in the answers of the commands that are known by these words.
TOLD = {
    "drover run -I": "1 count done all data processed",
    "drover submit --wait=60 count": "2 count done all data processed",
    "drover wait 3": "3 count done all data processed",
    "select jq_pk": "| done",
    "drover why 4": "nosuch",
    "drover command shutdown": "shutting down",
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_of_the_tour_succeeds_and_says_what_it_should(tmp_path: Path, home: Path) -> None:
    need("postgres")
    need("psql")
    with Shell(tmp_path, ROOT, newcomer(home)) as shell:
        answers = {command: shell.run(command, is_merged=True) for command in COMMANDS}
    assert [command for command, (status, _) in answers.items() if status] == [], answers
    for words, told in TOLD.items():
        assert [told in said for command, (_, said) in answers.items() if words in command] == [True], (words, answers)


def test_the_tour_has_the_commands_whose_answers_are_known() -> None:
    assert all(any(words in command for command in COMMANDS) for words in TOLD)

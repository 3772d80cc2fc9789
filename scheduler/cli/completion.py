"""`drover completion bash`: a script that completes commands and options, made from the table of commands."""

from argparse import Namespace

from scheduler.cli.options import COMMANDS, command_parser
from scheduler.model.config import Config

BASH = """\
_drover() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command= before= each
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [[ $each == -* || $before == -[cd] ]] || {{ command=$each; break; }}
        before=$each
    done
    case $command in
{cases}
        *) COMPREPLY=($(compgen -W "{commands}" -- "$word")) ;;
    esac
}}
complete -o default -F _drover drover
"""
CASE = '        {name}) COMPREPLY=($(compgen -W "{words}" -- "$word")) ;;'


def run(_options: Namespace, _config: Config) -> int:
    """Print the script."""
    cases = "\n".join(CASE.format(name=name, words=" ".join(words(name))) for name in COMMANDS)
    print(BASH.format(cases=cases, commands=" ".join(COMMANDS)), end="")
    return 0


def words(command: str) -> list[str]:
    """What may follow a command: its options, and the words of which one is to be chosen."""
    actions = command_parser(command)._actions
    chosen = [choice for action in actions if not action.option_strings for choice in action.choices or ()]
    return [*chosen, *(option for action in actions for option in action.option_strings)]

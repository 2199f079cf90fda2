"""What every refusal of the command line looks like, the end of every long command, and what a command line names."""

import typer

from scaleconv import cli


def parse(words):
    """The command and its options that the words after `scaleconv` name; raises what the command line would refuse."""
    command, names = typer.main.get_command(cli.app), []
    while hasattr(command, "commands") and words:
        name, *words = words
        if name not in command.commands:
            raise ValueError(f"there is no command {name}")
        command = command.commands[name]
        names.append(name)
    return tuple(names), command.make_context(names[-1], list(words)).params if words else {}


def refused(result, *words):
    code, output, errors = result
    assert code == 2
    assert output == ""
    assert errors.count("\n") == 1, errors
    assert errors.startswith("scaleconv: ")
    for word in words:
        assert word in errors


def says_next(output, command):
    """The last line says what to type now."""
    assert output.splitlines()[-1].startswith(f"Next: {command}"), output

"""What every refusal of the command line looks like, and the end of every long command."""


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

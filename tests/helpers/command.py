"""What every refusal of the command line looks like."""


def refused(result, *words):
    code, output, errors = result
    assert code == 2
    assert output == ""
    assert errors.count("\n") == 1, errors
    assert errors.startswith("scaleconv: ")
    for word in words:
        assert word in errors

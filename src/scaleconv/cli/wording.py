"""What commands say about commands."""

import re
import shutil
import sys
from pathlib import Path

import typer

from .._start import leads


def as_called(text: str) -> str:
    """The commands in a text by the way that this one was called, where `scaleconv` alone would not be found."""
    called = Path(sys.argv[0])
    if called.name != "scaleconv" or shutil.which("scaleconv"):
        return text
    return re.sub(r"\bscaleconv (?=[A-Za-z-])", lambda _: f"{called} ", text)


def say_next(text: str) -> None:
    """The last line of a long command: what to type now."""
    if leads():
        typer.echo(f"Next: {as_called(text)}")

"""The table of networks and steps, and its place in docs/networks.md."""

import re
from importlib.metadata import version

from zoo.networks import ENTRIES, MODULES

BEGIN, END = "<!-- zoo -->", "<!-- /zoo -->"


def render(found, steps):
    """Markdown: versions, a row for each network, and the reasons as numbered notes.

    Args:
        found: {network: {step: outcome}}.
        steps: names of the columns.
    """
    notes = {}
    rows = [[name, *(cell(outcomes[step], notes) for step in steps)] for name, outcomes in found.items()]
    libraries = dict.fromkeys(ENTRIES[name].library for name in found)
    packages = ["torch", *(MODULES.get(library, library) for library in libraries)]
    versions = ", ".join(f"{package} {version(package).split('+')[0]}" for package in packages)
    lines = [f"{len(found)} networks, {len(steps)} steps. {versions}.", ""]
    lines += [f"| {' | '.join(row)} |" for row in (["network", *steps], ["---"] * (len(steps) + 1), *rows)]
    if notes:
        lines += ["", *(f"{number}. {note}" for note, number in notes.items())]
    return "\n".join(lines)


def cell(outcome, notes):
    """The mark, with the number of its note."""
    if not outcome.note:
        return outcome.mark
    number = notes.setdefault(tidy(outcome.note), len(notes) + 1)
    return f"{outcome.mark} <sup>{number}</sup>"


def tidy(note):
    """One line that Markdown shows as it is."""
    note = " ".join(note.split())
    note = note if len(note) <= 320 else f"{note[:320]}…"
    return re.sub(r"([<>|*_\[\]])", r"\\\1", note) if "`" not in note else note.replace("|", "\\|")


def write(text, page):
    """Put the table between the two marks of a page."""
    before, rest = page.read_text(encoding="utf-8").split(f"{BEGIN}\n")
    _, after = rest.split(f"\n{END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def rows_of(page):
    """The table that a page has: {network: [marks]}."""
    table = page.read_text(encoding="utf-8").split(f"{BEGIN}\n")[1].split(f"\n{END}")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    return {name: [mark.split(" <sup>")[0] for mark in marks] for name, *marks in rows}

"""The table of networks and steps, and its place in docs/networks-tried.md."""

import re
from importlib.metadata import version

from zoo.networks import ENTRIES, MODULES
from zoo.steps import PASSED, Outcome

BEGIN, END = "<!-- zoo -->", "<!-- /zoo -->"
COMPLETE = "These steps work with every network"
PASSING = "With these networks every step works:"
REASONS = {  # of messages that say more than a reader of the table needs
    r".*`module` must take levels of other sizes than the image.*": "with `size='input'`: it takes images of one size",
    r"`(x|images)` must be (images )?\(N, C, H, W\).*|.* must hold an SIConv2d: it holds SIConv[13]d.*": "for images",
    r"(`stride` and `offset` must be given), as they cannot be found from sizes: .*": r"\1",
    r"AttributeError: Can't pickle local object.*|RuntimeError: Serialization of parametrized.*": "cannot be pickled",
    r"ConversionError: Failed to decompose the FX graph.*": "torch cannot take its graph apart",
}


def render(found, steps):
    """Markdown: versions, the steps and the networks with which all works, a table of the others, and numbered reasons.

    Args:
        found: {network: {step: outcome}}.
        steps: names of the columns.
    """
    notes, rows, passing = {}, [], {}
    complete = [step for step in steps if all(outcomes[step] == Outcome(PASSED) for outcomes in found.values())]
    shown = [step for step in steps if step not in complete]
    for name, outcomes in found.items():
        if all(outcomes[step] == Outcome(PASSED) for step in shown):
            library, network = name.split("/")
            passing.setdefault(library, []).append(f"`{network}`")
        else:
            rows.append([name, *(cell(outcomes[step], notes) for step in shown)])
    libraries = dict.fromkeys(ENTRIES[name].library for name in found)
    packages = ["torch", *(MODULES.get(library, library) for library in libraries)]
    versions = ", ".join(f"{package} {version(package).split('+')[0]}" for package in packages)
    lines = [f"{len(found)} networks, {len(steps)} steps. {versions}.", ""]
    if complete:
        lines += [f"{COMPLETE}: {', '.join(f'`{step}`' for step in complete)}.", ""]
    if passing:
        lines += [PASSING, "", *(f"- {library}: {', '.join(networks)}" for library, networks in passing.items()), ""]
    lines += [f"| {' | '.join(row)} |" for row in (["network", *shown], ["---"] * (len(shown) + 1), *rows)]
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
    for pattern, reason in REASONS.items():
        note = re.sub(f"^(?:{pattern})$", reason, note)
    note = note if len(note) <= 320 else f"{note[:320]}…"
    return re.sub(r"([<>|*_\[\]])", r"\\\1", note) if "`" not in note else note.replace("|", "\\|")


def write(text, page):
    """Put the table between the two marks of a page."""
    before, rest = page.read_text(encoding="utf-8").split(f"{BEGIN}\n")
    _, after = rest.split(f"\n{END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def rows_of(page):
    """What a page has: {network: {step: mark}}."""
    lines = page.read_text(encoding="utf-8").split(f"{BEGIN}\n")[1].split(f"\n{END}")[0].splitlines()
    (_, *shown), _, *rows = (line.strip("| ").split(" | ") for line in lines if line.startswith("| "))
    named = "".join(line for line in lines if line.startswith(COMPLETE))
    complete = dict.fromkeys(re.findall(r"`([^`]+)`", named), PASSED)
    found = {
        name: complete | dict(zip(shown, (mark.split(" <sup>")[0] for mark in marks), strict=True))
        for name, *marks in rows
    }
    for library, networks in re.findall(r"^- (\S+): (.+)$", "\n".join(lines), re.MULTILINE):
        for network in re.findall(r"`([^`]+)`", networks):
            found[f"{library}/{network}"] = complete | dict.fromkeys(shown, PASSED)
    return found

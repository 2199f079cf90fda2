"""Progress bars on the terminal, for long loops: how far they are, the rate and the time left.

They are written to standard error and only where that is a terminal, so that a pipe or a log holds results alone.
"""

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Thing = TypeVar("Thing")


def make_progress(console: Console, *, transient: bool = False) -> Progress:
    """Bars with a field `figures` and the time left; nothing without a terminal. Transient ones are gone at the end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=transient,
        disable=not console.is_terminal or console.is_dumb_terminal,
    )


def watched(things: Iterable[Thing], what: str, total: int, console: Console | None = None) -> Iterator[Thing]:
    """The same things one by one, under a bar that counts them.

    Args:
        things: each may take its time.
        what: is done, such as `checking images`.
        total: how many there are.
        console: where to show it; None for standard error, of the first of the processes that torchrun has started.

    Example:
        >>> sum(watched(range(4), "adding", total=4))
        6
    """
    bar = make_progress(console or Console(stderr=True), transient=True)
    if bar.disable or os.environ.get("RANK", "0") != "0":
        yield from things
        return
    task = bar.add_task(what, total=total, figures="")
    with bar:
        for thing in things:
            yield thing
            bar.advance(task)
            rate = bar.tasks[0].speed or 0
            bar.update(task, figures=f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")

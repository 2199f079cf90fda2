"""The paper's claims beside what the records say: the same or not.

A check is one function, registered under the name that `checks` of an item's file gives. The paper's numbers come from
that file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .config import Item
from .panels import Line, Panel, make_panels, signed_percent
from .records import Record
from .tables import make_rows

OURS, BASE = "si_convnet", "convnet"
PAIRS = ((OURS, BASE), ("si_rbm", "rbm"))  # of table 1: with scale-invariant filters, and without
ROUNDING = 1e-9  # a change that equals the paper's is as large as the paper's


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, ours beside it, and whether they agree; None where that is not all measured yet."""

    paper: str
    ours: str
    holds: bool | None


Check = Callable[[Item, Sequence[Record]], list[Claim]]
CHECKS: dict[str, Check] = {}


def register(name: str) -> Callable[[Check], Check]:
    """Register a function as the check of this name."""

    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


def check_claims(item: Item, records: Sequence[Record]) -> list[Claim]:
    """What the records say to the paper's claims about an item; empty if they cannot say anything.

    Raises:
        ValueError: the item names a check that does not exist.
    """
    if unknown := [name for name in item.checks if name not in CHECKS]:
        raise ValueError(f"`checks` of {item.item} must be among {', '.join(CHECKS)}, got {unknown[0]!r}")
    return [claim for name in item.checks for claim in CHECKS[name](item, records)]


@register("table")
def _table(item: Item, records: Sequence[Record]) -> list[Claim]:
    """Each method within the paper's spread or below, and the error against the method without scales."""
    claims = []
    for row in make_rows(records, item.paper, BASE):
        if row.ours is None or not row.paper:
            continue
        mean, *std = row.paper
        spread = std[0] if std else row.ours.std or 0.0
        claims.append(
            Claim(
                f"{row.title}: {' ± '.join(f'{value:.2f}' for value in row.paper)} %",
                f"{row.ours.mean:.2f} % (n = {row.ours.n})",
                row.ours.mean <= mean + spread,
            )
        )
    for name, other in PAIRS:
        found = {row.model: row for row in make_rows(records, item.paper, other)}
        ours, base = found.get(name), found.get(other)
        if ours and base and ours.change is not None and ours.paper and base.paper:
            paper = 100 * (ours.paper[0] / base.paper[0] - 1)
            text = f"error of {ours.title} vs {base.title}: {signed_percent(paper)}"
            claims.append(Claim(text, signed_percent(ours.change), ours.change <= paper + ROUNDING))
    return claims


@register("below")
def _below(item: Item, records: Sequence[Record]) -> list[Claim]:
    """SI-ConvNet has the lower error at every point."""
    panel, lines = _compared(item, records)
    if not lines:
        return []
    rows = _both(panel, lines)
    below = sum(ours < base for _, ours, base, _ in rows)
    clearly = sum(ours + spread < base for _, ours, base, spread in rows)
    missing = len(panel.xs) - len(rows)
    text = f"below at {below} of {len(rows)}, at {clearly} with bars (± std) that do not meet"
    text += f"; {missing} not measured yet" if missing else ""
    holds = None if missing and below == len(rows) else below == len(rows)
    return [Claim("SI-ConvNet below ConvNet at every point", text, holds)]


@register("gap_shrinks")
def _gap_shrinks(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The gap between the two networks is smaller at the last point than at the first."""
    panel, lines = _compared(item, records)
    if not (lines and len(rows := _both(panel, lines)) == len(panel.xs) > 1):
        return []
    first, last = rows[0][2] - rows[0][1], rows[-1][2] - rows[-1][1]
    text = f"from {first:.2f} to {last:.2f} points".replace("-", "−")
    return [Claim(f"the gap shrinks with the {panel.x}", text, abs(last) < abs(first))]


@register("reduction")
def _reduction(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The relative reductions that the paper names: `reduction`, and `reduction at X`."""
    panel, lines = _compared(item, records)
    if not lines:
        return []
    claims = []
    for name, (least, *_) in item.paper.items():
        where = name.partition(" at ")[2]
        found = panel.change(lines[0], float(where)) if where else panel.mean_change(lines[0])
        if found is not None:
            paper = f"error vs ConvNet {f'at scale {where}' if where else 'on average'}: {signed_percent(-least, 0)}"
            claims.append(Claim(paper, signed_percent(found), found <= -least + ROUNDING))
    return claims


@register("grows_slower")
def _grows_slower(item: Item, records: Sequence[Record]) -> list[Claim]:
    """From the first point to the last the error of SI-ConvNet grows by less."""
    panel, lines = _compared(item, records)
    if not (lines and len(rows := _both(panel, lines)) == len(panel.xs) > 1):
        return []
    width = rows[-1][0] - rows[0][0]
    ours, base = ((rows[-1][column] - rows[0][column]) / width for column in (1, 2))
    text = f"{ours:.2f} against {base:.2f} points per unit of half-width"
    return [Claim("the error of SI-ConvNet grows more slowly with the range", text, ours < base)]


@register("invariant")
def _invariant(item: Item, records: Sequence[Record]) -> list[Claim]:
    """SI-ConvNet has the higher score at every layer."""
    panel, lines = _compared(item, records)
    rows = _both(panel, lines) if lines else []
    if not rows:
        return []
    texts = [f"{panel.label(x)} {ours:.1f} against {base:.1f}" for x, ours, base, _ in rows]
    above = all(ours > base for _, ours, base, _ in rows)
    return [Claim("SI-ConvNet more invariant at every layer", "; ".join(texts), above)]


@register("operations")
def _operations(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The paper's formula at the paper's scales, and the operations that are counted there."""
    claims = []
    for panel in make_panels(item, records):
        at = {line.model: line.at(2.0) for line in panel.lines}
        formula, chosen, direct = (at.get(name) for name in ("formula", "si_conv2d", "direct"))
        if formula and chosen and direct and panel.x.startswith("largest"):
            text = f"formula ×{formula.mean:.1f}; counted ×{direct.mean:.1f} direct, ×{chosen.mean:.1f} as we do it"
            least = item.paper["factor"][0]
            claims.append(Claim(f"×{least:.0f} operations, {panel.title}", text, chosen.mean <= least))
    return claims


Networks = tuple[Line, Line]  # SI-ConvNet and ConvNet


def _compared(item: Item, records: Sequence[Record]) -> tuple[Panel, Networks | None]:
    """The first panel, and the two networks in it if both are there."""
    panel = next(iter(make_panels(item, records)), Panel("", "", "", []))
    found = {line.model: line for line in panel.lines if not line.control}
    return panel, ((found[OURS], found[BASE]) if OURS in found and BASE in found else None)


def _both(panel: Panel, lines: Networks) -> list[tuple[float, float, float, float]]:
    """x, the two means, and the sum of their deviations, where both were measured."""
    rows = []
    for x in panel.xs:
        ours, base = lines[0].at(x), lines[1].at(x)
        if ours and base:
            rows.append((x, ours.mean, base.mean, (ours.std or 0.0) + (base.std or 0.0)))
    return rows
